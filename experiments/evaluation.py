"""Evaluation: the first episode of each of E fresh environments, as a pure function of an agent's state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax import envs
from rollax.agents.registry import resolve
from rollax.envs.base import PyTree, select, strongly_typed, with_types_of
from rollax.errors import InputError
from rollax.experiments.config import EvaluationConfig, ExperimentConfig
from rollax.experiments.trainer import make_env

DEFAULT_STEP_CAP = 10_000
"""Steps per episode where neither the config nor the environment sets a limit."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Evaluation:
    """E episodes. One that did not end within the step cap is not finished and must not be averaged in."""

    episode_return: jax.Array  # float32 [E], undiscounted
    episode_length: jax.Array  # int32 [E], environment steps
    finished: jax.Array  # bool [E]


def step_cap(config: EvaluationConfig, env: envs.Environment) -> int:
    """Returns the steps after which an episode of an evaluation is given up."""
    return config.step_cap or int(getattr(env.default_params, "max_steps_in_episode", DEFAULT_STEP_CAP))


def make_evaluate(config: ExperimentConfig) -> Callable[..., Evaluation]:
    """Returns `evaluate(agent_state, key, explore=False) -> Evaluation`, pure; `explore` is static.

    It plays `evaluation.episodes` episodes in `evaluation.env` (the training environment if None), for at most
    `evaluation.step_cap` steps (0: the environment's own `max_steps_in_episode`, or 10,000 if it has none). The agent's
    state is only read: statistics do not move.

    Raises:
        InputError: The evaluation environment cannot be built, or its spaces differ from those of training.
    """
    training_env = make_env(config.env)
    raw = training_env if config.evaluation.env is None else make_env(config.evaluation.env)
    for name in ("observation_space", "action_space"):
        trained, evaluated = getattr(training_env, name)(), getattr(raw, name)()
        if not envs.spaces.alike(trained, evaluated):
            raise InputError(
                f"evaluation.env has the {name.replace('_', ' ')} {evaluated!r}, and training has {trained!r}: "
                "choose an environment with the same one."
            )
    agent = resolve(config.train.agent).make(
        training_env.observation_space(), training_env.action_space(), config.agent
    )
    params = strongly_typed(raw.default_params)
    episodes = config.evaluation.episodes
    env = envs.Vectorise(raw, episodes)
    cap = step_cap(config.evaluation, raw)

    def evaluate(agent_state: PyTree, key: jax.Array, explore: bool = False) -> Evaluation:
        key_reset, key_steps = jax.random.split(key)
        env_state, timestep = strongly_typed(env.reset(key_reset, params))
        timestep = dataclasses.replace(timestep, is_first=jnp.ones((episodes,), jnp.bool_))
        nothing = Evaluation(
            jnp.zeros((episodes,), jnp.float32), jnp.zeros((episodes,), jnp.int32), jnp.zeros((episodes,), jnp.bool_)
        )

        def running(carry: Any) -> jax.Array:
            index, _, _, _, result = carry
            return (index < cap) & ~jnp.all(result.finished)

        def step(carry: Any) -> Any:
            index, memory, env_state, timestep, result = carry
            key_act, key_step = jax.random.split(jax.random.fold_in(key_steps, index))
            noise = agent.noise(key_act, episodes) if explore else None
            memory, decision = agent.act_with(agent_state, memory, timestep, noise, explore=explore)
            next_state, after = env.step(key_step, env_state, decision.action, params)
            alive = ~result.finished
            result = Evaluation(
                episode_return=result.episode_return + jnp.where(alive, after.reward, 0.0),
                episode_length=result.episode_length + alive,
                finished=result.finished | after.ended,
            )
            # An environment that has ended is held: a raw one need not be defined beyond its end.
            stepped = with_types_of((next_state, after), (env_state, timestep))
            held = select(alive, stepped, (env_state, timestep))
            return index + 1, memory, *held, result

        carry = (jnp.zeros((), jnp.int32), agent.init_memory(episodes), env_state, timestep, nothing)
        return lax.while_loop(running, step, carry)[-1]

    return evaluate
