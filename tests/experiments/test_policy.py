"""A trained policy in other hands: loaded from a run, exported to one file, and taken to start another run from."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.jobs import BEACON, TOYS, differences

from rollax import envs, experiments
from rollax.agents import normalisation
from rollax.agents.base import Agent
from rollax.envs import spaces
from rollax.errors import InputError
from rollax.experiments import cli, programs, run_folder, saving
from rollax.experiments.config import from_dict

SEEDS = 3
N = 64
KEY = 7
TRAIN = {"total_env_steps": 512, "num_envs": 4, "num_steps": 16, "unroll": 1, "seed": 1}
ONCE = {"num_minibatches": 1, "num_epochs": 1}
TABLES: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": {"id": "CartPole-v1"},
        "train": TRAIN,
        "agent": {"hidden_sizes": [8], "normalise_observation": True, "learning_rate": 0.05, **ONCE},
        "evaluation": {"episodes": 4, "every": 64},
    },
    "recurrent": {
        "env": {"id": BEACON, "hidden": True},
        "train": {**TRAIN, "agent": f"{TOYS}/recurrent_agent.py:make", "total_env_steps": 128},
        "evaluation": {"episodes": 4, "every": 64, "step_cap": 8},
    },
}
Trained = Callable[[str], SimpleNamespace]
WITHOUT_ROLLAX = """
import sys
sys.modules["rollax"] = None
import jax
import numpy as np
from jax import export
for name in sys.argv[1:]:
    exported = export.deserialize(bytearray(open(name, "rb").read()))
    given = np.load(name + ".npz")
    (like, memory, *_), _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    assert type(memory) is tuple
    memory = tuple(np.full(leaf.shape, given["start"], leaf.dtype) for leaf in memory)
    actions = []
    for t in range(len(given["is_first"])):
        flat = [given[f"observation{i}"][t] for i in range(len(jax.tree.leaves(like)))]
        observation = jax.tree.unflatten(jax.tree.structure(like), flat)
        mask = [given["mask"][t]] if "mask" in given else []
        memory, action = exported.call(observation, memory, jax.random.key(t), given["is_first"][t], *mask)
        actions.append(action)
    assert type(memory) is tuple
    np.savez(name + ".out.npz", action=actions, **{f"memory{i}": leaf for i, leaf in enumerate(memory)})
try:
    import rollax
except ImportError:
    print("no rollax")
"""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Returns what makes the finished run of one of `TABLES` once: its `config`, `result`, `folder` and `agent`."""

    @functools.cache
    def train(name: str) -> SimpleNamespace:
        config = from_dict(TABLES[name])
        folder = tmp_path_factory.mktemp(name) / "run"
        agent, result = experiments.make_trainer(config).agent, experiments.run(config, SEEDS, out=folder)
        return SimpleNamespace(config=config, result=result, folder=folder, agent=agent)

    return train


@pytest.fixture
def cartpole(trained: Trained) -> SimpleNamespace:
    return trained("cartpole")


@pytest.fixture
def copied(cartpole: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of the run that may be spoilt."""
    return Path(shutil.copytree(cartpole.folder, tmp_path / "copy"))


def test_the_absolute_metric_is_of_the_best_agents_in_ten_times_the_episodes(
    cartpole: SimpleNamespace, copied: Path
) -> None:
    found = experiments.evaluate_run(copied, best=True)
    evaluation = dataclasses.replace(cartpole.config.evaluation, episodes=40)
    evaluate = jax.jit(jax.vmap(experiments.make_evaluate(dataclasses.replace(cartpole.config, evaluation=evaluation))))
    played = evaluate(cartpole.result.best.agent, jax.random.split(jax.random.key(0), SEEDS))
    means = [row["return_mean"] for row in found["seeds"]]
    np.testing.assert_allclose(means, np.mean(played.episode_return, axis=1), rtol=1e-6)
    assert (found["episodes"], [row["finished"] for row in found["seeds"]]) == (40, [40] * SEEDS)
    assert found["iqm"] == np.mean(means)
    summary = json.loads((copied / "summary.json").read_text())
    assert summary == {**json.loads((cartpole.folder / "summary.json").read_text()), "absolute": found}
    with pytest.raises(InputError, match="episodes = 0 must be at least 1"):
        experiments.evaluate_run(copied, 0, best=True)


def take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def observations(space: Any, seed: int = 0, n: int = N) -> Any:
    """Returns fixed observations, leaves `[n, ...]`, around the middle of what is seen in training."""
    draw = np.random.default_rng(seed).normal
    return jax.tree.map(lambda leaf: jnp.asarray(draw(size=(n, *leaf.shape)), leaf.dtype), spaces.zeros(space))


def masks(seed: int = 0, n: int = N) -> jax.Array:
    """Returns masks bool `[n, 3]` that leave out one action each."""
    return jnp.arange(3) != jnp.asarray(np.random.default_rng(seed).integers(3, size=(n, 1)))


def act_as_in_training(
    agent: Agent, state: Any, memory: Any, observation: Any, mask: Any, is_first: bool, explore: bool
) -> tuple[Any, jax.Array]:
    timestep = jax.vmap(functools.partial(envs.timestep, is_first=is_first))(observation)
    timestep = dataclasses.replace(timestep, action_mask=mask)
    memory, decision = agent.act_with(state, memory, timestep, agent.noise(jax.random.key(KEY), N), explore=explore)
    return memory, decision.action


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("greedy", [True, False])
def test_a_loaded_policy_acts_as_the_trained_agent(name: str, greedy: bool, trained: Trained) -> None:
    run = trained(name)
    mask = masks() if name == "recurrent" else None
    drawn = []
    for seed in range(SEEDS):
        policy = experiments.load_policy(run.folder, seed=seed)
        state = take(run.result.state.agent, seed)
        assert not differences(policy.state, state)
        observation = observations(policy.observation_space)
        memory = run.agent.init_memory(N)
        assert not differences(policy.init_memory(N), memory)
        key = jax.random.key(KEY)
        after, action = policy(observation, memory, key, is_first=True, action_mask=mask, greedy=greedy)
        expected = act_as_in_training(run.agent, state, memory, observation, mask, True, explore=not greedy)
        assert not differences((after, action), expected)
        drawn.append(np.asarray(action).tobytes())
    assert len(set(drawn)) > 1  # seeds are told apart


def test_the_normaliser_is_inside(cartpole: SimpleNamespace) -> None:
    policy = experiments.load_policy(cartpole.folder, seed=0)
    bare = dataclasses.replace(policy, state=dataclasses.replace(policy.state, observation_statistics=None))
    observation = observations(policy.observation_space)
    normalised = normalisation.normalise(policy.state.observation_statistics, observation)
    _, action = policy(observation, policy.init_memory(N))
    np.testing.assert_array_equal(action, bare(normalised, bare.init_memory(N))[1])
    assert np.any(action != bare(observation, bare.init_memory(N))[1])


def test_memory_is_carried_and_starts_again_with_an_episode(trained: Trained) -> None:
    policy = experiments.load_policy(trained("recurrent").folder)
    seen = [observations(policy.observation_space, seed) for seed in range(3)]
    memory = policy.init_memory(N)
    for observation in seen[:2]:
        memory, _ = policy(observation, memory)
    np.testing.assert_array_equal(memory["age"], np.full(N, 2))
    fresh, _ = policy(seen[2], policy.init_memory(N))
    carried, _ = policy(seen[2], memory)
    assert differences(carried, fresh)
    assert not differences(policy(seen[2], memory, is_first=False)[0], carried)
    assert not differences(policy(seen[2], memory, is_first=True)[0], fresh)
    first = np.arange(N) % 3 == 0
    mixed, _ = policy(seen[2], memory, is_first=jnp.asarray(first))
    for rows, expected in ((first, fresh), (~first, carried)):
        assert not differences(take(mixed, rows), take(expected, rows))


def test_a_policy_can_be_jitted_mapped_and_scanned(trained: Trained) -> None:
    policy = experiments.load_policy(trained("recurrent").folder, seed=1)
    steps = 4
    seen = stack([observations(policy.observation_space, seed) for seed in range(steps)])
    keys = jax.random.split(jax.random.key(KEY), steps)
    drawn = functools.partial(policy, greedy=False)
    memory, actions, memories = policy.init_memory(N), [], []
    for t in range(steps):
        memory, action = drawn(take(seen, t), memory, keys[t])
        actions.append(action)
        memories.append(memory)
    assert len(np.unique(jnp.stack(actions))) == 3
    scanned, scanned_actions = jax.lax.scan(
        lambda memory, row: drawn(row[0], memory, row[1]), policy.init_memory(N), (seen, keys)
    )
    np.testing.assert_array_equal(scanned_actions, jnp.stack(actions))
    assert not differences(scanned, memory, tolerance=1e-6)
    jitted = jax.jit(policy, static_argnames="greedy")
    _, action = jitted(take(seen, 1), memories[0], keys[1], greedy=False)
    np.testing.assert_array_equal(action, actions[1])
    _, mapped = jax.vmap(drawn)(take(seen, slice(1, None)), stack(memories[:-1]), keys[1:])
    np.testing.assert_array_equal(mapped, jnp.stack(actions[1:]))


@pytest.mark.parametrize("name", list(TABLES))
@pytest.mark.parametrize("greedy", [True, False])
def test_masks_are_honoured(name: str, greedy: bool, trained: Trained) -> None:
    policy = experiments.load_policy(trained(name).folder)
    num_actions = policy.action_space.n
    observation = observations(policy.observation_space)
    for only in range(num_actions):
        mask = jnp.broadcast_to(jnp.arange(num_actions) == only, (N, num_actions))
        _, action = policy(observation, policy.init_memory(N), jax.random.key(KEY), action_mask=mask, greedy=greedy)
        np.testing.assert_array_equal(action, np.full(N, only))


def test_drawing_needs_a_key(cartpole: SimpleNamespace) -> None:
    policy = experiments.load_policy(cartpole.folder)
    observation = observations(policy.observation_space)
    with pytest.raises(InputError, match="pass it a key"):
        policy(observation, policy.init_memory(N), greedy=False)
    actions = [policy(observation, policy.init_memory(N), jax.random.key(k), greedy=False)[1] for k in (0, 0, 1)]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert np.any(actions[0] != actions[2])


def test_best_is_what_was_evaluated_best(cartpole: SimpleNamespace) -> None:
    evaluations = run_folder.open(cartpole.folder).read_evaluations()
    summary = json.loads((cartpole.folder / "summary.json").read_text())
    evaluate = jax.jit(experiments.make_evaluate(cartpole.config))
    earlier = 0
    for seed, best in enumerate(summary["best"]):
        rows = evaluations["seed"] == seed
        returns, steps = evaluations["return_mean"][rows], evaluations["env_steps"][rows]
        assert best == {"seed": seed, "env_steps": steps[np.argmax(returns)], "return_mean": np.max(returns)}
        key = jax.random.fold_in(jax.random.key(cartpole.config.train.seed), seed)
        key = jax.random.fold_in(jax.random.fold_in(key, programs.EVALUATION_STREAM), best["env_steps"] // 64)
        evaluation = evaluate(take(cartpole.result.best.agent, seed), key)
        assert np.all(evaluation.finished)
        assert np.mean(evaluation.episode_return) == best["return_mean"]
        loaded = experiments.load_policy(cartpole.folder, seed, which="best").state
        assert not differences(loaded, take(cartpole.result.best.agent, seed))
        earlier += bool(differences(loaded, experiments.load_policy(cartpole.folder, seed).state))
    assert earlier > 0  # the best of some seed is not its last


def test_the_earliest_of_equals_is_the_best_and_unfinished_episodes_count_for_nothing() -> None:
    def evaluation(returns: list[float], finished: list[bool]) -> experiments.Evaluation:
        return experiments.Evaluation(jnp.asarray(returns), jnp.ones(2, jnp.int32), jnp.asarray(finished))

    best = saving.no_best(jnp.asarray(-1.0))
    rows = [([9.0, 9.0], [False] * 2), ([1.0, 3.0], [True] * 2), ([2.0, 9.0], [True, False]), ([0.0, 1.0], [True] * 2)]
    for index, row in enumerate(rows, start=1):
        best = saving.keep_best(best, jnp.asarray(float(index)), evaluation(*row), jnp.asarray(index, jnp.int32))
        kept = (0, -np.inf) if index == 1 else (2, 2.0)
        assert (best.chunk, best.score) == kept
    assert best.agent == 2.0


def test_the_best_seed_is_what_the_run_says(cartpole: SimpleNamespace, copied: Path) -> None:
    loaded = experiments.load_policy(cartpole.folder, seed="best").state
    last = [row["return_mean"] for row in cartpole.result.evaluations[-SEEDS:]]
    assert not differences(loaded, take(cartpole.result.state.agent, int(np.argmax(last))))
    best = [row["return_mean"] for row in cartpole.result.summary["best"]]
    loaded = experiments.load_policy(cartpole.folder, seed="best", which="best").state
    assert not differences(loaded, take(cartpole.result.best.agent, int(np.argmax(best))))
    # Scores that are missing are no best ones, and the two kinds of scores are told apart.
    summary = json.loads((copied / "summary.json").read_text())
    summary["best"] = [
        {**row, "return_mean": score} for row, score in zip(summary["best"], (None, -5, -6), strict=True)
    ]
    (copied / "summary.json").write_text(json.dumps(summary))
    (copied / "evaluations.csv").unlink()
    rows = zip(cartpole.result.evaluations[-SEEDS:], (np.nan, -9.0, -8.0), strict=True)
    run_folder.open(copied).append_evaluations([{**row, "return_mean": score} for row, score in rows])
    loaded = experiments.load_policy(copied, seed="best", which="best").state
    assert not differences(loaded, take(cartpole.result.best.agent, 1))
    loaded = experiments.load_policy(copied, seed="best").state
    assert not differences(loaded, take(cartpole.result.state.agent, 2))


def test_no_such_policy(cartpole: SimpleNamespace) -> None:
    for seed in (SEEDS, -1):
        with pytest.raises(InputError, match=f"seed = {seed} .* it has the seeds 0 to 2"):
            experiments.load_policy(cartpole.folder, seed=seed)
    wrong: Any = "last"
    with pytest.raises(InputError, match="choose final or best"):
        experiments.load_policy(cartpole.folder, which=wrong)


def test_no_such_run(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist: name the folder that"):
        experiments.load_policy(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"holds no config.toml.*: name the folder that"):
        experiments.load_policy(tmp_path)
    config, text = copied / "config.toml", (copied / "config.toml").read_text()
    config.write_text(text.replace("hidden_sizes = [8]", "hidden_sizes = [16]"))
    with pytest.raises(InputError, match="give the config that wrote it"):
        experiments.load_policy(copied)
    config.write_text(text)
    shutil.rmtree(copied / "checkpoints" / "best")
    with pytest.raises(InputError, match=r"there is no checkpoint .*best"):
        experiments.load_policy(copied, which="best")
    (copied / "summary.json").unlink()
    with pytest.raises(InputError, match="its run has not finished"):
        experiments.load_policy(copied)


def test_an_exported_policy_acts_alike_in_a_process_without_rollax(trained: Trained, tmp_path: Path) -> None:
    n, steps = 5, 3
    is_first = np.zeros((steps, n), np.bool_)
    is_first[0], is_first[2, 1] = True, True
    expected = {}
    for name, run, masked, greedy, start in (
        ("greedy", "cartpole", False, True, 0.0),
        ("drawn", "cartpole", False, False, 0.0),
        ("masked", "recurrent", True, True, 0.0),
        ("masked, drawn, from garbage", "recurrent", True, False, 9.0),
        ("unmasked", "recurrent", False, True, 0.0),
    ):
        policy = experiments.load_policy(trained(run).folder, seed=1)
        platforms = {} if name == "masked" else {"platforms": ["cpu"]}
        experiments.export_policy(policy, tmp_path / name, n, action_mask=masked, greedy=greedy, **platforms)
        memory, actions = policy.init_memory(n), []
        seen = [observations(policy.observation_space, t, n) for t in range(steps)]
        mask = [masks(t, n) if masked else None for t in range(steps)]
        for t in range(steps):
            memory, action = policy(seen[t], memory, jax.random.key(t), is_first[t], mask[t], greedy)
            actions.append(action)
        expected[name] = np.stack(actions), jax.tree.leaves(memory)
        given = {f"observation{i}": leaf for i, leaf in enumerate(jax.tree.leaves(stack(seen)))}
        given |= {"mask": stack(mask)} if masked else {}
        np.savez(tmp_path / f"{name}.npz", is_first=is_first, start=start, **given)
    command = [sys.executable, "-I", "-c", WITHOUT_ROLLAX, *expected]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (child.stdout, child.returncode) == ("no rollax\n", 0), child.stderr
    for name, (acted, memory) in expected.items():
        found = np.load(tmp_path / f"{name}.out.npz")
        np.testing.assert_array_equal(found["action"], acted, err_msg=name)
        assert len(found) == 1 + len(memory)
        for i, leaf in enumerate(memory):
            np.testing.assert_allclose(found[f"memory{i}"], leaf, rtol=1e-6, atol=1e-6, err_msg=name)


def test_exporting_refuses(cartpole: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = experiments.load_policy(cartpole.folder)
    box = dataclasses.replace(policy, action_space=spaces.Box(-1.0, 1.0))
    with pytest.raises(InputError, match=r"action_mask = True needs a Discrete action space, not Box"):
        experiments.export_policy(box, tmp_path / "policy", action_mask=True)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)  # it may be imported already
    monkeypatch.delattr(sys.modules["jax._src.export"], "serialization", raising=False)
    with pytest.raises(InputError, match=r"flatbuffers: pip install rollax\[export\]"):
        experiments.export_policy(policy, tmp_path / "policy", platforms=["cpu"])
    assert list(tmp_path.iterdir()) == []


def test_a_run_starts_from_the_agents_of_another_one(
    cartpole: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")  # the command line leaves them as they are
    out = tmp_path / "new"
    arguments = ["train", str(cartpole.folder / "config.toml"), "--init-from", str(cartpole.folder), "--quiet"]
    arguments += ["--seeds", str(SEEDS + 1), "--out", str(out)]
    assert cli.main([*arguments, "--set", "train.total_env_steps=64", "agent.learning_rate=1e-30"]) == 0
    assert json.loads((out / "summary.json").read_text())["init_from"] == str(cartpole.folder)
    old = cartpole.result.state.agent
    for seed in range(SEEDS + 1):
        new, source = experiments.load_policy(out, seed).state, take(old, seed % SEEDS)
        assert not differences(new.params, source.params)  # it learnt nothing
        assert (int(new.updates), int(new.env_steps)) == (1, 64)
        assert new.observation_statistics.count == source.observation_statistics.count + 64 == 512 + 64


def test_only_parameters_and_statistics_are_taken(cartpole: SimpleNamespace) -> None:
    trainer = experiments.make_trainer(cartpole.config)
    keys = jax.random.split(jax.random.key(KEY), 4)
    state = jax.jit(jax.vmap(trainer.init, out_axes=experiments.axes()))(keys)
    fresh = saving.Saved(state, jax.vmap(saving.no_best)(state.agent))
    agents = saving.agents_of(cartpole.folder, trainer, 4)
    started = saving.initialised(fresh, agents)
    source = take(cartpole.result.state.agent, np.arange(4) % SEEDS)
    taken = {name: getattr(source, name) for name in ("params", "observation_statistics")}
    assert not differences(started.state, dataclasses.replace(state, agent=dataclasses.replace(state.agent, **taken)))
    assert not differences(started.best, fresh.best)
    assert differences(state.agent.opt_state, source.opt_state)


def test_the_parameters_of_critics_are_taken_too() -> None:
    overrides = ["agent.hidden_sizes=[4]", "agent.batch_norm=true", "replay.capacity=64", "replay.min_size=0"]
    trainer = experiments.make_trainer(experiments.load("sac_pendulum", overrides))
    start = jax.jit(jax.vmap(trainer.init, out_axes=experiments.axes()))
    state, other = (start(jax.random.split(jax.random.key(seed), 2)) for seed in (0, 1))
    other = jax.tree.map(lambda leaf: leaf + 1, other.agent)
    started = saving.initialised(saving.Saved(state, jax.vmap(saving.no_best)(state.agent)), other).state.agent
    assert not differences(started.critics.params, other.critics.params)
    assert not differences(started.critics.statistics, other.critics.statistics)
    assert not differences(started.critics.opt_state, state.agent.critics.opt_state)
    assert not differences(started.params, other.params)
    assert int(started.updates[0]) == 0


def test_a_run_that_others_cannot_start_from(cartpole: SimpleNamespace, copied: Path, tmp_path: Path) -> None:
    def start(folder: Path, **settings: Any) -> None:
        config = from_dict({**TABLES["cartpole"], "agent": {**TABLES["cartpole"]["agent"], **settings}})
        experiments.run(config, out=tmp_path / "out", init_from=folder)

    with pytest.raises(InputError, match=r"does not fit: .* is float32\[3, .*8\] in it and float32\[3, .*16\] is"):
        start(cartpole.folder, hidden_sizes=[16])
    with pytest.raises(InputError, match="does not exist"):
        start(tmp_path / "nothing")
    (copied / "summary.json").unlink()
    with pytest.raises(InputError, match="its run has not finished"):
        start(copied)
    assert not (tmp_path / "out").exists()
