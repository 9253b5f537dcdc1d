"""Transforms by hand on a small counting environment, inside the automatic reset, jitted and not."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, envs
from rollax.envs import spaces, transforms


@dataclasses.dataclass(frozen=True)
class Line:
    """Walks on a line by the action; ends by the rules at 5; pays the position."""

    continuous: bool = False

    @property
    def default_params(self) -> tuple[()]:
        return ()

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(-10.0, 10.0, (2,))

    def action_space(self, params: Any = None) -> spaces.Space:
        return spaces.Box(-1.0, 3.0) if self.continuous else spaces.Discrete(3)

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        return jnp.zeros(()), envs.timestep(jnp.zeros(2))

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        position = state + action
        return position, envs.timestep(jnp.stack([position, position**2]), position, position >= 5)


def walk(env: Any, actions: list[Any], seed: int = 0, jitted: bool = True) -> list[envs.TimeStep]:
    reset, step = (jax.jit(env.reset), jax.jit(env.step)) if jitted else (env.reset, env.step)
    state, timestep = reset(jax.random.key(seed), ())
    steps = [timestep]
    for index, action in enumerate(actions):
        state, timestep = step(jax.random.fold_in(jax.random.key(seed), index), state, jnp.asarray(action), ())
        steps.append(timestep)
    space = env.observation_space()
    for timestep in steps:
        assert jax.tree.all(jax.tree.map(lambda leaf, part: part.shape == leaf.shape, space, timestep.observation))
    return steps


@pytest.mark.parametrize("jitted", [False, True])
def test_frame_stack(jitted: bool) -> None:
    steps = walk(envs.AutoReset(transforms.FrameStack(Line(), 3)), [1, 2, 2, 1], jitted=jitted)
    np.testing.assert_array_equal(steps[0].observation, np.zeros(6))
    np.testing.assert_array_equal(steps[1].observation, [0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(steps[2].observation, [0, 0, 1, 1, 3, 9])
    np.testing.assert_array_equal(steps[3].final_observation, [1, 1, 3, 9, 5, 25])
    np.testing.assert_array_equal(steps[3].observation, np.zeros(6))  # no frame crosses a reset
    np.testing.assert_array_equal(steps[4].observation, [0, 0, 0, 0, 1, 1])


def test_time_limit_truncates_and_never_terminates() -> None:
    steps = walk(envs.AutoReset(transforms.TimeLimit(Line(), 2)), [0, 0, 0, 0])
    assert [(bool(s.terminated), bool(s.truncated)) for s in steps[1:]] == [(False, False), (False, True)] * 2
    both = walk(transforms.TimeLimit(Line(), 3), [2, 2, 2])[-1]
    assert bool(both.terminated)
    assert bool(both.truncated)


def test_time_feature() -> None:
    steps = walk(envs.AutoReset(transforms.TimeFeature(Line(), 4)), [0, 1, 2, 2])
    assert [float(s.observation[-1]) for s in steps] == [0.0, 0.25, 0.5, 0.75, 0.0]
    assert float(steps[-1].final_observation[-1]) == 1.0


def test_action_repeat_sums_rewards_and_stops_at_the_end() -> None:
    steps = walk(envs.AutoReset(transforms.ActionRepeat(Line(), 3)), [1, 1])
    assert float(steps[1].reward) == 1 + 2 + 3
    np.testing.assert_array_equal(steps[1].observation, [3, 9])
    assert float(steps[2].reward) == 4 + 5
    assert bool(steps[2].terminated)
    np.testing.assert_array_equal(steps[2].final_observation, [5, 25])


def test_sticky_action() -> None:
    always = walk(transforms.StickyAction(Line(), 1.0), [1, 2, 0])
    assert [float(s.observation[0]) for s in always] == [0, 1, 2, 3]
    never = walk(transforms.StickyAction(Line(), 0.0), [1, 2, 0])
    assert [float(s.observation[0]) for s in never] == [0, 1, 3, 3]
    env = transforms.StickyAction(Line(), 0.25)

    def second_position(key: jax.Array) -> jax.Array:
        state, _ = env.reset(key, ())
        state, _ = env.step(jax.random.fold_in(key, 0), state, jnp.asarray(1), ())
        _, timestep = env.step(jax.random.fold_in(key, 1), state, jnp.asarray(0), ())
        return timestep.observation[0]

    positions = jax.jit(jax.vmap(second_position))(jax.random.split(jax.random.key(0), 4000))
    assert float(jnp.mean(positions == 2)) == pytest.approx(0.25, abs=0.03)


def test_rescale_and_clip_actions() -> None:
    rescaled = transforms.RescaleAction(Line(continuous=True))
    assert float(rescaled.action_space().low) == -1.0
    assert [float(walk(rescaled, [action])[1].observation[0]) for action in (-1.0, 0.0, 1.0)] == [-1.0, 1.0, 3.0]
    clipped = transforms.ClipAction(Line(continuous=True))
    assert [float(walk(clipped, [action])[1].observation[0]) for action in (-7.0, 2.0, 9.0)] == [-1.0, 2.0, 3.0]


def test_select_flatten_and_one_hot() -> None:
    assert walk(transforms.Select(Line(), [1]), [2])[1].observation.tolist() == [4.0]

    class Grid(Line):
        def observation_space(self, params: Any = None) -> Any:
            return {"cell": spaces.Discrete(4), "pair": spaces.MultiDiscrete((2, 3)), "box": spaces.Box(0, 9, (2,))}

        def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
            observation = {"cell": jnp.int32(2), "pair": jnp.array([1, 0]), "box": jnp.array([7.0, 8.0])}
            return jnp.zeros(()), envs.timestep(observation)

    one_hot = transforms.OneHot(Grid())
    _, timestep = one_hot.reset(jax.random.key(0), ())
    assert timestep.observation["cell"].tolist() == [0, 0, 1, 0]
    assert timestep.observation["pair"].tolist() == [0, 1, 1, 0, 0]
    flat = transforms.Flatten(one_hot)
    _, timestep = flat.reset(jax.random.key(0), ())
    assert timestep.observation.tolist() == [7, 8, 0, 0, 1, 0, 0, 1, 1, 0, 0]
    assert flat.observation_space().shape == (11,)
    assert flat.observation_space().high.tolist() == [9, 9] + [1] * 9


def test_by_name_from_a_config() -> None:
    env = envs.make(
        "CartPole-v1", transforms=[{"name": "select", "indices": [0, 2]}, {"name": "frame_stack", "size": 2}]
    )
    _, timestep = env.reset(jax.random.key(0), env.default_params)
    assert timestep.observation.shape == (4,)
    assert env.observation_space().shape == (4,)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["frame_stak"], "did you mean 'frame_stack'"),
        ("one_hot", "must be a list"),
        ([{"name": "frame_stack"}], "frame_stack does not take"),
        ([{"name": "frame_stack", "size": 0}], r"frame_stack\.size = 0 must be between 1 and 1000"),
        ([{"name": "select", "indices": [9]}], r"select\.indices = \[9\]"),
        (["one_hot"], "one_hot has no use"),
        (["rescale_action"], "needs a Box with finite bounds"),
        ([{"name": "sticky_action", "probability": 1.5}], "between 0 and 1"),
    ],
)
def test_bad_transforms(names: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        envs.make("CartPole-v1", transforms=names)
