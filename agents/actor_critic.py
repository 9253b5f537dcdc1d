"""What agents with a policy and a value function that learn from whole rollouts share: all but their losses.

Rewards come in R streams, each with values of its own: the environment's, and behind them those of an exploration bonus
(`bonuses`) where one is switched on.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from rollax.agents import bonuses, heads, minibatches, networks, normalisation, optimisers, returns, torsos
from rollax.agents.base import Agent, Decision, Hyperparameters, Rollout, Update, hyperparameters_of, require_each
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep

Estimator = Callable[..., tuple[jax.Array, jax.Array]]
"""`(reward, value, next_value, terminated, truncated, discount) -> (advantage, target)`, each but the last [T, N]."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What each of them can be told. The floats are hyperparameters: they live in the state and may be traced."""

    learning_rate: float = 2.5e-4
    """Step size of Adam at the start."""
    learning_rate_schedule: str = "linear"
    """How the learning rate falls over `horizon`: constant, linear or cosine."""
    horizon: float = 0.0
    """Updates until every schedule has ended; 0: the whole run, and no end in a loop of one's own."""
    discount: float = 0.99
    """gamma, per environment step."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Global norm at which gradients are clipped."""
    adam_epsilon: float = 1e-5
    """Epsilon of Adam."""
    normalise_observation: bool = False
    """Whether observations are shifted and scaled by their running mean and standard deviation."""
    normalise_reward: bool = False
    """Whether rewards are scaled by the running standard deviation of their discounted sum."""
    bonus: str = "none"
    """Bonus for what is new: none, rnd (random network distillation) or icm (intrinsic curiosity module)."""
    bonus_coefficient: float = 1.0
    """Weight of the advantage in bonuses beside that in rewards."""
    bonus_discount: float = 0.99
    """gamma of bonuses, whose returns go on over the ends of episodes."""
    bonus_learning_rate: float = 1e-3
    """Step size of Adam for what bonuses are measured with."""
    bonus_features: int = 64
    """Numbers that the bonus is the error of predicting."""
    torso: str = "mlp"
    """Network below policy and value: mlp, cnn, or package.module:NAME or file.py:NAME of one's own."""
    memory: str = "none"
    """What stands on top of the torso: none, gru, lstm, linear or transformer."""
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
    """Logarithm of the scale of a Box's actions at the start, in units of half the Box."""
    exploration_period: int = 0
    """Mean steps between draws of state-dependent exploration noise (gSDE); 0: independent noise at each step."""


def check(config: Config) -> None:
    """Raises InputError where what all these agents are told is wrong."""
    above_zero = ("learning_rate", "max_grad_norm", "adam_epsilon", "bonus_learning_rate", "bonus_features")
    require_each(config, above_zero, lambda value: value > 0, "must be above 0")
    not_negative = ("value_coefficient", "horizon", "exploration_period", "bonus_coefficient")
    require_each(config, not_negative, lambda value: value >= 0, "must not be negative")
    shares = ("discount", "bonus_discount")
    require_each(config, shares, lambda value: 0 <= value <= 1, "must be between 0 and 1")
    require_each(config, ("initial_log_scale",), math.isfinite, "must be finite")
    torsos.check(config)
    bonuses.check(config.bonus)
    optimisers.schedule(config.learning_rate_schedule, "agent.learning_rate_schedule")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """Everything that gradients of the agent's loss change."""

    torso: PyTree  # of the policy's torso, and of the value's where it is shared
    value_torso: PyTree  # of the value's torso; () where it is shared
    policy: PyTree  # of the linear layer to the policy head's inputs
    head: PyTree  # of the policy head, what does not depend on the observation
    value: PyTree  # of the linear layer to the R values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The state of an agent; some add fields of their own."""

    params: Params
    opt_state: optax.OptState
    observation_statistics: normalisation.Statistics | None  # None unless observations are normalised
    return_statistics: normalisation.Statistics | None  # of discounted sums of rewards; None unless those are
    bonus: bonuses.State | None  # None without a bonus
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
class Evaluation:
    """What some parameters say of a rollout."""

    memory: tuple[PyTree, PyTree]  # `Memory.torsos` before the first row
    observation: PyTree  # leaves [T, N, ...], normalised
    policy: Any  # the distribution [T, N] over samples
    value: jax.Array  # float32 [T, N, R], V(s)
    next_value: jax.Array  # float32 [T, N, R], of the true successors


@dataclasses.dataclass(frozen=True)
class Parts:
    """The static pieces of one agent."""

    config: Any  # a `Config`, with what is the algorithm's own
    observation_space: PyTree
    head: heads.Head
    torso: Torso
    policy_layer: networks.Network
    value_layer: networks.Network
    bonus: bonuses.Bonus | None
    keeps: frozenset[str]  # what rows keep of acting for `update`, beside the sample: log_prob, memory

    def policy(self, params: Params, features: jax.Array, mask: PyTree | None) -> Any:
        """The distribution `[...]` over samples at features `[..., F]` of the policy's torso."""
        return self.head.distribution(self.policy_layer.apply(params.policy, features), features, params.head, mask)

    def value(self, params: Params, features: jax.Array) -> jax.Array:
        """V(s), float32 `[..., R]`, at features `[..., F]` of the value's torso."""
        return self.value_layer.apply(params.value, features)

    def forward(
        self, params: Params, memory: Any, observation: PyTree, is_first: jax.Array, successor: PyTree = None
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """The policy's features `[L, M, F]`, V(s) `[L, M, R]`, and the values of successors, None where none are given.

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


def make_parts(
    observation_space: PyTree, action_space: spaces.Space, config: Config, agent: str, keeps: Sequence[str] = ()
) -> Parts:
    """Returns the static pieces of an agent.

    Args:
        observation_space: A PyTree of spaces.
        action_space: `Discrete`, `MultiDiscrete`, or `Box`, whose finite bounds actions are scaled to and kept within.
        config: What the agent can be told.
        agent: Its name, for the errors.
        keeps: What rows keep of acting for `update`: "log_prob" of the samples, "memory" of the torsos before the row.

    Raises:
        InputError: The agent cannot act in the action space, or the torso does not fit the observations.
    """
    spaces.leaves(observation_space)
    torso = torsos.make(config, observation_space)
    head = heads.make(
        action_space,
        agent,
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
        value_layer=networks.make_linear(1 if config.bonus == "none" else 2, scale=1.0),
        bonus=bonuses.make(config, observation_space, action_space),
        keeps=frozenset(keeps),
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
        bonus=None if parts.bonus is None else parts.bonus.init(jax.random.fold_in(key, 1)),
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
    extras: dict[str, PyTree] = {"sample": sample}
    if "log_prob" in parts.keeps:
        extras["log_prob"] = policy.log_prob(sample)
    if "memory" in parts.keeps:
        extras["memory"] = memory.torsos
    discounted_sum = memory.discounted_sum
    if discounted_sum is not None:
        discounted_sum = timestep.reward + state.hyperparameters["discount"] * discounted_sum
        discounted_sum = jnp.where(timestep.is_first, 0.0, discounted_sum)
        extras["discounted_sum"] = discounted_sum
    memory = Memory((policy_memory, value_memory), exploration, discounted_sum)
    return memory, Decision(parts.head.to_action(sample), extras)


def observe(state: State, rollout: Rollout) -> State:
    """Counts the environment steps and adds the rollout to the statistics, once the update has used the old ones."""
    discounted_sums = state.return_statistics
    if discounted_sums is not None:
        sums = rollout.reward + state.hyperparameters["discount"] * rollout.extras["discounted_sum"]
        state = dataclasses.replace(state, return_statistics=normalisation.merge(discounted_sums, sums))
    observed: State = normalisation.observe(state, rollout)
    return observed


def make_agent(
    parts: Parts,
    update: Callable[..., Any],
    init: Callable[..., Any] = init,
    act_with: Callable[..., Any] = act_with,
    consumes: Literal["rollout", "sequences"] = "rollout",
) -> Agent:
    """Returns an agent.

    Args:
        parts: The agent's static pieces.
        update: As `Agent.update`, with the parts before its other arguments, as the next two.
        init: As `Agent.init`.
        act_with: As `Agent.act_with`.
        consumes: As `Agent.consumes`.
    """
    return Agent(
        init=functools.partial(init, parts),
        init_memory=functools.partial(init_memory, parts),
        noise=parts.head.noise,
        act_with=functools.partial(act_with, parts),
        observe=observe,
        update=functools.partial(update, parts),
        consumes=consumes,
    )


def rewards(parts: Parts, state: State, rollout: Rollout) -> tuple[bonuses.State | None, jax.Array]:
    """Returns the rewards of a rollout, float32 `[T, N, R]`, and what its bonus has learnt from it."""
    reward = rollout.reward
    if state.return_statistics is not None:
        reward = jnp.clip(reward / normalisation.standard_deviation(state.return_statistics), -10.0, 10.0)
    if parts.bonus is None:
        return None, reward[..., None]
    bonus, novelty = parts.bonus.learn(state.bonus, rollout, state.hyperparameters)
    return bonus, jnp.stack([reward, novelty], axis=-1)


def evaluate(parts: Parts, params: Params, state: State, rollout: Rollout) -> Evaluation:
    """Returns what `params` say of a rollout; `state` gives the statistics of observations."""
    memory = minibatches.first_memory(parts.torso, rollout, functools.partial(init_memory, parts)).torsos
    observation = normalisation.normalise(state.observation_statistics, rollout.observation)
    successor = normalisation.normalise(state.observation_statistics, rollout.final_observation)
    features, value, next_value = parts.forward(params, memory, observation, rollout.is_first, successor)
    assert next_value is not None
    policy = parts.policy(params, features, rollout.action_mask)
    return Evaluation(memory, observation, policy, value, next_value)


def advantages(
    estimate: Estimator, hyper: Hyperparameters, reward: jax.Array, evaluation: Evaluation, rollout: Rollout
) -> tuple[jax.Array, jax.Array]:
    """Returns advantages float32 `[T, N]`, the weighted sum over streams, and targets of values `[T, N, R]`.

    Returns of bonuses do not end with an episode (Burda et al. 2018): what is new in the next one counts too. Its first
    row gives the value that they go on with, where the rollout has it, and the true successor where it has not.

    Args:
        estimate: Of one stream.
        hyper: The agent's numbers.
        reward: float32 `[T, N, R]`, from `rewards`.
        evaluation: Of the rollout.
        rollout: Leaves `[T, N, ...]`.
    """
    value, next_value, ended = evaluation.value, evaluation.next_value, rollout.ended
    advantage, target = estimate(
        reward[..., 0], value[..., 0], next_value[..., 0], rollout.terminated, rollout.truncated, hyper["discount"]
    )
    if reward.shape[-1] == 1:
        return advantage, target[..., None]
    following = next_value[..., 1].at[:-1].set(jnp.where(ended[:-1], value[1:, ..., 1], next_value[:-1, ..., 1]))
    never = jnp.zeros_like(ended)
    bonus_advantage, bonus_target = estimate(
        reward[..., 1], value[..., 1], following, never, never, hyper["bonus_discount"]
    )
    return advantage + hyper["bonus_coefficient"] * bonus_advantage, jnp.stack([target, bonus_target], axis=-1)


def generalised_advantage(trace_decay: jax.Array | float) -> Estimator:
    """Returns the estimator of `returns.generalised_advantage`, whose targets are lambda-returns."""

    def estimate(reward: jax.Array, value: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        next_value, terminated, truncated, discount = rest
        advantage = returns.generalised_advantage(
            reward, value, next_value, terminated, truncated, discount, trace_decay
        )
        return advantage, advantage + value

    return estimate


def learn_once(
    parts: Parts, state: Any, rollout: Rollout, loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
) -> tuple[Any, Update]:
    """Takes one step of Adam on `loss(params, state, rollout, reward) -> (loss, metrics)`, and counts the update."""
    hyper = state.hyperparameters
    bonus, reward = rewards(parts, state, rollout)
    rate = optimisers.learning_rate(parts.config.learning_rate_schedule, hyper, state.updates)
    (params, opt_state), reported = optimisers.step(
        parts.optimiser(hyper), loss, state.params, state.opt_state, rate, state, rollout, reward
    )
    state = dataclasses.replace(state, params=params, opt_state=opt_state, bonus=bonus, updates=state.updates + 1)
    return state, Update({**metrics(reported, reward), "learning_rate": rate})


def metrics(metrics: dict[str, jax.Array], reward: jax.Array) -> dict[str, jax.Array]:
    """Returns what an update reports: means of the metrics of its steps, and of bonuses where there are any.

    Args:
        metrics: Of the losses, arrays of any shape.
        reward: float32 `[T, N, R]`, from `rewards`.
    """
    means: dict[str, jax.Array] = jax.tree.map(jnp.mean, metrics)
    return means if reward.shape[-1] == 1 else {**means, "bonus": jnp.mean(reward[..., 1])}


def value_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Half the squared errors of values `[..., R]`, summed over the streams: float32 `[...]`."""
    return 0.5 * jnp.sum(jnp.square(value - target), axis=-1)


def masked_mean(steps: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean of `steps` `[T, N]` where `mask` holds, 0 where it holds nowhere."""
    return jnp.sum(jnp.where(mask, steps, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def standardised(advantage: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Returns advantages `[T, N]` with mean 0 and standard deviation 1 where `mask` holds; None: everywhere."""
    mean = jnp.mean if mask is None else functools.partial(masked_mean, mask=mask)
    shifted = advantage - mean(advantage)
    return shifted / (jnp.sqrt(mean(jnp.square(shifted))) + 1e-8)
