"""Benchmarks: steps per second of whole training loops and of rollouts alone, compilation apart."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rollax import envs
from rollax.envs.adapters.gymnax import GymnaxEnv
from rollax.envs.base import with_types_of
from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments.bench_peers import peak_megabytes
from rollax.experiments.bench_roofline import Products, of_network, roofline
from rollax.experiments.sharding import over_seeds, padded, seed_mesh
from rollax.experiments.trainer import axes, make_trainer

SECONDS = 5.0
"""About how long one measurement lasts."""


DQN_SETTING = (
    "train.num_envs=10",
    "train.num_steps=10",
    "train.updates_per_iteration=10",
    "replay.capacity=10000",
    "replay.batch_size=128",
    "agent.hidden_sizes=[120, 84]",
)


PENDULUM_SETTING = (
    "train.total_env_steps=128",
    "log.every=128",
    "train.num_envs=1",
    "train.num_steps=8",
    "train.updates_per_iteration=8",
    "replay.capacity=100000",
    "replay.batch_size=256",
    "replay.min_size=8",
    "agent.hidden_sizes=[256, 256]",
)
PPO_PRODUCTS = [
    *of_network(128, (4, 64, 64, 2), forwards=16 / 512 + 1 / 128, backwards=16 / 512),
    *of_network(128, (4, 64, 64, 1), forwards=16 / 512 + 2 / 128, backwards=16 / 512),
]
"""Of actor and critic: 16 minibatches in 512 steps, and before them all that acted and, for the critic, successors."""
DQN_PRODUCTS = of_network(128, (4, 120, 84, 2), forwards=2 / 10, backwards=1 / 10)
"""One update in ten steps: the values of a batch, forwards and backwards, and of its successors."""
SAC_PRODUCTS = [Products(256, 256, 256, 16)]
"""Products of a batch with a square layer in one update of SAC with two critics.

The policy: once at the successors, three times (forwards, and backwards to inputs and weights) in its own loss. Each
critic: once at the successors, three times in its loss, and twice, forwards and backwards to the action, in the
policy's.
"""
TD3_PRODUCTS = [Products(256, 256, 256, 11.5)]
"""As `SAC_PRODUCTS`, of TD3 with two critics and one update of the policy for every two of theirs.

The policy: once at the successors, three times in its own loss, half of it counted. Each critic: once at the
successors, three times in its loss. The first critic: twice in the policy's, half of it counted.
"""

_RATE = "steps_per_second"
_PASSED_ON = ("compile_seconds", "peak_megabytes")


@dataclasses.dataclass(frozen=True)
class Rival:
    """Another program that does the same work, timed in turns with ours.

    Attributes:
        command: A command line; `{seeds}` in it becomes the number of seeds. The last line that it prints has to be the
            environment steps per second of all seeds, a number, or a JSON object with `steps_per_second`; it may have
            `compile_seconds` and `peak_megabytes` too.
    """

    command: str

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise InputError(
                f"--against {self.command!r} is no command line ({error}): quote it as a shell does."
            ) from error
        if not words or shutil.which(words[0]) is None:
            raise InputError(f"--against {self.command!r} names no program that can be run: give a command line.")

    def measure(self, seeds: int) -> dict[str, float]:
        """Runs the command and returns the figures that it printed, of those that `Rival.command` may print.

        Raises:
            InputError: It failed, or its last line has no positive number of steps per second.
        """
        words = shlex.split(self.command.replace("{seeds}", str(seeds)))
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        if ran.returncode:
            last = ran.stderr.strip().rpartition("\n")[2]
            raise InputError(f"--against {self.command!r} ended with status {ran.returncode} ({last}): mend it.")
        line = ran.stdout.strip().rpartition("\n")[2]
        try:
            printed = json.loads(line)
            printed = printed if isinstance(printed, dict) else {_RATE: printed}
            figures = {name: float(printed[name]) for name in (_RATE, *_PASSED_ON) if name in printed}
        except (ValueError, TypeError):
            figures = {}
        if not 0 < figures.get(_RATE, 0.0) < float("inf"):
            raise InputError(
                f"--against {self.command!r} printed {line!r} last: let it print its steps per second there, a number "
                'or {"steps_per_second": a number}.'
            )
        return figures


def run_ppo(
    seeds: Sequence[int] = (1, 8),
    memories: Sequence[str] = ("none",),
    repeats: int = 5,
    rival: Rival | None = None,
) -> list[dict[str, Any]]:
    """Times PPO in its usual setting, for each memory and each number of seeds in turn.

    The setting: CartPole-v1, 4 environments x 128 steps, 4 epochs, 4 minibatches, 2 x 64 tanh actor and critic, each
    with its memory on top.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        memories: Values of `agent.memory`.
        repeats: Measurements; the median counts.
        rival: A program to time in turns with these measurements.

    Returns:
        One row for each memory and number of seeds: `steps_per_second` (environment steps of all seeds, learning
        included), `compile_seconds`, `peak_megabytes` (of this process so far), `devices`; without a memory also the
        `roofline`, the steps per second if only the matrix products of updates took time, each timed in the same run;
        with a rival also `against`, its steps per second, the `ratio` of ours to those, and `against_compile_seconds`
        and `against_peak_megabytes` where it prints them.
    """
    rows = []
    for memory in memories:
        config = configs.load(
            "ppo_cartpole", ["train.total_env_steps=25600", "log.every=25600", f"agent.memory={memory}"]
        )
        products = PPO_PRODUCTS if memory == "none" else []
        for count in seeds:
            rows.append({"memory": memory, **_time(config, "ppo CartPole-v1 4x128", products, count, repeats, rival)})
    return rows


def run_dqn(seeds: Sequence[int] = (1, 8), repeats: int = 5, rival: Rival | None = None) -> list[dict[str, Any]]:
    """Times DQN in the setting that CleanRL and PureJaxRL share, for each number of seeds in turn.

    The setting: CartPole-v1, 10 environments, a buffer of 10,000 rows, and one update on a batch of 128 for every 10
    environment steps (ten of them after ten steps of each environment), with a network of 120 and 84 units.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Measurements; the median counts.
        rival: A program to time in turns with these measurements.

    Returns:
        One row for each number of seeds, with the figures of `run_ppo`.
    """
    overrides = ["train.total_env_steps=20000", "log.every=20000", *DQN_SETTING]
    config = configs.load("dqn_cartpole", overrides)
    return [_time(config, "dqn CartPole-v1 10 envs", DQN_PRODUCTS, count, repeats, rival) for count in seeds]


def run_sac(seeds: Sequence[int] = (1, 8), repeats: int = 5, rival: Rival | None = None) -> list[dict[str, Any]]:
    """Times SAC in its usual setting, for each number of seeds in turn.

    The setting: Pendulum-v1, one environment, one update on a batch of 256 for each environment step (eight of them
    after eight steps), policy and two critics with two layers of 256 units.

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Measurements; the median counts.
        rival: A program to time in turns with these measurements.

    Returns:
        One row for each number of seeds, with the figures of `run_ppo`; the `roofline` is of the square layers.
    """
    config = configs.load("sac_pendulum", PENDULUM_SETTING)
    return [_time(config, "sac Pendulum-v1 256x256", SAC_PRODUCTS, count, repeats, rival) for count in seeds]


def run_td3(seeds: Sequence[int] = (1, 8), repeats: int = 5, rival: Rival | None = None) -> list[dict[str, Any]]:
    """Times TD3 as `run_sac` times SAC, at the same sizes; the policy learns every other time (`TD3_PRODUCTS`).

    Args:
        seeds: Numbers of seeds, each one job on all devices of this process.
        repeats: Measurements; the median counts.
        rival: A program to time in turns with these measurements.

    Returns:
        As `run_sac`.
    """
    config = configs.load("td3_pendulum", PENDULUM_SETTING)
    return [_time(config, "td3 Pendulum-v1 256x256", TD3_PRODUCTS, count, repeats, rival) for count in seeds]


def run_env(
    ids: Sequence[str] = ("CartPole-v1", "Breakout-MinAtar"), num_envs: int = 64, num_steps: int = 128, repeats: int = 5
) -> list[dict[str, Any]]:
    """Times rollouts of random actions alone, with each way to reset an environment that has ended.

    All ways reset at random, to a new state each time: "ahead" draws every reset of the rollout in one batch before
    its scan, as training does; "in step" computes one in every step; "gymnax" is gymnax's own step, which does so too.

    Args:
        ids: Ids of gymnax environments.
        num_envs: N.
        num_steps: T.
        repeats: Measurements; the median counts.

    Returns:
        One row for each environment and way: `steps_per_second` and `compile_seconds`.
    """
    rows = []
    for env_id in ids:
        for way in ("ahead", "in step", "gymnax"):
            rollout, carry = _rollout(env_id, way, num_envs, num_steps)
            started = time.perf_counter()
            compiled = jax.jit(rollout).lower(jax.random.key(0), carry).compile()
            compile_seconds = time.perf_counter() - started

            def run(key_and_carry: Any, compiled: Any = compiled) -> tuple[Any, Any]:
                key, carry = key_and_carry
                return (jax.random.fold_in(key, 1), compiled(key, carry)), None

            rates = _rates(run, (jax.random.key(1), carry), num_envs * num_steps, repeats)
            rows.append({"name": f"{env_id} {num_envs}x{num_steps}", "reset": way, **_summary(rates, compile_seconds)})
    return rows


def _rollout(env_id: str, way: str, num_envs: int, num_steps: int) -> tuple[Any, Any]:
    """Returns a function `(key, carry) -> carry` that takes all steps, and its first carry."""
    raw = envs.make(env_id)
    env = envs.Vectorise(envs.AutoReset(raw), num_envs)
    params = raw.default_params

    def rollout(key: jax.Array, carry: Any) -> Any:
        key_action, key_step, key_reset = jax.random.split(key, 3)
        sample = jax.vmap(jax.vmap(env.action_space().sample))
        actions = sample(jax.random.split(key_action, (num_steps, num_envs)))
        keys = jax.random.split(key_step, (num_steps, num_envs))
        resets = None
        if way == "ahead":
            keys_reset = jax.random.split(key_reset, (num_steps, num_envs))
            resets = jax.vmap(env.reset, in_axes=(0, None))(keys_reset, params)

        def step(carry: Any, inputs: Any) -> tuple[Any, None]:
            state, total = carry
            keys, actions, reset = inputs
            if way == "gymnax":
                assert isinstance(raw, GymnaxEnv)
                own = jax.vmap(raw.env.step, in_axes=(0, 0, 0, None))
                observation, state, reward, *_ = own(keys, state, actions, params)
            else:
                ready = () if reset is None else (reset,)
                state, timestep = env.step(keys, state, actions, params, *ready)
                observation, reward = timestep.observation, timestep.reward
            # What a rollout would keep: without it the compiler leaves out what makes it.
            total = total + jnp.sum(observation) + jnp.sum(reward)
            return (with_types_of(state, carry[0]), total), None

        return lax.scan(step, carry, (keys, actions, resets))[0]

    state, _ = env.reset(jax.random.key(0), params)
    return rollout, (state, jnp.zeros(()))


def _time(
    config: configs.ExperimentConfig,
    name: str,
    products: Sequence[Products],
    seeds: int,
    repeats: int,
    rival: Rival | None,
) -> dict[str, Any]:
    trainer = make_trainer(config)
    mesh = seed_mesh(seeds)
    keys = jax.random.split(jax.random.key(0), padded(seeds, mesh))
    started = time.perf_counter()
    state = over_seeds(trainer.init, mesh, (0,), axes())(keys)
    chunk = over_seeds(trainer.chunk, mesh, (axes(),), (axes(), 0), donate_argnums=(0,)).lower(state).compile()
    compile_seconds = time.perf_counter() - started
    theirs: list[dict[str, float]] = []
    between = (lambda: None) if rival is None else (lambda: theirs.append(rival.measure(seeds)))
    rates = _rates(chunk, state, trainer.env_steps_per_chunk * seeds, repeats, between)
    row = {"name": name, "seeds": seeds, "devices": mesh.size, **_summary(rates, compile_seconds)}
    row["peak_megabytes"] = peak_megabytes()
    if products:
        row["roofline"] = roofline(products, seeds, SECONDS / 10)
    return row | _compared(row[_RATE], theirs)


def _compared(ours: float, theirs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns what a row says of a rival's measurements: nothing if there are none."""
    if not theirs:
        return {}
    printed = [name for name in (_RATE, *_PASSED_ON) if all(name in figures for figures in theirs)]
    medians = {name: statistics.median(figures[name] for figures in theirs) for name in printed}
    rate = medians.pop(_RATE)
    return {"against": rate, "ratio": ours / rate, **{f"against_{name}": value for name, value in medians.items()}}


def _rates(
    function: Any, state: Any, env_steps: int, repeats: int, between: Callable[[], None] = lambda: None
) -> list[float]:
    """Returns the environment steps per second of `state, _ = function(state)`, measured `repeats` times.

    Args:
        function: The compiled function.
        state: What it starts from.
        env_steps: Of one call.
        repeats: Measurements.
        between: Called after each of them.
    """
    state, warm_up = _calls(function, state, 1)
    calls = max(1, round(SECONDS / warm_up))
    rates = []
    for _ in range(repeats):
        state, seconds = _calls(function, state, calls)
        rates.append(calls * env_steps / seconds)
        between()
    return rates


def _summary(rates: Sequence[float], compile_seconds: float) -> dict[str, Any]:
    return {
        "steps_per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "compile_seconds": compile_seconds,
        "device": jax.local_devices()[0].device_kind,
        "jax": jax.__version__,
    }


def _calls(function: Any, state: Any, calls: int) -> tuple[Any, float]:
    started = time.perf_counter()
    for _ in range(calls):
        state, _ = function(state)
    jax.block_until_ready(state)
    return state, time.perf_counter() - started
