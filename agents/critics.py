"""Critics of agents that learn from replay: an ensemble Q_1, ..., Q_E(s, a) as one vmapped set of parameters.

Each member gives a distribution of returns as the heads of `action_values` do: of the one action that it is shown where
the action space is a Box, of all actions where it is Discrete. A critic that gives the mean alone is one atom.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from rollax.agents import action_values, heads, networks, optimisers, torsos, value_learning
from rollax.agents.action_values import Returns, Target
from rollax.agents.base import Hyperparameters, require
from rollax.agents.transitions import Learnt
from rollax.envs import spaces
from rollax.envs.base import PyTree, select
from rollax.errors import InputError, nearest

DISTRIBUTIONS = ("none", "categorical", "quantile")


class CriticConfig(torsos.NetworkConfig, Protocol):
    """The fields of an agent's config that say what its critics are.

    Its numbers are among those of every such agent, which `check` looks at: `learning_rate`, `critic_learning_rate`,
    `adam_epsilon`, `adam_momentum`, `huber_threshold`, `discount`, `target_rate`, `random_steps`, `priority_exponent`
    and `importance_exponent`.
    """

    @property
    def num_critics(self) -> int:
        """Members of the ensemble."""

    @property
    def distribution(self) -> str:
        """What each learns of the return, of `DISTRIBUTIONS`; "none" is its mean alone."""

    @property
    def num_atoms(self) -> int:
        """Atoms of a categorical distribution."""

    @property
    def value_min(self) -> float:
        """Return of the lowest atom of a categorical distribution."""

    @property
    def value_max(self) -> float:
        """Return of the highest atom of a categorical distribution."""

    @property
    def num_quantiles(self) -> int:
        """Quantiles of a quantile distribution."""

    @property
    def dropout(self) -> float:
        """Share of hidden units left out at random while learning."""

    @property
    def batch_norm(self) -> bool:
        """Whether layers are normalised over the batch, and there are no target networks (CrossQ)."""

    @property
    def target_period(self) -> int:
        """Updates from one step of the target networks to the next."""


@dataclasses.dataclass(frozen=True)
class _HeadSettings:
    """What `action_values` asks for, of which critics use only some."""

    distribution: str
    num_atoms: int
    num_quantiles: int
    activation: str
    huber: bool
    num_taus: int = 1
    dueling: bool = False
    noisy: bool = False
    stream_sizes: tuple[int, ...] = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of E critics; leaves of the first three `[E, ...]`."""

    params: PyTree
    statistics: PyTree  # of batch norm; {} without it
    target_params: PyTree  # () with batch norm, which needs none
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True, eq=False)
class Critics:
    """The static pieces of an ensemble. Actions of a Box are flat and in its units, `heads.to_unit`."""

    config: CriticConfig
    action_space: spaces.Box | spaces.Discrete
    inputs: PyTree  # the space of a network's inputs
    network: _Network
    head: action_values.ScalarHead

    def init(self, key: jax.Array, hyper: Hyperparameters) -> State:
        """Returns fresh critics, each with parameters of its own."""
        example = jax.tree.map(lambda leaf: leaf[None], spaces.zeros(self.inputs))

        def member(key: jax.Array) -> tuple[PyTree, PyTree]:
            key_network, key_head = jax.random.split(key)
            params, statistics = self.network.init(key_network, example)
            return {
                "network": params,
                "head": self.head.init(key_head, {**hyper, "noisy_scale": jnp.zeros(())}),
            }, statistics

        params, statistics = jax.vmap(member)(jax.random.split(key, self.config.num_critics))
        return State(
            params=params,
            statistics=statistics,
            target_params=() if self.config.batch_norm else jax.tree.map(jnp.copy, params),
            opt_state=self.optimiser(hyper).init(params),
        )

    def optimiser(self, hyper: Hyperparameters) -> optax.GradientTransformation:
        """Adam without clipping, which would let one member's gradient scale another's."""
        return optimisers.adam(hyper["adam_epsilon"], hyper["adam_momentum"])

    def returns(
        self,
        params: PyTree,
        statistics: PyTree,
        observation: PyTree,
        action: jax.Array | None,
        hyper: Hyperparameters,
        key: jax.Array | None = None,
    ) -> Returns:
        """What each critic expects, leaves `[E, B, A, K]`; A is 1 where the action is shown.

        Args:
            params: Leaves `[E, ...]`, of all critics or of some.
            statistics: Of batch norm, leaves `[E, ...]`, of the same ones.
            observation: Normalised, leaves `[B, ...]`.
            action: float32 `[B, D]`; not used where the action space is Discrete.
            hyper: The agent's numbers.
            key: Of dropout; None leaves nothing out.
        """
        return self._forward(params, statistics, observation, action, hyper, key, train=False)[0]

    def update(
        self,
        state: State,
        taken: tuple[PyTree, jax.Array],
        following: tuple[PyTree, jax.Array | None],
        make_target: Callable[[Returns], Target],
        weights: jax.Array,
        hyper: Hyperparameters,
        updates: jax.Array,
        key: jax.Array,
    ) -> tuple[State, Learnt]:
        """Takes one step on the loss of all critics, then one of their targets.

        Args:
            state: So far.
            taken: Normalised observations, leaves `[B, ...]`, and the actions taken there, `[B, *action_shape]`.
            following: Those of the successors, or of several for each of them, and the actions asked for there.
            make_target: From what the target networks expect of `following`, `[E, ...]`, to what all critics are fitted
                to; with batch norm what the critics themselves expect, seen in one batch with `taken` (CrossQ).
            weights: float32 `[B]`.
            hyper: The agent's numbers.
            updates: Updates done, this one included, int32 `[]`.
            key: Of dropout.
        """
        key_target, key_online = jax.random.split(key)
        shown, chosen = None, taken[1]
        if isinstance(self.action_space, spaces.Box):
            shown, chosen = heads.to_unit(self.action_space, taken[1]), jnp.zeros(weights.shape, jnp.int32)
        target = None
        if not self.config.batch_norm:
            target = make_target(self.returns(state.target_params, {}, *following, hyper, key_target))

        def loss(params: PyTree) -> tuple[jax.Array, tuple[Learnt, PyTree]]:
            if target is None:
                observation, action = jax.tree.map(
                    lambda *leaves: jnp.concatenate(leaves), (taken[0], shown), following
                )
                expected, statistics = self._forward(
                    params, state.statistics, observation, action, hyper, key_online, train=True
                )
                predicted = jax.tree.map(lambda leaf: leaf[:, : weights.shape[0]], expected)
                ahead = jax.tree.map(lambda leaf: leaf[:, weights.shape[0] :], expected)
                fitted = make_target(lax.stop_gradient(ahead))
            else:
                fitted = target
                predicted, statistics = self._forward(
                    params, state.statistics, taken[0], shown, hyper, key_online, train=True
                )
            losses = jax.vmap(lambda member: self.head.loss(member, chosen, fitted, hyper))(predicted)
            values = jax.vmap(lambda member: value_learning.chosen(member.values, chosen))(predicted)
            values = jnp.mean(values, axis=0)
            learnt = Learnt(jnp.mean(losses, axis=0), fitted.value - values, values)
            return jnp.sum(jnp.mean(weights * losses, axis=1)), (learnt, statistics)

        gradients, (learnt, statistics) = jax.grad(loss, has_aux=True)(state.params)
        params, opt_state = optimisers.descend(
            self.optimiser(hyper), gradients, state.opt_state, state.params, hyper["critic_learning_rate"]
        )
        target_params = state.target_params
        if not self.config.batch_norm:
            target_params = optimisers.follow(
                target_params, params, updates, self.config.target_period, hyper["target_rate"]
            )
        return State(params, statistics, target_params, opt_state), learnt

    def _forward(
        self,
        params: PyTree,
        statistics: PyTree,
        observation: PyTree,
        action: jax.Array | None,
        hyper: Hyperparameters,
        key: jax.Array | None,
        train: bool,
    ) -> tuple[Returns, PyTree]:
        inputs = observation
        if isinstance(self.action_space, spaces.Box):
            inputs = {"observation": observation, "action": action}

        def member(params: PyTree, statistics: PyTree, key: jax.Array | None) -> tuple[Returns, PyTree]:
            features, statistics = self.network.apply(
                params["network"], statistics, inputs, hyper["dropout"], key, train
            )
            return self.head.returns(params["head"], features, None, hyper), statistics

        keys = None if key is None else jax.random.split(key, jax.tree.leaves(params)[0].shape[0])
        return jax.vmap(member)(params, statistics, keys)


def lowest(returns: Returns) -> Returns:
    """Of each state and action the distribution with the lowest mean among E critics (Fujimoto et al. 2018).

    Args:
        returns: Leaves `[E, B, A, K]`.

    Returns:
        Leaves `[B, A, K]`.
    """
    index = jnp.argmin(returns.values, axis=0)[None, ..., None]

    def take(leaf: jax.Array) -> jax.Array:
        return jnp.take_along_axis(leaf, index, axis=0)[0]

    return Returns(take(returns.atoms), take(returns.log_weights))


def truncated(returns: Returns, dropped: int) -> Returns:
    """The smallest atoms of E critics together (TQC, Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269).

    Args:
        returns: Equally likely atoms, leaves `[E, B, A, K]`.
        dropped: How many of the largest are left out for each critic, below K.

    Returns:
        Leaves `[B, A, E (K - dropped)]`, equally likely.
    """
    count = returns.atoms.shape[0] * (returns.atoms.shape[-1] - dropped)
    atoms = jnp.moveaxis(returns.atoms, 0, -1)
    atoms = jnp.sort(atoms.reshape(*atoms.shape[:-2], -1), axis=-1)[..., :count]
    return Returns(atoms, jnp.full(atoms.shape, -np.log(count), jnp.float32))


def every(
    period: int,
    updates: jax.Array,
    step: Callable[..., tuple[Any, dict[str, jax.Array]]],
    state: Any,
    *arguments: Any,
) -> tuple[Any, dict[str, jax.Array]]:
    """Returns `step(state, *arguments)`, a new state and metrics, where `updates` is a multiple of `period`.

    Elsewhere the state stays and the metrics are NaN. Under `vmap` the step is computed where it is the turn of any
    lane, and not always, as for a `cond` on a batched number; lanes that count alike all step and wait together.
    """
    if period == 1:
        return step(state, *arguments)
    _, metrics = jax.eval_shape(step, state, *arguments)
    nothing = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), metrics)
    due = updates % period == 0

    def step_where_due(state: Any, *arguments: Any) -> tuple[Any, dict[str, jax.Array]]:
        return select(due, step(state, *arguments), (state, nothing))

    return lax.cond(_in_any_lane(due), step_where_due, lambda state, *_: (state, nothing), state, *arguments)


@jax.custom_batching.custom_vmap
def _in_any_lane(flag: jax.Array) -> jax.Array:
    return flag


@_in_any_lane.def_vmap
def _(axis_size: int, in_batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
    return _in_any_lane(jnp.any(flags)), False


def metrics(learnt: Learnt) -> dict[str, jax.Array]:
    """Returns what an update of the critics reports."""
    return {
        "critic_loss": jnp.mean(learnt.losses),
        "td_error": jnp.mean(jnp.abs(learnt.td_error)),
        "q_value": jnp.mean(learnt.values),
    }


def check(config: CriticConfig) -> None:
    """Raises InputError where a config makes no critics, or a number that all agents with critics have is wrong."""
    numbers: Any = config
    for names, holds, remedy in (
        (("learning_rate", "critic_learning_rate"), lambda value: value > 0, "must be above 0"),
        (("adam_epsilon", "huber_threshold"), lambda value: value > 0, "must be above 0"),
        (("discount", "importance_exponent"), lambda value: 0 <= value <= 1, "must be between 0 and 1"),
        (("priority_exponent", "random_steps"), lambda value: value >= 0, "must not be negative"),
        (("adam_momentum", "dropout"), lambda value: 0 <= value < 1, "must be at least 0 and below 1"),
        (("target_rate",), lambda value: 0 < value <= 1, "must be above 0 and at most 1"),
    ):
        for name in names:
            value = getattr(numbers, name)
            require(holds(value), f"agent.{name}", value, remedy)
    kind = config.distribution
    if kind not in DISTRIBUTIONS:
        raise InputError(f"agent.distribution = {kind!r} is no known distribution: {nearest(kind, DISTRIBUTIONS)}")
    for name, least in (("num_critics", 1), ("num_atoms", 2), ("num_quantiles", 1), ("target_period", 1)):
        require(getattr(config, name) >= least, f"agent.{name}", getattr(config, name), f"must be at least {least}")
    low, high = config.value_min, config.value_max
    require(low < high, "agent.value_min", low, f"must be below agent.value_max = {high}")
    for name in ("dropout", "batch_norm"):
        if getattr(config, name) and config.torso != "mlp":
            raise InputError(
                f"agent.{name} = {getattr(config, name)!r} needs agent.torso = 'mlp', not {config.torso!r}: leave one "
                "of them out."
            )
    torsos.check_network(config)


def make(
    config: CriticConfig, observation_space: PyTree, action_space: spaces.Box | spaces.Discrete, huber: bool = False
) -> Critics:
    """Returns the critics that a config asks for.

    A torso of one's own gets the observation where the action space is Discrete, and otherwise a dict with the
    `observation` and the `action`, float32 `[B, D]` in units of the space.

    Args:
        config: Of the agent.
        observation_space: A PyTree of spaces.
        action_space: Where the agent acts.
        huber: Whether the errors of a critic without a distribution count linearly beyond `huber_threshold`; those of
            quantiles always do.

    Raises:
        InputError: The torso does not fit the observations.
    """
    inputs, num_actions = observation_space, 1
    if isinstance(action_space, spaces.Box):
        unit = spaces.Box(-np.inf, np.inf, (spaces.size(action_space),))
        inputs = {"observation": observation_space, "action": unit}
    else:
        num_actions = action_space.n
    network, num_features = _make_network(config, inputs)
    quantile = config.distribution == "quantile"
    settings = _HeadSettings(
        config.distribution, config.num_atoms, config.num_quantiles, config.activation, huber or quantile
    )
    head = action_values.make(settings, num_features, num_actions)
    assert isinstance(head, action_values.ScalarHead)
    return Critics(config, action_space, inputs, network, head)


@dataclasses.dataclass(frozen=True, eq=False)
class _Network:
    """One critic's network below its head.

    `init` is `(key, inputs) -> (params, statistics)`, `apply` is `(params, statistics, inputs, dropout_rate, key,
    train) -> (features, statistics)`.
    """

    init: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[jax.Array, PyTree]]


def _make_network(config: CriticConfig, inputs: PyTree) -> tuple[_Network, int]:
    if config.dropout or config.batch_norm:
        return _regularised(config, inputs), config.hidden_sizes[-1] if config.hidden_sizes else _width(inputs)
    torso = torsos.make_network(config, inputs)
    if torso.has_memory:
        raise InputError(f"agent.torso = {config.torso!r} has a memory, which critics cannot use: choose another.")

    def apply(
        params: PyTree, statistics: PyTree, inputs: PyTree, rate: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, PyTree]:
        batch = jax.tree.leaves(inputs)[0].shape[0]
        return torso.step(params, (), inputs, jnp.zeros((batch,), jnp.bool_))[1], statistics

    return _Network(lambda key, example: (torso.init(key, example), {}), apply), torsos.num_features(torso, inputs)


def _width(inputs: PyTree) -> int:
    return sum(spaces.size(space) for space in spaces.leaves(inputs))


def _regularised(config: CriticConfig, inputs: PyTree) -> _Network:
    module = networks.MLP(
        config.hidden_sizes,
        networks.get_activation(config.activation),
        networks.DTYPES[config.compute_dtype],
        config.layer_norm,
        config.batch_norm,
        config.dropout > 0,
    )

    def init(key: jax.Array, example: PyTree) -> tuple[PyTree, PyTree]:
        variables = dict(module.init(key, networks.flatten_observation(example, inputs)))
        return variables.pop("params"), variables

    def apply(
        params: PyTree, statistics: PyTree, values: PyTree, rate: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, PyTree]:
        flat = networks.flatten_observation(values, inputs)
        rngs: Any = None if key is None or not config.dropout else {"dropout": key}
        variables = {"params": params, **statistics}
        if train and config.batch_norm:
            features, statistics = module.apply(variables, flat, rate, True, rngs=rngs, mutable=["batch_stats"])
        else:
            features = module.apply(variables, flat, rate, rngs=rngs)
        return jnp.asarray(features, jnp.float32), statistics

    return _Network(init, apply)
