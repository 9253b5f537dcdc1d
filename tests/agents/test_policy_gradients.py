"""REINFORCE, A2C and IMPALA: losses and gradients by hand with linear networks, the lag of the actor, bad settings."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import thorough

from rollax import InputError, envs, experiments
from rollax.agents import Rollout, a2c, actor_critic, awr, impala, reinforce, vmpo
from rollax.envs.spaces import Box, Discrete

LOG_2 = float(np.log(2.0))
SPACE = Box(-9, 9, (1,))


def linear(module: Any, **changes: Any) -> tuple[actor_critic.Parts, Any]:
    """An agent with equal probabilities for two actions, and V(s) = 2 s."""
    config = module.Config(hidden_sizes=(), discount=0.5, learning_rate_schedule="constant", **changes)
    parts = module.make_parts(SPACE, Discrete(2), config)
    state = module.make(SPACE, Discrete(2), config).init(jax.random.key(0))
    policy = {"params": {"kernel": jnp.zeros((1, 2)), "bias": jnp.zeros(2)}}
    value = {"params": {"kernel": jnp.full((1, 1), 2.0), "bias": jnp.zeros(1)}}
    return parts, dataclasses.replace(state, params=dataclasses.replace(state.params, policy=policy, value=value))


def three_steps(cut_off: bool = True, log_prob: Any = (-LOG_2, -LOG_2, -LOG_2)) -> Rollout:
    """One environment: a step within the episode, one that terminates, and one that is cut off or goes on."""

    def column(row: Any) -> jax.Array:
        return jnp.asarray(row)[:, None]

    action = column(jnp.array([0, 1, 1], jnp.int32))
    return Rollout(
        observation=column([1.0, 2.0, -1.0])[..., None],  # V = 2, 4, -2
        action=action,
        reward=column([1.0, 2.0, 3.0]),
        terminated=column([False, True, False]),
        truncated=column([False, False, cut_off]),
        is_first=column([True, False, True]),
        final_observation=column([2.0, 3.0, 4.0])[..., None],  # V = 4, 6, 8
        extras={"sample": action, "log_prob": column(jnp.asarray(log_prob))},
    )


def loss_of(module: Any, parts: Any, state: Any, rollout: Rollout) -> tuple[Any, Any, Any]:
    """The loss, its metrics, and its gradient."""

    def loss(params: Any) -> Any:
        return module.loss(parts, params, state, rollout, rollout.reward[..., None])

    (total, metrics), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(state.params)
    return total, metrics, gradient


@pytest.mark.parametrize("cut_off", [True, False])
@pytest.mark.parametrize("module", [a2c, reinforce], ids=["a2c", "reinforce"])
def test_returns_that_are_cut_off_are_completed_by_the_value(module: Any, cut_off: bool) -> None:
    # The last return is 3 + .5 * 8 = 7, whether time is up or the rollout ends; the others are 2 and 1 + .5 * 2 = 2.
    # Advantages are 7 + 2 = 9, 2 - 4 = -2 and 2 - 2 = 0.
    parts, state = linear(module, normalise_advantage=False, entropy_coefficient=0.1)
    total, metrics, gradient = loss_of(module, parts, state, three_steps(cut_off))
    np.testing.assert_allclose(metrics["policy_loss"], LOG_2 * 7 / 3, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], (0 + 4 + 81) / 6, rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], LOG_2, rtol=1e-5)
    np.testing.assert_allclose(total, LOG_2 * 7 / 3 + 0.5 * 85 / 6 - 0.1 * LOG_2, rtol=1e-5)
    # -mean(A (onehot - 1/2)): no gradient comes through the values.
    np.testing.assert_allclose(gradient.policy["params"]["bias"], [7 / 6, -7 / 6], rtol=1e-5)
    np.testing.assert_allclose(gradient.value["params"]["bias"], [0.5 * (0 + 2 - 9) / 3], rtol=1e-5)


def test_a_trace_decay_of_zero_looks_one_step_ahead() -> None:
    parts, state = linear(a2c, gae_lambda=0.0)
    _, metrics, _ = loss_of(a2c, parts, state, three_steps())
    np.testing.assert_allclose(metrics["policy_loss"], LOG_2 * (1 - 2 + 9) / 3, rtol=1e-5)  # 1 + .5 * 4 - 2 = 1


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("cut_off", "returns"), [(True, [2.0, 2.0, 3.0]), (False, [2.0, 2.0])])
def test_without_a_baseline_steps_count_whose_episode_ends(
    cut_off: bool, returns: list[float], normalise: bool
) -> None:
    parts, state = linear(reinforce, baseline=False, normalise_advantage=normalise)
    _, metrics, gradient = loss_of(reinforce, parts, state, three_steps(cut_off))
    weights, chosen = np.array(returns), np.array([0, 1, 1])[: len(returns)]
    if normalise:
        weights = (weights - weights.mean()) / (weights.std() + 1e-8)
    np.testing.assert_allclose(metrics["policy_loss"], LOG_2 * weights.mean(), atol=1e-5)
    slope = -np.mean(weights * (chosen - 0.5))
    np.testing.assert_allclose(gradient.policy["params"]["bias"], [-slope, slope], atol=1e-5)
    assert not np.any(gradient.value["params"]["kernel"])
    assert metrics["value_loss"] == 0


def test_without_a_baseline_a_rollout_in_which_no_episode_ends_teaches_nothing() -> None:
    parts, state = linear(reinforce, baseline=False)
    rollout = dataclasses.replace(three_steps(cut_off=False), terminated=jnp.zeros((3, 1), jnp.bool_))
    total, _, gradient = loss_of(reinforce, parts, state, rollout)
    assert total == 0
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_impala_corrects_for_what_acted() -> None:
    # The policy that acted gave these actions 1/4, 1 and 1/2: ratios 2, 1/2, 1. From the back: A = v + 2 = 9; then
    # 1/2 (2 - 4) = -1, so v = 3; at last 1 + .5 * 4 - 2 + .5 * -1 = 1/2 above V = 2, and A = 1 + .5 * 3 - 2 = 1/2.
    parts, state = linear(impala)
    rollout = three_steps(log_prob=np.log([0.25, 1.0, 0.5]))
    _, metrics, gradient = loss_of(impala, parts, state, rollout)
    np.testing.assert_allclose(metrics["policy_loss"], LOG_2 * 8.5 / 3, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], (0.25 + 1 + 81) / 6, rtol=1e-5)
    np.testing.assert_allclose(metrics["rho"], 3.5 / 3, rtol=1e-5)
    np.testing.assert_allclose(metrics["clipped_share"], 1 / 3, rtol=1e-5)
    slope = (0.5 * 0.5 + 1 * 0.5 - 9 * 0.5) / 3
    np.testing.assert_allclose(gradient.policy["params"]["bias"], [-slope, slope], rtol=1e-5)


def test_on_policy_impala_is_a2c() -> None:
    rollout = three_steps()
    losses = [loss_of(module, *linear(module), rollout) for module in (impala, a2c)]
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), losses[0][2], losses[1][2])


def test_the_actor_lags_and_rows_tell_what_it_did() -> None:
    parts, state = linear(impala, actor_period=2)
    agent = impala.make(SPACE, Discrete(2), parts.config)
    biased = {"params": {"kernel": jnp.zeros((1, 2)), "bias": jnp.array([0.0, 3.0])}}
    state = dataclasses.replace(state, actor_params=dataclasses.replace(state.params, policy=biased))
    timestep = jax.tree.map(lambda leaf: jnp.stack([leaf] * 400), envs.timestep(jnp.zeros(1)))
    memory = agent.init_memory(400)
    _, decision = jax.jit(agent.act)(state, memory, timestep, jax.random.key(1))
    log_probs = np.log(np.exp([0.0, 3.0]) / np.exp([0.0, 3.0]).sum())
    np.testing.assert_allclose(decision.extras["log_prob"], log_probs[decision.action], rtol=1e-5)
    assert 0.9 < np.mean(decision.action) < 1.0
    # Greedy actions are of the newest policy.
    newest = dataclasses.replace(
        state, params=dataclasses.replace(state.params, policy=jax.tree.map(jnp.negative, biased))
    )
    _, decision = agent.act(newest, memory, timestep, jax.random.key(1), explore=False)
    assert not np.any(decision.action)

    update = jax.jit(agent.update)
    first, _ = update(state, three_steps(), jax.random.key(0))
    second, _ = update(first, three_steps(), jax.random.key(0))
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    same(first.actor_params, state.actor_params)
    same(second.actor_params, second.params)
    assert not np.array_equal(first.params.policy["params"]["bias"], state.params.policy["params"]["bias"])


def test_advantages_of_bonuses_go_on_over_the_end_of_an_episode() -> None:
    # Rewards as in `three_steps`; bonuses 1, 10, 100, with values 0, and 4 in the first row of the next episode.
    hyper = {"discount": jnp.float32(0.5), "bonus_discount": jnp.float32(0.1), "bonus_coefficient": jnp.float32(2)}
    rollout = three_steps()
    reward = jnp.stack([rollout.reward, jnp.array([[1.0], [10.0], [100.0]])], axis=-1)
    values = {"value": [[2.0, 0.0], [4.0, 0.0], [-2.0, 4.0]], "next_value": [[4.0, 0.0], [6.0, 7.0], [8.0, 5.0]]}
    evaluation = actor_critic.Evaluation(
        ((), ()), None, None, **{name: jnp.array(each)[:, None] for name, each in values.items()}
    )
    one_step = actor_critic.generalised_advantage(0.0)
    advantage, target = jax.jit(lambda: actor_critic.advantages(one_step, hyper, reward, evaluation, rollout))()
    # 1; 10 + .1 * 4, past the termination; and 100 + .1 * 5 - 4, with the true successor of the rollout's last row.
    np.testing.assert_allclose(target[:, 0, 1], [1.0, 10.4, 100.5], rtol=1e-6)
    np.testing.assert_allclose(target[:, 0, 0], [3.0, 2.0, 7.0], rtol=1e-6)
    np.testing.assert_allclose(advantage[:, 0], [1 + 2 * 1, -2 + 2 * 10.4, 9 + 2 * 96.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("module", "memory"), [(a2c, "gru"), *thorough((impala, "lstm"), (reinforce, "linear"), (vmpo, "gru"))]
)
def test_the_loop_trains_them_with_memory_bonus_and_normalisation(module: Any, memory: str) -> None:
    settings = {"bonus": "icm", "normalise_observation": True, "normalise_reward": True, "shared_torso": True}
    config = experiments.ExperimentConfig(
        env=experiments.EnvConfig("CartPole-v1"),
        train=experiments.TrainConfig(module.__name__.split(".")[-1], total_env_steps=128, num_envs=4, num_steps=8),
        agent=module.Config(memory=memory, memory_size=4, hidden_sizes=(4,), **settings),
    )
    state, metrics = jax.jit(experiments.make_train(config))(jax.random.key(0))
    assert state.agent.updates == 4
    assert state.agent.env_steps == 128
    assert state.agent.observation_statistics.count == 128
    assert not state.failed.flag
    assert np.isfinite(metrics["bonus"]).all()
    start = jax.jit(experiments.make_trainer(config).init)(jax.random.key(0)).agent.params
    for name in ("torso", "policy", "value"):
        pairs = zip(*(jax.tree.leaves(getattr(params, name)) for params in (start, state.agent.params)), strict=True)
        assert any(np.any(x != y) for x, y in pairs), name


def check_and_make(module: Any, config: Any) -> None:
    module.check(config, 8, 4)
    module.make(Box(-1, 1, (2,)), Discrete(2), config)  # knows the activations, torsos and dtypes


@pytest.mark.parametrize("module", [a2c, awr, impala, reinforce, vmpo], ids=lambda module: module.__name__)
def test_every_field_of_the_config_is_checked(module: Any) -> None:
    bad = {float: float("nan"), int: -1, str: "?", tuple: (0,)}
    for field in dataclasses.fields(module.Config):
        kind = type(getattr(module.Config(), field.name))
        if kind is bool:
            continue
        config = dataclasses.replace(module.Config(), **{field.name: bad[kind]})
        with pytest.raises(InputError, match=rf"agent\.{field.name} = "):
            check_and_make(module, config)


def test_a_bonus_needs_a_baseline() -> None:
    reinforce.check(reinforce.Config(bonus="rnd"), 8, 4)
    with pytest.raises(InputError, match=r"agent\.bonus = 'rnd' needs agent\.baseline = true"):
        reinforce.check(reinforce.Config(bonus="rnd", baseline=False), 8, 4)
