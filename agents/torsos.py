"""Torsos by config: a network of the newest observation, and any memory on top of it, the same for every agent."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rollax.agents import linear_recurrence, memory, networks, transformer
from rollax.agents.base import require
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree
from rollax.errors import InputError, nearest
from rollax.importing import import_object, is_import_path

MEMORIES = ("none", "gru", "lstm", "linear", "transformer")


class NetworkConfig(Protocol):
    """The fields of an agent's config that say what its network of the newest observation is."""

    @property
    def torso(self) -> str:
        """mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """Widths of the hidden layers."""

    @property
    def activation(self) -> str:
        """Activation between them."""

    @property
    def layer_norm(self) -> bool:
        """Whether each layer's outputs are normalised before the activation."""

    @property
    def compute_dtype(self) -> str:
        """What they compute in; memory computes in float32."""


class TorsoConfig(NetworkConfig, Protocol):
    """The fields of an agent's config that say what its torso is."""

    @property
    def memory(self) -> str:
        """What stands on top of them, of `MEMORIES`."""

    @property
    def memory_size(self) -> int:
        """Width of the memory."""

    @property
    def memory_layers(self) -> int:
        """Layers of memory."""

    @property
    def memory_window(self) -> int:
        """Steps that each layer of a transformer looks back."""

    @property
    def memory_heads(self) -> int:
        """Attention heads of a transformer."""


def check_network(config: NetworkConfig) -> None:
    """Raises InputError where the numbers of a config make no network."""
    require(min(config.hidden_sizes, default=1) >= 1, "agent.hidden_sizes", config.hidden_sizes, "must be at least 1")


def check(config: TorsoConfig) -> None:
    """Raises InputError where the numbers of a config make no torso."""
    check_network(config)
    kind = config.memory
    if kind not in MEMORIES:
        raise InputError(f"agent.memory = {kind!r} is no known memory: {nearest(kind, MEMORIES)}")
    for name in ("memory_size", "memory_layers", "memory_window", "memory_heads"):
        require(getattr(config, name) >= 1, f"agent.{name}", getattr(config, name), "must be at least 1")
    require(
        kind != "transformer" or config.memory_size % config.memory_heads == 0,
        "agent.memory_heads",
        config.memory_heads,
        f"must divide agent.memory_size = {config.memory_size}",
    )


def make_network(config: NetworkConfig, observation_space: PyTree) -> Torso:
    """Returns the network of a config as a torso, without the memory that the config may ask for on top of it.

    It is that of `networks.make_torso`, or one of one's own: `package.module:NAME` or `file.py:NAME` is called
    with the observation space and returns an object with `init(key, observation)` and `apply(params, observation)`, or
    with `init`, `init_memory(N)` and `step(params, memory, observation) -> (memory, features)`. Such a step need not
    know of episodes: its memory is made anew where one starts. They get the observation as it is.

    Raises:
        InputError: There is no such torso, or it does not fit the observations.
    """
    if is_import_path(config.torso):
        return _own(config.torso, observation_space)
    return memory.feed_forward(
        networks.make_torso(
            config.torso,
            observation_space,
            config.hidden_sizes,
            config.activation,
            config.compute_dtype,
            config.layer_norm,
        )
    )


def without_memory(config: NetworkConfig, observation_space: PyTree, agent: str) -> Torso:
    """Returns the network of a config, for an agent that keeps no memory in replay.

    Args:
        config: Of the agent.
        observation_space: A PyTree of spaces.
        agent: The agent's name, for the error.

    Raises:
        InputError: The torso has a memory, there is no such torso, or it does not fit the observations.
    """
    torso = make_network(config, observation_space)
    if torso.has_memory:
        raise InputError(
            f"agent.torso = {config.torso!r} has a memory, which train.agent = {agent!r} does not keep in replay: use "
            "train.agent = 'r2d2', or a torso with init and apply."
        )
    return torso


def make(config: TorsoConfig, observation_space: PyTree) -> Torso:
    """Returns the torso that a config asks for: the network of `make_network`, and any memory on top of it.

    Raises:
        InputError: There is no such torso, or it does not fit the observations.
    """
    network = make_network(config, observation_space)
    if config.memory == "none":
        return network
    size = config.memory_size
    if config.memory in ("gru", "lstm"):
        cell = memory.gru if config.memory == "gru" else memory.lstm
        return memory.chain(network, *(cell(size) for _ in range(config.memory_layers)))
    if config.memory == "linear":
        layers = [linear_recurrence.linear_recurrence(size) for _ in range(config.memory_layers)]
    else:
        layers = [
            transformer.transformer(size, config.memory_window, config.memory_heads)
            for _ in range(config.memory_layers)
        ]
    # These layers add to what they are given, so that has to have their width.
    entry = memory.feed_forward(networks.make_linear(size, scale=1.0))
    return memory.chain(network, entry, *layers)


def num_features(torso: Torso, observation_space: PyTree) -> int:
    """Returns the width of a torso's features; nothing is computed.

    Raises:
        InputError: The torso does not turn observations `[N, ...]` into features `[N, F]`, or its memory changes its
            structure, shapes or dtypes from step to step.
    """
    example = jax.tree.map(lambda leaf: leaf[None], spaces.zeros(observation_space))

    def step(key: jax.Array, carried: PyTree) -> tuple[PyTree, jax.Array]:
        return torso.step(torso.init(key, example), carried, example, jnp.ones((1,), jnp.bool_))

    _, features = jax.eval_shape(step, jax.random.key(0), jax.eval_shape(lambda: torso.init_memory(1)))
    return int(features.shape[1])


def _own(name: str, observation_space: PyTree) -> Torso:
    make_own: Any = import_object(name, "agent.torso")
    _require_arguments(name, "it", make_own, "observation_space")
    network: Any = make_own(observation_space)

    def has(*methods: str) -> bool:
        return all(callable(getattr(network, method, None)) for method in methods)

    if has("init", "init_memory", "step"):
        _require_arguments(name, "init", network.init, "key", "observation")
        _require_arguments(name, "init_memory", network.init_memory, "num_envs")
        _require_arguments(name, "step", network.step, "params", "memory", "observation")
        return memory.stepwise(network.init, network.init_memory, network.step)
    if has("init", "apply"):
        _require_arguments(name, "init", network.init, "key", "observation")
        _require_arguments(name, "apply", network.apply, "params", "observation")
        return memory.feed_forward(networks.Network(network.init, network.apply))
    raise InputError(
        f"agent.torso = {name!r} must return an object with init and apply, or with init, init_memory and step, not "
        f"{network!r}."
    )


def _require_arguments(name: str, what: str, function: Any, *arguments: str) -> None:
    """Raises InputError unless `function` can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"agent.torso = {name!r}: {what} must take ({', '.join(arguments)}) ({error}).") from error
