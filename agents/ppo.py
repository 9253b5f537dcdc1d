"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), clipped objective."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from rollax.agents import heads, minibatches, networks, normalisation, optimisers, returns, torsos
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of, require
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep, select


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
    clip_schedule: str = "constant"
    """How `clip_epsilon` falls over `horizon`."""
    clip_value: bool = False
    """Whether the value loss is clipped too: values that moved more than `clip_epsilon` get no gradient."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    entropy_schedule: str = "constant"
    """How `entropy_coefficient` falls over `horizon`."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Global norm at which gradients are clipped."""
    adam_epsilon: float = 1e-5
    """Epsilon of Adam."""
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches per pass; must divide num_envs * num_steps, and num_envs where the torso has a memory."""
    stop_at_target_kl: bool = False
    """Whether a rollout's remaining minibatches are skipped once the policy has moved by `target_kl`."""
    target_kl: float = 0.02
    """Approximate KL divergence from the policy that acted, in nats, at which `stop_at_target_kl` stops."""
    normalise_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over which samples advantages are shifted and scaled to mean 0 and standard deviation 1."""
    normalise_observation: bool = False
    """Whether observations are shifted and scaled by their running mean and standard deviation."""
    normalise_reward: bool = False
    """Whether rewards are scaled by the running standard deviation of their discounted sum."""
    torso: str = "mlp"
    """Network below policy and value: mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""
    memory: str = "none"
    """What stands on top of that network: none, gru, lstm, linear or transformer."""
    memory_size: int = 64
    """Width of the memory."""
    memory_layers: int = 1
    """Layers of memory."""
    memory_window: int = 32
    """Steps that each layer of a transformer looks back."""
    memory_heads: int = 4
    """Attention heads of a transformer."""
    shared_torso: bool = False
    """Whether policy and value share one torso."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the torso's hidden layers."""
    activation: str = "tanh"
    """Activation between layers: tanh, relu, gelu, silu or elu."""
    layer_norm: bool = False
    """Whether each layer's outputs are normalised before the activation."""
    compute_dtype: str = "float32"
    """What the torso computes in: float32 or bfloat16."""
    squash: bool = False
    """Whether actions of a Box are squashed into it by tanh rather than clipped."""
    state_dependent_scale: bool = False
    """Whether the scale of a Box's actions is a network output rather than a parameter."""
    initial_log_scale: float = 0.0
    """Logarithm of that scale at the start, in units of half the Box."""
    exploration_period: int = 0
    """Mean steps between draws of state-dependent exploration noise (gSDE); 0: independent noise at each step."""


def check(config: Config, num_steps: int, num_envs: int) -> None:
    """Raises InputError where the config cannot train on rollouts of `num_steps` x `num_envs`."""
    for name in ("learning_rate", "max_grad_norm", "adam_epsilon", "target_kl"):
        require(getattr(config, name) > 0, f"agent.{name}", getattr(config, name), "must be above 0")
    for name in ("discount", "gae_lambda"):
        require(0 <= getattr(config, name) <= 1, f"agent.{name}", getattr(config, name), "must be between 0 and 1")
    for name in ("clip_epsilon", "entropy_coefficient", "value_coefficient", "horizon", "exploration_period"):
        require(getattr(config, name) >= 0, f"agent.{name}", getattr(config, name), "must not be negative")
    require(
        math.isfinite(config.initial_log_scale), "agent.initial_log_scale", config.initial_log_scale, "must be finite"
    )
    scopes = ("minibatch", "batch", "none")
    scope = config.normalise_advantage
    require(scope in scopes, "agent.normalise_advantage", scope, f"must be one of {', '.join(scopes)}")
    torsos.check(config)
    for name in ("learning_rate_schedule", "clip_schedule", "entropy_schedule"):
        optimisers.schedule(getattr(config, name), f"agent.{name}")
    minibatches.check(config.num_epochs, config.num_minibatches, num_steps, num_envs, config.memory)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients change."""

    torso: PyTree  # of the policy's torso, and of the value's where it is shared
    value_torso: PyTree  # of the value's torso; () where it is shared
    policy: PyTree  # of the linear layer to the policy head's inputs
    head: PyTree  # of the policy head, what does not depend on the observation
    value: PyTree  # of the linear layer to the value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The whole state of a PPO agent."""

    params: Params
    opt_state: optax.OptState
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    return_statistics: normalisation.Statistics | None  # of discounted sums of rewards; None unless those are
    hyperparameters: Hyperparameters  # float32 scalars
    updates: jax.Array  # int32 [], rollouts learnt from
    env_steps: jax.Array  # int32 [], environment steps observed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """What the agent carries from step to step."""

    torsos: tuple[PyTree, PyTree]  # leaves [N, ...], of the policy's torso and of the value's, () where it is shared
    exploration: PyTree  # leaves [N, ...], of the policy head
    discounted_sum: jax.Array | None  # float32 [N], of the episode's rewards so far, newest undiscounted


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """One rollout with its targets, as M sequences of L steps (`minibatches.sequences`)."""

    observation: PyTree  # [L, M, *observation_shape], normalised
    is_first: jax.Array  # bool [L, M]
    action_mask: PyTree | None  # bool [L, M, num_actions]
    sample: jax.Array  # [L, M, ...], what the policy head sampled
    log_prob: jax.Array  # float32 [L, M], under the policy that acted
    value: jax.Array  # float32 [L, M], of the value function that acted
    advantage: jax.Array  # float32 [L, M]
    target: jax.Array  # float32 [L, M], lambda-returns


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Config
    observation_space: PyTree
    head: heads.Head
    torso: Torso
    policy_layer: networks.Network
    value_layer: networks.Network

    def policy(self, params: Params, features: jax.Array, mask: PyTree | None) -> Any:
        """The distribution `[...]` over samples at features `[..., F]` of the policy's torso."""
        return self.head.distribution(self.policy_layer.apply(params.policy, features), features, params.head, mask)

    def value(self, params: Params, features: jax.Array) -> jax.Array:
        """V(s), float32 `[...]`, at features `[..., F]` of the value's torso."""
        return self.value_layer.apply(params.value, features)[..., 0]

    def forward(
        self, params: Params, memory: Any, observation: PyTree, is_first: jax.Array, successor: PyTree = None
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """The policy's features `[L, M, F]`, V(s) `[L, M]`, and the values of successors, None where none are given.

        Args:
            params: The parameters.
            memory: `Memory.torsos` before the first step, leaves `[M, ...]`.
            observation: Leaves `[L, M, ...]`.
            is_first: bool `[L, M]`.
            successor: Leaves `[L, M, ...]`, as of `Torso.unroll`.
        """
        policy_memory, value_memory = memory
        if self.config.shared_torso:
            _, features, ahead = self.torso.unroll(params.torso, policy_memory, observation, is_first, successor)
            value_features = features
        else:
            _, features, _ = self.torso.unroll(params.torso, policy_memory, observation, is_first)
            _, value_features, ahead = self.torso.unroll(
                params.value_torso, value_memory, observation, is_first, successor
            )
        return features, self.value(params, value_features), None if ahead is None else self.value(params, ahead)

    def optimiser(self, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
        """Adam with clipping, without its learning rate."""
        return optimisers.clipped_adam(hyperparameters["max_grad_norm"], hyperparameters["adam_epsilon"])


def make(observation_space: PyTree, action_space: spaces.Space, config: Config = Config()) -> Agent:
    """Returns a PPO agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What PPO can be told.

    Raises:
        InputError: PPO cannot act in the action space, or the torso does not fit the observations.
    """
    parts = make_parts(observation_space, action_space, config)
    return Agent(
        init=functools.partial(init, parts),
        init_memory=functools.partial(init_memory, parts),
        noise=parts.head.noise,
        act_with=functools.partial(act_with, parts),
        observe=observe,
        update=functools.partial(update, parts),
        consumes="rollout",
    )


def make_parts(observation_space: PyTree, action_space: spaces.Space, config: Config) -> Parts:
    """Returns the static pieces of the agent that `make` returns; arguments and errors are the same."""
    spaces.leaves(observation_space)
    torso = torsos.make(config, observation_space)
    head = heads.make(
        action_space,
        "ppo",
        torsos.num_features(torso, observation_space),
        config.squash,
        config.state_dependent_scale,
        config.exploration_period,
    )
    return Parts(
        config=config,
        observation_space=observation_space,
        head=head,
        torso=torso,
        policy_layer=networks.make_linear(head.num_outputs, scale=0.01),
        value_layer=networks.make_linear(1, scale=1.0),
    )


def init(parts: Parts, key: jax.Array, hyperparameters: Mapping[str, Any] | None = None) -> State:
    """Returns a fresh agent; `hyperparameters` replaces numbers of the config."""
    config = parts.config
    key_torso, key_value_torso, key_policy, key_value = jax.random.split(key, 4)
    hyper = hyperparameters_of(config, hyperparameters)
    example = spaces.zeros(parts.observation_space)
    batch = jax.tree.map(lambda leaf: leaf[None], example)
    features = jnp.zeros((1, torsos.num_features(parts.torso, parts.observation_space)))
    params = Params(
        torso=parts.torso.init(key_torso, batch),
        value_torso=() if config.shared_torso else parts.torso.init(key_value_torso, batch),
        policy=parts.policy_layer.init(key_policy, features),
        head=parts.head.init(hyper["initial_log_scale"]),
        value=parts.value_layer.init(key_value, features),
    )
    return State(
        params=params,
        opt_state=parts.optimiser(hyper).init(params),
        observation_statistics=normalisation.init(example) if config.normalise_observation else None,
        return_statistics=normalisation.init(jnp.zeros(())) if config.normalise_reward else None,
        hyperparameters=hyper,
        updates=jnp.zeros((), jnp.int32),
        env_steps=jnp.zeros((), jnp.int32),
    )


def init_memory(parts: Parts, num_envs: int) -> Memory:
    """Returns the memory of `num_envs` environments at the start of an episode."""
    return Memory(
        torsos=(
            parts.torso.init_memory(num_envs),
            () if parts.config.shared_torso else parts.torso.init_memory(num_envs),
        ),
        exploration=parts.head.init_memory(num_envs),
        discounted_sum=jnp.zeros((num_envs,)) if parts.config.normalise_reward else None,
    )


def act_with(
    parts: Parts, state: State, memory: Memory, timestep: TimeStep, noise: Any, explore: bool = True
) -> tuple[Memory, Decision]:
    """Samples actions, or takes the most likely ones where `explore` is False."""
    observation = normalisation.normalise(state.observation_statistics, timestep.observation)
    policy_memory, value_memory = memory.torsos
    policy_memory, features = parts.torso.step(state.params.torso, policy_memory, observation, timestep.is_first)
    if jax.tree.leaves(value_memory):
        value_memory, _ = parts.torso.step(state.params.value_torso, value_memory, observation, timestep.is_first)
    policy = parts.policy(state.params, features, timestep.action_mask)
    exploration = memory.exploration
    if explore:
        exploration, sample = parts.head.sample(
            policy, features, state.params.head, noise, exploration, timestep.is_first
        )
    else:
        sample = policy.mode()
    extras = {"sample": sample}
    discounted_sum = memory.discounted_sum
    if discounted_sum is not None:
        discounted_sum = timestep.reward + state.hyperparameters["discount"] * discounted_sum
        discounted_sum = jnp.where(timestep.is_first, 0.0, discounted_sum)
        extras["discounted_sum"] = discounted_sum
    memory = Memory((policy_memory, value_memory), exploration, discounted_sum)
    return memory, Decision(parts.head.to_action(sample), extras)


def observe(state: State, rollout: Rollout) -> State:
    """Counts the environment steps and adds the rollout to the statistics, once the update has used the old ones."""
    observations, discounted_sums = state.observation_statistics, state.return_statistics
    if observations is not None:
        observations = normalisation.merge(observations, rollout.observation)
    if discounted_sums is not None:
        before = rollout.extras["discounted_sum"]
        discounted_sums = normalisation.merge(
            discounted_sums, rollout.reward + state.hyperparameters["discount"] * before
        )
    return dataclasses.replace(
        state,
        observation_statistics=observations,
        return_statistics=discounted_sums,
        env_steps=state.env_steps + rollout.reward.size,
    )


def update(parts: Parts, state: State, rollout: Rollout, key: jax.Array) -> tuple[State, Update]:
    """Learns from one rollout `[T, N]`: `num_epochs` passes over it in `num_minibatches` random minibatches each.

    Minibatches are of single steps, or where the torso has a memory of whole environments.
    """
    config = parts.config
    memory, batch = prepare(parts, state, rollout)
    hyper = scheduled(config, state)
    optimiser = parts.optimiser(hyper)

    def learn(carry: Any, memory: Any, minibatch: Batch) -> tuple[Any, Any]:
        learnt, stopped = carry
        params, opt_state = learnt
        gradients, metrics = jax.grad(functools.partial(loss, parts), has_aux=True)(params, hyper, memory, minibatch)
        after = optimisers.descend(optimiser, gradients, opt_state, params, hyper["learning_rate"])
        if config.stop_at_target_kl:
            stopped = stopped | (metrics["approximate_kl"] > hyper["target_kl"])
            after = select(stopped, learnt, after)
        return (after, stopped), {**metrics, "gradient_norm": optax.tree.norm(gradients)}

    carry = ((state.params, state.opt_state), jnp.zeros((), jnp.bool_))
    ((params, opt_state), _), metrics = minibatches.passes(
        learn, carry, memory, batch, key, config.num_epochs, config.num_minibatches
    )
    state = dataclasses.replace(state, params=params, opt_state=opt_state, updates=state.updates + 1)
    return state, Update({**jax.tree.map(jnp.mean, metrics), "learning_rate": hyper["learning_rate"]})


def scheduled(config: Config, state: State) -> Hyperparameters:
    """Returns the hyperparameters of this update: those with a schedule are scaled by it."""
    progress = optimisers.progress(state.updates, state.hyperparameters["horizon"])
    schedules = {
        "learning_rate": config.learning_rate_schedule,
        "clip_epsilon": config.clip_schedule,
        "entropy_coefficient": config.entropy_schedule,
    }
    scaled = {
        name: state.hyperparameters[name] * optimisers.schedule(schedule, f"agent.{name}")(progress)
        for name, schedule in schedules.items()
    }
    return {**state.hyperparameters, **scaled}


def prepare(parts: Parts, state: State, rollout: Rollout) -> tuple[Any, Batch]:
    """Returns `Memory.torsos` before each sequence, and log-probs, advantages and targets, from one forward pass."""
    hyper, params = state.hyperparameters, state.params
    memory = minibatches.first_memory(parts.torso, rollout, functools.partial(init_memory, parts)).torsos
    observation = normalisation.normalise(state.observation_statistics, rollout.observation)
    final_observation = normalisation.normalise(state.observation_statistics, rollout.final_observation)
    features, value, next_value = parts.forward(params, memory, observation, rollout.is_first, final_observation)
    assert next_value is not None
    log_prob = parts.policy(params, features, rollout.action_mask).log_prob(rollout.extras["sample"])
    reward = rollout.reward
    if state.return_statistics is not None:
        reward = jnp.clip(reward / normalisation.standard_deviation(state.return_statistics), -10.0, 10.0)
    advantage = returns.generalised_advantage(
        reward, value, next_value, rollout.terminated, rollout.truncated, hyper["discount"], hyper["gae_lambda"]
    )
    target = advantage + value
    if parts.config.normalise_advantage == "batch":
        advantage = standardised(advantage)
    batch = Batch(
        observation,
        rollout.is_first,
        rollout.action_mask,
        rollout.extras["sample"],
        log_prob,
        value,
        advantage,
        target,
    )
    return memory, minibatches.sequences(parts.torso, batch)


def loss(
    parts: Parts, params: Params, hyper: Hyperparameters, memory: Any, batch: Batch
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The clipped surrogate, value and entropy losses of one minibatch, whose sequences start from `memory`.

        ratio = pi(a|s) / pi_old(a|s)
        L = -mean(min(ratio A, clip(ratio, 1 - eps, 1 + eps) A)) + c_v mean((V - target)^2) / 2 - c_e mean(entropy)

    With `clip_value` the square is the larger one of V and of V_old + clip(V - V_old, -eps, eps).
    """
    config = parts.config
    features, value, _ = parts.forward(params, memory, batch.observation, batch.is_first)
    policy = parts.policy(params, features, batch.action_mask)
    log_ratio = policy.log_prob(batch.sample) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    epsilon = hyper["clip_epsilon"]
    advantage = standardised(batch.advantage) if config.normalise_advantage == "minibatch" else batch.advantage
    clipped_ratio = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped_ratio * advantage))
    square = jnp.square(value - batch.target)
    if config.clip_value:
        clipped_value = batch.value + jnp.clip(value - batch.value, -epsilon, epsilon)
        square = jnp.maximum(square, jnp.square(clipped_value - batch.target))
    value_loss = 0.5 * jnp.mean(square)
    entropy = jnp.mean(policy.entropy())
    total = policy_loss + hyper["value_coefficient"] * value_loss - hyper["entropy_coefficient"] * entropy
    return total, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > epsilon),
    }


def standardised(advantage: jax.Array) -> jax.Array:
    """Returns advantages `[L, M]` with mean 0 and standard deviation 1."""
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
