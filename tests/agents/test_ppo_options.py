"""PPO's options: value clipping, stopping by KL, schedules, advantages, torsos and action spaces."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.agents import flat

from rollax import envs, experiments
from rollax.agents import Rollout, actor_critic, hyperparameters_of, optimisers, ppo
from rollax.envs import spaces
from rollax.envs.spaces import Box, Discrete, MultiDiscrete

MAYBE_JIT = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
T, N = 8, 4
UPDATE = jax.jit(ppo.update, static_argnums=0)  # compiled once for each config


def random_rollout(parts: actor_critic.Parts, state: ppo.State) -> Rollout:
    """What the agent did at random observations, with random rewards and a few ends."""
    generator = np.random.default_rng(0)
    observation, final = (jnp.asarray(generator.normal(size=(T, N, 3)), jnp.float32) for _ in range(2))
    reward = jnp.asarray(generator.normal(size=(T, N)), jnp.float32)
    terminated, truncated = (jnp.asarray(generator.random((T, N)) < 0.1) for _ in range(2))

    @jax.jit
    @jax.vmap
    def act(key: jax.Array, observation: jax.Array) -> Any:
        memory, timestep = actor_critic.init_memory(parts, N), envs.timestep(observation, jnp.zeros(N))
        return actor_critic.act_with(parts, state, memory, timestep, parts.head.noise(key, N))[1]

    decision = act(jax.random.split(jax.random.key(3), T), observation)
    flags = jnp.zeros((T, N), jnp.bool_)
    return Rollout(
        observation, decision.action, reward, terminated, truncated, flags, final, None, None, decision.extras
    )


@functools.cache
def case() -> tuple[actor_critic.Parts, ppo.State, Rollout]:
    """An agent with a policy far from its start that learns fast, and a rollout of its own."""
    config = ppo.Config(hidden_sizes=(8,), num_epochs=2, num_minibatches=4, learning_rate=0.02)
    parts = ppo.make_parts(Box(-9, 9, (3,)), Discrete(3), config)
    state = jax.jit(functools.partial(ppo.init, parts))(jax.random.key(0))
    policy = jax.tree.map(lambda leaf: 50.0 * leaf, state.params.policy)
    state = dataclasses.replace(state, params=dataclasses.replace(state.params, policy=policy))
    return parts, state, random_rollout(parts, state)


def with_config(parts: actor_critic.Parts, **changes: Any) -> actor_critic.Parts:
    return dataclasses.replace(parts, config=dataclasses.replace(parts.config, **changes))


def with_numbers(state: ppo.State, **numbers: float) -> ppo.State:
    new = {name: jnp.float32(number) for name, number in numbers.items()}
    return dataclasses.replace(state, hyperparameters={**state.hyperparameters, **new})


def updated(parts: actor_critic.Parts, state: ppo.State, rollout: Rollout) -> tuple[ppo.State, dict[str, jax.Array]]:
    state, update = UPDATE(parts, state, rollout, jax.random.key(1))
    return state, update.metrics


def assert_close(a: Any, b: Any, atol: float) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


def differ(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return any(not np.array_equal(x, y) for x, y in pairs)


# Value clipping.


@MAYBE_JIT
def test_clipped_values_by_hand(transform: Transform) -> None:
    config = ppo.Config(hidden_sizes=(), clip_value=True, normalise_advantage="none")
    parts = ppo.make_parts(Box(-9, 9, (1,)), Discrete(2), config)
    layer = {"params": {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}}
    params = actor_critic.Params({}, {}, layer, (), {"params": {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.zeros(1)}})
    batch = ppo.Batch(
        observation=jnp.array([[0.0], [1.0], [2.0], [3.0]]),
        is_first=jnp.zeros(4, jnp.bool_),
        action_mask=None,
        sample=jnp.zeros(4, jnp.int32),
        log_prob=jnp.full(4, -jnp.log(2.0)),
        policy=None,
        value=jnp.array([[-1.0], [2.0], [5.0], [6.1]]),
        advantage=jnp.zeros(4),
        target=jnp.array([[1.0], [2.0], [2.0], [7.0]]),
    )
    hyper = {**hyperparameters_of(config), "entropy_coefficient": jnp.float32(0)}
    # Values are 0, 2, 4, 6. Clipped to 0.2 about the old ones they are -0.8, 2, 4.8, 6, whose squared errors are 3.24,
    # 0, 7.84 and 1, none smaller than the unclipped 1, 0, 4 and 1.
    loss = functools.partial(flat.loss, parts)
    total, metrics = transform(loss)(params, hyper, batch)
    np.testing.assert_allclose(metrics["value_loss"], (3.24 + 7.84 + 1) / 8, rtol=1e-5)
    np.testing.assert_allclose(total, 0.5 * (3.24 + 7.84 + 1) / 8, rtol=1e-5)
    # The first and the third have moved too far. The fourth: c_v (V - target) x / 4 = 0.5 * -1 * 3 / 4.
    gradient, _ = transform(jax.grad(loss, has_aux=True))(params, hyper, batch)
    np.testing.assert_allclose(gradient.value["params"]["kernel"], [[-0.375]], rtol=1e-5)
    # A value that is worse than its clipped one keeps its loss: 4 against the clipped 1.44.
    further = dataclasses.replace(batch, value=jnp.array([[-1.0], [2.0], [3.0], [6.1]]))
    _, metrics = transform(loss)(params, hyper, further)
    np.testing.assert_allclose(metrics["value_loss"], (3.24 + 4 + 1) / 8, rtol=1e-5)
    wider = {**hyper, "clip_epsilon": jnp.float32(9)}
    np.testing.assert_allclose(transform(loss)(params, wider, batch)[1]["value_loss"], 0.75, rtol=1e-5)


def test_the_first_minibatch_clips_no_value() -> None:
    parts, state, rollout = case()
    once = {"num_epochs": 1, "num_minibatches": 1}
    plain, _ = updated(with_config(parts, **once), state, rollout)
    clipped, _ = updated(with_config(parts, clip_value=True, **once), state, rollout)
    assert_close(plain.params, clipped.params, 1e-5)
    several = updated(with_config(parts, clip_value=True), with_numbers(state, clip_epsilon=0.01), rollout)[0]
    assert differ(several.params, updated(parts, with_numbers(state, clip_epsilon=0.01), rollout)[0].params)


# Other objectives.


def objective_of(objective: str, log_ratio: list[float], advantage: list[float], **numbers: float) -> Any:
    """The policy loss, and its gradient in the logit of action 0, of samples of action 0 at probability 1/2."""
    config = ppo.Config(hidden_sizes=(), objective=objective, normalise_advantage="none", entropy_coefficient=0.0)
    parts = ppo.make_parts(Box(-9, 9, (1,)), Discrete(2), config)
    layer = {"params": {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}}
    params = actor_critic.Params({}, {}, layer, (), {"params": {"kernel": jnp.zeros((1, 1)), "bias": jnp.zeros(1)}})
    count = len(advantage)
    old = -jnp.log(2.0) - jnp.array(log_ratio)  # log-probs of action 0 under the policy that acted
    batch = ppo.Batch(
        observation=jnp.zeros((count, 1)),
        is_first=jnp.zeros(count, jnp.bool_),
        action_mask=None,
        sample=jnp.zeros(count, jnp.int32),
        log_prob=old,
        policy=distrax.Categorical(logits=jnp.stack([old, jnp.log1p(-jnp.exp(old))], axis=-1)),
        value=jnp.zeros((count, 1)),
        advantage=jnp.array(advantage),
        target=jnp.zeros((count, 1)),
    )
    hyper = {**hyperparameters_of(config), **{name: jnp.float32(number) for name, number in numbers.items()}}
    grad = jax.jit(jax.value_and_grad(functools.partial(flat.loss, parts), has_aux=True))
    (_, metrics), gradient = grad(params, hyper, batch)
    return float(metrics["policy_loss"]), float(gradient.policy["params"]["bias"][0])


def test_the_discovered_objective_by_hand() -> None:
    # alpha 2, beta 0.6. With ratios 2 and 0.5:
    # A = 3:   (2 - 1) 3 = 3, drift 3 - 2 tanh(1.5);   (0.5 - 1) 3 < 0 has none: relu(-1.5 + 2 tanh(0.75)) = 0.
    # A = -3:  log(2) * -3 < 0 has none;               log(0.5) * -3 = 2.0794, drift 2.0794 - 0.6 tanh(3.4657).
    cases = [(2.0, 3.0, 3 - 2 * np.tanh(1.5)), (0.5, 3.0, 0.0), (2.0, -3.0, 0.0)]
    cases.append((0.5, -3.0, 3 * np.log(2) - 0.6 * np.tanh(3 * np.log(2) / 0.6)))
    for ratio, advantage, drift in cases:
        value, _ = objective_of("dpo", [np.log(ratio)], [advantage])
        np.testing.assert_allclose(value, -(ratio * advantage - drift), rtol=1e-5)
        np.testing.assert_allclose(
            ppo.discovered(jnp.log(ratio), jnp.float32(advantage), 2.0, 0.6), ratio * advantage - drift, rtol=1e-5
        )


def test_the_discovered_objective_starts_as_the_policy_gradient() -> None:
    # At ratio 1 the drift has no gradient; further away it takes some off.
    for advantage in (3.0, -3.0):
        _, at_one = objective_of("dpo", [0.0], [advantage])
        np.testing.assert_allclose(at_one, -advantage * 0.5, rtol=1e-5)
    _, beyond = objective_of("dpo", [np.log(1.9)], [3.0])
    assert -1.9 * 3 * 0.5 < beyond < 0
    # It is another one for other numbers, of the side that they are of.
    assert objective_of("dpo", [0.6], [3.0], drift_alpha=1.0) != objective_of("dpo", [0.6], [3.0])
    assert objective_of("dpo", [0.6], [3.0], drift_beta=0.1) == objective_of("dpo", [0.6], [3.0])
    assert objective_of("dpo", [-0.6], [-3.0], drift_beta=0.1) != objective_of("dpo", [-0.6], [-3.0])


def test_the_kl_penalty_by_hand() -> None:
    # The policy that acted took action 0 with probability 1/4: ratio 2, KL = 1/4 log(1/2) + 3/4 log(3/2).
    divergence = 0.25 * np.log(0.5) + 0.75 * np.log(1.5)
    value, gradient = objective_of("kl", [np.log(2.0)], [3.0], kl_coefficient=5.0)
    np.testing.assert_allclose(value, -(2 * 3 - 5 * divergence), rtol=1e-5)
    # d ratio = ratio / 2; d KL = pi(0) - pi_old(0) = 1/4.
    np.testing.assert_allclose(gradient, -(2 * 3 * 0.5 - 5 * 0.25), rtol=1e-5)


@pytest.mark.parametrize(("divergence", "factor"), [(0.031, 2), (0.029, 1), (0.02, 1), (0.0135, 1), (0.0133, 0.5)])
def test_the_coefficient_follows_the_target(divergence: float, factor: float) -> None:
    np.testing.assert_allclose(ppo.adapted(jnp.float32(3), jnp.float32(divergence), jnp.float32(0.02)), 3 * factor)


def test_an_update_measures_the_divergence_that_it_made() -> None:
    parts, state, rollout = case()
    parts = with_config(parts, objective="kl")
    start = ppo.State(**{**vars(state), "kl_coefficient": jnp.float32(1e-3)})
    after, report = jax.jit(functools.partial(ppo.update, parts))(start, rollout, jax.random.key(1))
    batch = flat.prepare(parts, start, rollout)
    features = flat.features(parts.torso, after.params.torso, batch.observation)
    expected = jnp.mean(batch.policy.kl_divergence(parts.policy(after.params, features, None)))
    np.testing.assert_allclose(report.metrics["kl"], expected, rtol=1e-4)
    assert report.metrics["kl_coefficient"] == start.kl_coefficient
    assert after.kl_coefficient == ppo.adapted(start.kl_coefficient, expected, jnp.float32(parts.config.target_kl))
    # A large penalty holds the policy.
    held = dataclasses.replace(start, kl_coefficient=jnp.float32(1e4))
    _, held_report = jax.jit(functools.partial(ppo.update, parts))(held, rollout, jax.random.key(1))
    assert held_report.metrics["kl"] < 0.5 * report.metrics["kl"]
    assert jax.jit(functools.partial(ppo.init, parts))(jax.random.key(0)).kl_coefficient == 1.0


# Stopping by KL.


@functools.cache
def each_minibatch() -> tuple[list[Any], list[Any], list[float]]:
    """Params, optimiser states and KLs before each minibatch of an update, in a loop of its own."""
    parts, state, rollout = case()
    batch, hyper = jax.jit(functools.partial(flat.prepare, parts))(state, rollout), state.hyperparameters
    optimiser = parts.optimiser(hyper)
    keys = jax.random.split(jax.random.key(1), 2)
    indices = np.concatenate([np.asarray(jax.random.permutation(key, T * N)).reshape(4, -1) for key in keys])

    @jax.jit
    def learn(params: Any, opt_state: Any, minibatch: ppo.Batch) -> tuple[Any, jax.Array]:
        gradients, metrics = jax.grad(functools.partial(flat.loss, parts), has_aux=True)(params, hyper, minibatch)
        after = optimisers.descend(optimiser, gradients, opt_state, params, hyper["learning_rate"])
        return after, metrics["approximate_kl"]

    params, opt_states, kls = [state.params], [state.opt_state], []
    for rows in indices:
        minibatch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch)
        after, kl = learn(params[-1], opt_states[-1], minibatch)
        params.append(after[0])
        opt_states.append(after[1])
        kls.append(float(kl))
    return params, opt_states, kls


def test_the_oracle_of_the_stop_is_the_update_itself() -> None:
    parts, state, rollout = case()
    after, _ = updated(parts, state, rollout)
    params, opt_states, kls = each_minibatch()
    assert_close(after.params, params[-1], 1e-5)
    assert_close(after.opt_state, opt_states[-1], 1e-5)
    assert max(kls) > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 2.0])
def test_the_update_stops_before_the_minibatch_that_moved_too_far(share: float) -> None:
    parts, state, rollout = case()
    params, opt_states, kls = each_minibatch()
    target = max(share * max(kls), 1e-6)  # the first KL is 0 but for rounding
    stop = next((index for index, kl in enumerate(kls) if kl > target), len(kls))
    assert stop == {0.0: 1, 2.0: 8}.get(share, stop)
    assert 0 < stop <= 8
    stopping = with_config(parts, stop_at_target_kl=True)
    after, _ = updated(stopping, with_numbers(state, target_kl=target), rollout)
    assert_close(after.params, params[stop], 1e-5)
    assert_close(after.opt_state, opt_states[stop], 1e-5)
    assert after.updates == 1
    again, _ = updated(stopping, with_numbers(after, target_kl=target), rollout)  # the next rollout learns again
    assert differ(again.params, after.params)


def test_without_the_switch_the_target_is_not_read() -> None:
    parts, state, rollout = case()
    after, _ = updated(parts, with_numbers(state, target_kl=1e-6), rollout)
    assert_close(after.params, updated(parts, state, rollout)[0].params, 0.0)


# Schedules.


@MAYBE_JIT
def test_schedules_scale_their_numbers_only(transform: Transform) -> None:
    config = ppo.Config(
        hidden_sizes=(), learning_rate_schedule="constant", clip_schedule="linear", entropy_schedule="cosine"
    )
    parts = ppo.make_parts(Box(-9, 9, (1,)), Discrete(2), config)
    state = dataclasses.replace(ppo.init(parts, jax.random.key(0), {"horizon": 8.0}), updates=jnp.int32(2))
    hyper = transform(functools.partial(ppo.scheduled, config))(state)
    expected = {**state.hyperparameters, "clip_epsilon": 0.2 * 0.75, "entropy_coefficient": 0.01 * 0.853553}
    assert set(hyper) == set(expected)
    for name, number in expected.items():
        np.testing.assert_allclose(hyper[name], number, rtol=1e-5, err_msg=name)
    end = transform(functools.partial(ppo.scheduled, config))(dataclasses.replace(state, updates=jnp.int32(99)))
    assert (float(end["clip_epsilon"]), float(end["entropy_coefficient"])) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("schedule", "number"), [("clip_schedule", "clip_epsilon"), ("entropy_schedule", "entropy_coefficient")]
)
def test_an_update_uses_the_scheduled_number(schedule: str, number: str) -> None:
    parts, state, rollout = case()
    state = dataclasses.replace(with_numbers(state, horizon=8.0), updates=jnp.int32(4))
    scheduled, _ = updated(with_config(parts, **{schedule: "linear"}), state, rollout)
    halved, _ = updated(parts, with_numbers(state, **{number: float(state.hyperparameters[number]) / 2}), rollout)
    assert_close(scheduled.params, halved.params, 1e-6)
    assert differ(scheduled.params, updated(parts, state, rollout)[0].params)
    assert scheduled.hyperparameters[number] == state.hyperparameters[number]  # the state keeps the whole number


# Advantages.


def test_over_what_advantages_are_normalised() -> None:
    parts, state, rollout = case()

    def prepared(scope: str) -> ppo.Batch:
        return jax.jit(functools.partial(flat.prepare, with_config(parts, normalise_advantage=scope)))(state, rollout)

    none, batch, minibatch = prepared("none"), prepared("batch"), prepared("minibatch")
    raw = np.asarray(none.advantage, np.float64)
    assert abs(raw.mean()) > 0.05
    np.testing.assert_allclose(batch.advantage, (raw - raw.mean()) / raw.std(), atol=1e-5)
    np.testing.assert_array_equal(minibatch.advantage, none.advantage)
    for other in (batch, minibatch):
        np.testing.assert_array_equal(other.target, none.target)  # values learn the returns as they are

    # The loss of 8 rows: at the ratio 1 it is minus the mean advantage.
    rows = np.arange(8)
    expected = {
        "none": -raw[rows].mean(),
        "batch": -((raw - raw.mean()) / raw.std())[rows].mean(),
        "minibatch": 0.0,
    }
    for scope, value in expected.items():
        loss = functools.partial(flat.loss, with_config(parts, normalise_advantage=scope))
        part = jax.tree.map(lambda leaf: leaf[rows], prepared(scope))
        _, metrics = jax.jit(loss)(state.params, state.hyperparameters, part)
        np.testing.assert_allclose(metrics["policy_loss"], value, atol=1e-5)


# Torsos.


def test_a_shared_torso_is_one_set_of_parameters() -> None:
    space = Box(-9, 9, (3,))
    apart, shared = (
        ppo.make_parts(space, Discrete(2), ppo.Config(hidden_sizes=(8, 4), shared_torso=shared))
        for shared in (False, True)
    )
    params = [jax.jit(functools.partial(ppo.init, parts))(jax.random.key(0)).params for parts in (apart, shared)]
    torso, rest = 3 * 8 + 8 + 8 * 4 + 4, (4 * 2 + 2) + (4 + 1)
    assert [sum(leaf.size for leaf in jax.tree.leaves(each)) for each in params] == [2 * torso + rest, torso + rest]
    assert jax.tree.leaves(params[1].value_torso) == []

    # The value's gradient reaches the policy's torso where it is shared, and there alone.
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)

    def value(parts: actor_critic.Parts, params: actor_critic.Params) -> jax.Array:
        return jnp.sum(
            parts.value(
                params,
                flat.features(
                    parts.torso, params.torso if parts.config.shared_torso else params.value_torso, observation
                ),
            )
        )

    for parts, each, reaches in ((apart, params[0], False), (shared, params[1], True)):
        gradient = jax.jit(jax.grad(functools.partial(value, parts)))(each)
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient.torso)) == reaches
        assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient.value_torso)) != reaches


# Training through the loop, one iteration or two.


def trained(env: Any, iterations: int = 1, **settings: Any) -> tuple[experiments.TrainState, dict[str, np.ndarray]]:
    """The state and metrics of a short run, and the check that it learnt without a number going bad."""
    options = {"hidden_sizes": (8,), "num_epochs": 1, "num_minibatches": 2, **settings}
    config = experiments.ExperimentConfig(
        env=env if isinstance(env, experiments.EnvConfig) else experiments.EnvConfig(env),
        train=experiments.TrainConfig("ppo", iterations * T * N, N, T, unroll=1),
        agent=ppo.Config(**options),
        log=experiments.LogConfig(every=T * N),
    )
    trainer = experiments.make_trainer(config)
    start = jax.jit(trainer.init)(jax.random.key(0))
    before = start.agent.params
    state, metrics = jax.jit(trainer.train)(jax.random.key(0))
    assert not state.failed.flag
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent.params))
    for name in ("policy", "value"):
        assert differ(getattr(before, name), getattr(state.agent.params, name))
    return state, jax.tree.map(np.asarray, metrics)


@dataclasses.dataclass(frozen=True)
class Locks:
    """Four steps with two dials; which positions are legal changes with time, and an illegal one costs 1,000."""

    @property
    def default_params(self) -> tuple[()]:
        return ()

    def observation_space(self, params: Any = None) -> dict[str, spaces.Space]:
        return {"image": Box(0, 255, (2, 3), np.uint8), "time": Discrete(5)}

    def action_space(self, params: Any = None) -> MultiDiscrete:
        return MultiDiscrete((2, 3))

    def show(self, time: jax.Array) -> dict[str, Any]:
        legal = jnp.array(
            [[1, 0, 0, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]], jnp.bool_
        )
        observation = {"image": jnp.full((2, 3), 50 * time, jnp.uint8), "time": time}
        return {"observation": observation, "action_mask": legal[time]}

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        time = jnp.zeros((), jnp.int32)
        return time, envs.timestep(**self.show(time))

    def step(self, key: jax.Array, time: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        mask = self.show(time)["action_mask"]
        legal = mask[action[0]] & mask[2 + action[1]] & (action >= 0).all() & (action < jnp.array([2, 3])).all()
        reward = jnp.where(legal, 1.0, -1000.0)
        return time + 1, envs.timestep(**self.show(time + 1), reward=reward, terminated=time == 3)


def test_training_on_several_discrete_actions_with_masks() -> None:
    state, metrics = trained(experiments.EnvConfig(Locks()), iterations=3, learning_rate=0.05)
    np.testing.assert_array_equal(metrics["episodes"], [8, 8, 8])
    np.testing.assert_array_equal(metrics["episode_return"], [4, 4, 4])  # never an illegal one
    assert state.agent.params.policy["params"]["bias"].shape == (5,)


OWN = """
import flax.linen as nn

class Torso(nn.Module):
    @nn.compact
    def __call__(self, observation):
        assert observation["image"].dtype == "{dtype}", observation["image"].dtype
        assert observation["image"].shape[1:] == (2, 3)
        return nn.tanh(nn.Dense(7)(observation["image"].reshape(-1, 6) / 255.0) + nn.Embed(5, 7)(observation["time"]))

def make(observation_space):
    return Torso()
"""


@pytest.mark.parametrize("shared", [False, True])
def test_training_with_a_torso_of_ones_own(tmp_path: Path, shared: bool) -> None:
    path = tmp_path / "torso_of_my_own.py"
    path.write_text(OWN.format(dtype="uint8"))
    state, _ = trained(experiments.EnvConfig(Locks()), torso=f"{path}:make", shared_torso=shared)
    params = state.agent.params
    assert params.policy["params"]["kernel"].shape == (7, 5)
    assert sorted(params.torso["params"]) == ["Dense_0", "Embed_0"]
    assert (jax.tree.leaves(params.value_torso) == []) == shared


@pytest.mark.parametrize(
    "settings",
    [
        {"compute_dtype": "bfloat16"},
        {"compute_dtype": "bfloat16", "shared_torso": True, "normalise_observation": True},
        {"stop_at_target_kl": True, "clip_value": True, "clip_schedule": "linear", "entropy_schedule": "cosine"},
    ],
    ids=["bfloat16", "bfloat16 shared", "stop and clip"],
)
def test_training_with_options(settings: dict[str, Any]) -> None:
    state, metrics = trained("CartPole-v1", **settings)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.agent.params)} == {jnp.dtype(jnp.float32)}
    assert np.isfinite(metrics["value_loss"]).all()


def test_bfloat16_keeps_the_first_ratio_at_one() -> None:
    _, metrics = trained("CartPole-v1", compute_dtype="bfloat16", num_minibatches=1)
    np.testing.assert_allclose(metrics["approximate_kl"], 0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], [0])


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Random images of booleans, as MinAtar's are; an episode has four."""

    @property
    def default_params(self) -> tuple[()]:
        return ()

    def observation_space(self, params: Any = None) -> Box:
        return Box(0, 1, (10, 10, 4), np.bool_)

    def action_space(self, params: Any = None) -> Discrete:
        return Discrete(3)

    def reset(self, key: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        return jnp.zeros((), jnp.int32), envs.timestep(jax.random.bernoulli(key, 0.2, (10, 10, 4)))

    def step(self, key: jax.Array, time: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, envs.TimeStep]:
        picture = jax.random.bernoulli(key, 0.2, (10, 10, 4))
        return time + 1, envs.timestep(picture, (action == 1).astype(jnp.float32), time == 3)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.suite)])
def test_training_on_images(dtype: str) -> None:
    settings = {"torso": "cnn", "activation": "relu", "shared_torso": True, "normalise_observation": dtype == "float32"}
    state, metrics = trained(experiments.EnvConfig(Pictures()), compute_dtype=dtype, **settings)
    torso = state.agent.params.torso["params"]
    assert torso["kernel"].shape == (3, 3, 4, 16)
    assert torso["bias"].any()  # learnt, from zero
    assert np.isfinite(metrics["value_loss"]).all()
    if dtype == "float32":
        assert state.agent.observation_statistics.count == T * N
