"""Noise, params and starts that vary from episode to episode, and what outlives an episode."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, envs, experiments
from rollax.envs import spaces, transforms
from rollax.experiments.config import from_dict


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    length: jax.Array | float = 1.0
    limit: jax.Array | int = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    start: jax.Array  # float32 []
    time: jax.Array  # int32 []
    level: jax.Array  # int32 []


class Probe:
    """Shows its start and the length in its params; ends by the rules after `limit` steps."""

    default_params = Params()

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(-100.0, 100.0, (2,))

    def action_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(-2.0, 4.0, (1,))

    def reset(self, key: jax.Array, params: Params) -> tuple[State, envs.TimeStep]:
        state = State(jax.random.uniform(key), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return state, envs.timestep(jnp.stack([state.start, jnp.asarray(params.length, jnp.float32)]))

    def step(self, key: jax.Array, state: State, action: jax.Array, params: Params) -> tuple[State, envs.TimeStep]:
        state = dataclasses.replace(state, time=state.time + 1)
        seen = jnp.stack([state.start, jnp.asarray(params.length, jnp.float32)])
        return state, envs.timestep(seen, action[0], state.time >= params.limit)


class Curriculum(Probe):
    """Its level outlives its episodes, and rises with each."""

    def carry_over(self, ended: State, fresh: State) -> State:
        return dataclasses.replace(fresh, level=ended.level + 1)


def episodes(env: Any, count: int = 64, steps: int = 8, action: float = 1.0) -> tuple[Any, envs.TimeStep]:
    """First and later time steps [1 + steps, count] of environments that reset themselves, and the last state."""
    many = envs.Vectorise(envs.AutoReset(env), count)
    params = env.default_params
    actions = jnp.full((count, *env.action_space().shape), action)

    def run(key: jax.Array) -> Any:
        key_reset, key_steps = jax.random.split(key)
        state, first = many.reset(key_reset, params)

        def step(state: Any, key: jax.Array) -> Any:
            return many.step(key, state, actions, params)

        state, later = jax.lax.scan(step, state, jax.random.split(key_steps, steps))
        return state, jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, later)

    return jax.jit(run)(jax.random.key(0))


def test_observation_noise() -> None:
    env = transforms.ObservationNoise(Probe(), 0.5)
    _, seen = episodes(env, count=500)
    noise = np.asarray(seen.observation[..., 1]) - 1.0
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 0.5], atol=0.03)
    assert len(np.unique(noise)) > 0.99 * noise.size  # drawn anew each time, and for each environment
    ended = np.asarray(seen.terminated)
    assert ended.any()
    np.testing.assert_allclose(seen.observation[~ended], seen.final_observation[~ended], rtol=1e-5, atol=1e-6)
    assert env.observation_space().high[0] == np.inf
    assert episodes(transforms.ObservationNoise(Probe(), 0.0))[1].observation[..., 1].std() == 0


def test_action_noise() -> None:
    _, seen = episodes(transforms.ActionNoise(Probe(), 0.1), count=500)  # of halves of [-2, 4], so 0.3
    reward = np.asarray(seen.reward[1:])
    np.testing.assert_allclose([reward.mean(), reward.std()], [1.0, 0.3], atol=0.02)
    _, seen = episodes(transforms.ActionNoise(Probe(), 5.0), count=500)
    assert (seen.reward[1:].min(), seen.reward[1:].max()) == (-2.0, 4.0)


def test_randomised_params_stay_for_an_episode() -> None:
    env = transforms.Randomise(Probe(), length=[0.5, 2.0], limit=[2, 4])
    _, seen = episodes(env, count=400, steps=12)
    lengths, ended = np.asarray(seen.final_observation[..., 1]), np.asarray(seen.terminated)
    assert 0.5 <= lengths.min() < 0.52
    assert 1.98 < lengths.max() <= 2.0
    shown = np.asarray(seen.observation[..., 1])
    np.testing.assert_array_equal(shown[:-1], lengths[1:])  # what a step shows is of its own episode
    assert (shown[1:][ended[1:]] != shown[:-1][ended[1:]]).all()  # and another one is drawn for the next
    first = np.argmax(ended, axis=0)
    assert set(first) == {2, 3, 4}  # a whole number, with both ends


def test_tasks_are_told_and_stay_for_an_episode() -> None:
    env = transforms.Tasks(Probe(), length=[1.0, 5.0, 9.0], limit=[1, 2, 3])
    _, seen = episodes(env, count=300)
    observation, shown = np.asarray(seen.observation), np.asarray(seen.observation[..., 2:])
    assert (shown.sum(axis=-1) == 1).all()
    task = shown.argmax(axis=-1)
    np.testing.assert_array_equal(observation[..., 1], np.array([1.0, 5.0, 9.0])[task])
    assert np.bincount(task[0], minlength=3).min() > 70
    first = np.argmax(np.asarray(seen.terminated), axis=0)
    np.testing.assert_array_equal(first, task[0] + 1)
    np.testing.assert_array_equal(env.observation_space().high, [100, 100, 1, 1, 1])
    hidden = transforms.Tasks(Probe(), hidden=True, length=[1.0, 5.0])
    assert hidden.observation_space().shape == (2,)
    assert set(np.unique(episodes(hidden)[1].observation[..., 1])) == {1.0, 5.0}


def test_cached_starts() -> None:
    env = transforms.CachedReset(Probe(), count=5)
    _, seen = episodes(env, count=200, steps=12)
    starts = np.unique(seen.observation[..., 0])
    assert len(starts) == 5
    np.testing.assert_array_equal(starts, np.unique(env.default_params.states.start))
    assert len(np.unique(episodes(transforms.CachedReset(Probe(), 5, seed=1))[1].observation[..., 0])) == 5
    other = transforms.CachedReset(Probe(), 5, seed=1).default_params.states.start
    assert not np.isin(other, starts).any()
    # Its params may first be asked for while something is traced.
    fresh = transforms.CachedReset(Probe(), count=5)
    traced = jax.jit(lambda: fresh.default_params.states.start)()
    np.testing.assert_array_equal(traced, fresh.default_params.states.start)


@pytest.mark.parametrize("wrap", [lambda env: env, envs.EpisodeStatistics, lambda env: transforms.TimeLimit(env, 2)])
def test_a_level_outlives_episodes(wrap: Any) -> None:
    state, seen = episodes(wrap(Curriculum()), count=3, steps=8)
    ends = np.asarray(seen.ended).sum(axis=0)
    assert (ends >= 2).all()
    while not isinstance(state, State):
        state = state.env
    np.testing.assert_array_equal(state.level, ends)
    assert (state.time < 3).all()  # while the rest starts afresh


@pytest.mark.thorough
def test_all_of_them_train_from_a_config() -> None:
    names = [
        {"name": "cached_reset", "count": 8},
        {"name": "observation_noise", "scale": 0.1},
        {"name": "action_noise", "scale": 0.1},
    ]
    table = {"id": "Pendulum-v1", "transforms": [{"name": "randomise", "g": [8.0, 12.0]}, *names[1:]]}
    for transforms_of in (table["transforms"], names):
        config = from_dict(
            {
                "env": {**table, "transforms": transforms_of},
                "train": {"agent": "a2c", "total_env_steps": 64, "num_envs": 4, "num_steps": 8},
            }
        )
        state, _ = jax.jit(experiments.make_train(config))(jax.random.key(0))
        assert state.agent.env_steps == 64
        assert not state.failed.flag


@pytest.mark.parametrize(
    ("transform", "sentence"),
    [
        ({"name": "observation_noise", "scale": -1}, r"observation_noise\.scale = -1 must not be negative"),
        ({"name": "action_noise", "scale": -1}, r"action_noise\.scale = -1 must not be negative"),
        ({"name": "randomise"}, r"randomise = {} needs at least one field"),
        ({"name": "randomise", "lenght": [1, 2]}, r"randomise\.lenght is no field .* did you mean 'length'"),
        ({"name": "randomise", "length": [2, 1]}, r"randomise\.length = \[2, 1\] must be a range"),
        ({"name": "randomise", "length": 3}, r"randomise\.length = 3 must be a list of finite numbers"),
        ({"name": "tasks"}, r"tasks = {} needs at least one field"),
        ({"name": "tasks", "length": [1.0], "limit": [1, 2]}, r"must have as many values for each field"),
        ({"name": "tasks", "width": [1.0]}, r"tasks\.width is no field"),
        ({"name": "tasks", "length": 1.0}, r"tasks\.length = 1\.0 must be a list"),
        ({"name": "cached_reset", "count": 0}, r"cached_reset\.count = 0 must be between 1 and 100000"),
    ],
)
def test_bad_arguments_are_a_sentence(transform: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        transforms.apply(Probe(), [transform])
