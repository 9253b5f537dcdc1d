"""The adapters to environment suites beside gymnax: one contract for all, and what is particular to each."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.envs.rollouts import rollout, types, wrapped

from rollax import InputError, envs
from rollax.envs import catalogue
from rollax.envs.catalogue import SUITES

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _legacy_keys() -> Iterator[None]:
    """Some suites make old-style keys of their own."""
    with jax.legacy_prng_key("allow"):
        yield


# What needs no suite.


def test_every_suite_has_an_adapter_an_extra_and_unambiguous_ids() -> None:
    adapters = {path.stem for path in (ROOT / "envs" / "adapters").glob("*.py")}
    assert adapters == {*SUITES, "gymnax", "common", "__init__"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(SUITES) <= set(extras)
    assert extras["envs"] == [f"rollax[{','.join(SUITES)}]"]
    assert len(set(catalogue.ENVIRONMENTS)) == len(catalogue.ENVIRONMENTS)
    assert all(suite.ids for suite in SUITES.values())


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_that_is_not_installed_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SUITES[name].package, None)
    monkeypatch.delitem(sys.modules, f"rollax.envs.adapters.{name}", raising=False)
    env_id = f"{name}/{SUITES[name].ids[0]}"
    with pytest.raises(InputError, match=rf"env\.id = '{env_id}' needs .* pip install 'rollax\[{name}\]'") as error:
        envs.make(env_id)
    assert "\n" not in str(error.value)


def test_an_unknown_id_of_a_suite_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"no known environment: did you mean 'pgx/connect_four'"):
        envs.make("pgx/connect4")


# The contract.


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment whose episodes are short, and what random play then meets within 300 steps."""

    env_id: str
    kwargs: dict[str, Any]
    limit: int | None  # steps of a truncated episode; None: none is truncated
    terminates: bool
    starts_differ: bool = True  # and it can be seen at once


QUICK = (Case("pgx/tic_tac_toe", {"max_steps_in_episode": 3}, 3, terminates=True),)
OF_SUITES = (
    Case("pgx/connect_four", {}, None, terminates=True),
    Case("pgx/minatar-breakout", {"max_steps_in_episode": 10}, 10, terminates=True),
    Case("brax/fast", {"max_steps_in_episode": 20}, 20, terminates=False, starts_differ=False),
    Case("brax/inverted_pendulum", {"max_steps_in_episode": 20}, 20, terminates=True),
    Case("brax/reacher", {"max_steps_in_episode": 20}, 20, terminates=False),
    Case("jumanji/Snake-v1", {"max_steps_in_episode": 20}, 20, terminates=False),
    Case("jumanji/Minesweeper-v0", {"max_steps_in_episode": 5}, 5, terminates=True, starts_differ=False),
    Case("jumanji/LevelBasedForaging-v0", {"time_limit": 5}, 5, terminates=False),
    Case("navix/Navix-Empty-Random-5x5-v0", {"max_steps": 20}, 20, terminates=True),
    Case("navix/Navix-DoorKey-5x5-v0", {"max_steps": 20}, 20, terminates=False),
    Case("navix/Navix-Dynamic-Obstacles-5x5-v0", {"max_steps": 20}, 20, terminates=True),
    Case("xminigrid/MiniGrid-EmptyRandom-5x5", {"max_steps": 20}, 20, terminates=True),
    Case("xminigrid/MiniGrid-DoorKey-5x5", {"max_steps": 20}, 20, terminates=False),
    Case("xminigrid/XLand-MiniGrid-R1-9x9", {"max_steps": 20}, 20, terminates=False),
    Case("craftax/Craftax-Classic-Symbolic-v1", {"max_timesteps": 20}, 20, terminates=False),
    Case("craftax/Craftax-Symbolic-v1", {"max_timesteps": 20}, 20, terminates=False),
    Case("playground/CartpoleBalance", {"episode_length": 20}, 20, terminates=False),
    Case("playground/PendulumSwingup", {"episode_length": 20}, 20, terminates=False),
    Case("playground/BallInCup", {"episode_length": 20}, 20, terminates=False, starts_differ=False),
)


def contract_cases() -> list[Any]:
    marked = [pytest.param(case, id=case.env_id, marks=pytest.mark.suite) for case in OF_SUITES]
    return [pytest.param(case, id=case.env_id) for case in QUICK] + marked


@pytest.mark.parametrize("case", contract_cases())
def test_adapter_keeps_the_contract(case: Case) -> None:
    pytest.importorskip(SUITES[case.env_id.partition("/")[0]].package)
    env = envs.make(case.env_id, **case.kwargs)
    envs.validate(env)
    params, key = env.default_params, jax.random.key(0)

    # A step gives the types that a reset gives, and none is weak, so a scan can carry them.
    start = jax.eval_shape(env.reset, key, params)
    after = jax.eval_shape(env.step, key, start[0], envs.spaces.zeros(env.action_space()), params)
    assert types(after) == types(start)
    assert not [leaf for leaf in jax.tree.leaves((start, after)) if leaf.weak_type]

    steps = jax.jit(rollout(wrapped(env), 300))(key)
    terminated, truncated = np.asarray(steps.terminated), np.asarray(steps.truncated)
    ended = terminated | truncated
    np.testing.assert_array_equal(steps.is_first, ended)

    # What a space says is what comes, before and after a reset.
    for observation in (steps.observation, steps.final_observation):
        for space, leaf in zip(envs.spaces.leaves(env.observation_space()), jax.tree.leaves(observation), strict=True):
            assert leaf.dtype == space.dtype
            within = jax.vmap(jax.vmap(space.contains))(leaf)
            assert within.all(), (space, np.asarray(leaf)[~np.asarray(within)][:1])
    assert np.isfinite(steps.reward).all()
    if steps.action_mask is not None:
        nvec = getattr(env.action_space(), "nvec", None)
        assert steps.action_mask.shape == (300, 3, env.action_space().n if nvec is None else sum(nvec))
        assert np.asarray(steps.action_mask).any(axis=-1).all()

    # Both flags, each at its time. A step that only resets would make an episode longer than its limit.
    assert terminated.any() == case.terminates
    assert truncated.any() == (case.limit is not None)
    if case.limit is not None:
        np.testing.assert_array_equal(truncated, np.asarray(steps.metrics.episode_length) == case.limit)

    # The final observation is the last of the old episode, `observation` the first of the new one.
    pairs = zip(jax.tree.leaves(steps.observation), jax.tree.leaves(steps.final_observation), strict=True)
    same = np.all([np.asarray(one == other).reshape(*ended.shape, -1).all(-1) for one, other in pairs], axis=0)
    assert same[~ended].all()
    assert not same[ended].all()

    firsts = [np.asarray(leaf)[ended] for leaf in jax.tree.leaves(steps.observation)]
    assert any((leaf != leaf[:1]).any() for leaf in firsts) == case.starts_differ


def registered(name: str) -> set[str]:
    """The ids that a suite itself lists."""
    package = pytest.importorskip(SUITES[name].package)
    match name:
        case "pgx":
            return set(package.available_envs())
        case "brax":
            return set(importlib.import_module("brax.envs")._envs)
        case "navix":
            return set(package.registry())
        case "craftax":  # which lists none
            return set(SUITES[name].ids)
        case "playground":
            return set(package.registry.ALL_ENVS)
        case _:
            return set(package.registered_environments())


LEFT_OUT = {"brax": {"swimmer"}, "jumanji": {"Sokoban-v0"}}


@pytest.mark.suite
@pytest.mark.parametrize("name", SUITES)
def test_the_catalogue_is_the_suites(name: str) -> None:
    missing = registered(name) - set(SUITES[name].ids)
    if name == "playground":  # models of the others are downloaded
        package = importlib.import_module("mujoco_playground")
        missing -= {*package.locomotion.ALL_ENVS, *package.manipulation.ALL_ENVS}
    assert set(SUITES[name].ids) <= registered(name)
    # navix 4 has more, and does not install on every Python.
    assert missing == LEFT_OUT.get(name, set()) or (name == "navix" and version("navix") >= "4")


@pytest.mark.suite
@pytest.mark.parametrize("name", SUITES)
def test_every_id_of_a_suite_traces(name: str) -> None:
    pytest.importorskip(SUITES[name].package)
    for env_id in SUITES[name].ids:
        envs.validate(envs.make(f"{name}/{env_id}"))


# pgx


def lowest(mask: jax.Array) -> jax.Array:
    return jnp.argmax(mask)


def highest(key: jax.Array, state: Any) -> jax.Array:
    mask = state.legal_action_mask
    return mask.shape[0] - 1 - jnp.argmax(mask[::-1])


def illegal(key: jax.Array, state: Any) -> jax.Array:
    return jnp.argmin(state.legal_action_mask)


def test_pgx_reward_is_the_agents_and_either_player_begins() -> None:
    # From the ends of the board, whoever begins has the first row or the last: the agent 0, 1, 2 (its third move wins),
    # or the opponent 8, 7, 6 (the agent's second move is answered by its third).
    env = envs.make("pgx/tic_tac_toe", opponent=highest)

    def play(key: jax.Array) -> Any:
        state, timestep = env.reset(key, ())

        def step(carry: Any, _: None) -> Any:
            state, mask = carry
            state, timestep = env.step(key, state, lowest(mask), ())
            return (state, timestep.action_mask), (timestep.reward, timestep.terminated)

        begins = ~timestep.observation.any()
        return begins, jax.lax.scan(step, (state, timestep.action_mask), length=3)[1]

    begins, (rewards, terminated) = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 32))
    assert begins.any()
    assert not begins.all()
    np.testing.assert_array_equal(rewards, np.where(begins[:, None], [0, 0, 1], [0, -1, 0]))
    np.testing.assert_array_equal(terminated, np.where(begins[:, None], [False, False, True], [False, True, True]))


def test_pgx_illegal_move_loses_and_legal_ones_are_masked() -> None:
    env = envs.make("pgx/tic_tac_toe")
    step = jax.jit(env.step)
    state, first = jax.jit(env.reset)(jax.random.key(0), ())
    state, second = step(jax.random.key(1), state, lowest(first.action_mask), ())
    assert not second.action_mask[lowest(first.action_mask)]
    assert not second.terminated
    _, third = step(jax.random.key(2), state, jnp.argmin(second.action_mask), ())
    assert third.reward == -1
    assert third.terminated
    assert not third.truncated


def test_pgx_pays_at_the_first_step_what_was_won_before_the_first_turn() -> None:
    env = envs.make("pgx/leduc_holdem", opponent=illegal)  # whenever it moves, it loses
    keys = jax.random.split(jax.random.key(0), 16)
    state, first = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, ())
    assert set(np.unique(state.terminated)) == {False, True}
    action = jax.vmap(lowest)(first.action_mask)
    state, second = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))(keys, state, action, ())
    np.testing.assert_array_equal(second.reward, 1)
    assert second.terminated.all()
    np.testing.assert_array_equal(state.rewards, 0)


def test_pgx_keywords() -> None:
    assert envs.make("pgx/go_9x9", history_length=2).observation_space().shape == (9, 9, 5)
    assert envs.make("pgx/minatar-breakout", use_minimal_action_set=False).action_space().n == 6
    named = envs.make("pgx/tic_tac_toe", opponent="rollax.envs.adapters.pgx:uniform")
    assert named.action_space().n == 9


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_steps_in_episode": 0}, r"env\.max_steps_in_episode = 0 must be a whole number, at least 1"),
        ({"sise": 5}, r"'pgx/hex' cannot be built with \{'sise': 5\}: TypeError"),
        ({"opponent": "rollax.envs.adapters.pgx:unifrom"}, r"has no 'unifrom'; did you mean 'uniform'"),
    ],
)
def test_pgx_keywords_that_do_not_fit(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        envs.make("pgx/hex", **kwargs)


@pytest.mark.suite
def test_pgx_freeway_is_cut_off_and_never_over() -> None:
    env = wrapped(envs.make("pgx/minatar-freeway"), num_envs=1)
    steps = jax.jit(rollout(env, 2_510))(jax.random.key(0))
    assert not steps.terminated.any()
    assert steps.truncated.sum() == 1
    np.testing.assert_array_equal(np.unique(steps.metrics.episode_length), [0, 2_501])


# brax


@pytest.mark.suite
def test_brax_fast_is_its_own_physics() -> None:
    pytest.importorskip("brax")
    env = envs.make("brax/fast")
    step = jax.jit(env.step)
    state, _ = env.reset(jax.random.key(0), ())
    for index in range(1, 4):  # each push adds 0.02 to the speed, which adds 0.02 of itself to the position
        state, timestep = step(jax.random.key(0), state, jnp.ones(1), ())
        np.testing.assert_allclose(timestep.observation, [0.0004 * index * (index + 1) / 2, 0.02 * index], rtol=1e-5)
        np.testing.assert_allclose(timestep.reward, timestep.observation[0])


# jumanji


@pytest.mark.suite
def test_jumanji_numbers_the_actions_of_a_board() -> None:
    pytest.importorskip("jumanji")
    env = envs.make("jumanji/Minesweeper-v0")
    state, first = env.reset(jax.random.key(0), ())
    assert env.action_space() == envs.Discrete(100)
    mine = {int(mine) for mine in np.ravel(state.flat_mine_locations)}
    safe = next(index for index in range(100) if index not in mine)
    step = jax.jit(env.step)
    state, second = step(jax.random.key(0), state, jnp.int32(safe), ())
    assert (second.reward, bool(second.terminated)) == (1, False)
    assert second.observation.board[safe // 10, safe % 10] >= 0  # uncovered
    np.testing.assert_array_equal(np.flatnonzero(first.action_mask != second.action_mask), [safe])
    _, third = step(jax.random.key(0), state, jnp.int32(min(mine)), ())
    assert (third.reward, bool(third.terminated)) == (0, True)


@pytest.mark.suite
def test_jumanji_time_limits_are_truncations_and_the_suites_own_by_default() -> None:
    pytest.importorskip("jumanji")
    env = envs.make("jumanji/RubiksCube-partly-scrambled-v0")
    assert isinstance(env, envs.transforms.TimeLimit)
    steps = jax.jit(rollout(wrapped(env), 60))(jax.random.key(0))
    np.testing.assert_array_equal(steps.truncated, np.asarray(steps.metrics.episode_length) == 20)
    assert steps.truncated.any()
    assert steps.final_observation.step_count.max() == 20


@pytest.mark.suite
def test_jumanji_agents_share_the_sum_of_their_rewards() -> None:
    jumanji = pytest.importorskip("jumanji")
    env, theirs = envs.make("jumanji/Connector-v3"), jumanji.make("Connector-v3")
    state, first = jax.jit(env.reset)(jax.random.key(0), ())
    action = 4 - jax.vmap(lowest)(first.action_mask.reshape(10, 5)[:, ::-1])
    _, ours = jax.jit(env.step)(jax.random.key(0), state, action, ())
    _, wanted = jax.jit(theirs.step)(theirs.reset(jax.random.key(0))[0], action)
    assert wanted.reward.shape == (10,)
    np.testing.assert_allclose(ours.reward, wanted.reward.sum(), rtol=1e-6)


@pytest.mark.suite
def test_jumanji_reads_the_choices_off_the_mask() -> None:
    pytest.importorskip("jumanji")
    assert envs.make("jumanji/MultiCVRP-v0").action_space() == envs.MultiDiscrete((21, 21))


# navix and xminigrid


@pytest.mark.suite
@pytest.mark.parametrize("env_id", ["navix/Navix-Empty-5x5-v0", "xminigrid/MiniGrid-Empty-5x5"])
@pytest.mark.parametrize("max_steps", [5, 6])
def test_a_goal_at_the_time_limit_is_terminated_and_truncated_at_once(env_id: str, max_steps: int) -> None:
    name, _, _ = env_id.partition("/")
    pytest.importorskip(SUITES[name].package)
    env = envs.make(env_id, max_steps=max_steps)
    turn, forward = (1, 2) if name == "navix" else (1, 0)  # both turn right with 1
    actions = jnp.array([forward, forward, turn, forward, forward])
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params)

    def step(state: Any, action: jax.Array) -> Any:
        return env.step(jax.random.key(1), state, action, env.default_params)

    _, steps = jax.jit(lambda: jax.lax.scan(step, state, actions))()
    np.testing.assert_array_equal(steps.terminated, [False, False, False, False, True])
    np.testing.assert_array_equal(steps.truncated, [False, False, False, False, max_steps == 5])
    assert steps.reward[-1] > 0


# craftax


@pytest.mark.suite
@pytest.mark.parametrize(
    ("health", "time", "terminated", "truncated"),
    [(9, 3, False, False), (0, 3, True, False), (9, 9, False, True), (0, 9, True, True)],
)
def test_craftax_tells_death_from_the_time_limit(health: int, time: int, terminated: bool, truncated: bool) -> None:
    pytest.importorskip("craftax")
    env = envs.make("craftax/Craftax-Classic-Symbolic-v1", max_timesteps=10)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    state = state.replace(player_health=jnp.int32(health), timestep=jnp.int32(time))
    _, timestep = jax.jit(env.step)(jax.random.key(1), state, jnp.int32(0), env.default_params)
    assert bool(timestep.terminated) is terminated
    assert bool(timestep.truncated) is truncated


@pytest.mark.suite
def test_craftax_keywords_that_do_not_fit() -> None:
    pytest.importorskip("craftax")
    with pytest.raises(InputError, match=r"env\.max_timestep is nothing that craftax/.* did you mean 'max_timesteps'"):
        envs.make("craftax/Craftax-Classic-Symbolic-v1", max_timestep=10)


# playground


@pytest.mark.suite
def test_playground_keywords_override_the_config_and_its_physics_are_jax() -> None:
    pytest.importorskip("mujoco_playground")
    env: Any = envs.make("playground/CartpoleBalance", sim_dt=0.005)
    assert env.env.env.sim_dt == 0.005
    assert env.env.env._config.impl == "jax"
    with pytest.raises(InputError, match=r"'playground/CartpoleBalance' cannot be built with \{'sim_td': 0\.005\}"):
        envs.make("playground/CartpoleBalance", sim_td=0.005)
