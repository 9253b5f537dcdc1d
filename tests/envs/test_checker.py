"""Each fault that the checker knows is found in an environment that has it, and none in one that has none."""

import dataclasses
import functools
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces

from rollax import InputError, envs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    max_steps_in_episode: Any = 40
    width: Any = 3.0


@dataclasses.dataclass(frozen=True)
class Walk:
    """A random walk from a random place until it leaves a strip: right in everything; the tests break one part."""

    default_params: Any = Params()

    def observation_space(self, params: Any = None) -> Any:
        return envs.Box(-9.0, 9.0, (2,))

    def action_space(self, params: Any = None) -> Any:
        return envs.Discrete(2)

    def reset(self, key: jax.Array, params: Any) -> Any:
        state = {"x": jax.random.uniform(key), "time": jnp.int32(0)}
        return state, self.seen(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        x = state["x"] + 2.0 * action - 1.0 + 0.1 * jax.random.normal(key)
        state = {"x": x, "time": state["time"] + 1}
        return state, self.seen(state, 1.0, jnp.abs(x) > params.width, state["time"] >= params.max_steps_in_episode)

    def seen(self, state: Any, *ends: Any) -> envs.TimeStep:
        return envs.timestep(jnp.stack([state["x"], state["x"] ** 2 / 9.0]), *ends)


def names(env: Any, **kwargs: Any) -> list[str]:
    return [finding.name for finding in envs.check(env, **{"steps": 64, "eager_steps": 2, **kwargs})]


def rewarded(reward: Callable[..., Any]) -> Callable[..., Any]:
    """A step with another reward, a function of state, action and params that may also use a key."""

    def step(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        following, timestep = Walk.step(self, key, state, action, params)
        return following, dataclasses.replace(timestep, reward=jnp.asarray(reward(state, action), jnp.float32))

    return step


def changed(change: Callable[..., Any]) -> Callable[..., Any]:
    """A step whose `(key, state before, state, timestep)` a function turns into another `(state, timestep)`."""

    def step(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        return change(key, state, *Walk.step(self, key, state, action, params))

    return step


def resetting(change: Callable[..., Any]) -> Callable[..., Any]:
    """A reset whose `(key, state, timestep)` a function turns into another `(state, timestep)`."""
    return lambda self, key, params: change(key, *Walk.reset(self, key, params))


def replaced(timestep: envs.TimeStep, **fields: Any) -> envs.TimeStep:
    return dataclasses.replace(timestep, **fields)


COUNT = [0]
HOST = np.random.default_rng(0)
TABLE = jnp.zeros((500, 501))
LEFT: list[Any] = [0.0]


def counted(*_: Any) -> float:
    COUNT[0] += 1
    return float(COUNT[0])


@functools.partial(jax.jit, static_argnums=0)
def counted_in_jit(_: Any, action: jax.Array) -> jax.Array:
    return action + counted()


def counting(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    calls = self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
    return Walk.step(self, key, {**state, "x": state["x"] + 0.01 * calls}, action, params)


def leaving(state: Any, action: jax.Array) -> Any:
    left, LEFT[0] = LEFT[0], state["x"]
    return left


def called_back(state: Any, action: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(lambda x: np.float32(counted()), shape, state["x"], vmap_method="sequential")


def reused(key: jax.Array, before: Any, state: Any, timestep: Any) -> Any:
    return {**state, "x": state["x"] + 0.1 * jax.random.uniform(key)}, timestep


def with_key(self: Walk, key: jax.Array, params: Any) -> Any:
    key, key_kept = jax.random.split(key)
    state, timestep = Walk.reset(self, key, params)
    return {**state, "key": key_kept}, timestep


def with_kept_key(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    following, timestep = Walk.step(self, state["key"], state, action, params)
    return {**following, "key": state["key"]}, timestep


def with_length(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    following, timestep = Walk.step(self, key, state, action, params)
    over = timestep.terminated | (following["time"] >= params.max_steps_in_episode)
    return following, replaced(timestep, terminated=over, truncated=jnp.zeros((), bool))


def restarting(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    key_step, key_reset = jax.random.split(key)
    following, timestep = Walk.step(self, key_step, state, action, params)
    fresh, _ = self.reset(key_reset, params)
    following = jax.tree.map(lambda new, old: jnp.where(timestep.ended, new, old), fresh, following)
    return following, self.seen(following, timestep.reward, timestep.terminated, timestep.truncated)


def from_few_places(self: Walk, key: jax.Array, params: Any) -> Any:
    state = {"x": jnp.floor(3.0 * jax.random.uniform(key)) / 10.0, "time": jnp.int32(0)}
    return state, self.seen(state)


def restarting_elsewhere(self: Walk, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
    return restarting(self, jax.random.fold_in(key, 7), state, action, params)


def boom(*_: Any) -> Any:
    raise RuntimeError("boom")


def on_tracers(state: Any, action: jax.Array) -> float:
    return 1.0 if isinstance(action, jax.core.Tracer) else 2.0


def over_the_batch(state: Any, action: jax.Array) -> Any:
    @jax.custom_batching.custom_vmap
    def reward(x: jax.Array) -> jax.Array:
        return 0.0 * x

    reward.def_vmap(lambda size, batched, x: (x - x.mean(), True))
    return reward(state["x"])


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "no step": ("protocol", {"step": property(lambda self: self.nothing)}, "lacks step"),
    "gym tuple": ("protocol", {"step": lambda *a: (jnp.zeros(2), 1.0, False, {})}, "returns a tuple of 4"),
    "step raises": ("raises", {"step": boom}, r"env\.step raises RuntimeError: boom at .*test_checker\.py:\d+"),
    "space raises": ("raises", {"observation_space": boom}, "observation_space raises RuntimeError"),
    "constructor raises": ("raises", {"__init__": boom}, "cannot be built: RuntimeError: boom"),
    "eager raises": (
        "raises",
        {"step": rewarded(lambda s, a: 1.0 if isinstance(a, jax.core.Tracer) else boom())},
        r"env\.step without jit raises RuntimeError",
    ),
    "counter on self": (
        "python-state",
        {"step": counting},
        r"env\.step is another program each time .*add.*, then .*add",
    ),
    "global counter": ("python-state", {"step": rewarded(counted)}, r"env\.step is another program each time"),
    "counter inside jit": ("python-state", {"step": rewarded(lambda s, a: counted_in_jit(Walk, a))}, "another program"),
    "numpy": ("python-state", {"step": rewarded(lambda s, a: HOST.normal())}, "draw random numbers from the key"),
    "numpy array": (
        "python-state",
        {"step": rewarded(lambda s, a: jnp.sum(HOST.normal(size=8)))},
        "another program",
    ),
    "random": (
        "python-state",
        {"reset": resetting(lambda k, s, t: ({**s, "x": s["x"] * random.random()}, t))},
        "reset",
    ),
    "clock": ("python-state", {"step": rewarded(lambda s, a: time.time())}, r"env\.step"),
    "tracer left": ("python-state", {"step": rewarded(leaving)}, "an earlier trace has left"),
    "constants": (
        "large-constant",
        {"step": rewarded(lambda s, a: TABLE[a, 0])},
        r"1,002,\d+ bytes.*float32\[500, 501\]",
    ),
    "callback": ("impure", {"step": rewarded(called_back)}, r"\.timestep\.reward: .* a callback has a state"),
    "tracers": ("jit", {"step": rewarded(on_tracers)}, r"\.timestep\.reward: 1\.0 and 2\.0"),
    "batch": ("vmap", {"step": rewarded(over_the_batch)}, r"other results under vmap \(\.timestep\.reward"),
    "no vmap": (
        "vmap",
        {"step": rewarded(lambda s, a: jax.pure_callback(lambda x: np.float32(x), jnp.float32(0), s["x"]))},
        "under vmap raises",
    ),
    "weak type": (
        "state",
        {
            "reset": resetting(lambda k, s, t: ({**s, "time": 0}, t)),
            "step": changed(lambda k, b, s, t: ({**s, "time": b["time"] + jnp.int32(1)}, t)),
        },
        r"int32\[\] at \['time'\], and reset's has int32\[\] \(weak\): convert",
    ),
    "dtype": ("state", {"step": changed(lambda k, b, s, t: ({**s, "x": s["x"].astype("float16")}, t))}, "float16"),
    "kind": (
        "state",
        {"step": changed(lambda k, b, s, t: ({**s, "time": s["time"] + 0.5}, t))},
        r"float32\[\] \(weak\) at \['time'\]",
    ),
    "shape": ("state", {"step": changed(lambda k, b, s, t: ({**s, "x": s["x"][None]}, t))}, "make them the same"),
    "tree": ("state", {"step": changed(lambda k, b, s, t: ({"x": s["x"]}, t))}, "structure"),
    "bounds": (
        "observation",
        {"observation_space": lambda *a: envs.Box([-9.0, 0.0], [9.0, 0.5])},
        r"observation with [\d.]+ at \[1\], which its Box bounds by 0 and 0\.5, at random step \d+",
    ),
    "discrete": (
        "observation",
        {
            "observation_space": lambda *a: envs.Discrete(2),
            "seen": lambda self, s, *ends: envs.timestep(s["time"], *ends),
        },
        r"observation with \[2\.0\], which Discrete\(n=2.* at random step 2",
    ),
    "observation dtype": ("observation", {"observation_space": lambda *a: envs.Box(0, 9, (2,), "uint8")}, "uint8"),
    "reward dtype": ("reward", {"step": changed(lambda k, b, s, t: (s, replaced(t, reward=jnp.int32(1))))}, "int32"),
    "reward shape": ("reward", {"step": rewarded(lambda s, a: jnp.zeros(2))}, r"shape \(2,\)"),
    "flags": (
        "flags",
        {"step": changed(lambda k, b, s, t: (s, replaced(t, terminated=t.terminated.astype("float32"))))},
        "terminated of float32",
    ),
    "nan": ("nan", {"step": rewarded(lambda s, a: jnp.log(s["x"] + 1.0))}, "reward of -?(nan|inf) at random step"),
    "same reset": (
        "same-reset",
        {"reset": lambda self, key, params: Walk.reset(self, jax.random.key(0), params)},
        "the same state for 512 keys",
    ),
    "key twice": ("key-reuse", {"step": changed(reused)}, r"env\.step uses a key twice"),
    "key kept": ("key-reuse", {"reset": with_key, "step": with_kept_key}, "used again in the next step"),
    "final observation": (
        "final-observation",
        {"step": changed(lambda k, b, s, t: (s, replaced(t, final_observation=jnp.zeros(2))))},
        "not the observation",
    ),
    "no final observation": (
        "final-observation",
        {"step": changed(lambda k, b, s, t: (s, replaced(t, final_observation=None)))},
        "other types",
    ),
    "restarts": ("auto-reset", {"step": restarting}, "the state of a new episode"),
    "restarts elsewhere": ("auto-reset", {"reset": from_few_places, "step": restarting_elsewhere}, "of a new episode"),
    "limit": ("time-limit", {"step": with_length}, r"params\.max_steps_in_episode end terminated"),
}


def test_a_right_environment_has_no_findings() -> None:
    assert envs.check(Walk()) == ()


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_is_found(fault: str) -> None:
    name, parts, sentence = BROKEN[fault]
    found = envs.check(type("Broken", (Walk,), parts), steps=64, eager_steps=2)
    assert [finding.name for finding in found] == [name], found
    assert pytest.raises(InputError, match=sentence).matches(InputError(found[0].sentence))
    assert "\n" not in found[0].sentence


def test_every_name_has_a_fault_and_a_line_of_the_documentation() -> None:
    assert {name for name, _, _ in BROKEN.values()} == set(envs.FINDINGS)
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page, re.MULTILINE)) == envs.FINDINGS


class Limited(Walk):
    """Stands still and ends after some steps, which an attribute tells and no param."""

    max_steps: Any = 5
    ends_after = 5
    flag = "terminated"

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        state = {**state, "time": state["time"] + 1}
        return state, replaced(self.seen(state), **{self.flag: state["time"] >= self.ends_after})


@pytest.mark.parametrize(
    ("parts", "time_limit", "found"),
    [
        ({}, None, ["time-limit"]),
        ({"flag": "truncated"}, None, []),
        ({"max_steps": None}, 5, ["time-limit"]),
        ({"max_steps": None}, 8, []),  # five steps are the task's own, then
        ({"max_steps": 100, "ends_after": 100}, None, ["time-limit"]),  # more than the steps that were asked for
    ],
)
def test_a_time_limit_that_no_param_tells(parts: dict[str, Any], time_limit: int | None, found: list[str]) -> None:
    env = type("Broken", (Limited,), parts)(default_params=())
    assert names(env, time_limit=time_limit) == found


def test_automatic_resets_and_batches_belong_to_wrappers() -> None:
    assert names(envs.AutoReset(Walk())) == ["auto-reset"]
    assert names(envs.Vectorise(Walk(), 2)) == ["observation"]


def test_an_end_where_episodes_begin_is_no_reset() -> None:
    """Places on a line without a clock: every one of them is a start, and the last is the end."""

    class Line(Walk):
        def reset(self, key: jax.Array, params: Any) -> Any:
            state = {"x": jax.random.randint(key, (), 0, 4), "time": jnp.int32(0)}
            return state, self.seen(state)

        def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
            state = {**state, "x": jnp.minimum(state["x"] + action, 3)}
            return state, self.seen(state, 1.0, state["x"] == 3)

    assert names(Line()) == []


def test_what_outlives_an_episode_is_played_on_with() -> None:
    class Levels(Limited):
        flag = "truncated"

        def reset(self, key: jax.Array, params: Any) -> Any:
            state, timestep = Walk.reset(self, key, params)
            return {**state, "level": jnp.int32(0)}, timestep

        def carry_over(self, ended: Any, fresh: Any) -> Any:
            return {**fresh, "level": ended["level"] + 1}

        def seen(self, state: Any, *ends: Any) -> envs.TimeStep:
            return envs.timestep(jnp.stack([state["x"], 1.0 * state.get("level", 0)]), *ends)

    (found,) = envs.check(Levels(default_params=()), steps=64, eager_steps=1)
    assert "with 10 at [1], which its Box bounds by -9 and 9, at random step 51" in found.sentence


def test_illegal_actions_are_not_taken() -> None:
    class Masked(Walk):
        def reset(self, key: jax.Array, params: Any) -> Any:
            state, timestep = Walk.reset(self, key, params)
            return state, self.masked(state, timestep)

        def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
            following, timestep = Walk.step(self, key, state, action, params)
            legal = (state["x"] < 0) == (action == 1)  # always towards the middle
            return following, self.masked(following, replaced(timestep, reward=jnp.where(legal, 0.0, jnp.nan)))

        def masked(self, state: Any, timestep: envs.TimeStep) -> envs.TimeStep:
            mask = jnp.stack([state["x"] >= 0, state["x"] < 0])
            return replaced(timestep, action_mask=mask, final_action_mask=mask)

    assert names(Masked()) == []


class GymnaxWalk(environment.Environment):
    """The walk as gymnax has it."""

    @property
    def default_params(self) -> Any:
        return Params()

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state, timestep = Walk().reset(key, params)
        return timestep.observation, state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state, timestep = Walk().step(key, state, action, params)
        return timestep.observation, state, timestep.reward, self.is_terminated(state, params), {}

    def is_terminated(self, state: Any, params: Any) -> Any:
        return jnp.abs(state["x"]) > params.width

    def is_truncated(self, state: Any, params: Any) -> Any:
        return state["time"] >= params.max_steps_in_episode

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(-9.0, 9.0, (2,))

    def action_space(self, params: Any = None) -> Any:
        return spaces.Discrete(2)


class LateGymnaxWalk(GymnaxWalk):
    """Its time limit is a termination."""

    def is_terminated(self, state: Any, params: Any) -> Any:
        return super().is_terminated(state, params) | super().is_truncated(state, params)

    def is_truncated(self, state: Any, params: Any) -> Any:
        return jnp.zeros((), bool)


def test_gymnax_environments_are_taken_as_they_are() -> None:
    assert names(GymnaxWalk()) == []
    assert names(LateGymnaxWalk) == ["time-limit"]
    assert names(type("Broken", (GymnaxWalk,), {"reset_env": boom})) == ["raises"]


def test_anything_gets_an_answer() -> None:
    assert names(5) == ["protocol"]
    assert names(lambda: Walk(default_params=boom), steps=1) == ["raises"]
    assert "step" in envs.check(object())[0].sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"env": "CartPole"}, r"env\.id = 'CartPole' is no known environment: did you mean 'CartPole-v1'"),
        ({"env": Walk(), "steps": 0}, "steps = 0 must be at least 1"),
        ({"env": Walk(), "eager_steps": 0}, "eager_steps = 0 must be at least 1"),
        ({"env": Walk(), "time_limit": -1}, "time_limit = -1 must be at least 1"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        envs.check(**arguments)
