"""Five probe environments, each with one thing to learn (after Andy Jones's debugging advice), for every agent.

`value`: reward 1, then the end. `observation`: the reward is what is seen, -1 or 1. `discounted`: the reward comes in
the second step. `action`: the reward is for the action alone. `policy`: for the action that fits what is seen.
Continuous probes pay for closeness to the right action in place of the choice.
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
    kind: str
    continuous: bool = False

    @property
    def default_params(self) -> tuple[()]:
        return ()

    def observation_space(self, params: Any = None) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,))

    def action_space(self, params: Any = None) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)

    def reset(self, key: jax.Array, params: Any) -> tuple[ProbeState, envs.TimeStep]:
        random = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        seen = random if self.kind in ("observation", "policy") else jnp.zeros(())
        return ProbeState(jnp.zeros((), jnp.int32), seen), envs.timestep(seen[None])

    def step(
        self, key: jax.Array, state: ProbeState, action: jax.Array, params: Any
    ) -> tuple[ProbeState, envs.TimeStep]:
        if self.kind == "discounted":
            ended = state.time == 1
            next_state = ProbeState(state.time + 1, jnp.ones(()))
            return next_state, envs.timestep(next_state.seen[None], ended, ended)
        reward = {
            "value": jnp.ones(()),
            "observation": state.seen,
            "action": self._pay(action, jnp.ones(())),
            "policy": self._pay(action, state.seen),
        }[self.kind]
        return state, envs.timestep(state.seen[None], reward, True)

    def _pay(self, action: jax.Array, right: jax.Array) -> jax.Array:
        if self.continuous:
            return 1.0 - jnp.abs(action[0] - BEST * right)
        return jnp.where((action == 1) == (right > 0), 1.0, -1.0)


def train(probe: Probe, agent: str, settings: Any, replay: experiments.ReplayConfig | None = None, **train: Any) -> Any:
    """The state of an agent after training in a probe; `train` are fields of `[train]`."""
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig(probe),
        train=experiments.TrainConfig(agent, **{"unroll": 1, **train}),
        agent=settings,
        replay=replay,
    )
    state, _ = jax.jit(experiments.make_train(config))(jax.random.key(0))
    return state.agent


def action_values(kind: str, discount: float) -> dict[tuple[float, ...], list[float]]:
    """Q(s, .) of a discrete probe by what was seen in the episode so far, newest last."""
    return {
        "value": {(0.0,): [1.0, 1.0]},
        "observation": {(1.0,): [1.0, 1.0], (-1.0,): [-1.0, -1.0]},
        "discounted": {(0.0,): [discount, discount], (0.0, 1.0): [1.0, 1.0]},
        "action": {(0.0,): [-1.0, 1.0]},
        "policy": {(1.0,): [-1.0, 1.0], (-1.0,): [1.0, -1.0]},
    }[kind]
