"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), clipped objective."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rollax.agents import heads, networks, optimisers, returns
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of, require
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@dataclasses.dataclass(frozen=True)
class Config:
    """What PPO can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 2.5e-4
    """Step size of Adam at the start."""
    learning_rate_schedule: str = "linear"
    """How the learning rate falls over `horizon`: constant, linear or cosine."""
    horizon: float = 0.0
    """Updates until every schedule has ended; 0: the whole run, and no end in a loop of one's own."""
    discount: float = 0.99
    """gamma, per environment step."""
    gae_lambda: float = 0.95
    """lambda of the generalised advantage estimates."""
    clip_epsilon: float = 0.2
    """How far the probability ratio may leave 1 before its gradient stops."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Global norm at which gradients are clipped."""
    adam_epsilon: float = 1e-5
    """Epsilon of Adam."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches per pass; must divide num_envs * num_steps."""
    normalise_advantage: bool = True
    """Whether each minibatch's advantages are shifted and scaled to mean 0 and standard deviation 1."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the policy network, and of the value network."""
    activation: str = "tanh"
    """Activation between layers: tanh, relu, gelu, silu or elu."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train on rollouts of `num_steps` x `num_envs`."""
    for name in ("learning_rate", "max_grad_norm", "adam_epsilon"):
        require(getattr(config, name) > 0, f"agent.{name}", getattr(config, name), "must be above 0")
    for name in ("discount", "gae_lambda"):
        require(0 <= getattr(config, name) <= 1, f"agent.{name}", getattr(config, name), "must be between 0 and 1")
    for name in ("clip_epsilon", "entropy_coefficient", "value_coefficient", "horizon"):
        require(getattr(config, name) >= 0, f"agent.{name}", getattr(config, name), "must not be negative")
    for name in ("num_epochs", "num_minibatches"):
        require(getattr(config, name) >= 1, f"agent.{name}", getattr(config, name), "must be at least 1")
    require(min(config.hidden_sizes, default=1) >= 1, "agent.hidden_sizes", config.hidden_sizes, "must be at least 1")
    networks.activation(config.activation)
    optimisers.schedule(config.learning_rate_schedule, "agent.learning_rate_schedule")
    require(
        num_steps * num_envs % config.num_minibatches == 0,
        "agent.num_minibatches",
        config.num_minibatches,
        f"must divide train.num_envs * train.num_steps = {num_envs} * {num_steps} = {num_envs * num_steps}",
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients change."""

    actor: PyTree  # flax params of the policy network
    head: PyTree  # parameters of the policy head that do not depend on the observation
    critic: PyTree  # flax params of the value network


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of a PPO agent."""

    params: Params
    opt_state: optax.OptState
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], rollouts learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One rollout, flattened to B = T * N samples, with its targets."""

    observation: jax.Array  # float32 [B, F], flattened
    action_mask: jax.Array | None  # bool [B, num_actions]
    sample: jax.Array  # [B, ...], what the policy head sampled
    log_prob: jax.Array  # float32 [B], under the policy that acted
    advantage: jax.Array  # float32 [B]
    target: jax.Array  # float32 [B], lambda-returns


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    head: heads.Head
    actor: networks.MLP
    critic: networks.MLP

    def policy(self, params: Params, observation: jax.Array, mask: jax.Array | None) -> Any:
        """The distribution `[...]` over samples at flattened observations `[..., F]`."""
        outputs = jnp.asarray(self.actor.apply(params.actor, observation))
        return self.head.distribution(outputs, params.head, mask)

    def value(self, params: Params, observation: jax.Array) -> jax.Array:
        """V(s), float32 `[...]`, at flattened observations `[..., F]`."""
        return jnp.asarray(self.critic.apply(params.critic, observation))[..., 0]

    def optimiser(self, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
        """Adam with clipping, without its learning rate."""
        return optimisers.clipped_adam(hyperparameters["max_grad_norm"], hyperparameters["adam_epsilon"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a PPO agent.

    Args:
        observation_space: A PyTree of spaces; its leaves are flattened and concatenated.
        action_space: `Discrete`, or `Box`, whose finite bounds actions are scaled and clipped to.
        config: What PPO can be told.

    Raises:
        InputError: PPO cannot act in the action space.
    """
    spaces.leaves(observation_space)
    head = heads.make(action_space, "ppo")
    parts = Parts(
        config=config,
        observation_space=observation_space,
        head=head,
        actor=networks.MLP(config.hidden_sizes, head.num_outputs, config.activation, output_scale=0.01),
        critic=networks.MLP(config.hidden_sizes, 1, config.activation, output_scale=1.0),
    )
    return Agent(
        init=functools.partial(init, parts),
        init_memory=lambda num_envs: (),
        noise=head.noise,
        act_with=functools.partial(act_with, parts),
        observe=observe,
        update=functools.partial(update, parts),
        consumes="rollout",
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    key_actor, key_critic = jax.random.split(key)
    hyper = hyperparameters_of(parts.config, hyperparameters)
    example = networks.flatten_observation(spaces.zeros(parts.observation_space), parts.observation_space)
    params = Params(
        actor=parts.actor.init(key_actor, example),
        head=parts.head.init(),
        critic=parts.critic.init(key_critic, example),
    )
    return State(
        params=params,
        opt_state=parts.optimiser(hyper).init(params),
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def act_with(
    parts: Parts, state: State, memory: PyTree, timestep: TimeStep, noise: Any, explore: bool = True
) -> tuple[PyTree, Decision]:
    """Samples actions, or takes the most likely ones where `explore` is False."""
    observation = networks.flatten_observation(timestep.observation, parts.observation_space)
    policy = parts.policy(state.params, observation, timestep.action_mask)
    sample = parts.head.sample(policy, noise) if explore else policy.mode()
    return memory, Decision(parts.head.to_action(sample), {"sample": sample})


def observe(state: State, rollout: Rollout) -> State:
    """Counts the environment steps."""
    return dataclasses.replace(state, env_steps=state.env_steps + rollout.reward.size)


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Learns from one rollout `[T, N]`: `num_epochs` passes over it in `num_minibatches` random minibatches each."""
    config, hyper = parts.config, state.hyperparameters
    batch = prepare(parts, state, rollout)
    progress = optimisers.progress(state.updates, hyper["horizon"])
    learning_rate = hyper["learning_rate"] * optimisers.schedule(config.learning_rate_schedule, "")(progress)
    optimiser = parts.optimiser(hyper)

    def learn(carry: tuple[Params, Any], indices: jax.Array) -> tuple[tuple[Params, Any], dict[str, jax.Array]]:
        params, opt_state = carry
        minibatch = jax.tree.map(lambda leaf: leaf[indices], batch)
        gradients, metrics = jax.grad(functools.partial(loss, parts), has_aux=True)(params, hyper, minibatch)
        params, opt_state = optimisers.descend(optimiser, gradients, opt_state, params, learning_rate)
        return (params, opt_state), {**metrics, "gradient_norm": optax.tree.norm(gradients)}

    keys = jax.random.split(key, config.num_epochs)
    indices = jax.vmap(jax.random.permutation, in_axes=(0, None))(keys, rollout.reward.size)
    indices = indices.reshape(config.num_epochs * config.num_minibatches, -1)
    (params, opt_state), metrics = lax.scan(learn, (state.params, state.opt_state), indices)
    state = dataclasses.replace(state, params=params, opt_state=opt_state, updates=state.updates + 1)
    return state, Update({**jax.tree.map(jnp.mean, metrics), "learning_rate": learning_rate})


def prepare(parts: Parts, state: State, rollout: Rollout) -> Batch:
    """Returns the rollout's samples with log-probs, advantages and value targets, from one batched forward pass."""
    hyper = state.hyperparameters
    observation = networks.flatten_observation(rollout.observation, parts.observation_space)
    final_observation = networks.flatten_observation(rollout.final_observation, parts.observation_space)
    value, next_value = parts.value(state.params, jnp.stack([observation, final_observation]))
    advantage = returns.generalised_advantage(
        rollout.reward,
        value,
        next_value,
        rollout.terminated,
        rollout.truncated,
        hyper["discount"],
        hyper["gae_lambda"],
    )
    sample = rollout.extras["sample"]
    log_prob = parts.policy(state.params, observation, rollout.action_mask).log_prob(sample)
    batch = Batch(observation, rollout.action_mask, sample, log_prob, advantage, advantage + value)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(rollout.reward.size, *leaf.shape[2:]), batch)


def loss(parts: Parts, params: Params, hyper: Hyperparameters, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate, value and entropy losses of one minibatch.

    ratio = pi(a|s) / pi_old(a|s)
    L = -mean(min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)) + c_v mean((V - target)^2) / 2 - c_e mean(entropy)
    """
    policy = parts.policy(params, batch.observation, batch.action_mask)
    value = parts.value(params, batch.observation)
    log_ratio = policy.log_prob(batch.sample) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = batch.advantage
    if parts.config.normalise_advantage:
        advantage = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1.0 - hyper["clip_epsilon"], 1.0 + hyper["clip_epsilon"])
    policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped_ratio * advantage))
    value_loss = 0.5 * jnp.mean(jnp.square(value - batch.target))
    entropy = jnp.mean(policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > hyper["clip_epsilon"]),
    }
