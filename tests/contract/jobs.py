"""The jobs that the promises are tested on: toys and shipped agents, each compiled once for all tests of a process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import thorough

from rollax import experiments
from rollax.agents.registry import resolve
from rollax.envs.base import strongly_typed

TOYS = Path(__file__).parent / "toys"
BEACON = f"{TOYS}/environment.py:Beacon"
COUNTER = f"{TOYS}/environment.py:Counter"
ROLLOUT_AGENT = f"{TOYS}/rollout_agent.py:make"
SEEDS = 4
KEY_IMPLEMENTATION = "philox4x32"
"""Counter-based like the default, and programs with it compile in two thirds of the time."""
EVALUATION = experiments.EvaluationConfig(episodes=16, step_cap=8)


def make_config(
    agent: str | Callable[..., Any],
    env: str,
    num_envs: int,
    num_steps: int,
    *,
    env_kwargs: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    replay: experiments.ReplayConfig | None = None,
    evaluation: experiments.EvaluationConfig = EVALUATION,
    iterations: int = 4,
    iterations_per_chunk: int = 1,
) -> experiments.ExperimentConfig:
    """Returns the config of a run of `iterations`; agents and environments are named as users name them."""
    per_iteration = num_envs * num_steps
    return experiments.ExperimentConfig(
        name="contract",
        env=experiments.EnvConfig(env, env_kwargs or {}),
        train=experiments.TrainConfig(
            agent, iterations * per_iteration, num_envs, num_steps, unroll=1, **(train or {})
        ),
        agent=resolve(agent).config_type(**(settings or {})),
        replay=replay,
        evaluation=evaluation,
        log=experiments.LogConfig(every=iterations_per_chunk * per_iteration),
    )


CONFIGS: dict[str, Callable[[], experiments.ExperimentConfig]] = {
    "rollout": lambda: make_config(ROLLOUT_AGENT, BEACON, 8, 8),
    # Windows of three steps out of iterations of two: the learner has to wait for the second iteration.
    "transition": lambda: make_config(
        f"{TOYS}/transition_agent.py:make",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 3},
        replay=experiments.ReplayConfig(capacity=256, batch_size=16, n_step=3),
    ),
    "prioritised": lambda: make_config(
        f"{TOYS}/transition_agent.py:make",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 3},
        replay=experiments.ReplayConfig(capacity=256, batch_size=16, kind="prioritised", n_step=3, storage="ref"),
    ),
    "sequence": lambda: make_config(
        f"{TOYS}/sequence_agent.py:make",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 3},
        replay=experiments.ReplayConfig(capacity=256, batch_size=16, kind="sequence", length=3, storage="ref"),
        env_kwargs={"hidden": True},
    ),
    "recurrent": lambda: make_config(f"{TOYS}/recurrent_agent.py:make", BEACON, 8, 8, env_kwargs={"hidden": True}),
    "r2d2": lambda: make_config(
        "r2d2",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 3},
        settings={"hidden_sizes": (8,), "memory_size": 8, "n_step": 2, "burn_in": 1, "epsilon_end": 0.3},
        replay=experiments.ReplayConfig(
            capacity=256, batch_size=16, kind="prioritised", length=3, cross_episodes=True, storage="ref"
        ),
        env_kwargs={"hidden": True},
    ),
    "ppo": lambda: make_config(
        "ppo",
        "CartPole-v1",
        4,
        8,
        settings={"memory": "lstm", "memory_size": 4, "hidden_sizes": (4,), "num_minibatches": 2, "num_epochs": 1},
    ),
}

RESUMED: dict[str, Callable[[], experiments.ExperimentConfig]] = {
    **CONFIGS,
    "rainbow": lambda: make_config(
        "dqn",
        BEACON,
        4,
        2,
        train={"updates_per_iteration": 2},
        settings={"double": True, "dueling": True, "noisy": True, "distribution": "categorical", "hidden_sizes": (8,)},
        replay=experiments.ReplayConfig(capacity=256, batch_size=16, kind="prioritised", n_step=2, storage="ref"),
    ),
    "crossq": lambda: make_config(
        "sac",
        "Pendulum-v1",
        4,
        2,
        train={"updates_per_iteration": 2},
        settings={"batch_norm": True, "hidden_sizes": (8,), "random_steps": 16, "random_period": 4},
        replay=experiments.ReplayConfig(capacity=256, batch_size=16),
    ),
    "impala": lambda: make_config(
        "impala",
        BEACON,
        4,
        4,
        settings={"actor_period": 3, "hidden_sizes": (8,), "bonus": "rnd", "normalise_reward": True},
    ),
}
"""And some more that are only saved and resumed: for the rest they are like the toy that learns from transitions."""


def with_long_ones_thorough(names: Collection[str]) -> list[Any]:
    """Returns names of jobs as parameters. What compiles for long is the toys' like: only thorough tests have it."""
    return [*(name for name in names if name != "r2d2"), *(thorough("r2d2") if "r2d2" in names else ())]


def only(*names: str) -> pytest.MarkDecorator:
    """Marks a test for some of the jobs alone."""
    return pytest.mark.parametrize("job", with_long_ones_thorough(names), indirect=True, scope="session")


toys = only("rollout", "transition", "prioritised", "sequence", "recurrent")
replaying = only("transition", "prioritised", "sequence", "r2d2")


@dataclasses.dataclass(frozen=True)
class Job:
    """One training job of four seeds. Its programs take learning rates and the environment's params as arguments."""

    config: experiments.ExperimentConfig

    @functools.cached_property
    def trainer(self) -> experiments.Trainer:
        return experiments.make_trainer(self.config)

    @functools.cached_property
    def keys(self) -> jax.Array:
        root = jax.random.key(0, impl=KEY_IMPLEMENTATION)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(SEEDS))

    @functools.cached_property
    def learning_rates(self) -> np.ndarray:
        return np.full((SEEDS,), self.config.agent.learning_rate, np.float32)

    @functools.cached_property
    def env_params(self) -> Any:
        params = strongly_typed(self.trainer.env.default_params)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (SEEDS, *leaf.shape)), params)

    @functools.cached_property
    def init_seeds(self) -> Any:
        return jax.jit(jax.vmap(self._init, out_axes=experiments.axes()))

    @functools.cached_property
    def chunk_seed(self) -> Any:
        """One iteration of one seed; it takes its argument with it, as `run` does."""
        return jax.jit(self.trainer.chunk, donate_argnums=0)

    @functools.cached_property
    def chunk_seeds(self) -> Any:
        """One iteration of all seeds; its argument stays."""
        axes = experiments.axes()
        return jax.jit(jax.vmap(self.trainer.chunk, in_axes=(axes,), out_axes=(axes, 0)))

    @functools.cached_property
    def evaluate(self) -> Any:
        """`(agent_state, keys, explore) -> Evaluation` of all seeds."""
        return jax.jit(jax.vmap(experiments.make_evaluate(self.config), in_axes=(0, 0, None)), static_argnums=2)

    @property
    def first_update(self) -> int:
        """Iterations until the learner has learnt once."""
        return 2 if self.config.replay is not None else 1

    def start(self, keys: Any = None, learning_rates: Any = None, env_params: Any = None) -> experiments.TrainState:
        """Returns the state of all seeds before the first iteration."""
        return self.init_seeds(
            self.keys if keys is None else keys,
            self.learning_rates if learning_rates is None else learning_rates,
            self.env_params if env_params is None else env_params,
        )

    def start_seed(self, key: jax.Array, learning_rate: Any = None) -> experiments.TrainState:
        """Returns the state of one seed before the first iteration, without jit."""
        return self.trainer.init(key, {} if learning_rate is None else {"learning_rate": learning_rate})

    def run(
        self, state: experiments.TrainState, iterations: int
    ) -> tuple[experiments.TrainState, dict[str, np.ndarray]]:
        """Runs all seeds on; metrics are `[SEEDS, iterations]`."""
        rows = []
        for _ in range(iterations):
            state, metrics = self.chunk_seeds(state)
            rows.append(metrics)
        return state, {name: np.concatenate([row[name] for row in rows], axis=1) for name in rows[0]}

    def run_seed(self, state: experiments.TrainState, iterations: int) -> experiments.TrainState:
        """Runs one seed on."""
        for _ in range(iterations):
            state, _ = self.chunk_seed(state)
        return state

    def _init(self, key: jax.Array, learning_rate: jax.Array, env_params: Any) -> experiments.TrainState:
        return self.trainer.init(key, {"learning_rate": learning_rate}, env_params)


@functools.cache
def get_job(name: str) -> Job:
    """Returns the job of one of `RESUMED`, with all that has been compiled for it so far."""
    return Job(RESUMED[name]())


def on_host(tree: Any) -> Any:
    """Returns a tree with NumPy leaves, keys as their data: slices of them are never compiled."""

    def as_array(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.array(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(as_array, tree)


def take_seed(state: experiments.TrainState, seed: int | slice) -> experiments.TrainState:
    """Returns one seed of a state, or a range of them, with NumPy leaves."""
    state = on_host(state)
    taken = jax.tree.map(lambda leaf: leaf[seed], dataclasses.replace(state, clock=()))
    return dataclasses.replace(taken, clock=state.clock)


def leaves_by_path(tree: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of a tree by their paths."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(on_host(tree))}


def differences(a: Any, b: Any, tolerance: float = 0.0) -> list[str]:
    """Returns where two trees differ: in any bit, or with a tolerance by more than that in floats."""
    a, b = leaves_by_path(a), leaves_by_path(b)
    assert a.keys() == b.keys()

    def same(x: np.ndarray, y: np.ndarray) -> bool:
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        if tolerance and np.issubdtype(x.dtype, np.floating):
            return np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
        return x.tobytes() == y.tobytes()

    return [f"{path}: {a[path]} and {b[path]}" for path in a if not same(a[path], b[path])]


def fingerprints(states: Sequence[Any]) -> set[bytes]:
    """Returns the different contents among some trees."""
    return {b"".join(leaf.tobytes() for leaf in leaves_by_path(state).values()) for state in states}
