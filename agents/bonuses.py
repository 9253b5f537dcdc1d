"""Rewards for what is new, made by the agent itself: errors of predictions that get better where it has been.

Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894) predicts random features of the
successor; the intrinsic curiosity module (Pathak et al. 2017, https://arxiv.org/abs/1705.05363) predicts features of
the successor that tell which action led there. Bonuses are scaled by the running standard deviation of their discounted
sums, which are taken over each rollout from 0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rollax.agents import heads, networks, normalisation, optimisers, torsos
from rollax.agents.base import Hyperparameters, Rollout
from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError, nearest

KINDS = ("none", "rnd", "icm")
OBSERVATION_LIMIT = 5.0
"""Standard deviations at which normalised observations are clipped (Burda et al. 2018, section 2.4)."""
FORWARD_SHARE = 0.2
"""beta, the share of the forward model's loss in that of the curiosity module (Pathak et al. 2017, section 3)."""
ADAM_EPSILON = 1e-8


class BonusConfig(torsos.NetworkConfig, Protocol):
    """The fields of an agent's config that say what its bonus is."""

    @property
    def bonus(self) -> str:
        """One of `KINDS`."""

    @property
    def bonus_features(self) -> int:
        """Numbers that the bonus is the error of predicting."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What bonuses are measured with."""

    params: PyTree  # what predicts
    random_params: PyTree  # of the random features of rnd; () of icm
    opt_state: optax.OptState
    observation_statistics: normalisation.Statistics  # of all successors
    return_statistics: normalisation.Statistics  # of discounted sums of bonuses


@dataclasses.dataclass(frozen=True)
class Bonus:
    """A bonus.

    Attributes:
        init: `(key) -> state`.
        learn: `(state, rollout, hyperparameters) -> (state, bonus)`: the bonus float32 `[T, N]` of each row, scaled,
            and the state after one step of learning to predict those rows.
    """

    init: Callable[[jax.Array], State]
    learn: Callable[[Any, Rollout, Hyperparameters], tuple[State, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Predictor:
    """The static pieces of a bonus.

    Attributes:
        init: `(key, observation) -> (params, random_params)`, for leaves `[B, ...]`.
        errors: `(params, random_params, observation, action, successor) -> (loss, error)`, each float32 `[B]`.
    """

    init: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    errors: Callable[..., tuple[jax.Array, jax.Array]]


def check(kind: str) -> None:
    """Raises InputError unless there is such a bonus."""
    if kind not in KINDS:
        raise InputError(f"agent.bonus = {kind!r} is no known bonus: {nearest(kind, KINDS)}")


def make(config: BonusConfig, observation_space: PyTree, action_space: spaces.Space) -> Bonus | None:
    """Returns the bonus that a config asks for, None for "none"; its networks are of the kind of the agent's torso.

    Raises:
        InputError: There is no such bonus, or the torso has a memory or does not fit the observations.
    """
    check(config.bonus)
    if config.bonus == "none":
        return None
    predictor = (
        rnd(config, observation_space) if config.bonus == "rnd" else icm(config, observation_space, action_space)
    )
    return Bonus(functools.partial(init, predictor, observation_space), functools.partial(learn, predictor))


def rnd(config: BonusConfig, observation_space: PyTree) -> Predictor:
    """Random network distillation.

    loss = error = mean_i (f_i(s') - g_i(s'))^2,   g random and fixed
    """
    features = _features(config, observation_space)

    def init(key: jax.Array, observation: PyTree) -> tuple[PyTree, PyTree]:
        key_params, key_random = jax.random.split(key)
        return features.init(key_params, observation), features.init(key_random, observation)

    def errors(
        params: PyTree, random_params: PyTree, observation: PyTree, action: jax.Array, successor: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        error = jnp.mean(
            jnp.square(features.apply(params, successor) - features.apply(random_params, successor)), axis=-1
        )
        return error, error

    return Predictor(init, errors)


def icm(config: BonusConfig, observation_space: PyTree, action_space: spaces.Space) -> Predictor:
    """The intrinsic curiosity module, whose features the inverse model alone shapes.

        error = mean_i (phi^_i - phi_i(s'))^2 / 2,   phi^ = forward(phi(s), a)
        loss  = beta error - (1 - beta) log p(a | phi(s), phi(s'))

    A Box's action is a normal of scale 1 in units of the Box.
    """
    features, width = _features(config, observation_space), config.bonus_features
    head = heads.make(action_space, "icm", width)
    encode = functools.partial(_encode, action_space)
    action_width = jax.eval_shape(lambda: encode(spaces.zeros(action_space)[None])).shape[-1]

    def model(num_inputs: int, num_outputs: int) -> networks.Network:
        flat = spaces.Box(-1.0, 1.0, (num_inputs,))
        hidden = networks.make_torso("mlp", flat, config.hidden_sizes, config.activation)
        return _on_top(hidden, networks.make_linear(num_outputs, scale=1.0))

    forward_model, inverse_model = model(width + action_width, width), model(2 * width, head.num_outputs)

    def init(key: jax.Array, observation: PyTree) -> tuple[PyTree, PyTree]:
        key_features, key_forward, key_inverse = jax.random.split(key, 3)
        return {
            "features": features.init(key_features, observation),
            "forward": forward_model.init(key_forward, jnp.zeros((1, width + action_width))),
            "inverse": inverse_model.init(key_inverse, jnp.zeros((1, 2 * width))),
        }, ()

    def errors(
        params: PyTree, random_params: PyTree, observation: PyTree, action: jax.Array, successor: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        before, after = (features.apply(params["features"], seen) for seen in (observation, successor))
        outputs = inverse_model.apply(params["inverse"], jnp.concatenate([before, after], axis=-1))
        taken = heads.to_unit(action_space, action) if isinstance(action_space, spaces.Box) else action
        log_prob = head.distribution(outputs, outputs, head.init(jnp.zeros(())), None).log_prob(taken)
        before, after = lax.stop_gradient((before, after))
        predicted = forward_model.apply(params["forward"], jnp.concatenate([before, encode(action)], axis=-1))
        error = 0.5 * jnp.mean(jnp.square(predicted - after), axis=-1)
        return FORWARD_SHARE * error - (1.0 - FORWARD_SHARE) * log_prob, error

    return Predictor(init, errors)


def init(predictor: Predictor, observation_space: PyTree, key: jax.Array) -> State:
    """Returns the state of a bonus before it has seen anything."""
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), spaces.zeros(observation_space))
    params, random_params = predictor.init(key, jax.tree.map(lambda leaf: leaf[None], example))
    return State(
        params=params,
        random_params=random_params,
        opt_state=optimisers.adam(ADAM_EPSILON).init(params),
        observation_statistics=normalisation.init(example),
        return_statistics=normalisation.init(jnp.zeros(())),
    )


def learn(predictor: Predictor, state: State, rollout: Rollout, hyper: Hyperparameters) -> tuple[State, jax.Array]:
    """Returns the state after one step on a rollout, and its bonuses float32 `[T, N]`, measured before the step."""
    observations = normalisation.merge(state.observation_statistics, rollout.final_observation)

    def flat(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, *leaf.shape[2:])

    def seen(observation: PyTree) -> PyTree:
        return normalisation.normalise(observations, jax.tree.map(flat, observation), OBSERVATION_LIMIT)

    rows = (seen(rollout.observation), flat(rollout.action), seen(rollout.final_observation))

    def loss(params: PyTree) -> tuple[jax.Array, jax.Array]:
        losses, error = predictor.errors(params, state.random_params, *rows)
        return jnp.mean(losses), error

    gradients, error = jax.grad(loss, has_aux=True)(state.params)
    params, opt_state = optimisers.descend(
        optimisers.adam(ADAM_EPSILON), gradients, state.opt_state, state.params, hyper["bonus_learning_rate"]
    )
    error = error.reshape(rollout.reward.shape)
    sums = normalisation.merge(state.return_statistics, discounted_sums(error, hyper["bonus_discount"]))
    return State(params, state.random_params, opt_state, observations, sums), (
        error / normalisation.standard_deviation(sums)
    )


def discounted_sums(reward: jax.Array, discount: jax.Array | float) -> jax.Array:
    """Returns the sums of the rewards so far, newest undiscounted: c_t = r_t + gamma c_{t-1}, float `[T, N]`."""

    def add(total: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = reward + discount * total
        return total, total

    return lax.scan(add, jnp.zeros_like(reward[0]), reward)[1]


def _features(config: BonusConfig, observation_space: PyTree) -> networks.Network:
    torso = torsos.make_network(config, observation_space)
    if torso.has_memory:
        raise InputError(
            f"agent.torso = {config.torso!r} has a memory, which agent.bonus = {config.bonus!r} has no use for: choose "
            "a torso with init and apply, and agent.memory on top of it, or no bonus."
        )

    def apply(params: PyTree, observation: PyTree) -> jax.Array:
        batch = jax.tree.leaves(observation)[0].shape[0]
        return torso.step(params, (), observation, jnp.zeros((batch,), jnp.bool_))[1]

    return _on_top(networks.Network(torso.init, apply), networks.make_linear(config.bonus_features, scale=1.0))


def _on_top(network: networks.Network, layer: networks.Network) -> networks.Network:
    def init(key: jax.Array, inputs: PyTree) -> PyTree:
        key_network, key_layer = jax.random.split(key)
        params = network.init(key_network, inputs)
        return params, layer.init(key_layer, network.apply(params, inputs))

    return networks.Network(init, lambda params, inputs: layer.apply(params[1], network.apply(params[0], inputs)))


def _encode(space: spaces.Space, action: jax.Array) -> jax.Array:
    """Actions `[B, *action_shape]` as numbers for a network, float32 `[B, D]`."""
    if isinstance(space, spaces.Box):
        return heads.to_unit(space, action)
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(action, space.n)
    assert isinstance(space, spaces.MultiDiscrete)
    return jax.nn.one_hot(action, max(space.nvec)).reshape(action.shape[0], -1)
