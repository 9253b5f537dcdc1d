"""Training in environments that the host steps: exact rollouts, stored rows without a gap, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollax import InputError, experiments
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of
from rollax.agents.registry import resolve
from rollax.envs import HostVector, TimeStep
from rollax.experiments import host
from rollax.importing import import_object
from rollax.replay import sum_tree

TOYS = Path(__file__).parents[1] / "contract" / "toys"
MODES = [mode.value for mode in AutoresetMode]
LENGTHS = ((2, 1, 5), (4, 4, 4), (1, 3, 1))
"""Steps of each environment's episodes, over and over; those of an even number terminate, the others are cut off."""


class Timetable(gymnasium.Env[np.ndarray, int]):
    """Shows its episode and its step in it; the reward is the action."""

    observation_space = gym_spaces.Box(0.0, 999.0, (2,))
    action_space = gym_spaces.Discrete(4)

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths, self.episode = lengths, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.time = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        ended, even = self.time == self.lengths[self.episode % 3], self.episode % 2 == 0
        observation = np.array([self.episode, self.time], np.float32)
        return observation, float(action), ended and even, ended and not even, {}


def timetable(mode: str = "NextStep") -> HostVector:
    return HostVector(SyncVectorEnv([lambda of=of: Timetable(of) for of in LENGTHS], autoreset_mode=mode))


def transitions(env: int, count: int) -> list[tuple[Any, ...]]:
    """Returns episode, step, whether it is the first, action, terminated and truncated of each row of one environment.

    The action is the number of steps that the environment has taken, modulo 4.
    """
    rows: list[tuple[Any, ...]] = []
    episode = 0
    while len(rows) < count:
        length = LENGTHS[env][episode % 3]
        for time in range(length):
            ended = time == length - 1
            even = episode % 2 == 0
            rows.append((episode, time, time == 0, len(rows) % 4, ended and even, ended and not even))
        episode += 1
    return rows[:count]


@dataclasses.dataclass(frozen=True)
class Config:
    """What the spy can be told."""

    horizon: float = 0.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """Nothing to learn but how often."""

    updates: jax.Array  # int32 []
    hyperparameters: Hyperparameters


TRACES: list[str] = []
"""One entry for each time that the spy's update is traced."""


def make_spy(observation_space: Any, action_space: Any, config: Config, consumes: Any = "rollout") -> Agent:
    """Returns an agent that counts each environment's steps in its memory and hands on what it may learn from."""

    def act_with(state: State, memory: Any, timestep: TimeStep, noise: Any, explore: bool = True) -> Any:
        age = jnp.where(timestep.is_first, 0, memory["age"]) + 1
        action = memory["steps"] % action_space.n
        extras = {"age": age, "updates": jnp.broadcast_to(state.updates, age.shape)}
        return {"age": age, "steps": memory["steps"] + 1}, Decision(action, extras)

    def update(state: State, batch: Any, key: jax.Array) -> Any:
        TRACES.append(consumes)
        told = batch if consumes == "rollout" else {}
        return dataclasses.replace(state, updates=state.updates + 1), Update({"told": told})

    return Agent(
        init=lambda key, numbers=None: State(jnp.zeros((), jnp.int32), hyperparameters_of(config, numbers)),
        init_memory=lambda num_envs: {name: jnp.zeros((num_envs,), jnp.int32) for name in ("age", "steps")},
        noise=lambda key, num_envs: (),
        act_with=act_with,
        observe=lambda state, rollout: state,
        update=update,
        consumes=consumes,
    )


def make_storing_spy(observation_space: Any, action_space: Any, config: Config) -> Agent:
    return make_spy(observation_space, action_space, config, "transitions")


def config_of(make: Any, num_steps: int, total: int, **parts: Any) -> experiments.ExperimentConfig:
    return experiments.ExperimentConfig(
        env=experiments.EnvConfig("CartPole-v1"),
        train=experiments.TrainConfig(make, total, num_envs=7, num_steps=num_steps, unroll=1),  # num_envs has no use
        agent=Config(),
        **parts,
    )


def rows_of(rollout: Rollout, env: int) -> list[tuple[Any, ...]]:
    """Returns the rows of one environment in the form of `transitions`; checks the parts that follow from them."""
    episode, time = np.asarray(rollout.observation)[:, env].T
    np.testing.assert_array_equal(rollout.final_observation[:, env], np.stack([episode, time + 1], axis=1))
    np.testing.assert_array_equal(rollout.reward[:, env], rollout.action[:, env])
    np.testing.assert_array_equal(rollout.extras["age"][:, env], time + 1)
    parts = (episode, time, rollout.is_first, rollout.action, rollout.terminated, rollout.truncated)
    return list(zip(*(np.asarray(part if part.ndim == 1 else part[:, env]).tolist() for part in parts), strict=True))


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_are_whole_and_exact(mode: str) -> None:
    seen: list[tuple[int, int]] = []
    train = experiments.make_host_train(config_of(make_spy, 5, 100), timetable(mode))
    TRACES.clear()
    result = train(jax.random.key(0), callback=lambda steps, state, metrics: seen.append((steps, int(state.updates))))
    assert len(TRACES) == 1  # compiled once, the first iteration's types being those of the others
    assert seen == [(15 * k, k) for k in range(1, 8)]  # 100 rounded up to whole iterations of 15
    assert float(result.agent.hyperparameters["horizon"]) == 7.0
    told = result.metrics["told"]
    for env in range(3):
        all_rows, place = transitions(env, 100), 0
        for iteration in range(7):
            rollout = jax.tree.map(lambda leaf, at=iteration: leaf[at], told)
            rows = rows_of(rollout, env)
            start = all_rows.index(rows[0])
            assert rows == all_rows[start : start + 5]
            assert start == place or (mode == "NextStep" and start > place)  # what is dropped is dropped in between
            assert rollout.first_memory["steps"][env] == start
            following = all_rows[start + 5]
            np.testing.assert_array_equal(rollout.last.observation[env], following[:2])
            assert rollout.last.is_first[env] == following[2]
            assert (rollout.extras["updates"][:, env] == iteration).all()
            place = start + 5
    assert np.isnan(result.metrics["episode_return"]).sum() == (result.metrics["episodes"] == 0).sum()
    assert result.replay == ()


def test_episodes_are_counted_once_each() -> None:
    train = experiments.make_host_train(config_of(make_spy, 12, 36), timetable("SameStep"))
    metrics = train(jax.random.key(0)).metrics
    ended = [row for env in range(3) for row in transitions(env, 12) if row[4] or row[5]]
    assert metrics["episodes"].tolist() == [len(ended)]
    np.testing.assert_allclose(metrics["episode_length"], np.mean([row[1] + 1 for row in ended]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_steps", [1, 4])
def test_stored_rows_have_no_gap(num_steps: int, mode: str) -> None:
    stored = experiments.ReplayConfig(capacity=72, batch_size=2)
    train = experiments.make_host_train(config_of(make_storing_spy, num_steps, 72, replay=stored), timetable(mode))
    result = train(jax.random.key(0))
    for env in range(3):
        assert rows_of(result.replay, env) == transitions(env, 24)
    updates = np.asarray(result.replay.extras["updates"])
    behind = np.arange(24) // num_steps - updates[:, 1]  # of the environment that ends most rarely
    assert updates[0, 1] == 0
    assert behind.min() >= 0
    assert behind.max() >= 1  # it acts while the updates run
    assert int(result.agent.updates) == 24 // num_steps


@pytest.mark.parametrize("mode", MODES)
def test_only_rows_that_are_not_handed_out_are_held(mode: str) -> None:
    def act(step: int, state: Any, memory: Any, timestep: TimeStep) -> tuple[Any, Decision]:
        return memory, Decision(np.zeros(3, np.int32), {})  # type: ignore[arg-type]

    collector = host._Collector(act, timetable(mode), 4, (), seed=0, stores=True)
    for _ in range(10):
        collector.collect(None)
    if mode == "NextStep":
        # For its 40 rows the last environment takes 40 steps and 24 resets, in which the second one has 52 rows.
        assert len(collector._steps) == 12
    else:
        assert not collector._steps


def test_dqn_fills_the_buffer_and_learns_from_it(caplog: pytest.LogCaptureFixture) -> None:
    overrides = ["train.total_env_steps=64", "replay.capacity=48", "replay.batch_size=8", "agent.hidden_sizes=[8]"]
    config = experiments.load("dqn_cartpole", overrides)
    train = experiments.make_host_train(config, HostVector(gymnasium.make_vec("CartPole-v1", num_envs=4)))
    states: list[Any] = []
    with jax.log_compiles():
        result = train(jax.random.key(0), callback=lambda steps, state, metrics: states.append(state))
    compiled = re.findall(r"Finished XLA compilation of jit\((_start|_act|without_refs)\)", caplog.text)
    assert sorted(compiled) == ["_act", "_start", "without_refs"]  # each once
    assert int(result.agent.env_steps) == 64
    assert int(result.agent.updates) == 8 * config.train.updates_per_iteration
    assert np.isfinite(result.metrics["loss"]).all()
    assert result.replay.reward.shape == (12, 4)
    assert np.all(result.replay.reward == 1.0)  # full, and without the rewards of resets, which are 0
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), states[0].params, result.agent.params)
    assert all(jax.tree.leaves(changed))
    assert not bool(result.failed.flag)


@pytest.mark.parametrize("mode", MODES)
def test_every_environment_plays_its_share_of_whole_episodes(mode: str) -> None:
    evaluation = experiments.EvaluationConfig(episodes=7, step_cap=4)
    evaluate = experiments.make_host_evaluate(config_of(make_spy, 1, 1, evaluation=evaluation), timetable(mode))
    state = make_spy(None, timetable().action_space(), Config()).init(jax.random.key(0))
    played = evaluate(state, jax.random.key(1))
    # Three rounds; the first environment plays a third episode, is given up in it, and the others have none.
    np.testing.assert_array_equal(played.episode_length, [2, 4, 1, 1, 4, 3, 4])
    np.testing.assert_array_equal(played.finished, [True] * 6 + [False])
    np.testing.assert_array_equal(played.episode_return, [0 + 1, 6, 0, 2, 6, 1 + 2 + 3, 3 + 0 + 1 + 2])


def test_priorities_are_set_and_a_learner_that_turns_bad_is_held() -> None:
    make = import_object(f"{TOYS}/transition_agent.py:make", "train.agent")
    stored = experiments.ReplayConfig(capacity=24, batch_size=4, kind="prioritised", n_step=2)
    config = config_of(make, 2, 24, replay=stored)
    config = dataclasses.replace(config, agent=resolve(make).config_type())
    train = experiments.make_host_train(config, timetable())
    good, bad = train(jax.random.key(0)), train(jax.random.key(0), {"learning_rate": np.inf})
    assert (np.unique(sum_tree.total(good.replay.priorities)) != 18.0).all()  # each of the 18 windows came with 1
    assert [bool(result.failed.flag) for result in (good, bad)] == [False, True]
    assert int(bad.failed.iteration) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bad.agent.params))
    assert np.isfinite(good.metrics["td_error"]).all()


def test_what_cannot_work_is_a_sentence() -> None:
    vector = timetable()
    train = experiments.make_host_train(config_of(make_spy, 2, 6), vector)
    with pytest.raises(InputError, match="one key after another"):
        jax.vmap(train)(jax.random.split(jax.random.key(0), 2))
    evaluate = experiments.make_host_evaluate(config_of(make_spy, 2, 6), vector)
    with pytest.raises(InputError, match="one key after another"):
        jax.jit(evaluate)((), jax.random.key(0))
    with pytest.raises(InputError, match="hyperparameter 'horizn' does not exist"):
        train(jax.random.key(0), {"horizn": 1.0})
    for make in (experiments.make_host_train, experiments.make_host_evaluate):
        with pytest.raises(InputError, match=r"a SyncVectorEnv is no envs\.HostVector"):
            make(config_of(make_spy, 2, 6), vector.vector)
    with pytest.raises(InputError, match=r"\[replay\] is missing"):
        experiments.make_host_train(config_of(make_storing_spy, 2, 6), vector)
    stored = experiments.ReplayConfig(capacity=64, batch_size=2)
    with pytest.raises(InputError, match=r"replay\.capacity = 64 is not a multiple of train\.num_envs = 3"):
        experiments.make_host_train(config_of(make_storing_spy, 2, 6, replay=stored), vector)
    for refused, changes in {
        r"train\.spread = 'environments' cannot": {"train": {"spread": "environments"}},
        r"\[compiler\] has no use": {"compiler": {"matmul_precision": "highest"}},
    }.items():
        config = config_of(make_spy, 2, 6)
        ((table, values),) = changes.items()
        config = dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **values)})
        with pytest.raises(InputError, match=refused):
            experiments.make_host_train(config, vector)
