"""The training loop: one scan of iterations, the same for every algorithm.

An iteration acts, writes to replay if the agent learns from it, updates, and observes. Everything that changes is in
`TrainState`; with it alone a run continues bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax import envs, replay
from rollax.agents.base import Agent, Rollout
from rollax.agents.registry import resolve
from rollax.envs.base import PyTree, TimeStep, strongly_typed
from rollax.errors import InputError
from rollax.experiments import collection
from rollax.experiments import config as configs
from rollax.experiments.config import EnvConfig, ExperimentConfig
from rollax.experiments.learning import Failure, Metrics, hold_if_bad, learn, no_failure


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Clock:
    """What is the same for every seed of a job.

    It has no seed axis, under vmap either: a batched counter would turn every `cond` on it into a `select`, and every
    update gate into an update.
    """

    iteration: jax.Array  # int32 [], iterations done
    env_steps: jax.Array  # int32 [], environment steps of one seed; stops at the largest int32
    positions: PyTree  # of the replay buffer, rows of a data set included; None without one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The whole state of one seed's training; every leaf but those of `clock` gains a leading axis `[S]` under vmap."""

    agent: PyTree  # the agent's state
    memory: PyTree  # leaves [N, ...], the agent's memory
    env: PyTree  # leaves [N, ...], the environments' state
    env_params: PyTree  # the environments' params
    timestep: TimeStep  # leaves [N, ...], what the environments showed last
    replay: PyTree  # leaves [capacity / N, N, ...], rows of the replay buffer; () without one
    key: jax.Array  # key [], randomness still to come
    failed: Failure
    clock: Clock


def axes() -> TrainState:
    """Returns the prefix tree of a `TrainState`'s seed axes: 0 everywhere but None at `clock`.

    It is the `in_axes` and `out_axes` of every vmap over seeds: `jax.vmap(train, out_axes=(axes(), 0))`.
    """
    seeded: Any = 0
    shared: Any = None
    names = [field.name for field in dataclasses.fields(TrainState)]
    return TrainState(**{name: shared if name == "clock" else seeded for name in names})


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The loop for one config. Its methods are pure: jit them, vmap them over seeds with `axes()`, donate the state."""

    config: ExperimentConfig
    env: envs.Vectorise
    agent: Agent
    buffer: replay.Buffer | None
    chunk_iterations: int  # iterations of one call of `chunk`
    num_chunks: int  # calls of `chunk` that make the whole run

    @property
    def env_steps_per_iteration(self) -> int:
        """Environment steps of one iteration of one seed: T * N."""
        return self.config.train.num_steps * self.config.train.num_envs

    @property
    def env_steps_per_chunk(self) -> int:
        """Environment steps of one chunk of one seed."""
        return self.chunk_iterations * self.env_steps_per_iteration

    @property
    def num_iterations(self) -> int:
        """Iterations of the whole run."""
        return self.chunk_iterations * self.num_chunks

    def init(
        self, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None, env_params: PyTree = None
    ) -> TrainState:
        """Returns the state before the first iteration of one seed.

        Its leaves are fresh arrays without weak types that alias nothing, so that the state may be donated.

        Args:
            key: The seed's key.
            hyperparameters: Numbers of the agent that replace those of its config.
            env_params: Params of the environment; None takes the config's.

        Raises:
            InputError: A hyperparameter has no such name, the replay buffer does not fit, or the key is of an `rbg`
                kind, whose draws under vmap depend on the first key alone.
        """
        if "rbg" in str(jax.random.key_impl(key)):
            raise InputError(
                "the key has an rbg implementation, which draws wrongly under vmap: use jax.random.key(seed)."
            )
        key_agent, key_env, key_loop = jax.random.split(key, 3)
        env_params = strongly_typed(self.env.default_params if env_params is None else env_params)
        agent_state = self.agent.init(key_agent, with_horizon(self.config, self.num_iterations, hyperparameters))
        memory = self.agent.init_memory(self.config.train.num_envs)
        env_state, timestep = self.env.reset(key_env, env_params)
        rows, positions = self._init_replay(agent_state, memory, env_state, env_params, timestep)
        state = TrainState(
            agent=agent_state,
            memory=memory,
            env=env_state,
            env_params=env_params,
            timestep=timestep,
            replay=rows,
            key=key_loop,
            failed=no_failure(),
            clock=Clock(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), positions),
        )
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), strongly_typed(state))

    def chunk(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Runs `chunk_iterations` iterations.

        Returns:
            The state, and metrics of each iteration `[chunk_iterations]`: those of the agent's updates, `episodes` (how
            many ended), and their mean `episode_return` and `episode_length` (NaN where none ended).

        Raises:
            InputError: `clock` has a seed axis.
        """
        return self._scan(state, self.chunk_iterations)

    def train(
        self, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None, env_params: PyTree = None
    ) -> tuple[TrainState, Metrics]:
        """Runs all `num_iterations` iterations of one seed from its key."""
        return self._scan(self.init(key, hyperparameters, env_params), self.num_iterations)

    def _scan(self, state: TrainState, length: int) -> tuple[TrainState, Metrics]:
        if state.clock.iteration.ndim:
            _refuse_batched_clock()
        state = dataclasses.replace(state, clock=_unbatched(state.clock))
        thaw, freeze = (None, None) if self.buffer is None else (self.buffer.thaw, self.buffer.freeze)
        state = _with_rows(thaw, state)
        state, metrics = replay.scan(lambda carry, _: self.iteration(carry), state, length=length)
        return _with_rows(freeze, state), metrics

    def iteration(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Acts, stores, updates and observes once."""
        train = self.config.train
        key, key_rollout, key_learn = jax.random.split(state.key, 3)
        (memory, env_state, timestep), rollout, episodes = collection.collect(
            self.agent,
            self.env,
            state.agent,
            state.memory,
            state.env,
            state.env_params,
            state.timestep,
            key_rollout,
            train.num_steps,
            train.unroll,
        )
        stored = replay.ReplayState(state.replay, state.clock.positions)
        agent_state, metrics, stored = learn(
            self.agent, self.buffer, train.updates_per_iteration, state.agent, stored, rollout, key_learn
        )
        agent_state, failed = hold_if_bad(state.failed, state.clock.iteration, state.agent, agent_state)
        count = jnp.where(episodes.count > 0, episodes.count.astype(jnp.float32), jnp.nan)
        steps = self.env_steps_per_iteration
        largest = np.iinfo(np.int32).max
        state = TrainState(
            agent=self.agent.observe(agent_state, rollout),
            memory=memory,
            env=env_state,
            env_params=state.env_params,
            timestep=timestep,
            replay=stored.rows,
            key=key,
            failed=failed,
            clock=Clock(
                iteration=state.clock.iteration + 1,
                env_steps=jnp.minimum(state.clock.env_steps, largest - steps) + steps,
                positions=stored.positions,
            ),
        )
        return state, {
            **metrics,
            "episodes": episodes.count,
            "episode_return": episodes.episode_return / count,
            "episode_length": episodes.episode_length / count,
        }

    def _init_replay(
        self, agent_state: PyTree, memory: PyTree, env_state: PyTree, env_params: PyTree, timestep: TimeStep
    ) -> tuple[PyTree, PyTree]:
        if self.buffer is None:
            return (), None

        def first_row(key: jax.Array) -> Rollout:
            _, rollout, _ = collection.collect(
                self.agent, self.env, agent_state, memory, env_state, env_params, timestep, key, num_steps=1
            )
            return jax.tree.map(lambda leaf: leaf[0], rollout.rows())

        example = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(first_row, jax.random.key(0))
        )
        stored = self.buffer.init(example)
        return stored.rows, stored.positions


def make_trainer(config: ExperimentConfig) -> Trainer:
    """Builds the environment, the agent, the buffer and the loop of a config.

    The budget `train.total_env_steps` is rounded up to whole chunks of `log.every` steps.

    Raises:
        InputError: Something in the config cannot work; nothing has been compiled yet.
    """
    config = configs.check(config)
    raw = make_env(config.env)
    agent = make_agent(config, raw.observation_space(), raw.action_space())
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(raw)), config.train.num_envs)
    buffer = make_buffer(config, agent)
    chunk_iterations, num_chunks = _schedule(config)
    return Trainer(config, env, agent, buffer, chunk_iterations, num_chunks)


def make_train(config: ExperimentConfig) -> Callable[..., tuple[TrainState, Metrics]]:
    """Returns a whole run as a pure function: `(key, hyperparameters=None, env_params=None) -> (TrainState, metrics)`.

    Metrics have one entry for each iteration. Over many seeds: `jax.jit(jax.vmap(train, out_axes=(axes(), 0)))(keys)`.

    Raises:
        InputError: Something in the config cannot work; nothing has been compiled yet.
    """
    return make_trainer(config).train


def make_env(config: EnvConfig) -> envs.Environment:
    """Returns the raw environment of an `[env]` table.

    Raises:
        InputError: There is no such environment, or it does not take these arguments.
    """
    env = envs.make(config.id, **config.kwargs)
    envs.validate(env)
    return env


def make_agent(config: ExperimentConfig, observation_space: PyTree, action_space: PyTree) -> Agent:
    """Returns the agent of a config for an environment with these spaces.

    Raises:
        InputError: The agent does not go with the spaces, with T and N, or with its own numbers.
    """
    algorithm = resolve(config.train.agent)
    if algorithm.check is not None:
        algorithm.check(config.agent, config.train.num_steps, config.train.num_envs)
    agent: Agent = algorithm.make(observation_space, action_space, config.agent)
    return agent


def make_buffer(config: ExperimentConfig, agent: Agent) -> replay.Buffer | None:
    """Returns the replay buffer of a config; None for an agent that learns from rollouts.

    Raises:
        InputError: `[replay]` does not go with what the agent learns from.
    """
    name = resolve(config.train.agent).name
    if agent.consumes == "rollout":
        if config.replay is not None:
            raise InputError(f"[replay] has no use: train.agent = {name!r} learns from rollouts; remove the table.")
        if config.train.updates_per_iteration != 1:
            raise InputError(
                f"train.updates_per_iteration = {config.train.updates_per_iteration} must be 1: train.agent = {name!r} "
                "updates once on each rollout."
            )
        return None
    if config.replay is None:
        raise InputError(
            f"[replay] is missing: train.agent = {name!r} learns from replay; set capacity and batch_size."
        )
    options = dataclasses.asdict(config.replay)
    kind = options.pop("kind")
    if agent.consumes != config.replay.samples:
        remedy = "'sequence', or to 'prioritised' with replay.length above 1"
        if agent.consumes == "transitions":
            remedy = "'uniform' or 'prioritised', without replay.length"
        raise InputError(
            f"replay.kind = {kind!r} gives {config.replay.samples}, and train.agent = {name!r} learns from "
            f"{agent.consumes}: set it to {remedy}."
        )
    if agent.consumes == "sequences":
        del options["n_step"]
    else:
        del options["length"], options["cross_episodes"]
    return getattr(replay, kind)(**options)


def with_horizon(
    config: ExperimentConfig, num_iterations: int, hyperparameters: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the numbers that replace those of the agent's config: with a horizon of 0 there, the updates of a run."""
    numbers = dict(hyperparameters or {})
    if getattr(config.agent, "horizon", None) == 0:
        numbers.setdefault("horizon", float(num_iterations * config.train.updates_per_iteration))
    return numbers


def _schedule(config: ExperimentConfig) -> tuple[int, int]:
    """Returns iterations per chunk and chunks per run."""
    per_iteration = config.train.num_envs * config.train.num_steps
    needed = -(-config.train.total_env_steps // per_iteration)
    every = config.log.every or config.evaluation.every or -(-config.train.total_env_steps // 20)
    chunk_iterations = min(needed, -(-every // per_iteration))
    return chunk_iterations, -(-needed // chunk_iterations)


def _with_rows(convert: Callable[[replay.ReplayState], replay.ReplayState] | None, state: TrainState) -> TrainState:
    """Returns the state with its replay rows thawed or frozen, if there are any."""
    if convert is None:
        return state
    stored = convert(replay.ReplayState(state.replay, state.clock.positions))
    return dataclasses.replace(state, replay=stored.rows)


def _refuse_batched_clock() -> None:
    raise InputError(
        "TrainState.clock has a seed axis: map over seeds with in_axes and out_axes from rollax.experiments.axes(), "
        "which leave the clock unbatched."
    )


@jax.custom_batching.custom_vmap
def _unbatched(clock: Clock) -> Clock:
    return clock


@_unbatched.def_vmap
def _(axis_size: int, in_batched: list[Any], clock: Clock) -> tuple[Clock, Clock]:
    if any(jax.tree.leaves(in_batched)):
        _refuse_batched_clock()
    return clock, jax.tree.map(lambda leaf: False, clock)
