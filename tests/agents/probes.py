"""Five probe environments, each with one thing to learn (after Andy Jones's debugging advice), for every agent.

`value`: reward 1, then the end. `observation`: the reward is what is seen, -1 or 1. `discounted`: the reward comes in
the second step. `action`: the reward is for the action alone. `policy`: for the action that fits what is seen.
Continuous probes pay for closeness to the right action in place of the choice. Which of them it is stands in the
params, so an agent trains in all five in one program.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rollax import envs, experiments
from rollax.envs import spaces

KINDS = ("value", "observation", "discounted", "action", "policy")
BEST = 0.5  # the right continuous action of `action`; times what is seen in `policy`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ProbeState:
    time: jax.Array  # int32 []
    seen: jax.Array  # float32 []


@dataclasses.dataclass(frozen=True)
class Probe:
    kind: str = "value"
    continuous: bool = False

    @property
    def default_params(self) -> jax.Array:
        return jnp.int32(KINDS.index(self.kind))

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,))

    def action_space(self, params: Any = None) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)

    def reset(self, key: jax.Array, params: jax.Array) -> tuple[ProbeState, envs.TimeStep]:
        random = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        seen = jnp.where(_is(params, "observation") | _is(params, "policy"), random, 0.0)
        return ProbeState(jnp.zeros((), jnp.int32), seen), envs.timestep(seen[None])

    def step(
        self, key: jax.Array, state: ProbeState, action: jax.Array, params: jax.Array
    ) -> tuple[ProbeState, envs.TimeStep]:
        discounted = _is(params, "discounted")
        ended = ~discounted | (state.time == 1)
        state = ProbeState(state.time + 1, jnp.where(discounted, 1.0, state.seen))
        rewards = {
            "value": jnp.ones(()),
            "observation": state.seen,
            "discounted": jnp.where(ended, 1.0, 0.0),
            "action": self._pay(action, jnp.ones(())),
            "policy": self._pay(action, state.seen),
        }
        return state, envs.timestep(state.seen[None], jnp.stack([rewards[kind] for kind in KINDS])[params], ended)

    def _pay(self, action: jax.Array, right: jax.Array) -> jax.Array:
        if self.continuous:
            return 1.0 - jnp.abs(action[0] - BEST * right)
        return jnp.where((action == 1) == (right > 0), 1.0, -1.0)


def _is(params: jax.Array, kind: str) -> jax.Array:
    return params == KINDS.index(kind)


def train(
    continuous: bool, agent: str, settings: Any, replay: experiments.ReplayConfig | None = None, **train: Any
) -> dict[str, Any]:
    """The states of an agent after training in each probe, by kind; `train` are fields of `[train]`."""
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig(Probe(continuous=continuous)),
        train=experiments.TrainConfig(agent, **{"unroll": 1, **train}),
        agent=settings,
        replay=replay,
    )
    one = experiments.make_train(config)

    def in_probe(params: jax.Array) -> Any:
        return one(jax.random.key(0), None, params)

    states, _ = jax.jit(jax.vmap(in_probe, out_axes=(experiments.axes(), 0)))(jnp.arange(len(KINDS)))
    return {kind: jax.tree.map(lambda leaf, at=at: leaf[at], states.agent) for at, kind in enumerate(KINDS)}


def action_values(kind: str, discount: float) -> dict[tuple[float, ...], list[float]]:
    """Q(s, .) of a discrete probe by what was seen in the episode so far, newest last."""
    return {
        "value": {(0.0,): [1.0, 1.0]},
        "observation": {(1.0,): [1.0, 1.0], (-1.0,): [-1.0, -1.0]},
        "discounted": {(0.0,): [discount, discount], (0.0, 1.0): [1.0, 1.0]},
        "action": {(0.0,): [-1.0, 1.0]},
        "policy": {(1.0,): [-1.0, 1.0], (-1.0,): [1.0, -1.0]},
    }[kind]
