"""Adapter to pgx 2 (https://github.com/sotetsuk/pgx): its games as the first of their players sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pgx

from rollax.envs import drawing, spaces
from rollax.envs.adapters.common import box, limited
from rollax.envs.base import Environment, PyTree, TimeStep, strongly_typed, timestep, with_types_of
from rollax.importing import import_object

Opponent = Callable[[jax.Array, PyTree], jax.Array]


def uniform(key: jax.Array, state: PyTree) -> jax.Array:
    """Returns one of the legal moves of a game's state, each as likely as the others, int32 `[]`."""
    return jax.random.categorical(key, jnp.where(state.legal_action_mask, 0.0, -jnp.inf)).astype(jnp.int32)


class PgxEnv:
    """One pgx game for a single agent: it is player 0, and all others are moved by one policy.

    Who begins is drawn at each reset where the game draws it. A step is the agent's move and those of the others until
    it is the agent's turn again, and its reward is the agent's sum over them. An illegal move ends the game and loses
    it; `action_mask` says which are legal.
    """

    default_params: PyTree = ()

    def __init__(self, env: Any, opponent: Opponent = uniform, ends_by_time: bool = False) -> None:
        """Wraps a game.

        Args:
            env: A `pgx.Env`.
            opponent: The policy of the other players, from a key and the game's state to a legal move.
            ends_by_time: The game ends by its own time limit alone, so its ends are truncations.
        """
        self.env = env
        self._opponent = opponent
        self._ends_by_time = ends_by_time
        state = jax.eval_shape(env.init, jax.random.key(0))
        self._observation_space = box(state.observation)
        self._action_space = spaces.Discrete(state.legal_action_mask.shape[0])

    def observation_space(self, params: PyTree = None) -> PyTree:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> PyTree:
        return self._action_space

    def reset(self, key: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Starts a game and lets the others move until it is the agent's turn; the state keeps what that earned."""
        key_init, key_others = jax.random.split(key)
        state = self._others_move(key_others, strongly_typed(self.env.init(key_init)))
        return state, self._seen(state, is_first=True)

    def step(self, key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        """Takes the agent's move and those of the others."""
        key_own, key_others = jax.random.split(key)
        moved = self._others_move(key_others, self._moved(key_own, state, action))
        ended = moved.terminated | moved.truncated
        terminated = ended & (not self._ends_by_time)
        seen = self._seen(moved, moved.rewards[0], terminated, ended & ~terminated)
        return moved.replace(rewards=jnp.zeros_like(moved.rewards)), seen

    def render(self, state: PyTree, params: PyTree) -> drawing.Picture:
        """Draws the board with the suite's SVG, and MinAtar as what is seen.

        Raises:
            InputError: The package that turns SVG into pixels is not installed, or the suite draws no such game.
        """
        if self.env.id.startswith("minatar-"):
            return drawing.grid(state.observation)
        return drawing.svg(jax.tree.map(jnp.asarray, state).to_svg())

    def _moved(self, key: jax.Array, state: PyTree, action: jax.Array) -> PyTree:
        """Takes one player's move; rewards add up."""
        after = self.env.step(state, action, key)
        return with_types_of(after.replace(rewards=state.rewards + after.rewards), state)

    def _others_move(self, key: jax.Array, state: PyTree) -> PyTree:
        if self.env.num_players == 1:
            return state

        def others_turn(carry: tuple[jax.Array, PyTree]) -> jax.Array:
            _, state = carry
            return (state.current_player != 0) & ~(state.terminated | state.truncated)

        def move(carry: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
            key, state = carry
            key, key_choice, key_move = jax.random.split(key, 3)
            return key, self._moved(key_move, state, self._opponent(key_choice, state))

        return jax.lax.while_loop(others_turn, move, (key, state))[1]

    def _seen(self, state: PyTree, *outcome: jax.Array, is_first: bool = False) -> TimeStep:
        # Not `state.observation`, which at the end is that of whoever would be next; and `observe` for a given player
        # warns that it will go.
        observation = self.env._observe(state, jnp.int32(0))
        return timestep(observation, *outcome, is_first=is_first, action_mask=state.legal_action_mask)


def make(
    name: str, /, *, opponent: str | Opponent = uniform, max_steps_in_episode: int | None = None, **kwargs: Any
) -> Environment:
    """Builds a pgx game.

    Args:
        name: One of `pgx.available_envs()`.
        opponent: The policy of the other players, `(key, state) -> action` for one pgx state, or an import path to it;
            uniformly random legal moves by default.
        max_steps_in_episode: Steps of the agent after which an episode is truncated. None: there is no limit but the
            game's own, in MinAtar 1,000 as in gymnax.
        **kwargs: For the game's constructor (`komi` of go, `size` of hex, `sticky_action_prob` of MinAtar).

    Raises:
        InputError: The opponent cannot be imported, or the time limit is no positive whole number.
    """
    env = pgx.make(name)
    if kwargs:
        size = {"go_9x9": 9, "go_19x19": 19}.get(name)
        env = type(env)(**({} if size is None else {"size": size}), **kwargs)
    policy = import_object(opponent, "env.opponent") if isinstance(opponent, str) else opponent
    freeway = name == "minatar-freeway"
    if max_steps_in_episode is None and name.startswith("minatar-") and not freeway:
        max_steps_in_episode = 1_000
    return limited(PgxEnv(env, policy, ends_by_time=freeway), max_steps_in_episode)
