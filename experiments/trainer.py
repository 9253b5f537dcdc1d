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
from jax import lax

from rollax import envs, replay
from rollax.agents.base import Agent, Rollout, Update
from rollax.agents.registry import resolve
from rollax.envs.base import PyTree, TimeStep, select, strongly_typed
from rollax.errors import InputError
from rollax.experiments import collection
from rollax.experiments import config as configs
from rollax.experiments.config import EnvConfig, ExperimentConfig

Metrics = dict[str, jax.Array]


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
class Failure:
    """Whether a number of a seed's learner stopped being finite, and when; it is held from then on, by value."""

    flag: jax.Array  # bool []
    iteration: jax.Array  # int32 [], the first bad iteration; -1 if there is none


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
        hyperparameters = dict(hyperparameters or {})
        if getattr(self.config.agent, "horizon", None) == 0:
            updates = self.num_iterations * self.config.train.updates_per_iteration
            hyperparameters.setdefault("horizon", float(updates))
        agent_state = self.agent.init(key_agent, hyperparameters)
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
            failed=Failure(jnp.zeros((), jnp.bool_), jnp.full((), -1, jnp.int32)),
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
        if self.buffer is None:
            agent_state, update = self.agent.update(state.agent, rollout, key_learn)
            metrics, rows, positions = update.metrics, state.replay, None
        else:
            agent_state, metrics, stored = self._learn_from_replay(state, rollout, key_learn)
            rows, positions = stored.rows, stored.positions
        agent_state, failed = _hold_if_bad(state, agent_state)
        count = jnp.where(episodes.count > 0, episodes.count.astype(jnp.float32), jnp.nan)
        steps = self.env_steps_per_iteration
        largest = np.iinfo(np.int32).max
        state = TrainState(
            agent=self.agent.observe(agent_state, rollout),
            memory=memory,
            env=env_state,
            env_params=state.env_params,
            timestep=timestep,
            replay=rows,
            key=key,
            failed=failed,
            clock=Clock(
                iteration=state.clock.iteration + 1,
                env_steps=jnp.minimum(state.clock.env_steps, largest - steps) + steps,
                positions=positions,
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

    def _learn_from_replay(
        self, state: TrainState, rollout: Rollout, key: jax.Array
    ) -> tuple[PyTree, Metrics, replay.ReplayState]:
        """Writes, then samples all batches at once, then updates, then sets all priorities at once.

        In this order because a read before a write in one loop body copies the whole buffer.
        """
        buffer = self.buffer
        assert buffer is not None
        num_updates = self.config.train.updates_per_iteration
        numbers = state.agent.hyperparameters
        importance_exponent = numbers.get("importance_exponent")
        priority_exponent = numbers.get("priority_exponent", 1.0)
        key_sample, key_update = jax.random.split(key)
        stored = replay.ReplayState(state.replay, state.clock.positions)
        stored = buffer.add(stored, rollout.rows())
        samples = jax.vmap(lambda key: buffer.sample(stored, key, importance_exponent))(
            jax.random.split(key_sample, num_updates)
        )
        keys_update = jax.random.split(key_update, num_updates)

        def learn(agent_state: PyTree) -> tuple[PyTree, Update]:
            def step(agent_state: PyTree, inputs: Any) -> tuple[PyTree, Update]:
                return self.agent.update(agent_state, *inputs)

            agent_state, updates = lax.scan(step, agent_state, (samples, keys_update))
            # An update that leaves a part out, such as a delayed policy, reports NaN of it.
            metrics = jax.tree.map(lambda leaf: jnp.nanmean(leaf, axis=0), updates.metrics)
            return agent_state, dataclasses.replace(updates, metrics=metrics)

        def wait(agent_state: PyTree) -> tuple[PyTree, Update]:
            _, updates = jax.eval_shape(learn, agent_state)
            return agent_state, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), updates)

        agent_state, updates = lax.cond(buffer.can_sample(stored), learn, wait, state.agent)
        if updates.priorities is not None:  # [U, B]; NaN, as from `wait`, leaves a row's priority as it is
            stored = buffer.set_priorities(stored, samples.indices, updates.priorities, priority_exponent)
        return agent_state, updates.metrics, stored


def make_trainer(config: ExperimentConfig) -> Trainer:
    """Builds the environment, the agent, the buffer and the loop of a config.

    The budget `train.total_env_steps` is rounded up to whole chunks of `log.every` steps.

    Raises:
        InputError: Something in the config cannot work; nothing has been compiled yet.
    """
    config = configs.check(config)
    algorithm = resolve(config.train.agent)
    if algorithm.check is not None:
        algorithm.check(config.agent, config.train.num_steps, config.train.num_envs)
    raw = make_env(config.env)
    agent = algorithm.make(raw.observation_space(), raw.action_space(), config.agent)
    env = envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(raw)), config.train.num_envs)
    buffer = _make_buffer(config, agent, algorithm.name)
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


def _make_buffer(config: ExperimentConfig, agent: Agent, name: str) -> replay.Buffer | None:
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


def _hold_if_bad(state: TrainState, agent_state: PyTree) -> tuple[PyTree, Failure]:
    """Returns the updated agent, or the old one for a seed in which a finite number has become NaN or infinite."""

    def turned_bad(old: jax.Array, new: jax.Array) -> jax.Array:
        if not jnp.issubdtype(new.dtype, jnp.floating):
            return jnp.zeros((), jnp.bool_)
        return jnp.any(jnp.isfinite(old) & ~jnp.isfinite(new))

    bad = jnp.any(jnp.stack(jax.tree.leaves(jax.tree.map(turned_bad, state.agent, agent_state))))
    failed = Failure(
        flag=state.failed.flag | bad,
        iteration=jnp.where(bad & ~state.failed.flag, state.clock.iteration, state.failed.iteration),
    )
    return select(failed.flag, state.agent, agent_state), failed


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
