"""Training and evaluation in environments that the host steps, with the agents of the compiled loop.

Acting and learning are compiled; the loop around them is Python. What it dispatches to the device runs while it steps
the environments, and it waits for actions alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax import replay
from rollax.agents.base import Agent, Decision, Rollout
from rollax.agents.registry import resolve
from rollax.envs.base import EpisodeMetrics, PyTree, TimeStep, select, strongly_typed
from rollax.envs.host import HostVector, waiting
from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments.config import CompilerConfig, EnvConfig, ExperimentConfig
from rollax.experiments.evaluation import DEFAULT_STEP_CAP, Evaluation
from rollax.experiments.learning import Failure, Metrics, hold_if_bad, learn, no_failure
from rollax.experiments.trainer import make_agent, make_buffer, with_horizon

Callback = Callable[[int, Any, Metrics], None]
"""Environment steps so far, the agent's state, and the metrics of the iteration, scalars."""


@dataclasses.dataclass(frozen=True)
class HostResult:
    """What training in a host environment gives back."""

    agent: Any  # the agent's state
    metrics: dict[str, np.ndarray]  # [iterations], as of `Trainer.chunk`
    replay: PyTree  # leaves [capacity / N, N, ...], rows of the replay buffer; () without one
    failed: Failure


def make_host_train(config: ExperimentConfig, vector: HostVector) -> Callable[..., HostResult]:
    """Returns `train(key, hyperparameters=None, callback=None) -> HostResult`, a whole run of one seed.

    It is the loop of `make_train` around environments that the host steps: T rows of each of N environments, then the
    updates, then statistics. The budget is rounded up to whole iterations. An agent that learns from replay acts while
    its updates run, so with parameters that are one iteration old; its rows are stored in place, whatever
    `replay.storage` says.

    Seeds cannot be mapped over, as there is one vector environment: call `train` for one key after another, which
    compiles once. Each call resets the environments, with a seed that it draws from the key. `callback` is called after
    each iteration; to read an array in it waits for the updates.

    Args:
        config: What to train, but for its `[env]`, `[evaluation]`, `[log]` and `[checkpoint]`, and for
            `train.num_envs`: the environments are those of `vector`.
        vector: The environments.

    Raises:
        InputError: Something in the config cannot work, or not with these environments; from `train`, the key is
            traced, or the hyperparameters have other names.
    """
    if config.train.spread == "environments":
        raise InputError("train.spread = 'environments' cannot spread environments that the host steps: give 'seeds'.")
    if config.compiler != CompilerConfig():
        raise InputError("[compiler] has no use where the host steps the environments: leave it out.")
    spaces = _spaces_of(vector)
    train = dataclasses.replace(config.train, num_envs=vector.num_envs)
    config = configs.check(dataclasses.replace(config, env=EnvConfig(vector), train=train))
    agent = make_agent(config, *spaces)
    if config.replay is not None:
        config = dataclasses.replace(config, replay=dataclasses.replace(config.replay, storage="ref"))
    buffer, train = make_buffer(config, agent), config.train
    num_iterations = -(-train.total_env_steps // (train.num_envs * train.num_steps))
    act = jax.jit(functools.partial(_act, agent, explore=True))
    improve = replay.jit(functools.partial(_improve, agent, buffer, train.updates_per_iteration))
    start = jax.jit(functools.partial(_start, agent, train.num_envs))

    def run(
        key: jax.Array, hyperparameters: Mapping[str, Any] | None = None, callback: Callback | None = None
    ) -> HostResult:
        key_agent, key_env, key_act, key_learn = jax.random.split(_concrete(key), 4)
        state, memory, failed = _committed(start(key_agent, with_horizon(config, num_iterations, hyperparameters)))
        collector = _Collector(
            functools.partial(act, key_act), vector, train.num_steps, memory, _seed(key_env), buffer is not None
        )
        stored, history = replay.ReplayState((), None), []
        for iteration in range(num_iterations):
            rollout, episodes = collector.collect(state)
            if buffer is not None and iteration == 0:
                example = jax.tree.map(lambda leaf: leaf[0], rollout.rows())
                stored = buffer.thaw(_committed(buffer.init(example)))
            state, failed, stored, metrics = improve(key_learn, iteration, state, failed, stored, rollout)
            history.append({**metrics, **episodes})
            if callback is not None:
                callback((iteration + 1) * rollout.reward.size, state, history[-1])
        metrics = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(history))
        return HostResult(state, metrics, () if buffer is None else buffer.freeze(stored).rows, failed)

    return run


def make_host_evaluate(config: ExperimentConfig, vector: HostVector) -> Callable[..., Evaluation]:
    """Returns `evaluate(agent_state, key, explore=False) -> Evaluation`, of `evaluation.episodes` whole episodes.

    Each environment plays the same number of them, one more or less, so that short episodes are not preferred. An
    environment whose episode lasts for `evaluation.step_cap` steps (0: 10,000) is given up, and that episode and those
    it would have played later are not finished. Each call resets the environments: they must not be those of a training
    that goes on.

    Args:
        config: The agent's; its `[env]` and `evaluation.env` are not used.
        vector: The environments, with the spaces of training.

    Raises:
        InputError: Something in the config cannot work, or not with these environments; from `evaluate`, the key is
            traced.
    """
    config = configs.check(config)
    agent = resolve(config.train.agent).make(*_spaces_of(vector), config.agent)
    num_envs, episodes = vector.num_envs, config.evaluation.episodes
    step_cap = config.evaluation.step_cap or DEFAULT_STEP_CAP
    act = jax.jit(functools.partial(_act, agent), static_argnames="explore")
    environment = np.arange(num_envs)
    wanted = (episodes - environment + num_envs - 1) // num_envs  # of each environment

    def evaluate(agent_state: Any, key: jax.Array, explore: bool = False) -> Evaluation:
        key_env, key_act = jax.random.split(_concrete(key))
        timestep, memory = vector.reset(_seed(key_env)), agent.init_memory(num_envs)
        shape = (wanted[0] + 1, num_envs)  # one more than an environment plays, for those that are done
        episode_return, episode_length = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        finished, played, step = np.zeros(shape, np.bool_), np.zeros(num_envs, np.int32), 0
        while np.any(playing := (played < wanted) & (episode_length[played, environment] < step_cap)):
            memory, decision = act(key_act, step, agent_state, memory, timestep, explore=explore)
            counts = playing & ~waiting(timestep)
            timestep, step = vector.step(decision.action), step + 1
            episode_return[played, environment] += np.where(counts, timestep.reward, 0.0)
            episode_length[played, environment] += counts
            finished[played, environment] |= counts & timestep.ended
            played += counts & timestep.ended
        # Row by row, the episodes that were asked for come first.
        return Evaluation(
            *(jnp.asarray(part.ravel()[:episodes]) for part in (episode_return, episode_length, finished))
        )

    return evaluate


@dataclasses.dataclass(frozen=True)
class _Step:
    """One step of the vector environment, NumPy leaves."""

    row: Rollout  # leaves [N, ...]
    after: TimeStep  # leaves [N, ...]
    taken: np.ndarray  # bool [N], `row` is a transition, not yet handed out; elsewhere the environment was only reset
    known: np.ndarray  # bool [N], `after` is what follows a transition: where that ended, only once it has been reset


class _Collector:
    """Makes rollouts of exactly T transitions of each environment out of steps that not all of them take.

    An environment that ends takes one step less than the others where the vector environment resets in its next step.
    So N environments are stepped until the last of them has T transitions of which it is known what follows. What the
    others have more than that is dropped where rollouts are learnt from, as the policy that the next update starts from
    is another one; where rows are stored, it is kept for the next rollout, as windows need rows without a gap.
    """

    def __init__(
        self, act: Callable[..., Any], vector: HostVector, num_steps: int, memory: PyTree, seed: int, stores: bool
    ) -> None:
        """Resets the environments.

        Args:
            act: `(step, agent_state, memory, timestep) -> (memory, Decision)`.
            vector: The environments.
            num_steps: T.
            memory: The agent's memory, leaves `[N, ...]`.
            seed: Of the environments.
            stores: Whether rows are stored, so that it does not matter whether they are one update behind.
        """
        self._act, self._vector, self._num_steps, self._stores = act, vector, num_steps, stores
        self._memory, self._timestep = memory, vector.reset(seed)
        self._decision: Decision | None = None
        self._num_acts = 0
        self._steps: list[_Step] = []
        self._known = np.zeros(vector.num_envs, np.int32)  # how many steps of each environment are known

    def collect(self, agent_state: Any) -> tuple[Rollout, Metrics]:
        """Returns a rollout, NumPy leaves `[T, N, ...]`, and the number and means of the episodes that ended."""
        first_memory, ended = self._memory, []
        while not np.all(self._known >= self._num_steps):
            decision = self._decide(agent_state) if self._decision is None else self._decision
            decision, self._decision = jax.device_get(decision), None
            before, after = self._timestep, self._vector.step(decision.action)
            self._timestep, taken = after, ~waiting(before)
            # The reset of an environment whose last row went with an earlier rollout follows nothing.
            known = ~waiting(after) & (taken | bool(self._steps))
            self._steps.append(_Step(Rollout.row(before, decision, after), after, taken, known))
            self._known += known
            ended.append((after.metrics, taken & after.ended))
        rollout = self._hand_out(first_memory)
        if self._stores:
            # Dispatched before the updates of this rollout, so that these run while the host takes the next step.
            self._decision = self._decide(agent_state)
        return rollout, _episodes(ended)

    def _decide(self, agent_state: Any) -> Decision:
        self._memory, decision = self._act(self._num_acts, agent_state, self._memory, self._timestep)
        self._num_acts += 1
        chosen: Decision = decision
        return chosen

    def _hand_out(self, first_memory: PyTree) -> Rollout:
        taken = np.stack([step.taken for step in self._steps])
        index = _first(taken, self._num_steps)
        rollout: Rollout = _gather([step.row for step in self._steps], index)
        if self._stores:
            np.put_along_axis(taken, index, False, axis=0)
            rest = [dataclasses.replace(step, taken=left) for step, left in zip(self._steps, taken, strict=True)]
            self._steps = [step for step in rest if step.taken.any()]
            self._known -= self._num_steps
            return rollout
        following = _first(np.stack([step.known for step in self._steps]), self._num_steps)[-1]
        last = _gather([step.after for step in self._steps], following)
        self._steps.clear()
        self._known[:] = 0
        return dataclasses.replace(rollout, first_memory=first_memory, last=last)


def _first(mask: np.ndarray, count: int) -> np.ndarray:
    """Returns the first `count` places along axis 0 at which a mask `[V, N]` holds, int `[count, N]`."""
    return np.argsort(~mask, axis=0, kind="stable")[:count]


def _gather(steps: list[Any], index: np.ndarray) -> Any:
    """Returns the leaves `[..., N, ...]` of V trees with leaves `[N, ...]` at `index` `[..., N]`."""
    environment = np.arange(index.shape[-1])
    return jax.tree.map(lambda *leaves: np.stack(leaves)[index, environment], *steps)


def _episodes(ended: list[tuple[EpisodeMetrics, np.ndarray]]) -> Metrics:
    """Returns how many episodes ended, and their mean return and length; NaN where none did."""
    returns, lengths = (
        np.concatenate([np.asarray(getattr(metrics, name))[at] for metrics, at in ended])
        for name in ("episode_return", "episode_length")
    )
    count = np.float32(returns.size or np.nan)
    totals: dict[str, Any] = {
        "episode_return": returns.sum() / count,
        "episode_length": np.float32(lengths.sum()) / count,
    }
    return {"episodes": np.int32(returns.size), **totals}


def _act(
    agent: Agent, key: jax.Array, step: Any, state: Any, memory: PyTree, timestep: TimeStep, explore: bool
) -> tuple[PyTree, Decision]:
    """Acts; the memory of an environment that waits, and takes no step, stays as it is."""
    after, decision = agent.act(state, memory, timestep, jax.random.fold_in(key, step), explore)
    return select(waiting(timestep), memory, after), decision


def _start(agent: Agent, num_envs: int, key: jax.Array, hyperparameters: Any) -> tuple[Any, PyTree, Failure]:
    """What the first iteration begins with: the agent's state, its memory, and no failure."""
    begin: tuple[Any, PyTree, Failure] = strongly_typed(
        (agent.init(key, hyperparameters), agent.init_memory(num_envs), no_failure())
    )
    return begin


def _improve(
    agent: Agent,
    buffer: replay.Buffer | None,
    num_updates: int,
    key: jax.Array,
    iteration: Any,
    state: Any,
    failed: Failure,
    stored: replay.ReplayState,
    rollout: Rollout,
) -> tuple[Any, Failure, replay.ReplayState, Metrics]:
    """The part of an iteration that the device does: updates, then statistics."""
    key = jax.random.fold_in(key, iteration)
    updated, metrics, stored = learn(agent, buffer, num_updates, state, stored, rollout, key)
    updated, failed = hold_if_bad(failed, iteration, state, updated)
    return agent.observe(updated, rollout), failed, stored, metrics


def _spaces_of(vector: HostVector) -> tuple[PyTree, PyTree]:
    """Returns the spaces of observations and actions."""
    if not isinstance(vector, HostVector):
        raise InputError(f"a {type(vector).__name__} is no envs.HostVector: give HostVector(vector_environment).")
    return vector.observation_space(), vector.action_space()


def _concrete(key: jax.Array) -> jax.Array:
    if isinstance(key, jax.core.Tracer):
        raise InputError(
            "a key was traced by jit or vmap, and the host cannot step environments in a compiled function: call it "
            "as it is, with one key after another."
        )
    return key


def _committed(tree: PyTree) -> PyTree:
    """Returns arrays that are bound to their device, as those that come with a Ref are; else all compiles twice."""
    return jax.device_put(tree, jax.tree.map(lambda leaf: leaf.sharding, tree))


def _seed(key: jax.Array) -> int:
    return int(jax.random.bits(key, dtype=jnp.uint32) >> 1)
