"""Two small environments: a task with all that the protocol allows in it, and a counter whose every number is known."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from rollax import envs
from rollax.envs import spaces

ILLEGAL_REWARD = -10_000.0
"""Of an illegal action: no mean over episodes of a few steps can hide it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BeaconParams:
    """The numbers of `Beacon`."""

    goal: jax.Array | float  # an episode terminates this far from the middle, on either side
    limit: jax.Array | int  # steps after which it is truncated
    noise: jax.Array | float  # half-width of the uniform noise on the start and on every move


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BeaconState:
    """Where the walker is."""

    x: jax.Array  # float32 [], 0 in the middle
    beacon: jax.Array  # float32 [], -1 on the left or 1 on the right
    clock: jax.Array  # int32 [], steps since the reset


class Beacon:
    """A walk on a line towards a beacon, which is on a random side.

    Action 0 steps left, 1 steps right, 2 stays; action `clock % 3` is illegal. The reward is the way made towards the
    beacon. A hidden beacon shows in the first observation of an episode only.
    """

    def __init__(self, goal: float = 2.5, limit: int = 8, noise: float = 0.1, hidden: bool = False) -> None:
        self.default_params = BeaconParams(goal, limit, noise)
        self.hidden = hidden

    def reset(self, key: jax.Array, params: BeaconParams) -> tuple[BeaconState, envs.TimeStep]:
        drawn = jax.random.uniform(key, (2,), minval=-1.0)
        state = BeaconState(params.noise * drawn[0], jnp.sign(drawn[1]), jnp.zeros((), jnp.int32))
        return state, envs.timestep(self._observation(state, params), action_mask=self._mask(state))

    def step(
        self, key: jax.Array, state: BeaconState, action: jax.Array, params: BeaconParams
    ) -> tuple[BeaconState, envs.TimeStep]:
        noise = params.noise * jax.random.uniform(key, minval=-1.0)
        move = jnp.array([-1.0, 1.0, 0.0])[action] + noise
        next_state = BeaconState(state.x + move, state.beacon, state.clock + 1)
        terminated = jnp.abs(next_state.x) >= params.goal
        timestep = envs.timestep(
            self._observation(next_state, params),
            jnp.where(self._mask(state)[action], state.beacon * move, ILLEGAL_REWARD),
            terminated,
            ~terminated & (next_state.clock >= params.limit),
            action_mask=self._mask(next_state),
        )
        return next_state, timestep

    def observation_space(self, params: BeaconParams | None = None) -> dict[str, spaces.Box]:
        return {"clock": spaces.Box(0.0, 1.0), "position": spaces.Box(-jnp.inf, jnp.inf, (2,))}

    def action_space(self, params: BeaconParams | None = None) -> spaces.Discrete:
        return spaces.Discrete(3)

    def _observation(self, state: BeaconState, params: BeaconParams) -> dict[str, jax.Array]:
        shown = jnp.where(state.clock > 0, 0.0, state.beacon) if self.hidden else state.beacon
        return {"clock": state.clock / params.limit, "position": jnp.stack([state.x, shown])}

    def _mask(self, state: BeaconState) -> jax.Array:
        return jnp.arange(3) != state.clock % 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CounterState:
    """How far the counter is."""

    count: jax.Array  # int32 [], steps since the reset, the observation
    length: jax.Array  # int32 [], steps of the episode


class Counter:
    """Counts its steps from 0 and pays 1 for each; an episode takes one of `lengths` at random, and ignores actions."""

    default_params = ()

    def __init__(self, lengths: tuple[int, ...] = (4,)) -> None:
        self.lengths = lengths

    def reset(self, key: jax.Array, params: tuple[()]) -> tuple[CounterState, envs.TimeStep]:
        state = CounterState(jnp.zeros((), jnp.int32), jax.random.choice(key, jnp.array(self.lengths, jnp.int32)))
        return state, envs.timestep(state.count.astype(jnp.float32))

    def step(
        self, key: jax.Array, state: CounterState, action: jax.Array, params: tuple[()]
    ) -> tuple[CounterState, envs.TimeStep]:
        state = dataclasses.replace(state, count=state.count + 1)
        return state, envs.timestep(state.count.astype(jnp.float32), 1.0, state.count >= state.length)

    def observation_space(self, params: tuple[()] | None = None) -> spaces.Box:
        return spaces.Box(0.0, float(max(self.lengths)))

    def action_space(self, params: tuple[()] | None = None) -> spaces.Discrete:
        return spaces.Discrete(3)
