"""The policies of agents that learn from replay with critics: a network without a memory below a head of `heads`.

They act at random for the first `random_steps` environment steps, and then as their distribution says. What they carry
from step to step is the random action that is being repeated, if any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rollax.agents import exploration, heads, networks, normalisation, torsos
from rollax.agents.base import Agent, Decision, Hyperparameters
from rollax.agents.memory import Torso
from rollax.envs import spaces
from rollax.envs.base import PyTree, TimeStep


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Params:
    """The policy's parameters."""

    torso: PyTree
    policy: PyTree  # of the linear layer to the policy head's inputs
    head: PyTree  # of the policy head, what does not depend on the observation


class State(Protocol):
    """What acting reads of an agent's state; among its numbers is `random_steps`."""

    @property
    def params(self) -> Params:
        """Of the policy that acts."""

    @property
    def observation_statistics(self) -> normalisation.Statistics | None:
        """None unless observations are normalised."""

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The agent's numbers."""

    @property
    def env_steps(self) -> jax.Array:
        """Environment steps observed, int32 `[]`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Noise:
    """What acting once in N environments draws."""

    policy: PyTree  # leaves [N, ...]
    random: jax.Array  # float32 [N, ...], of `exploration.random_action`
    redraw: jax.Array  # bool [N], whether a repeated random action gives way to that one


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """The static pieces of a policy."""

    observation_space: PyTree
    action_space: spaces.Box | spaces.Discrete
    head: heads.Head
    torso: Torso
    layer: networks.Network
    random_period: int  # mean steps for which one random action is repeated

    def init(self, key_torso: jax.Array, key_policy: jax.Array, initial_log_scale: jax.Array) -> Params:
        """Returns fresh parameters; `initial_log_scale` is that of a Box's actions, in units of half the Box."""
        example = jax.tree.map(lambda leaf: leaf[None], spaces.zeros(self.observation_space))
        features = jnp.zeros((1, torsos.num_features(self.torso, self.observation_space)))
        return Params(
            torso=self.torso.init(key_torso, example),
            policy=self.layer.init(key_policy, features),
            head=self.head.init(initial_log_scale),
        )

    def init_statistics(self, normalise: bool) -> normalisation.Statistics | None:
        """Returns those of no observations, or None where they are not to be normalised."""
        return normalisation.init(spaces.zeros(self.observation_space)) if normalise else None

    def __call__(self, params: Params, observation: PyTree, mask: PyTree | None) -> Any:
        """The distribution `[B]` over samples at normalised observations, leaves `[B, ...]`."""
        batch = jax.tree.leaves(observation)[0].shape[0]
        _, features = self.torso.step(params.torso, (), observation, jnp.zeros((batch,), jnp.bool_))
        return self.head.distribution(self.layer.apply(params.policy, features), features, params.head, mask)

    def init_memory(self, num_envs: int) -> jax.Array | tuple[()]:
        """Returns the noise of the random actions being repeated, `[N, ...]`; `()` where each is used once."""
        if self.random_period == 1:
            return ()
        return jnp.zeros((num_envs, exploration.random_width(self.action_space)))

    def noise(self, key: jax.Array, num_envs: int) -> Noise:
        """Draws what acting once in `num_envs` environments needs."""
        key_policy, key_random, key_redraw = jax.random.split(key, 3)
        return Noise(
            policy=self.head.noise(key_policy, num_envs),
            random=exploration.random_noise(key_random, num_envs, self.action_space),
            redraw=jax.random.bernoulli(key_redraw, 1.0 / self.random_period, (num_envs,)),
        )

    def act_with(
        self, state: State, memory: Any, timestep: TimeStep, noise: Noise | None, explore: bool = True
    ) -> tuple[Any, Decision]:
        """Samples actions, random ones for the first `random_steps`; the most likely ones where `explore` is False."""
        observation = normalisation.normalise(state.observation_statistics, timestep.observation)
        policy = self(state.params, observation, timestep.action_mask)
        if not explore or noise is None:
            return memory, Decision(self.head.to_action(policy.mode()), {})
        random = noise.random
        if self.random_period > 1:
            random = memory = jnp.where((timestep.is_first | noise.redraw)[:, None], random, memory)
        random = exploration.random_action(random, self.action_space, timestep.action_mask)
        _, sample = self.head.sample(policy, jnp.zeros(()), state.params.head, noise.policy, (), timestep.is_first)
        warming_up = state.env_steps < state.hyperparameters["random_steps"]
        return memory, Decision(jnp.where(warming_up, random, self.head.to_action(sample)), {})


def make(
    config: torsos.NetworkConfig,
    observation_space: PyTree,
    action_space: spaces.Box | spaces.Discrete,
    agent: str,
    squash: bool,
    random_period: int = 1,
) -> Policy:
    """Returns the policy that a config asks for; the scale of a Box's actions depends on what is observed.

    Args:
        config: Of the agent.
        observation_space: A PyTree of spaces.
        action_space: From `exploration.box_or_discrete`.
        agent: The agent's name, for the errors.
        squash: Whether actions of a Box are squashed by tanh rather than clipped.
        random_period: Mean steps for which one of the random actions at the start is repeated.

    Raises:
        InputError: The torso has a memory or does not fit the observations, or there is no such activation.
    """
    networks.get_activation(config.activation)
    torso = torsos.without_memory(config, observation_space, agent)
    is_box = isinstance(action_space, spaces.Box)
    num_features = torsos.num_features(torso, observation_space)
    head = heads.make(action_space, agent, num_features, squash=squash and is_box, state_dependent_scale=is_box)
    layer = networks.make_linear(head.num_outputs, scale=0.01)
    return Policy(observation_space, action_space, head, torso, layer, random_period)


def agent(policy: Policy, init: Callable[..., Any], update: Callable[..., Any]) -> Agent:
    """Returns the agent that acts by `policy`; `init` and `update` are as in `Agent`, the latter of transitions."""
    return Agent(
        init=init,
        init_memory=policy.init_memory,
        noise=policy.noise,
        act_with=policy.act_with,
        observe=normalisation.observe,
        update=update,
        consumes="transitions",
    )
