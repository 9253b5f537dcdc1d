"""AutoReset, EpisodeStatistics and Vectorise on environments small enough to work out by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, envs
from rollax.envs import spaces
from rollax.envs.base import Environment, TimeStep

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
PyTree = Any


class Counter:
    """Shows how many steps its episode has had; `params` is the step at which it ends.

    Rewards are 1, 2, 4, 8, ... and action 1 is legal on even counts only.
    """

    def __init__(self, terminates: bool = False) -> None:
        self.terminates = terminates

    @property
    def default_params(self) -> jax.Array:
        return jnp.asarray(4, jnp.int32)

    def reset(self, key: jax.Array, params: PyTree) -> tuple[jax.Array, TimeStep]:
        return jnp.zeros((), jnp.int32), self._timestep(jnp.zeros((), jnp.int32), params, reward=0.0)

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array, params: PyTree) -> tuple[jax.Array, TimeStep]:
        return state + 1, self._timestep(state + 1, params, reward=2.0**state)

    def observation_space(self, params: PyTree = None) -> spaces.Box:
        return spaces.Box(0, np.inf, (1,))

    def action_space(self, params: PyTree = None) -> spaces.Discrete:
        return spaces.Discrete(2)

    def _timestep(self, count: jax.Array, params: PyTree, reward: jax.Array | float) -> TimeStep:
        mask = jnp.stack([jnp.ones((), jnp.bool_), count % 2 == 0])
        ended = (count > 0) & (count >= params)
        observation = count[None].astype(jnp.float32)
        flags = {"terminated" if self.terminates else "truncated": ended}
        return envs.timestep(observation, reward, action_mask=mask, **flags)


class RandomStart(Counter):
    """Shows a number that its reset drew, for two steps; its observations are a dict."""

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        start = jax.random.uniform(key)
        return (start, jnp.zeros((), jnp.int32)), envs.timestep(self._observe(start))

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        start, count = state
        return (start, count + 1), envs.timestep(self._observe(start), 1.0, count + 1 >= 2)

    def observation_space(self, params: PyTree = None) -> PyTree:
        return {"a": spaces.Box(0, 1, (3,)), "b": spaces.Box(0, 1, (2, 2))}

    @staticmethod
    def _observe(start: jax.Array) -> PyTree:
        return {"a": jnp.full((3,), start), "b": jnp.full((2, 2), start)}


class Careless(Counter):
    """Gives Python numbers and other dtypes than its reset did."""

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        return {"count": 0, "x": 0.0}, envs.timestep(jnp.zeros(2))

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        next_state = {"count": state["count"].astype(jnp.int8) + 1, "x": 1.0}
        return next_state, envs.timestep(jnp.ones(2, jnp.float16), jnp.float16(1), 0.0, jnp.int32(0))


def run(
    env: Environment, num_steps: int, transform: Transform = lambda f: f, params: PyTree = None
) -> tuple[TimeStep, list[TimeStep]]:
    """The first time step and the ones after it, under action 0."""
    params = env.default_params if params is None else params
    key_reset, *keys = jax.random.split(jax.random.key(0), num_steps + 1)
    reset, step = transform(env.reset), transform(env.step)
    state, first = reset(key_reset, params)
    action = jnp.zeros(first.terminated.shape, jnp.int32)
    steps = []
    for key in keys:
        state, timestep = step(key, state, action, params)
        steps.append(timestep)
    return first, steps


def column(steps: list[TimeStep], read: Callable[[TimeStep], jax.Array]) -> list[Any]:
    return [read(timestep).tolist() for timestep in steps]


# TimeStep.


@MAYBE_JIT
def test_timestep_fills_in_the_rest_and_has_no_weak_types(transform: Transform) -> None:
    timestep = transform(lambda: envs.timestep({"x": 1.0, "y": jnp.arange(2)}, 1, True, action_mask=[True, False]))()
    assert jax.tree.map(lambda leaf: leaf.weak_type, timestep) == jax.tree.map(lambda leaf: False, timestep)
    assert timestep.reward.dtype == jnp.float32
    assert [leaf.dtype for leaf in (timestep.terminated, timestep.truncated, timestep.is_first)] == [jnp.bool_] * 3
    assert (bool(timestep.terminated), bool(timestep.truncated), bool(timestep.ended)) == (True, False, True)
    assert timestep.final_observation["x"] == 1
    np.testing.assert_array_equal(timestep.final_observation["y"], [0, 1])
    assert not timestep.metrics.valid


def test_without_auto_reset_the_last_time_step_comes_as_it_is() -> None:
    _, steps = run(Counter(), 5, jax.jit)
    assert column(steps, lambda s: s.observation[0]) == [1, 2, 3, 4, 5]
    assert column(steps, lambda s: s.truncated) == [False, False, False, True, True]


# AutoReset.


@MAYBE_JIT
@pytest.mark.parametrize("terminates", [False, True])
def test_auto_reset_keeps_the_true_end(terminates: bool, transform: Transform) -> None:
    env = envs.AutoReset(Counter(terminates))
    first, steps = run(env, 9, transform)
    assert bool(first.is_first)
    assert not first.ended
    ended = [False, False, False, True, False, False, False, True, False]
    assert column(steps, lambda s: s.observation[0]) == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert column(steps, lambda s: s.final_observation[0]) == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert column(steps, lambda s: s.reward) == [1, 2, 4, 8, 1, 2, 4, 8, 1]
    assert column(steps, lambda s: s.terminated) == [flag and terminates for flag in ended]
    assert column(steps, lambda s: s.truncated) == [flag and not terminates for flag in ended]
    assert column(steps, lambda s: s.is_first) == ended
    # Action 1 is legal at even counts: the policy's mask belongs to what it sees, the other one to the true successor.
    assert column(steps, lambda s: s.action_mask[1]) == [False, True] * 4 + [False]
    assert column(steps, lambda s: s.final_action_mask[1]) == [False, True] * 4 + [False]
    assert all(all(mask) for mask in zip(*column(steps, lambda s: s.action_mask[:1]), strict=True))


@MAYBE_JIT
def test_auto_reset_masks_where_the_end_is_odd(transform: Transform) -> None:
    _, steps = run(envs.AutoReset(Counter()), 4, transform, params=jnp.int32(3))
    assert column(steps, lambda s: s.action_mask[1]) == [False, True, True, False]
    assert column(steps, lambda s: s.final_action_mask[1]) == [False, True, False, False]


@MAYBE_JIT
def test_a_ready_made_reset_is_taken_where_an_episode_ends_and_only_there(transform: Transform) -> None:
    env = envs.AutoReset(RandomStart())
    step = transform(env.step)
    first_state, first = env.reset(jax.random.key(0), env.default_params)
    ready = env.reset(jax.random.key(1), env.default_params)
    assert ready[1].observation["a"][0] != first.observation["a"][0]
    state, middle = step(jax.random.key(2), first_state, jnp.int32(0), env.default_params, ready)
    state, end = step(jax.random.key(3), state, jnp.int32(0), env.default_params, ready)
    for name in ("a", "b"):
        np.testing.assert_array_equal(middle.observation[name], first.observation[name])
        np.testing.assert_array_equal(middle.final_observation[name], first.observation[name])
        np.testing.assert_array_equal(end.observation[name], ready[1].observation[name])
        np.testing.assert_array_equal(end.final_observation[name], first.observation[name])
    assert (bool(middle.is_first), bool(end.is_first)) == (False, True)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), state, ready[0]))


@MAYBE_JIT
def test_five_episodes_start_at_five_places(transform: Transform) -> None:
    first, steps = run(envs.AutoReset(RandomStart()), 10, transform)
    starts = [float(step.observation["a"][0]) for step in [first, *steps] if step.is_first]
    assert len(starts) == 6
    assert len(set(starts)) == 6


class RandomReward(RandomStart):
    """Draws in its steps too."""

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state, timestep = super().step(key, state, action, params)
        return state, dataclasses.replace(timestep, reward=jax.random.uniform(key))


def test_the_reset_in_a_step_has_a_key_of_its_own() -> None:
    env = envs.AutoReset(RandomReward())
    with jax.debug_key_reuse(True):
        key_reset, key_first, key_second = jax.random.split(jax.random.key(0), 3)
        state, _ = jax.jit(env.reset)(key_reset, env.default_params)
        state, _ = jax.jit(env.step)(key_first, state, jnp.int32(0), env.default_params)
        _, timestep = jax.jit(env.step)(key_second, state, jnp.int32(0), env.default_params)
    assert timestep.is_first
    assert timestep.reward != timestep.observation["a"][0]


def test_auto_reset_gives_a_careless_environment_stable_types() -> None:
    env = envs.AutoReset(Careless())
    key = jax.random.key(0)
    start = jax.eval_shape(env.reset, key, env.default_params)
    after = jax.eval_shape(env.step, key, start[0], jnp.int32(0), env.default_params)

    def types(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)

    assert types(after) == types(start)
    assert start[0]["count"].dtype == jnp.int32
    _, steps = jax.lax.scan(
        lambda carry, _: (env.step(key, carry[0], jnp.int32(0), env.default_params),) * 2,
        env.reset(key, env.default_params),
        length=3,
    )
    np.testing.assert_array_equal(steps[0]["count"], [1, 2, 3])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"count": jnp.float32(1.5), "x": 1.0}, r"returns float32 and its reset int32 at \['count'\]"),
        ({"count": 1, "x": 1.0, "new": 0}, "return the same from both"),
    ],
)
def test_a_step_that_would_lose_something_is_a_sentence(changed: PyTree, sentence: str) -> None:
    class Lossy(Careless):
        def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
            return changed, envs.timestep(jnp.ones(2))

    env = envs.AutoReset(Lossy())
    state, _ = env.reset(jax.random.key(0), env.default_params)
    with pytest.raises(InputError, match=sentence):
        env.step(jax.random.key(0), state, jnp.int32(0), env.default_params)


# EpisodeStatistics.

STATISTICS = {
    "inside": lambda env: envs.AutoReset(envs.EpisodeStatistics(env)),
    "outside": lambda env: envs.EpisodeStatistics(envs.AutoReset(env)),
}


@MAYBE_JIT
@pytest.mark.parametrize("order", STATISTICS)
@pytest.mark.parametrize("terminates", [False, True])
def test_episodes_of_return_seven(terminates: bool, order: str, transform: Transform) -> None:
    env = STATISTICS[order](Counter(terminates))
    first, steps = run(env, 7, transform, params=jnp.int32(3))  # 1 + 2 + 4
    assert not first.metrics.valid
    assert column(steps, lambda s: s.metrics.valid) == [False, False, True, False, False, True, False]
    assert column(steps, lambda s: s.metrics.episode_return) == [0, 0, 7, 0, 0, 7, 0]
    assert column(steps, lambda s: s.metrics.episode_length) == [0, 0, 3, 0, 0, 3, 0]
    assert steps[2].metrics.episode_length.dtype == jnp.int32
    assert steps[2].metrics.episode_return.dtype == jnp.float32


@pytest.mark.parametrize("order", STATISTICS)
def test_statistics_with_ready_made_resets(order: str) -> None:
    env = STATISTICS[order](Counter())
    params = jnp.int32(3)
    state, _ = env.reset(jax.random.key(0), params)
    # The ready-made reset is AutoReset's, which is the outer wrapper in one order and the inner one in the other.
    auto_reset = env if isinstance(env, envs.AutoReset) else env.env
    ready = auto_reset.reset(jax.random.key(1), params)
    returns = []
    for index in range(6):
        state, timestep = env.step(jax.random.key(index), state, jnp.int32(0), params, ready)
        returns.append(float(timestep.metrics.episode_return))
    assert returns == [0, 0, 7, 0, 0, 7]


def test_statistics_outside_everything_equal_those_inside() -> None:
    inside = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(Counter())), 3, params_axis=0)
    outside = envs.EpisodeStatistics(envs.Vectorise(envs.AutoReset(Counter()), 3, params_axis=0))
    limits = jnp.array([1, 2, 3], jnp.int32)
    for a, b in zip(run(inside, 6, jax.jit, limits)[1], run(outside, 6, jax.jit, limits)[1], strict=True):
        for field in dataclasses.fields(a.metrics):
            np.testing.assert_array_equal(getattr(a.metrics, field.name), getattr(b.metrics, field.name))


# Vectorise.


def test_one_key_is_n_keys() -> None:
    env = envs.Vectorise(envs.AutoReset(RandomStart()), 3)
    params, action = env.default_params, jnp.zeros(3, jnp.int32)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    key_reset, key_step = jax.random.split(jax.random.key(0))
    results = []
    for keys in ((key_reset, key_step), (jax.random.split(key_reset, 3), jax.random.split(key_step, 3))):
        state, first = reset(keys[0], params)
        state, _ = step(keys[1], state, action, params)
        results.append((first, *step(keys[1], state, action, params)))
    jax.tree.map(np.testing.assert_array_equal, *results)
    first, _, last = results[0]
    assert first.observation["b"].shape == (3, 2, 2)
    assert len(set(first.observation["a"][:, 0].tolist() + last.observation["a"][:, 0].tolist())) == 6


def test_each_environment_is_what_it_is_alone() -> None:
    one = envs.AutoReset(envs.EpisodeStatistics(RandomStart()))
    many = envs.Vectorise(one, 2)
    params = one.default_params
    keys = jax.random.split(jax.random.key(0), (4, 2))
    state, timestep = jax.jit(many.reset)(keys[0], params)
    reset, step, steps = jax.jit(one.reset), jax.jit(one.step), jax.jit(many.step)
    alone = [reset(keys[0, index], params) for index in range(2)]
    for step_keys in keys[1:]:
        state, timestep = steps(step_keys, state, jnp.zeros(2, jnp.int32), params)
        alone = [step(step_keys[i], alone[i][0], jnp.int32(0), params) for i in range(2)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
    jax.tree.map(np.testing.assert_array_equal, (state, timestep), stacked)


def test_each_environment_may_have_its_own_params() -> None:
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(Counter())), 3, params_axis=0)
    _, steps = run(env, 6, jax.jit, params=jnp.array([1, 2, 3], jnp.int32))
    lengths = np.array(column(steps, lambda s: s.metrics.episode_length))
    np.testing.assert_array_equal(lengths, [[1, 0, 0], [1, 2, 0], [1, 0, 3], [1, 2, 0], [1, 0, 0], [1, 2, 3]])


def test_vectorised_ready_made_resets() -> None:
    env = envs.Vectorise(envs.AutoReset(RandomStart()), 2)
    params = env.default_params
    state, first = env.reset(jax.random.key(0), params)
    ready = env.reset(jax.random.key(1), params)
    for index in range(2):
        state, timestep = env.step(jax.random.key(index), state, jnp.zeros(2, jnp.int32), params, ready)
    np.testing.assert_array_equal(timestep.observation["a"], ready[1].observation["a"])
    np.testing.assert_array_equal(timestep.final_observation["a"], first.observation["a"])


def test_wrappers_pass_on_spaces_and_params() -> None:
    raw = RandomStart()
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(raw)), 2)
    assert env.action_space() == spaces.Discrete(2)
    assert set(env.observation_space()) == {"a", "b"}
    assert env.default_params == raw.default_params
    assert env.num_envs == 2


# A fault that there once was.


class Wide(RandomStart):
    """Shows as many numbers as there are environments below."""

    @staticmethod
    def _observe(start: jax.Array) -> PyTree:
        return jnp.full((3,), start)


def test_auto_reset_around_vectorise_resets_by_environment() -> None:
    env = envs.AutoReset(envs.Vectorise(Wide(), 3))
    (start, _), first = env.reset(jax.random.key(0), env.default_params)
    ready = env.reset(jax.random.key(1), env.default_params)
    state = (start, jnp.array([0, 1, 0], jnp.int32))  # the second environment alone is about to end
    action = jnp.zeros(3, jnp.int32)
    (start_after, count), timestep = jax.jit(env.step)(jax.random.key(2), state, action, env.default_params, ready)
    ended = np.array([[False], [True], [False]])
    np.testing.assert_array_equal(timestep.observation, np.where(ended, ready[1].observation, first.observation))
    np.testing.assert_array_equal(timestep.final_observation, first.observation)
    np.testing.assert_array_equal(start_after, np.where(ended[:, 0], ready[0][0], start))
    np.testing.assert_array_equal(count, [1, 0, 1])
    np.testing.assert_array_equal(timestep.is_first, ended[:, 0])
