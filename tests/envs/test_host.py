"""Gymnasium's vector environments as time steps: one story in all modes of reset, told by single environments too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import InputError, envs
from rollax.envs import HostVector
from rollax.envs.host import waiting

MODES = [mode.value for mode in AutoresetMode]


class Line(gymnasium.Env[Any, Any]):
    """Walks by 0, 1 or 2; ends at or beyond 6, and is cut off after 4 steps: both may happen at once."""

    observation_space = gym_spaces.Dict({"at": gym_spaces.Box(0.0, 9.0, (2,)), "side": gym_spaces.MultiBinary(1)})
    action_space = gym_spaces.Discrete(3)

    def __init__(self, start: float = 0.0) -> None:
        self.start, self.episode = start, -1

    def _observation(self) -> dict[str, np.ndarray]:
        at = np.array([self.position, self.episode], np.float32)
        return {"at": at, "side": np.array([self.position >= 3], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.time, self.episode = self.start, 0, self.episode + 1
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position, self.time = self.position + action, self.time + 1
        return self._observation(), float(action) - 0.5, self.position >= 6, self.time >= 4, {}


MAKERS: dict[str, list[Callable[[], Any]]] = {
    "line": [functools.partial(Line, start) for start in (0.0, 1.0, 5.0)],
    "cartpole": [functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)] * 3,
}
SCRIPT = np.random.default_rng(0).integers(0, 2, (3, 200)) + np.array([[0], [1], [0]])
"""What each environment is told to do at each of its own steps; the middle one hurries."""


def script(name: str) -> np.ndarray:
    return SCRIPT if name == "line" else SCRIPT % 2


def by_hand(name: str, env: int, num_steps: int) -> list[dict[str, Any]]:
    """Returns the transitions of one environment, stepped alone."""
    single, rows, total = MAKERS[name][env](), [], 0.0
    before, _ = single.reset(seed=7 + env)
    is_first = True
    for action in script(name)[env, :num_steps]:
        after, reward, terminated, truncated, _ = single.step(action)
        total = reward + (0.0 if is_first else total)
        flags = {"terminated": terminated, "truncated": truncated, "is_first": is_first}
        row = {"before": before, "action": action, "reward": reward, "final": after, "return": total, **flags}
        rows.append(row)
        before, is_first = after, terminated or truncated
        if is_first:
            before, _ = single.reset()
    return rows


def by_vector(name: str, vector: Any, num_steps: int) -> list[list[dict[str, Any]]]:
    """Returns the transitions of each environment of a vector environment, waiting steps left out."""
    host = HostVector(vector)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(3)]
    before = host.reset(seed=7)
    assert not waiting(before).any()
    while min(map(len, rows)) < num_steps:
        action = np.array([script(name)[env, len(rows[env])] for env in range(3)])
        after = host.step(action)
        for env in np.flatnonzero(~waiting(before)):

            def at(tree: Any, env: int = env) -> Any:
                return {key: leaf[env] for key, leaf in tree.items()} if isinstance(tree, dict) else tree[env]

            rows[env].append(
                {
                    "before": at(before.observation),
                    "action": action[env],
                    "reward": after.reward[env],
                    "final": at(after.final_observation),
                    "return": after.metrics.episode_return[env] if after.ended[env] else None,
                    "terminated": after.terminated[env],
                    "truncated": after.truncated[env],
                    "is_first": before.is_first[env],
                }
            )
            assert after.metrics.valid[env] == after.ended[env]
        before = after
    return [of_one[:num_steps] for of_one in rows]


def assert_same(told: list[dict[str, Any]], true: list[dict[str, Any]]) -> None:
    for one, other in zip(told, true, strict=True):
        for part, value in other.items():
            if part == "return" and one[part] is None:
                continue
            np.testing.assert_equal(one[part], value if isinstance(value, dict) else np.asarray(value, np.float32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MAKERS)
def test_transitions_are_those_of_single_environments(name: str, mode: str) -> None:
    vector = SyncVectorEnv(MAKERS[name], copy=False, autoreset_mode=mode)
    told = by_vector(name, vector, 60)
    for env in range(3):
        assert_same(told[env], by_hand(name, env, 60))
    flags = {(row["terminated"], row["truncated"]) for rows in told for row in rows}
    both = {(True, True)} if name == "line" else set()
    assert flags >= {(False, False), (True, False), (False, True), *both}


def test_a_vector_environment_that_ignores_masks_tells_no_reset_as_a_step() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=4, max_episode_steps=5)
    assert not isinstance(vector, SyncVectorEnv)  # its own implementation, which knows no reset_mask
    host = HostVector(vector)
    timestep, seen = host.reset(seed=0), []
    for _ in range(12):
        timestep = host.step(np.zeros(4, np.int64))
        seen.append((waiting(timestep)[0], timestep.is_first[0], timestep.ended[0], timestep.reward[0]))
    step, end, reset = (False, False, False, 1.0), (True, False, True, 1.0), (False, True, True, 1.0)
    assert seen == [*[step] * 4, end, reset] * 2
    assert np.abs(timestep.observation).max() <= 0.05
    assert timestep.final_observation[0, 1] < -0.5  # five pushes to the left


def test_the_end_of_an_episode_stands_beside_the_start_of_the_next() -> None:
    for mode in ("SameStep", "Disabled"):
        host = HostVector(SyncVectorEnv(MAKERS["line"], autoreset_mode=mode))
        host.reset()
        timestep = host.step(np.array([0, 0, 1]))
        np.testing.assert_array_equal(timestep.observation["at"], [[0, 0], [1, 0], [5, 1]])
        np.testing.assert_array_equal(timestep.final_observation["at"], [[0, 0], [1, 0], [6, 0]])
        np.testing.assert_array_equal(timestep.is_first, [False, False, True])
        np.testing.assert_array_equal(timestep.metrics.episode_length, [0, 0, 1])


def test_spaces_and_dtypes() -> None:
    class Many(gymnasium.Env[Any, Any]):
        observation_space = gym_spaces.Tuple(
            (
                gym_spaces.Box(0.0, 1.0, (2, 3), np.float64),
                gym_spaces.Discrete(4),
                gym_spaces.Box(0, 255, (2,), np.uint8),
            )
        )
        action_space = gym_spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

    host = HostVector(SyncVectorEnv([Many, Many]))
    wanted = (envs.Box(0, 1, (2, 3)), envs.Discrete(4), envs.Box(0, 255, (2,), np.uint8))
    assert envs.spaces.alike(host.observation_space(), wanted)
    assert host.action_space() == envs.MultiDiscrete((2, 3))
    leaves = host.reset(seed=0).observation
    assert [(leaf.shape, leaf.dtype.name) for leaf in leaves] == [
        ((2, 2, 3), "float32"),
        ((2,), "int32"),
        ((2, 2), "uint8"),
    ]


def make(**parts: Any) -> Any:
    space = {"observation_space": Line.observation_space, "action_space": Line.action_space, **parts}
    return SyncVectorEnv([type("Other", (Line,), space)])


def without_mode() -> Any:
    vector = SyncVectorEnv(MAKERS["line"])
    vector.metadata = {}
    return vector


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: HostVector(gymnasium.make("CartPole-v1")), "no vector environment: it lacks num_envs"),
        (lambda: HostVector(without_mode()), "does not say when it resets"),
        (lambda: HostVector(without_mode(), "Later"), "autoreset_mode = 'Later' is unknown"),
        (lambda: HostVector(make(action_space=gym_spaces.Discrete(2, start=1))), "does not start at 0"),
        (lambda: HostVector(make(action_space=gym_spaces.Dict(a=gym_spaces.Discrete(2)))), "has parts"),
        (lambda: HostVector(make(observation_space=gym_spaces.Text(3))), "has no counterpart"),
    ],
)
def test_what_does_not_fit_is_a_sentence(build: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build()


def test_a_same_step_reset_without_the_last_observation_is_a_sentence() -> None:
    host = HostVector(SyncVectorEnv(MAKERS["line"]), "SameStep")  # it is NextStep in truth
    host.reset()
    with pytest.raises(InputError, match=r"gave no info\['final_obs'\]"):
        host.step(np.array([0, 0, 2]))


@pytest.mark.suite
def test_environments_of_envpool() -> None:
    envpool = pytest.importorskip("envpool")
    host = HostVector(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=0))
    with pytest.warns(UserWarning, match="EnvPool seeds are fixed"):
        before = host.reset(seed=1)
    ends, starts = np.zeros(4, np.int32), np.zeros(4, np.int32)
    for _ in range(60):
        after = host.step(np.ones(4))
        taken = ~waiting(before)
        assert np.all(after.reward[taken] == 1.0)
        assert np.all(np.abs(before.observation[before.is_first]) <= 0.05)
        fallen = after.final_observation[taken & after.terminated]
        assert np.all(np.abs(fallen[:, 2]) > 0.2)  # radians, beyond 12 degrees
        ends, starts, before = ends + (taken & after.ended), starts + after.is_first, after
    assert np.all(ends >= 4)
    np.testing.assert_array_equal(starts, ends - waiting(before))
