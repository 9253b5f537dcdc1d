"""Optimisers and schedules shared by the agents.

A schedule is a function of progress in [0, 1] that scales a number; the optimiser is a chain of optax's `scale_by_*`
without a learning rate, which the update multiplies in: the rate is then a traced number like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rollax.agents.base import Hyperparameters
from rollax.errors import InputError, nearest

SCHEDULES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "constant": jnp.ones_like,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
}


def schedule(name: str, field: str) -> Callable[[jax.Array], jax.Array]:
    """Returns the schedule called `name`, a function from progress in [0, 1] to a factor.

    Raises:
        InputError: There is none; the sentence names `field`.
    """
    if name not in SCHEDULES:
        raise InputError(f"{field} = {name!r} is no known schedule: {nearest(name, SCHEDULES)}")
    return SCHEDULES[name]


def progress(updates: jax.Array, horizon: jax.Array) -> jax.Array:
    """Returns the share of `horizon` updates that `updates` is, clipped to [0, 1]; 0 where the horizon is 0."""
    return jnp.where(horizon > 0, jnp.clip(updates / jnp.maximum(horizon, 1.0), 0.0, 1.0), 0.0)


def learning_rate(name: str, hyperparameters: Hyperparameters, updates: jax.Array) -> jax.Array:
    """Returns the learning rate of an update: `learning_rate` times its schedule over `horizon`, both hyperparameters.

    Args:
        name: The schedule, `agent.learning_rate_schedule`.
        hyperparameters: The agent's numbers.
        updates: Updates done before.
    """
    factor = schedule(name, "agent.learning_rate_schedule")(progress(updates, hyperparameters["horizon"]))
    return hyperparameters["learning_rate"] * factor


def clipped_adam(max_grad_norm: jax.Array | float, epsilon: jax.Array | float) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015) on gradients clipped by their global norm; both numbers may be traced.

    It works on one vector of all parameters: one kernel in place of one for each array, which small networks feel.
    """
    return optax.flatten(optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=epsilon)))


def adam(epsilon: jax.Array | float, momentum: jax.Array | float = 0.9) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015) without clipping, on one vector of all parameters; both numbers may be traced."""
    return optax.flatten(optax.scale_by_adam(b1=momentum, eps=epsilon))


def clipped_radam(max_grad_norm: jax.Array | float) -> optax.GradientTransformation:
    """Rectified Adam (Liu et al. 2020) on gradients clipped by their global norm, which may be traced."""
    optimiser = optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_radam())

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        with jax.debug_nans(
            False
        ):  # in the first steps optax computes, and does not use, the root of a negative number
            return optimiser.update(gradients, state, params)

    return optax.GradientTransformation(optimiser.init, update)


def descend(
    optimiser: optax.GradientTransformation, gradients: Any, opt_state: Any, params: Any, learning_rate: jax.Array
) -> tuple[Any, Any]:
    """Takes one step against `gradients` and returns `(params, opt_state)`."""
    directions, opt_state = optimiser.update(gradients, opt_state, params)
    steps = jax.tree.map(lambda direction: -learning_rate * direction, directions)
    return optax.apply_updates(params, steps), opt_state


def step(
    optimiser: optax.GradientTransformation,
    loss: Callable[..., Any],
    params: Any,
    opt_state: Any,
    learning_rate: jax.Array,
    *args: Any,
) -> tuple[tuple[Any, Any], dict[str, jax.Array]]:
    """Takes one step against the gradient of `loss(params, *args) -> (loss, metrics)`.

    Returns:
        `(params, opt_state)` after it, and the metrics with the gradient's global norm.
    """
    gradients, metrics = jax.grad(loss, has_aux=True)(params, *args)
    after = descend(optimiser, gradients, opt_state, params, learning_rate)
    return after, {**metrics, "gradient_norm": optax.tree.norm(gradients)}


def follow(
    target_params: Any, params: Any, updates: jax.Array, period: int | jax.Array, rate: jax.Array | float
) -> Any:
    """Returns the target parameters after an update: every `period` updates they go the share `rate` to `params`.

        target' = target + rate * (params - target)   where updates is a multiple of period

    Args:
        target_params: So far.
        params: After the update.
        updates: Updates done, this one included, an integer scalar.
        period: 1 with a small rate is Polyak averaging; a long one with rate 1 copies periodically.
        rate: In [0, 1].
    """
    share = jnp.where(updates % period == 0, rate, 0.0)
    # A share of 1 gives `params` themselves to the last bit, which target + (params - target) need not.
    return jax.tree.map(lambda target, new: (1.0 - share) * target + share * new, target_params, params)
