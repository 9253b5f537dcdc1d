"""The benchmark of other libraries: a program for `rollax bench ppo|dqn|sac|td3 --against`, in their own environment.

    python experiments/bench_peers.py rejax-sac CHECKOUT SEEDS

It trains with PureJaxRL or rejax, of which CHECKOUT is a clone, in the setting of `rollax bench`, and prints one JSON
object last. It imports nothing of Rollax, which needs another gymnax than they do. Their files stay as they are; what
newer versions of JAX have dropped, and modules that only other scripts of theirs use, are put in place before their
import.

One seed is `jit(train)`, several are `jit(vmap(train))`, on JAX's default device, as their READMEs have it. A call
trains from scratch; initial networks and buffers are a small part of it. What cannot be made equal counts for them:
DQN learns once it has 128 rows (after 130 steps of 20,000), ours at once; its seeds share the random numbers of all
but the first reset. rejax evaluates nothing, and its TD3 gets the hidden layers that its settings cannot name.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

SECONDS = 5.0
"""About how long the measurement lasts."""

PPO: dict[str, Any] = {
    "ENV_NAME": "CartPole-v1",
    "TOTAL_TIMESTEPS": 25_600,
    "NUM_ENVS": 4,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "ACTIVATION": "tanh",  # of two layers of 64 units
    "LR": 1e-3,
    "ANNEAL_LR": True,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
}
DQN: dict[str, Any] = {  # with layers of 120 and 84 units
    "ENV_NAME": "CartPole-v1",
    "TOTAL_TIMESTEPS": 20_000,
    "NUM_ENVS": 10,
    "BUFFER_SIZE": 10_000,
    "BUFFER_BATCH_SIZE": 128,
    "TRAINING_INTERVAL": 10,
    "LEARNING_STARTS": 0,
    "TARGET_UPDATE_INTERVAL": 500,
    "TAU": 1.0,
    "EPSILON_START": 1.0,
    "EPSILON_FINISH": 0.05,
    "EPSILON_ANNEAL_TIME": 10_000,
    "LR": 2.5e-4,
    "GAMMA": 0.99,
}
CONTROL: dict[str, Any] = {
    "env": "Pendulum-v1",
    "total_timesteps": 256,
    "eval_freq": 256,
    "skip_initial_evaluation": True,
    "num_envs": 1,
    "num_epochs": 1,  # updates after each step
    "buffer_size": 100_000,
    "fill_buffer": 0,
    "batch_size": 256,
    "polyak": 0.995,
}
HIDDEN_SIZES = (256, 256)

Train = Callable[[jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Peer:
    """An algorithm of another library.

    Attributes:
        folder: Of the checkout: where its modules are.
        make: Imports them and returns a function of a seed's key that trains.
        env_steps: Environment steps of one seed of that.
    """

    folder: str
    make: Callable[[], Train]
    env_steps: int


def _purejaxrl(module: str, setting: dict[str, Any]) -> Train:
    jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    for unused in ("wandb", "navix", "brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training"):
        sys.modules[unused] = mock.MagicMock()
    train: Train = importlib.import_module(module).make_train(dict(setting))
    return train


def _sac() -> Train:
    algorithm = importlib.import_module("rejax").SAC.create(
        **CONTROL, hidden_layer_sizes=HIDDEN_SIZES, agent_kwargs={"activation": "relu"}
    )
    return _without_evaluation(algorithm)


def _td3() -> Train:
    relu = {"activation": "relu"}
    algorithm = importlib.import_module("rejax").TD3.create(**CONTROL, actor_kwargs=dict(relu), critic_kwargs=relu)
    networks = {name: getattr(algorithm, name).clone(hidden_layer_sizes=HIDDEN_SIZES) for name in ("actor", "critic")}
    return _without_evaluation(algorithm.replace(**networks))


def _without_evaluation(algorithm: Any) -> Train:
    train: Train = algorithm.replace(eval_callback=lambda algorithm, state, key: jnp.zeros(())).train
    return train


PEERS = {
    "purejaxrl-ppo": Peer("purejaxrl", lambda: _purejaxrl("ppo", PPO), PPO["TOTAL_TIMESTEPS"]),
    "purejaxrl-dqn": Peer("purejaxrl", lambda: _purejaxrl("dqn", DQN), DQN["TOTAL_TIMESTEPS"]),
    "rejax-sac": Peer("src", _sac, CONTROL["total_timesteps"]),
    "rejax-td3": Peer("src", _td3, CONTROL["total_timesteps"]),
}


def measure(train: Train, env_steps: int, seeds: int) -> dict[str, Any]:
    """Compiles and times the training of so many seeds.

    Args:
        train: A pure function of one seed's key.
        env_steps: Environment steps of one seed of that.
        seeds: Their number.

    Returns:
        `steps_per_second` (environment steps of all seeds, learning included), `compile_seconds`, `peak_megabytes` and
        `jax`, the version.
    """
    keys = jax.random.split(jax.random.key(0), seeds)
    function, argument = (jax.jit(train), keys[0]) if seeds == 1 else (jax.jit(jax.vmap(train)), keys)
    started = time.perf_counter()
    compiled = function.lower(argument).compile()
    compile_seconds = time.perf_counter() - started
    calls = max(1, round(SECONDS / _seconds(compiled, argument, 1)))
    return {
        "steps_per_second": calls * env_steps * seeds / _seconds(compiled, argument, calls),
        "compile_seconds": compile_seconds,
        "peak_megabytes": peak_megabytes(),
        "jax": jax.__version__,
    }


def _seconds(function: Train, argument: jax.Array, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(function(argument))
    return time.perf_counter() - started


def peak_megabytes() -> float:
    """Returns the most memory that this process has had in RAM so far, in units of 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # what Linux hands out beside this begins with the peak of the process that started this one
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(encoding="utf-8"), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024 / 1e6
    import resource  # which Windows has not

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Times what the command line names and prints the figures as JSON; ends with status 2 where it cannot."""
    parser = argparse.ArgumentParser(prog="bench_peers.py", allow_abbrev=False)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("checkout", type=Path, help="a clone of the library")
    parser.add_argument("seeds", type=int, help="seeds, all in one program")
    given = parser.parse_args(arguments)
    peer, folder = PEERS[given.peer], given.checkout / PEERS[given.peer].folder
    if given.seeds < 1:
        parser.error(f"seeds = {given.seeds} must be at least 1.")
    if not folder.is_dir():
        library = given.peer.partition("-")[0]
        parser.error(f"checkout = {str(given.checkout)!r} has no folder {peer.folder!r}: give a clone of {library}.")
    sys.path.insert(0, str(folder))
    try:
        train = peer.make()
    except (ImportError, AttributeError) as error:
        parser.error(f"{given.peer} cannot be used ({error}): install what docs/benchmarks.md says, at its commits.")
    print(json.dumps(measure(train, peer.env_steps, given.seeds)))


if __name__ == "__main__":
    # The folder of a script is the first place that Python looks in, and this one has a statistics.py.
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    main()
