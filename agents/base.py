"""The agent contract: what the training loop, replay and a user's own loop know of any algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from rollax.envs.base import PyTree, TimeStep
from rollax.errors import InputError, nearest

Hyperparameters = dict[str, jax.Array]
"""The numbers of an agent by name, float32 scalars, carried in its state: a vmap over them trains a grid."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decision:
    """What an agent decided for N environments."""

    action: jax.Array  # [N, *action_shape], legal in the action space
    extras: PyTree  # leaves [N, ...], what `update` will need beside the action; `{}` if nothing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rollout:
    """T steps of N environments, time-major. Row t is one transition: what was seen, what was done, what came of it."""

    observation: PyTree  # [T, N, *observation_shape], what the action was chosen from
    action: jax.Array  # [T, N, *action_shape]
    reward: jax.Array  # float32 [T, N], of the step that the action took
    terminated: jax.Array  # bool [T, N], that step ended the episode by the rules of the task
    truncated: jax.Array  # bool [T, N], that step was cut off
    is_first: jax.Array  # bool [T, N], `observation` starts an episode
    final_observation: PyTree  # [T, N, *observation_shape], the true successor, before any reset
    action_mask: PyTree | None = None  # bool [T, N, num_actions], legal actions at `observation`; None: all are
    final_action_mask: PyTree | None = None  # bool [T, N, num_actions], legal actions at `final_observation`
    extras: PyTree = dataclasses.field(default_factory=dict)  # leaves [T, N, ...], from `Decision.extras`
    first_memory: PyTree = ()  # leaves [N, ...], the agent's memory before the first step; not part of a replay row
    last: TimeStep | None = None  # leaves [N, ...], the time step after the last row; not part of a replay row

    @property
    def ended(self) -> jax.Array:
        """Whether an episode ended with the step, bool [T, N]."""
        return self.terminated | self.truncated

    @classmethod
    def row(cls, before: TimeStep, decision: Decision, after: TimeStep) -> Rollout:
        """Returns one step of N environments, leaves `[N, ...]`: what was seen, the decision, and what came of it."""
        return cls(
            observation=before.observation,
            action=decision.action,
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            is_first=before.is_first,
            final_observation=after.final_observation,
            action_mask=before.action_mask,
            final_action_mask=after.final_action_mask,
            extras=decision.extras,
        )

    @classmethod
    def stack(cls, rows: Sequence[Rollout], first_memory: PyTree = (), last: TimeStep | None = None) -> Rollout:
        """Returns the rollout `[T, N]` of T rows that a loop in Python made.

        Args:
            rows: From `Rollout.row`, oldest first.
            first_memory: The agent's memory before the first row.
            last: The time step after the last row.
        """
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
        return dataclasses.replace(stacked, first_memory=first_memory, last=last)

    def rows(self) -> Rollout:
        """Returns the `[T, N]` fields alone, which is what replay stores."""
        return dataclasses.replace(self, first_memory=(), last=None)


class Replayed(Protocol):
    """What `update` takes of a sample of replay (`rollax.replay.Sample`): B windows of n rows."""

    @property
    def experience(self) -> Rollout:
        """The `[T, N]` fields of a rollout, leaves `[n, B, ...]`."""

    @property
    def weights(self) -> jax.Array:
        """Importance weights, float32 `[B]`."""

    @property
    def mask(self) -> jax.Array:
        """Rows that may be learnt from, bool `[n, B]`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Update:
    """What one call of `update` reports."""

    metrics: dict[str, jax.Array]  # float32 scalars by name
    priorities: jax.Array | None = None  # float32 [B], new priorities of the sampled rows; None: leave them


@dataclasses.dataclass(frozen=True)
class Agent:
    """A bundle of pure functions, in the spirit of `optax.GradientTransformation`.

    Attributes:
        init: `(key, hyperparameters=None) -> state`. The state is a named frozen dataclass with at least
            `hyperparameters` and `env_steps`; `hyperparameters` is a partial dict that replaces the config's numbers.
        init_memory: `(N) -> memory`, the memory of N environments at the start of an episode, `()` if there is none.
        noise: `(key, N) -> noise`, all randomness that acting once in N environments needs. A loop may draw a whole
            rollout's in one batched call, which is much cheaper than drawing inside a scan.
        act_with: `(state, memory, timestep, noise, explore=True) -> (memory, Decision)`. `timestep` has leaves `[N,
            ...]`; `explore` is static, and `noise` is ignored and may be None without it.
        observe: `(state, rollout) -> state`, once per iteration after the updates: statistics, `env_steps`.
        update: `(state, batch, key) -> (state, Update)`. Of an agent with prioritised replay, the hyperparameters
            `importance_exponent` and `priority_exponent` are those that the loop samples and sets priorities with.
        consumes: What `update` takes: a `"rollout"` `[T, N]`, replayed `"transitions"` `[n, B]` (the n rows of an
            n-step return, n = 1 included), or replayed `"sequences"` `[L, B]`.
    """

    init: Callable[..., Any]
    init_memory: Callable[[int], PyTree]
    noise: Callable[[jax.Array, int], PyTree]
    act_with: Callable[..., tuple[PyTree, Decision]]
    observe: Callable[[Any, Rollout], Any]
    update: Callable[[Any, Any, jax.Array], tuple[Any, Update]]
    consumes: Literal["rollout", "transitions", "sequences"]

    def act(
        self, state: Any, memory: PyTree, timestep: TimeStep, key: jax.Array, explore: bool = True
    ) -> tuple[PyTree, Decision]:
        """Chooses actions for the N environments of `timestep`.

        Args:
            state: The agent's state.
            memory: The agent's memory of the N environments.
            timestep: What the environments showed, leaves `[N, ...]`.
            key: One key for all N.
            explore: Whether to act as in training; otherwise greedily. Static.
        """
        noise = self.noise(key, timestep.terminated.shape[0]) if explore else None
        return self.act_with(state, memory, timestep, noise, explore=explore)


def hyperparameters_of(config: Any, overrides: Mapping[str, Any] | None = None) -> Hyperparameters:
    """Returns the numbers of a config as arrays: each float field of the dataclass, by name.

    The other fields (sizes, switches, names) are structure: they shape the program and stay out of the state.

    Args:
        config: An agent's config, a dataclass.
        overrides: Values that replace those of the config, numbers or traced arrays.

    Raises:
        InputError: An override has a name that is no float field.
    """
    numbers = {name: getattr(config, name) for name in number_names(config)}
    for name in overrides or {}:
        if name not in numbers:
            raise InputError(f"hyperparameter {name!r} does not exist: {nearest(name, numbers)}")
    return {name: jnp.asarray(value, jnp.float32) for name, value in {**numbers, **(overrides or {})}.items()}


def require(condition: bool, field: str, value: Any, remedy: str) -> None:
    """Raises `InputError` with one sentence unless `condition` holds.

    Args:
        condition: What must hold, a concrete bool.
        field: The name of the config field, such as `agent.learning_rate`.
        value: Its value.
        remedy: The end of the sentence "field = value ...".
    """
    if not condition:
        raise InputError(f"{field} = {value!r} {remedy}.")


def require_each(config: Any, names: Sequence[str], condition: Callable[[Any], bool], remedy: str) -> None:
    """Raises `InputError` with one sentence unless `condition` holds for each of these fields of an agent's config.

    Args:
        config: An agent's config, a dataclass.
        names: Of its fields.
        condition: What must hold of their values.
        remedy: The end of the sentence "agent.field = value ...".
    """
    for name in names:
        require(condition(getattr(config, name)), f"agent.{name}", getattr(config, name), remedy)


def number_names(config: Any) -> list[str]:
    """Returns the names of the fields of an agent's config that are hyperparameters: the floats."""
    return [field.name for field in dataclasses.fields(config) if field.type in (float, "float")]
