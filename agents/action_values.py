"""Action-value heads: from features to the distribution of each action's return, and the loss that fits it to a target.

All heads speak of weighted atoms: a plain action value is the one atom of a distribution, a categorical head has fixed
atoms and learns their weights, quantile heads have equal weights and learn the atoms. So acting, targets and updates
are written once for all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rollax.agents import networks, value_learning
from rollax.agents.base import Hyperparameters, require
from rollax.agents.returns import NStep
from rollax.envs.base import PyTree
from rollax.errors import InputError, nearest

DISTRIBUTIONS = ("none", "categorical", "quantile", "implicit")
NUM_COSINES = 64
"""Cosines that an implicit quantile head embeds a quantile's level in."""


class HeadConfig(Protocol):
    """The fields of an agent's config that say what its head is.

    Among its numbers are `value_min`, `value_max` (of a categorical head), `huber_threshold` and `noisy_scale`.
    """

    @property
    def distribution(self) -> str:
        """What is learnt of each action's return, of `DISTRIBUTIONS`; "none" is its mean alone."""

    @property
    def num_atoms(self) -> int:
        """Atoms of a categorical head."""

    @property
    def num_quantiles(self) -> int:
        """Quantiles of a quantile head."""

    @property
    def num_taus(self) -> int:
        """Levels that an implicit quantile head is asked for at a time."""

    @property
    def dueling(self) -> bool:
        """Whether the head has a stream for the state's value beside that of the advantages."""

    @property
    def noisy(self) -> bool:
        """Whether its layers are noisy."""

    @property
    def stream_sizes(self) -> tuple[int, ...]:
        """Widths of the hidden layers of each stream."""

    @property
    def activation(self) -> str:
        """Activation after each of them."""

    @property
    def huber(self) -> bool:
        """Whether errors beyond `huber_threshold` count linearly."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Returns:
    """The distribution of the return of each of A actions in B states: K weighted atoms."""

    atoms: jax.Array  # float32 [B, A, K]
    log_weights: jax.Array  # float32 [B, A, K], logarithms of probabilities
    taus: jax.Array | None = None  # float32 [B, K], which quantiles the atoms are; None where they are none

    @property
    def values(self) -> jax.Array:
        """Q(s, .), float32 `[B, A]`: the means."""
        return jnp.sum(jnp.exp(self.log_weights) * self.atoms, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Target:
    """What the return of the action taken in each of B states is fitted to: M weighted atoms."""

    atoms: jax.Array  # float32 [B, M]
    weights: jax.Array  # float32 [B, M], probabilities

    @property
    def value(self) -> jax.Array:
        """The mean, float32 `[B]`."""
        return jnp.sum(self.weights * self.atoms, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """What a head draws for B states."""

    layers: PyTree  # leaves [B, ...] or [1, ...], of noisy layers; () where there are none
    taus: jax.Array | None  # float32 [B, K], levels in [0, 1); None but for an implicit quantile head


class Head(Protocol):
    """What agents know of a head. `hyper` is an agent's numbers, of which heads read those that `HeadConfig` names."""

    def init(self, key: jax.Array, hyper: Hyperparameters) -> PyTree:
        """Returns the head's parameters."""

    def noise(self, key: jax.Array, batch: int, shared: bool = False) -> Noise:
        """Draws the noise of `batch` states; `shared` draws that of noisy layers once for all of them."""

    def returns(self, params: PyTree, features: jax.Array, noise: Noise | None, hyper: Hyperparameters) -> Returns:
        """Returns the distributions at features `[B, F]`; without noise, the same ones each time."""

    def loss(self, returns: Returns, action: jax.Array, target: Target, hyper: Hyperparameters) -> jax.Array:
        """Returns the loss `[B]` of the actions taken, int `[B]`."""


@dataclasses.dataclass(frozen=True)
class Streams:
    """Layers in float32 from features to K numbers for each action, dueling and noisy if asked for."""

    num_features: int
    num_actions: int
    num_atoms: int  # K
    config: HeadConfig

    @property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        hidden = (self.num_features, *self.config.stream_sizes)
        sizes = {"advantage": (*hidden, self.num_actions * self.num_atoms)}
        return {**sizes, "value": (*hidden, self.num_atoms)} if self.config.dueling else sizes

    def init(self, key: jax.Array, noisy_scale: jax.Array) -> PyTree:
        """Orthogonal weights and zero biases; noisy layers start with scales `noisy_scale / sqrt(inputs)`."""
        params: dict[str, Any] = {}
        for (name, sizes), key_stream in zip(self._sizes.items(), jax.random.split(key, 2), strict=False):
            layers = []
            for index, key_layer in enumerate(jax.random.split(key_stream, len(sizes) - 1)):
                inputs, outputs = sizes[index : index + 2]
                gain = 1.0 if index == len(sizes) - 2 else math.sqrt(2.0)
                layer = {"kernel": networks.orthogonal(gain)(key_layer, (inputs, outputs)), "bias": jnp.zeros(outputs)}
                if self.config.noisy:
                    scale = noisy_scale / math.sqrt(inputs)
                    layer["kernel_scale"] = jnp.full((inputs, outputs), scale, jnp.float32)
                    layer["bias_scale"] = jnp.full((outputs,), scale, jnp.float32)
                layers.append(layer)
            params[name] = tuple(layers)
        return params

    def noise(self, key: jax.Array, batch: int) -> PyTree:
        """Draws a vector for each layer's inputs and one for its outputs, float32 `[batch, ...]`; () if not noisy."""
        if not self.config.noisy:
            return ()
        widths = {name: [*itertools.pairwise(sizes)] for name, sizes in self._sizes.items()}
        total = sum(inputs + outputs for pairs in widths.values() for inputs, outputs in pairs)
        normal = jax.random.normal(key, (batch, total))
        drawn, start = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal)), 0
        noise: dict[str, Any] = {}
        for name, pairs in widths.items():
            layers = []
            for inputs, outputs in pairs:
                middle, end = start + inputs, start + inputs + outputs
                layers.append((drawn[:, start:middle], drawn[:, middle:end]))
                start = end
            noise[name] = tuple(layers)
        return noise

    def apply(self, params: PyTree, features: jax.Array, noise: PyTree) -> jax.Array:
        """Returns numbers `[..., A, K]` for features `[..., F]`; noise is of the same rank, () is none.

        Noisy layers (Fortunato et al. 2018, https://arxiv.org/abs/1706.10295), with factorised Gaussian noise:

            y = x (W + scale_W * e_in e_out^T) + b + scale_b * e_out,   e = sgn(n) sqrt(|n|),   n normal
        """
        activate = networks.get_activation(self.config.activation)
        outputs = {}
        for name, layers in params.items():
            x = features
            for index, layer in enumerate(layers):
                y = _noisy(layer, x, *noise[name][index]) if noise else x @ layer["kernel"] + layer["bias"]
                x = y if index == len(layers) - 1 else activate(y)
            outputs[name] = x.reshape(*x.shape[:-1], -1, self.num_atoms)
        if self.config.dueling:
            return value_learning.dueling(outputs["value"], outputs["advantage"])
        return outputs["advantage"]


@dataclasses.dataclass(frozen=True)
class ScalarHead:
    """The mean alone: one atom of weight 1."""

    streams: Streams
    huber: bool

    def init(self, key: jax.Array, hyper: Hyperparameters) -> PyTree:
        return self.streams.init(key, hyper["noisy_scale"])

    def noise(self, key: jax.Array, batch: int, shared: bool = False) -> Noise:
        return Noise(self.streams.noise(key, 1 if shared else batch), None)

    def returns(self, params: PyTree, features: jax.Array, noise: Noise | None, hyper: Hyperparameters) -> Returns:
        atoms = self.streams.apply(params, features, () if noise is None else noise.layers)
        return Returns(atoms, jnp.zeros_like(atoms))

    def loss(self, returns: Returns, action: jax.Array, target: Target, hyper: Hyperparameters) -> jax.Array:
        td_error = target.value - value_learning.chosen(returns.values, action)
        return optax.huber_loss(td_error, delta=hyper["huber_threshold"]) if self.huber else optax.l2_loss(td_error)


class CategoricalHead(ScalarHead):
    """Weights of equally spaced atoms (C51; Bellemare et al. 2017, https://arxiv.org/abs/1707.06887)."""

    def returns(self, params: PyTree, features: jax.Array, noise: Noise | None, hyper: Hyperparameters) -> Returns:
        logits = self.streams.apply(params, features, () if noise is None else noise.layers)
        return Returns(jnp.broadcast_to(self._support(hyper), logits.shape), jax.nn.log_softmax(logits, axis=-1))

    def loss(self, returns: Returns, action: jax.Array, target: Target, hyper: Hyperparameters) -> jax.Array:
        projected = value_learning.categorical_projection(target.atoms, target.weights, self._support(hyper))
        return value_learning.categorical_loss(value_learning.chosen(returns.log_weights, action), projected)

    def _support(self, hyper: Hyperparameters) -> jax.Array:
        return jnp.linspace(hyper["value_min"], hyper["value_max"], self.streams.num_atoms)


class QuantileHead(ScalarHead):
    """Quantiles at the midpoints of K equal parts (QR-DQN; Dabney et al. 2018, https://arxiv.org/abs/1710.10044)."""

    def returns(self, params: PyTree, features: jax.Array, noise: Noise | None, hyper: Hyperparameters) -> Returns:
        return _quantiles(
            self.streams.apply(params, features, () if noise is None else noise.layers),
            _midpoints(features.shape[0], self.streams.num_atoms),
        )

    def loss(self, returns: Returns, action: jax.Array, target: Target, hyper: Hyperparameters) -> jax.Array:
        threshold = hyper["huber_threshold"] if self.huber else None
        quantiles = value_learning.chosen(returns.atoms, action)
        assert returns.taus is not None
        return value_learning.quantile_loss(quantiles, returns.taus, target.atoms, target.weights, threshold)


@dataclasses.dataclass(frozen=True)
class ImplicitHead(QuantileHead):
    """Quantiles at any levels (IQN; Dabney et al. 2018, https://arxiv.org/abs/1806.06923), random ones with noise.

        Z_tau(s, .) = f(psi(s) * phi(tau)),   phi(tau) = relu(sum_i w_i cos(pi i tau) + b),   i < 64

    where psi(s) are the features. Without noise the levels are the midpoints of equal parts.
    """

    num_taus: int  # K

    def init(self, key: jax.Array, hyper: Hyperparameters) -> PyTree:
        key_streams, key_embedding = jax.random.split(key)
        embedding = self._embedding.init(key_embedding, jnp.zeros((1, NUM_COSINES)))
        return {"streams": self.streams.init(key_streams, hyper["noisy_scale"]), "embedding": embedding}

    def noise(self, key: jax.Array, batch: int, shared: bool = False) -> Noise:
        key_layers, key_taus = jax.random.split(key)
        layers = self.streams.noise(key_layers, 1 if shared else batch)
        return Noise(layers, jax.random.uniform(key_taus, (batch, self.num_taus)))

    def returns(self, params: PyTree, features: jax.Array, noise: Noise | None, hyper: Hyperparameters) -> Returns:
        taus = _midpoints(features.shape[0], self.num_taus) if noise is None else noise.taus
        assert taus is not None
        cosines = jnp.cos(jnp.pi * np.arange(NUM_COSINES) * taus[..., None])
        embedded = features[:, None] * jax.nn.relu(self._embedding.apply(params["embedding"], cosines))
        layers = jax.tree.map(lambda leaf: leaf[:, None], () if noise is None else noise.layers)
        quantiles = self.streams.apply(params["streams"], embedded, layers)[..., 0]
        return _quantiles(jnp.swapaxes(quantiles, 1, 2), taus)

    @property
    def _embedding(self) -> networks.Network:
        return networks.make_linear(self.streams.num_features, scale=math.sqrt(2.0))


def _noisy(layer: dict[str, jax.Array], x: jax.Array, e_in: jax.Array, e_out: jax.Array) -> jax.Array:
    if e_in.size > e_in.shape[-1]:
        y = x @ layer["kernel"] + layer["bias"]
        return y + ((x * e_in) @ layer["kernel_scale"] + layer["bias_scale"]) * e_out
    e_in, e_out = e_in.reshape(-1), e_out.reshape(-1)  # one draw for all rows: one product in place of two
    kernel = layer["kernel"] + layer["kernel_scale"] * jnp.outer(e_in, e_out)
    return x @ kernel + layer["bias"] + layer["bias_scale"] * e_out


def _midpoints(batch: int, count: int) -> jax.Array:
    return jnp.broadcast_to((jnp.arange(count) + 0.5) / count, (batch, count))


def _quantiles(atoms: jax.Array, taus: jax.Array) -> Returns:
    return Returns(atoms, jnp.full(atoms.shape, -math.log(atoms.shape[-1]), jnp.float32), taus)


def soft_target(
    folded: NStep,
    values: jax.Array,
    action: jax.Array,
    following: Returns,
    masks: tuple[jax.Array | None, jax.Array | None],
    scale: jax.Array,
    temperature: jax.Array,
    floor: jax.Array,
) -> Target:
    """Returns the target of `value_learning.munchausen_target`, a mixture over the successor's actions: A * K atoms.

    Args:
        folded: The returns of B windows.
        values: Q(s, .) of the target network, float32 `[B, A]`.
        action: Those taken at s, int `[B]`.
        following: Of the target network at the successors.
        masks: Legal actions at s and at the successors, bool `[B, A]`; None: all are.
        scale: alpha.
        temperature: tau.
        floor: l_0.
    """
    log_policy = value_learning.log_policy(values, temperature, masks[0])
    next_log_policy = value_learning.log_policy(following.values, temperature, masks[1])
    log_prob = value_learning.chosen(log_policy, action)
    atoms = value_learning.munchausen_target(
        folded, log_prob, following.atoms, next_log_policy, scale, temperature, floor
    )
    return mixture(atoms, next_log_policy[..., None] + following.log_weights)


def mixture(atoms: jax.Array, log_weights: jax.Array) -> Target:
    """Returns the distribution of the return over what may be done in each of B states: A * K atoms.

    Args:
        atoms: Of each action's return, float32 `[B, A, K]`.
        log_weights: Logarithms of the probability of the action times that of the atom, float32 `[B, A, K]`.
    """
    batch = atoms.shape[0]
    return Target(atoms.reshape(batch, -1), jnp.exp(log_weights).reshape(batch, -1))


def check(config: HeadConfig) -> None:
    """Raises InputError where the structure of a config makes no head."""
    kind = config.distribution
    if kind not in DISTRIBUTIONS:
        raise InputError(f"agent.distribution = {kind!r} is no known distribution: {nearest(kind, DISTRIBUTIONS)}")
    for name, least in (("num_atoms", 2), ("num_quantiles", 1), ("num_taus", 1)):
        require(getattr(config, name) >= least, f"agent.{name}", getattr(config, name), f"must be at least {least}")
    require(min(config.stream_sizes, default=1) >= 1, "agent.stream_sizes", config.stream_sizes, "must be at least 1")


def make(config: HeadConfig, num_features: int, num_actions: int) -> Head:
    """Returns the head that a config asks for, for features of a given width and a number of actions."""
    num_atoms = {"categorical": config.num_atoms, "quantile": config.num_quantiles}.get(config.distribution, 1)
    streams = Streams(num_features, num_actions, num_atoms, config)
    if config.distribution == "implicit":
        return ImplicitHead(streams, config.huber, config.num_taus)
    kind = {"none": ScalarHead, "categorical": CategoricalHead, "quantile": QuantileHead}[config.distribution]
    return kind(streams, config.huber)
