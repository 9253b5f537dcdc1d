"""The gymnax adapter: against gymnasium's own classic control, and the whole catalogue through the wrappers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.envs.rollouts import rollout, types, wrapped

from rollax import InputError, envs
from rollax.envs import catalogue
from rollax.envs.base import TimeStep

# It reads data files from outside when it is built.
BUILDABLE = tuple(name for name in catalogue.GYMNAX if name != "MNISTBandit-bsuite")
MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]


def test_catalogue_is_gymnax_registry() -> None:
    assert list(catalogue.GYMNAX) == list(gymnax.registered_envs)
    assert len(set(catalogue.ENVIRONMENTS)) == len(catalogue.ENVIRONMENTS)


# Against gymnasium. Its transitions are recorded first; then each is taken by ours from the same state.


def pump(observation: np.ndarray) -> int:
    """Pushes where a car already goes: it is at the goal in some 120 steps."""
    return 2 if observation[1] >= 0 else 0


def swing(observation: np.ndarray) -> int:
    """Turns the second link against the first, which takes the Acrobot over its line."""
    return 0 if observation[4] > 0 else 2


@dataclasses.dataclass(frozen=True)
class Classic:
    """An environment that both libraries have."""

    env_id: str
    fields: tuple[str, ...]  # of gymnax's state, in the order of gymnasium's
    policy: Callable[[np.ndarray], Any] | None  # a policy that ends episodes; None: random actions
    ends: bool  # whether an episode can terminate


CLASSIC = (
    Classic("CartPole-v1", ("x", "x_dot", "theta", "theta_dot"), None, True),
    Classic("Pendulum-v1", ("theta", "theta_dot"), None, False),
    Classic("Acrobot-v1", ("joint_angle1", "joint_angle2", "velocity_1", "velocity_2"), swing, True),
    Classic("MountainCar-v0", ("position", "velocity"), pump, True),
)


def recorded(classic: Classic, episodes: int) -> dict[str, np.ndarray]:
    """The transitions of whole episodes in gymnasium, the last of them under random actions."""
    env = gymnasium.make(classic.env_id, disable_env_checker=True)
    env.action_space.seed(0)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("state", "time", "action", "observation", "reward", "terminated", "truncated")
    }
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        policy = classic.policy if episode < episodes - 1 else None
        ended, time = False, 0
        while not ended:
            rows["state"].append(np.array(env.unwrapped.state, np.float64))
            rows["time"].append(time)
            action = env.action_space.sample() if policy is None else policy(observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            for name, value in (
                ("action", action),
                ("observation", observation),
                ("reward", reward),
                ("terminated", terminated),
                ("truncated", truncated),
            ):
                rows[name].append(np.asarray(value))
            ended, time = terminated or truncated, time + 1
    return {name: np.stack(values) for name, values in rows.items()}


@pytest.mark.parametrize("classic", CLASSIC, ids=lambda classic: classic.env_id)
def test_steps_are_gymnasiums(classic: Classic) -> None:
    rows = recorded(classic, episodes=4)
    assert rows["terminated"].any() == classic.ends
    assert classic.env_id == "CartPole-v1" or rows["truncated"].any()
    env = envs.make(classic.env_id)
    params = env.default_params
    template, _ = env.reset(jax.random.key(0), params)

    def step(state: jax.Array, time: jax.Array, action: jax.Array) -> TimeStep:
        injected = template.replace(**{name: state[i] for i, name in enumerate(classic.fields)}, time=time)
        return env.step(jax.random.key(1), injected, action, params)[1]

    arguments = (
        jnp.asarray(rows["state"], jnp.float32),
        jnp.asarray(rows["time"], jnp.int32),
        jnp.asarray(rows["action"].astype(env.action_space().dtype)),
    )
    ours = jax.jit(jax.vmap(step))(*arguments)
    np.testing.assert_allclose(ours.observation, rows["observation"], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(ours.reward, rows["reward"], atol=1e-4)
    np.testing.assert_array_equal(ours.terminated, rows["terminated"])
    np.testing.assert_array_equal(ours.truncated, rows["truncated"])
    for index in (0, len(rows["time"]) - 1):
        plain = step(*jax.tree.map(lambda leaf, index=index: leaf[index], arguments))
        np.testing.assert_allclose(plain.observation, rows["observation"][index], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(plain.reward, rows["reward"][index], atol=1e-4)
        assert bool(plain.ended) == bool(rows["terminated"][index] | rows["truncated"][index])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_action_spaces_are_gymnasiums(env_id: str) -> None:
    theirs = gymnasium.make(env_id, disable_env_checker=True).action_space
    ours = envs.make(env_id).action_space()
    if isinstance(theirs, gymnasium.spaces.Discrete):
        assert isinstance(ours, envs.spaces.Discrete)
        assert ours.n == theirs.n
    else:
        assert isinstance(theirs, gymnasium.spaces.Box)
        assert isinstance(ours, envs.spaces.Box)
        np.testing.assert_array_equal(ours.low, theirs.low)
        np.testing.assert_array_equal(ours.high, theirs.high)


# Ends of episodes.


@MAYBE_JIT
@pytest.mark.parametrize(
    ("theta", "time", "terminated", "truncated"),
    [(0.0, 10, False, False), (0.0, 499, False, True), (1.0, 10, True, False), (1.0, 499, True, True)],
    ids=["goes on", "time limit", "fall", "both"],
)
def test_cartpole_tells_a_fall_from_the_time_limit(
    theta: float, time: int, terminated: bool, truncated: bool, transform: Transform
) -> None:
    env = envs.make("CartPole-v1")
    state, _ = env.reset(jax.random.key(0), env.default_params)
    state = state.replace(theta=jnp.float32(theta), time=jnp.int32(time))
    _, timestep = transform(env.step)(jax.random.key(1), state, jnp.int32(0), env.default_params)
    assert bool(timestep.terminated) is terminated
    assert bool(timestep.truncated) is truncated
    assert bool(timestep.ended) is (terminated or truncated)


def test_a_policy_that_survives_is_truncated_at_500_steps() -> None:
    env = envs.AutoReset(envs.EpisodeStatistics(envs.make("CartPole-v1")))
    params = env.default_params

    def step(carry: tuple[Any, TimeStep], key: jax.Array) -> tuple[tuple[Any, TimeStep], TimeStep]:
        state, before = carry
        action = (before.observation[2] + before.observation[3] > 0).astype(jnp.int32)
        after = env.step(key, state, action, params)
        return after, after[1]

    keys = jax.random.split(jax.random.key(0), 501)
    _, steps = jax.jit(lambda keys: jax.lax.scan(step, env.reset(keys[0], params), keys))(keys)
    assert not steps.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated), [499])
    assert steps.metrics.episode_return[499] == 500
    assert np.abs(steps.observation[499]).max() <= 0.05  # the next episode's
    assert np.abs(steps.final_observation[499]).max() > 0.05


@pytest.mark.parametrize("size", [3, 5])
def test_deep_sea_ends_terminated_and_truncated_at_once(size: int) -> None:
    env = envs.AutoReset(envs.make("DeepSea-bsuite", size=size))
    state, timestep = env.reset(jax.random.key(0), env.default_params)
    assert env.observation_space().shape == timestep.observation.shape == (size, size)
    step = jax.jit(env.step)
    for time in range(1, size + 1):
        state, timestep = step(jax.random.key(time), state, jnp.int32(0), env.default_params)
        assert bool(timestep.terminated) == bool(timestep.truncated) == bool(timestep.is_first) == (time == size)
    np.testing.assert_array_equal(timestep.final_observation, np.zeros((size, size)))
    assert timestep.observation[0, 0] == 1


# The whole catalogue.


@pytest.mark.parametrize("env_id", BUILDABLE)
def test_every_environment_traces_under_jit_vmap_and_scan(env_id: str) -> None:
    env = wrapped(envs.make(env_id))
    raw, params, key = env.env.env.env, env.default_params, jax.random.key(0)
    observation_space, action_space = env.observation_space(), env.action_space()

    # What a space says is what comes.
    action = jax.eval_shape(action_space.sample, key)
    assert (action.shape, action.dtype) == (action_space.shape, action_space.dtype)
    state, first = jax.eval_shape(raw.reset, key, params)
    next_state, second = jax.eval_shape(raw.step, key, state, action, params)
    for observation in (first.observation, second.observation, second.final_observation):
        assert jax.tree.structure(observation) == jax.tree.structure(observation_space)
        for leaf, space in zip(jax.tree.leaves(observation), envs.spaces.leaves(observation_space), strict=True):
            assert (leaf.shape, leaf.dtype) == (space.shape, space.dtype)
    assert second.reward.shape == second.terminated.shape == second.truncated.shape == ()

    # A step gives the types that a reset gives, so a scan can carry them.
    assert types((next_state, second)) == types((state, first))

    seeds = jax.eval_shape(lambda: jax.random.split(key, 2))
    steps = jax.eval_shape(jax.jit(jax.vmap(rollout(env, 4, ready_made=True))), seeds)
    assert steps.reward.shape == (2, 4, 3)
    assert steps.metrics.valid.dtype == jnp.bool_


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MemoryChain-bsuite", "MetaMaze-misc"])
def test_no_type_is_weak_and_none_changes(env_id: str) -> None:
    env = wrapped(envs.make(env_id))
    params, key = env.default_params, jax.random.key(0)
    start = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(lambda: jax.vmap(env.action_space().sample)(jax.random.split(key, 3)))
    after = jax.eval_shape(env.step, key, start[0], action, params)
    assert types(after) == types(start)
    weak = [leaf for leaf in jax.tree.leaves((start, after)) if leaf.weak_type]
    assert not weak


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite", "FrozenLake-misc"])
def test_environments_run_under_jit_vmap_and_scan(env_id: str) -> None:
    env = wrapped(envs.make(env_id))
    steps = jax.jit(jax.vmap(rollout(env, 24)))(jax.random.split(jax.random.key(0), 2))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(steps))
    ended = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.is_first, ended)
    np.testing.assert_array_equal(steps.metrics.valid, ended)
    same = (steps.observation == steps.final_observation).reshape(*ended.shape, -1).all(-1)
    assert same[~ended].all()
    observation = steps.observation.reshape(-1, *env.observation_space().shape)
    assert jax.vmap(env.observation_space().contains)(observation).all()
    if env_id == "Catch-bsuite":  # the ball falls one of its ten rows each step
        np.testing.assert_array_equal(ended, np.broadcast_to(np.arange(1, 25)[None, :, None] % 9 == 0, ended.shape))
        assert set(np.unique(steps.metrics.episode_return[ended])) <= {-1.0, 1.0}
        np.testing.assert_array_equal(steps.metrics.episode_length[ended], 9)


def test_a_step_is_traced_once() -> None:
    env, traces = wrapped(envs.make("CartPole-v1")), 0

    def step(key: jax.Array, state: Any, params: Any) -> tuple[Any, TimeStep]:
        nonlocal traces
        traces += 1
        return env.step(key, state, jnp.zeros(3, jnp.int32), params)

    step_jitted = jax.jit(step)
    state, _ = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    for index in range(3):
        state, _ = step_jitted(jax.random.key(index), state, env.default_params)
    assert traces == 1


def test_no_key_is_used_twice() -> None:
    env = envs.AutoReset(envs.make("CartPole-v1"))
    params = env.default_params
    with jax.debug_key_reuse(True):
        key_reset, key_step = jax.random.split(jax.random.key(0))
        state, _ = jax.jit(env.reset)(key_reset, params)
        _, timestep = jax.jit(env.step)(key_step, state, jnp.int32(0), params)
    assert timestep.reward == 1


# Keywords.


def test_keywords_override_params() -> None:
    env = envs.make("MemoryChain-bsuite", memory_length=3)
    assert env.default_params.memory_length == 3
    assert env.default_params.max_steps_in_episode == 1000
    state, _ = env.reset(jax.random.key(0), env.default_params)
    ends = []
    step = jax.jit(env.step)
    for time in range(4):
        state, timestep = step(jax.random.key(time), state, jnp.int32(0), env.default_params)
        ends.append((bool(timestep.terminated), bool(timestep.truncated)))
    assert ends == [(False, False)] * 3 + [(True, False)]


def test_keywords_reach_the_constructor_and_params_together() -> None:
    env = envs.make("DeepSea-bsuite", size=5, unscaled_move_cost=0.5, randomize_actions=False)
    assert env.observation_space().shape == (5, 5)
    params = env.default_params
    assert params.max_steps_in_episode == 5
    state, _ = env.reset(jax.random.key(0), params)
    _, timestep = env.step(jax.random.key(1), state, jnp.int32(1), params)  # 1 is right, and costs 0.5 / 5
    np.testing.assert_allclose(timestep.reward, -0.1, rtol=1e-6)
    assert envs.make("MemoryChain-bsuite", num_bits=4).observation_space().shape == (6,)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("MemoryChain-bsuite", {"memory_lenght": 3}, r"env\.memory_lenght .*MemoryChain-bsuite.*'memory_length'"),
        ("CartPole-v1", {"max_steps": 3}, r"env\.max_steps .*CartPole-v1.*'max_steps_in_episode'"),
        ("DeepSea-bsuite", {"sise": 5}, r"env\.sise .*'size'"),
        ("CartPole-v1", {"gravity": "9.8"}, r"env\.gravity = '9\.8' must be a .* like its default 9\.8"),
        ("CartPole-v1", {"gravity": None}, r"env\.gravity = None must be a .* like its default 9\.8"),
        ("CartPole-v1", {"gravity": {}}, r"env\.gravity = \{\} must be a .* like its default 9\.8"),
        ("CartPole-v1", {"gravity": [1, 2]}, r"env\.gravity = \[1, 2\] must be a .* like its default 9\.8"),
        ("CartPole-v1", {"max_steps_in_episode": 2.5}, r"env\.max_steps_in_episode = 2\.5 must be a .* 500"),
        ("Acrobot-v1", {"available_torque": [-1.0, 1.0]}, r"env\.available_torque = \[-1\.0, 1\.0\] must be a"),
        ("DeepSea-bsuite", {"size": 0}, r"'DeepSea-bsuite' cannot be built with \{'size': 0\}"),
        ("DeepSea-bsuite", {"size": "5"}, r"env\.id = 'DeepSea-bsuite' cannot be built with \{'size': '5'\}"),
    ],
)
def test_keywords_that_do_not_fit(env_id: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        envs.make(env_id, **kwargs)


def test_overrides_take_the_type_of_the_default() -> None:
    env = envs.make("Acrobot-v1", available_torque=[-2, 0, 2], dt=1)  # as a TOML file gives them
    params, default = env.default_params, envs.make("Acrobot-v1").default_params
    assert jax.tree.structure(params) == jax.tree.structure(default)
    assert jnp.asarray(params.dt).dtype == jnp.float32
    assert jnp.asarray(params.available_torque).dtype == jnp.float32
    state, _ = env.reset(jax.random.key(0), params)
    jax.eval_shape(env.step, jax.random.key(1), state, jnp.int32(0), params)


def test_data_that_cannot_be_had_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("gymnax.utils.load_mnist.load_mnist", unreachable)
    with pytest.raises(InputError, match=r"'MNISTBandit-bsuite' needs files .* \(no route to host\)"):
        envs.make("MNISTBandit-bsuite")


def test_spaces_keep_the_declared_bounds() -> None:
    observation_space = envs.make("Pendulum-v1", max_speed=5.0).observation_space()
    np.testing.assert_array_equal(observation_space.low, [-1, -1, -5])
    np.testing.assert_array_equal(observation_space.high, [1, 1, 5])
    assert envs.make("FrozenLake-misc").observation_space().n == 16


# Faults that there once were.


def test_an_override_of_another_shape() -> None:
    with pytest.raises(InputError, match=r"env\.gravity = \[1\.0, 2\.0\] must be a"):
        envs.make("CartPole-v1", gravity=[1.0, 2.0])


def test_an_override_that_float32_rounds() -> None:
    env = envs.make("Acrobot-v1", available_torque=[-0.1, 0.0, 0.1])
    np.testing.assert_allclose(env.default_params.available_torque, [-0.1, 0, 0.1], rtol=1e-6)


def test_an_override_that_is_no_array() -> None:
    with pytest.raises(InputError, match=r"env\.gravity = \[\[1\], \[2, 3\]\] must be a"):
        envs.make("CartPole-v1", gravity=[[1], [2, 3]])
