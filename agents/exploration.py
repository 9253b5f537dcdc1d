"""Exploration with action masks, shared by the agents: epsilon-greedy, and uniformly random actions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rollax.agents import heads
from rollax.agents.base import Hyperparameters
from rollax.envs import spaces
from rollax.errors import InputError


def num_actions(space: spaces.Space, agent: str) -> int:
    """Returns the number of actions of a Discrete space.

    Args:
        space: The action space.
        agent: The agent's name, for the error.

    Raises:
        InputError: The space is another one.
    """
    if not isinstance(space, spaces.Discrete):
        raise InputError(
            f"action space {space!r} does not fit train.agent = {agent!r}, which acts in Discrete spaces; choose "
            "another environment or agent."
        )
    return space.n


def box_or_discrete(space: spaces.Space, agent: str) -> spaces.Box | spaces.Discrete:
    """Returns an action space that is Discrete, or a Box with finite bounds.

    Args:
        space: The action space.
        agent: The agent's name, for the error.

    Raises:
        InputError: The space is another one.
    """
    if isinstance(space, spaces.Discrete):
        return space
    return bounded_box(space, agent, "Discrete spaces and in Boxes with finite bounds")


def bounded_box(space: spaces.Space, agent: str, where: str = "Boxes with finite bounds") -> spaces.Box:
    """Returns an action space that is a Box with finite bounds; arguments and errors are as of `box_or_discrete`."""
    if not isinstance(space, spaces.Box) or not np.all(np.isfinite(space.low) & np.isfinite(space.high)):
        raise InputError(
            f"action space {space!r} does not fit train.agent = {agent!r}, which acts in {where}; choose another "
            "environment or agent."
        )
    return space


def random_width(space: spaces.Box | spaces.Discrete) -> int:
    """Returns how many numbers one random action is made of."""
    return space.n if isinstance(space, spaces.Discrete) else spaces.size(space)


def random_noise(key: jax.Array, num_envs: int, space: spaces.Box | spaces.Discrete) -> jax.Array:
    """Draws what `random_action` turns into uniformly random actions, float32 `[N, D]` or `[N, num_actions]`."""
    return jax.random.uniform(key, (num_envs, random_width(space)))


def random_action(noise: jax.Array, space: spaces.Box | spaces.Discrete, mask: jax.Array | None) -> jax.Array:
    """Returns the random actions, legal ones, that `noise` from `random_noise` stands for, `[N, *action_shape]`."""
    if isinstance(space, spaces.Discrete):
        return jnp.argmax(legal(noise, mask), axis=-1).astype(jnp.int32)
    return heads.from_unit(space, 2.0 * noise - 1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """What decides whether and how N environments act at random."""

    coin: jax.Array  # float32 [N], uniform in [0, 1)
    order: jax.Array  # float32 [N, num_actions], uniform: the legal action with the largest number is the random one


def noise(key: jax.Array, num_envs: int, num_actions: int) -> Noise:
    """Draws the noise of one step of N environments."""
    drawn = jax.random.uniform(key, (num_envs, 1 + num_actions))
    return Noise(drawn[:, 0], drawn[:, 1:])


def legal(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns values `[..., A]` with those of illegal actions at a large negative number; a mask of None allows all."""
    return values if mask is None else jnp.where(mask, values, -1e9)


def epsilon_greedy(
    values: jax.Array, mask: jax.Array | None, epsilon: jax.Array | float, noise: Noise | None
) -> jax.Array:
    """Returns the best legal actions, but with probability `epsilon` uniformly random legal ones.

    Args:
        values: Q(s, .), float `[N, A]`.
        mask: Legal actions, bool `[N, A]`; None: all are.
        epsilon: Share of random actions, a scalar or `[N]`.
        noise: From `noise`; None: no exploration.

    Returns:
        int32 `[N]`.
    """
    if noise is not None:
        values = jnp.where((noise.coin < epsilon)[:, None], noise.order, values)
    return jnp.argmax(legal(values, mask), axis=-1).astype(jnp.int32)


def epsilon(hyperparameters: Hyperparameters, env_steps: jax.Array) -> jax.Array:
    """Returns the share of random actions after `env_steps` environment steps.

    It goes from `epsilon_start` to `epsilon_end` over `epsilon_steps`, three of the agent's numbers, and stays there.
    """
    start, end, duration = (hyperparameters[f"epsilon_{name}"] for name in ("start", "end", "steps"))
    return start + (end - start) * jnp.clip(env_steps / jnp.maximum(duration, 1.0), 0.0, 1.0)
