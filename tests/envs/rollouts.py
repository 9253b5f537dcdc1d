"""Rollouts of random actions, for the tests of adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax import envs
from rollax.envs.base import TimeStep


def wrapped(env: envs.Environment, num_envs: int = 3) -> envs.Vectorise:
    return envs.Vectorise(envs.AutoReset(envs.EpisodeStatistics(env)), num_envs)


def random_action(space: envs.spaces.Space, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """A random action, a legal one where there is a mask: `[num_actions]`, or `[sum(nvec)]` of a MultiDiscrete."""
    if mask is None:
        return space.sample(key)
    preference = jnp.where(mask, jax.random.uniform(key, mask.shape), -1.0)
    if isinstance(space, envs.spaces.Discrete):
        return jnp.argmax(preference).astype(space.dtype)
    assert isinstance(space, envs.spaces.MultiDiscrete)
    starts = [sum(space.nvec[:index]) for index in range(len(space.nvec))]
    entries = [jnp.argmax(preference[start : start + n]) for start, n in zip(starts, space.nvec, strict=True)]
    return jnp.stack(entries).astype(space.dtype)


def rollout(env: envs.Vectorise, num_steps: int, ready_made: bool = False) -> Callable[[jax.Array], TimeStep]:
    """Random actions: from a key to the time steps `[num_steps, N]`. Ready-made resets are quicker to trace."""

    def run(key: jax.Array) -> TimeStep:
        key_reset, key_steps = jax.random.split(key)
        start = env.reset(key_reset, env.default_params)

        def step(carry: tuple[Any, TimeStep], key: jax.Array) -> tuple[tuple[Any, TimeStep], TimeStep]:
            state, before = carry
            key_act, key_step = jax.random.split(key)
            keys = jax.random.split(key_act, env.num_envs)
            in_axes = (0, None if before.action_mask is None else 0)
            choose = jax.vmap(lambda key, mask: random_action(env.action_space(), key, mask), in_axes=in_axes)
            action = choose(keys, before.action_mask)
            after = env.step(key_step, state, action, env.default_params, *([start] if ready_made else []))
            return after, after[1]

        return jax.lax.scan(step, start, jax.random.split(key_steps, num_steps))[1]

    return run


def types(tree: Any) -> dict[str, tuple[Any, Any]]:
    """Each leaf's shape and dtype, by its path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in leaves}
