"""Checkpoints: every bit comes back, or a sentence says why not; and runs that are interrupted and resumed."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from tests.marks import thorough
from tests.runs import interrupt_at

from rollax import InputError, experiments, replay
from rollax.experiments import checkpoint, cli, run_folder, saving
from rollax.experiments import config as configs

# Trees.


def tree() -> dict[str, Any]:
    params = {"w": jnp.array([[1.5, -0.0], [np.nan, 1e-40]]), "empty": jnp.zeros((0, 3)), "none": None, "unit": ()}
    return {
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(1, impl="philox4x32"), 2),
        "params": params,
        "opt_state": optax.adam(1e-3).init(params["w"]),
        "half": jnp.array([1.1, 2.2], jnp.bfloat16),
        "bytes": jnp.array([0, 255], jnp.uint8),
        "flag": jnp.array(True),
        "count": jnp.array(2**31 - 1, jnp.int32),
    }


def bits(value: Any) -> list[tuple[Any, bytes]]:
    def data(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return [(leaf.dtype, data(leaf).tobytes()) for leaf in jax.tree.leaves(value)]


@pytest.mark.parametrize("shapes", [False, True], ids=["like arrays", "like shapes"])
def test_every_bit_comes_back(shapes: bool, tmp_path: Path) -> None:
    saved = tree()
    experiments.save(tmp_path / "a", saved)
    like = jax.eval_shape(tree) if shapes else tree()
    restored = experiments.restore(tmp_path / "a", like)
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    assert bits(restored) == bits(saved)
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(restored))


def test_arrays_come_back_to_where_those_of_like_are(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("seeds",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds"))
    saved = jax.device_put(jnp.arange(4.0), sharding)
    experiments.save(tmp_path / "a", saved)
    assert experiments.restore(tmp_path / "a", saved).sharding == sharding
    assert len(experiments.restore(tmp_path / "a", jax.ShapeDtypeStruct((4,), jnp.float32)).devices()) == 1


def test_the_manifest_names_format_versions_and_leaves(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a", {"x": jnp.zeros((2, 3)), "key": jax.random.key(0)}, {"note": [1, "b"]})
    manifest = checkpoint.read_manifest(tmp_path / "a")
    assert manifest["format"] == checkpoint.FORMAT
    assert manifest["versions"] == checkpoint.versions()
    assert manifest["versions"].keys() >= {"rollax", "python", "jax", "jaxlib"}
    assert manifest["tree"] == [["['key']", [], "key<fry>"], ["['x']", [2, 3], "float32"]]
    assert manifest["note"] == [1, "b"]


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"x": np.zeros((3, 2), np.float32), "key": "key"}, r"\['x'\] is float32\[2, 3\] in it and float32\[3, 2\]"),
        ({"x": np.zeros((2, 3), np.int32), "key": "key"}, r"\['x'\] is float32\[2, 3\] in it and int32\[2, 3\]"),
        ({"y": np.zeros((2, 3), np.float32), "key": "key"}, r"it holds \['x'\] where \['y'\] is wanted"),
        ({"x": np.zeros((2, 3), np.float32), "key": "philox4x32"}, r"keys are key<fry> .*set jax_default_prng_impl"),
        (
            {"x": np.zeros((2, 3), np.float32), "key": "key", "z": np.zeros(1, np.float32)},
            r"it holds 2 arrays and 3 are wanted",
        ),
        ({"key": "key"}, r"it holds 2 arrays and 1 are wanted"),
    ],
)
def test_another_tree_is_refused_with_its_first_difference(like: dict[str, Any], message: str, tmp_path: Path) -> None:
    experiments.save(tmp_path / "a", {"x": jnp.zeros((2, 3)), "key": jax.random.key(0)})
    kind = None if like["key"] == "key" else like["key"]
    with pytest.raises(InputError, match=message):
        experiments.restore(tmp_path / "a", {**like, "key": jax.random.key(0, impl=kind)})


def test_what_cannot_be_saved_or_read(tmp_path: Path) -> None:
    experiments.save(tmp_path / "a", {"x": jnp.zeros(2)})
    with pytest.raises(InputError, match=r"checkpoint .*a' exists: save under another name"):
        experiments.save(tmp_path / "a", {"x": jnp.zeros(2)})
    with pytest.raises(InputError, match=r"there is no checkpoint .*none'"):
        experiments.restore(tmp_path / "none", {"x": jnp.zeros(2)})
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"checkpoint .*folder' cannot be read"):
        experiments.restore(tmp_path / "folder", {"x": jnp.zeros(2)})
    buffer = replay.uniform(8, 1, storage="ref")
    with pytest.raises(InputError, match=r"is a jax\.Ref: freeze the replay buffer before saving"):
        experiments.save(tmp_path / "b", buffer.thaw(buffer.init({"x": jnp.zeros(2)})))
    assert not (tmp_path / "b").exists()


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments.save(tmp_path / "a", {"x": jnp.zeros(2)})
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(
        InputError, match=rf"has format {checkpoint.FORMAT - 1} .* reads {checkpoint.FORMAT}: use the ver"
    ):
        experiments.restore(tmp_path / "a", {"x": jnp.zeros(2)})


def damage(folder: Path) -> list[Path]:
    """Every file of a checkpoint that has something to lose, largest first."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 200]
    return sorted(files, key=lambda path: -path.stat().st_size)


def test_a_truncated_file_is_a_sentence(tmp_path: Path) -> None:
    experiments.save(tmp_path / "a", {"x": jax.random.normal(jax.random.key(0), (100, 100))})
    largest = damage(tmp_path / "a")[0]
    assert largest.stat().st_size > 10_000
    largest.write_bytes(largest.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"checkpoint .*a' cannot be read .*restore its files; or, to resume"):
        experiments.restore(tmp_path / "a", {"x": jnp.zeros((100, 100))})


# The checkpoints of a run.


def test_the_newest_few_are_kept_and_the_arrays_may_be_donated(tmp_path: Path) -> None:
    checkpoints = checkpoint.Checkpoints(tmp_path / "c", keep=2)
    double = jax.jit(lambda x: 2 * x, donate_argnums=0)
    x = jnp.ones(100_000)
    for number in range(1, 5):
        checkpoints.save(number, {"x": x}, {})
        x = double(x)
    checkpoints.close()
    assert checkpoint.numbers(tmp_path / "c") == [3, 4]
    for number in (3, 4):
        restored = experiments.restore(tmp_path / "c" / str(number), {"x": x})
        np.testing.assert_array_equal(restored["x"], 2.0 ** (number - 1))


def test_a_full_disk_is_a_sentence_and_the_checkpoint_before_is_intact(tmp_path: Path) -> None:
    # A limit on the size of files: what a full disk does, in a process of its own.
    script = f"""
import resource, signal, sys
import jax.numpy as jnp
from pathlib import Path
from rollax.experiments import checkpoint
folder = Path({str(tmp_path)!r}) / "c"
checkpoints = checkpoint.Checkpoints(folder, keep=1)
checkpoints.save(1, {{"x": jnp.arange(10.0)}}, {{}})
checkpoints.wait()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    checkpoints.save(2, {{"x": jnp.sin(jnp.arange(1e6))}}, {{}})
    checkpoints.wait()
except OSError as error:
    print(error)
    sys.exit(7)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 7, ran.stderr
    assert "could not be written" in ran.stdout
    assert "those before it are as they were" in ran.stdout
    assert checkpoint.numbers(tmp_path / "c") == [1]
    np.testing.assert_array_equal(experiments.restore(tmp_path / "c" / "1", {"x": jnp.zeros(10)})["x"], np.arange(10.0))


# Runs.

TABLES = {
    "name": "small",
    "env": {"id": "CartPole-v1"},
    "train": {"total_env_steps": 640, "num_envs": 2, "num_steps": 16},
    "agent": {"hidden_sizes": [4], "num_epochs": 1, "num_minibatches": 1, "normalise_observation": True},
    "evaluation": {"every": 64, "episodes": 4, "step_cap": 50},
    "log": {"every": 32},
    "checkpoint": {"every": 64, "keep": 2},
}
SEEDS = 2


@functools.cache
def config() -> experiments.ExperimentConfig:
    return configs.from_dict(TABLES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> experiments.Result:
    return experiments.run(config(), seeds=SEEDS, out=tmp_path_factory.mktemp("runs") / "whole")


def interrupt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, after: int = 7, init_from: Path | None = None, **changes: Any
) -> None:
    """Begins a run and interrupts it while its chunk number `after` is logged."""
    with monkeypatch.context() as patch:
        interrupt_at(after, patch)
        changed = dataclasses.replace(config(), **changes)
        with pytest.raises(
            KeyboardInterrupt, match=r"stopped after .* steps of each seed; go on with: rollax train --r"
        ):
            experiments.run(changed, seeds=SEEDS, out=folder, init_from=init_from)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("config.toml", "metrics.csv", "evaluations.csv")}


@pytest.mark.parametrize("after", [7, *thorough(1, 18)])
def test_an_interrupted_run_goes_on_to_the_bits_of_an_uninterrupted_one(
    after: int, whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path / "run", monkeypatch, after)
    assert not (tmp_path / "run" / "summary.json").exists()
    result = experiments.resume(tmp_path / "run")
    assert whole.folder is not None
    assert files(tmp_path / "run") == files(whole.folder)
    assert jax.tree.structure(result.state) == jax.tree.structure(whole.state)
    assert bits((result.state, result.best)) == bits((whole.state, whole.best))
    assert result.evaluations == whole.evaluations
    for name in ("iqm", "interval", "iqm_sampled", "best", "env_steps", "seeds", "failed_seeds"):
        assert result.summary[name] == whole.summary[name]
    with pytest.raises(InputError, match=r"is finished: there is nothing to resume"):
        experiments.resume(tmp_path / "run")


def test_rows_after_the_checkpoint_come_once(
    whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path / "run", monkeypatch, 9)
    newest = checkpoint.numbers(tmp_path / "run" / "checkpoints")[-1]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / str(newest))  # as if it had been killed before that one
    experiments.resume(tmp_path / "run")
    assert whole.folder is not None
    assert files(tmp_path / "run") == files(whole.folder)


def test_a_run_without_a_checkpoint_starts_again(
    whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path / "run", monkeypatch)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    experiments.resume(tmp_path / "run")
    assert whole.folder is not None
    assert files(tmp_path / "run") == files(whole.folder)


@pytest.mark.thorough
def test_a_fine_tuned_run_without_a_checkpoint_starts_again_from_the_other_run(
    whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = experiments.run(config(), seeds=SEEDS, out=tmp_path / "whole", init_from=whole.folder)
    interrupt(tmp_path / "run", monkeypatch, init_from=whole.folder)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    result = experiments.resume(tmp_path / "run")
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    assert result.summary["init_from"] == expected.summary["init_from"] == str(whole.folder)


def test_a_run_that_another_process_trains_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: experiments.Result
) -> None:
    interrupt(tmp_path / "run", monkeypatch)
    with run_folder.RunFolder(tmp_path / "run").locked():
        with pytest.raises(InputError, match=r"is being trained by another process"):
            experiments.resume(tmp_path / "run")
        with pytest.raises(InputError, match=r"is being trained by another process"):
            experiments.run(config(), seeds=SEEDS, out=tmp_path / "run", overwrite=True)
    experiments.resume(tmp_path / "run")


def test_a_run_is_replaced_only_when_the_new_one_begins(
    whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole.folder is not None
    shutil.copytree(whole.folder, tmp_path / "run")
    with pytest.raises(InputError, match=r"is the run that --init-from starts from"):
        experiments.run(config(), out=tmp_path / "run", overwrite=True, init_from=tmp_path / "run")
    monkeypatch.setattr(saving, "no_best", lambda agent: 1 / 0)  # as an agent that fails when it is traced
    with pytest.raises(ZeroDivisionError):
        experiments.run(config(), out=tmp_path / "run", overwrite=True)
    assert files(tmp_path / "run") == files(whole.folder)
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_checkpoint_of_another_run_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(tmp_path / "run", monkeypatch)
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seeds": 2', '"seeds": 3'))
    with pytest.raises(InputError, match=r"is not one of this run .*2 seeds of 3"):
        experiments.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"a": 1.0}, r"\['a'\] is float, not an array"),
        ({"a": np.zeros(2)}, r"\['a'\] is float64, which JAX does not hold here"),
        ({"a": np.array(["x"])}, r"\['a'\] is <U1, which JAX does not hold here"),
        ({}, "there is nothing to save or restore"),
    ],
)
def test_what_is_no_tree_of_arrays(saved: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        experiments.save(tmp_path / "a", saved)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_interrupts_and_resumes(
    whole: experiments.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(tmp_path / "run", monkeypatch)
    assert "ending after this chunk and a checkpoint" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert "greedy return IQM" in capsys.readouterr().out
    assert whole.folder is not None
    assert files(tmp_path / "run") == files(whole.folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "3"], "so --seeds can't be given with it"),
        (["ppo_cartpole", "--set", "train.seed=1", "--overwrite"], "so CONFIG, --overwrite, --set can't be given"),
    ],
)
def test_a_resumed_run_takes_no_other_settings(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--resume", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_is_none_or_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not exist"):
        experiments.resume(tmp_path / "none")
    interrupt(tmp_path / "run", monkeypatch)
    path = tmp_path / "run" / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("hidden_sizes = [4]", "hidden_sizes = [5]"))
    with pytest.raises(
        InputError, match=r"checkpoint .* does not fit: .*params.* in it and .* is wanted; give the config"
    ):
        experiments.resume(tmp_path / "run")
    path.write_text(text)
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text("{}")
    with pytest.raises(
        InputError, match=r"manifest\.json' is not the manifest of a run \(it names no number of seeds\)"
    ):
        experiments.resume(tmp_path / "run")


def test_other_versions_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        now = checkpoint.versions()
        patch.setattr(checkpoint, "versions", lambda: {**now, "jax": "0.0.1"})
        interrupt(tmp_path / "run", monkeypatch)
    with pytest.warns(
        UserWarning, match=r"written with jax 0\.0\.1 \(now .*\): what follows may differ in the last bits"
    ):
        experiments.resume(tmp_path / "run")


def test_a_checkpoint_of_another_number_of_devices_is_taken(whole: experiments.Result, tmp_path: Path) -> None:
    # Three seeds were four on two devices; on one they are three.
    trainer = experiments.make_trainer(config())
    axes = experiments.axes()
    states = jax.jit(jax.vmap(trainer.init, out_axes=axes))(jax.random.split(jax.random.key(0), 4))
    best = jax.vmap(saving.no_best)(states.agent)
    checkpoint.save(
        tmp_path / "1", saving.Saved(states, best), {"seconds": 1.0, "seeds": 3, "padded": 4, "replay": True}
    )
    like = jax.jit(jax.vmap(trainer.init, out_axes=axes))(jax.random.split(jax.random.key(1), 3))
    start = saving.Saved(like, jax.vmap(saving.no_best)(like.agent))
    with pytest.warns(UserWarning, match="goes on with another number of devices"):
        restored = saving.restored(tmp_path / "1", checkpoint.read_manifest(tmp_path / "1"), 3, start)
    expected = jax.tree.map(lambda leaf: leaf[:3], dataclasses.replace(states, clock=()))
    assert bits(dataclasses.replace(restored.state, clock=())) == bits(expected)


def test_a_run_that_cannot_write_its_checkpoint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ocp.AsyncCheckpointer, "save", fail)
    path = tmp_path / "small.toml"
    path.write_text(configs.to_toml(config()))
    assert cli.main(["train", str(path), "--quiet", "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "could not be written" in error
    assert "No space left on device" in error
    assert (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.thorough
def test_replay_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys = Path(__file__).parents[1] / "contract" / "toys"
    tables = {
        **TABLES,
        "env": {"id": f"{toys}/environment.py:Beacon"},
        "train": {**TABLES["train"], "agent": f"{toys}/transition_agent.py:make"},
        "agent": {},
        "replay": {"capacity": 256, "batch_size": 8, "kind": "prioritised", "storage": "ref"},
    }
    sizes = []
    for saved in (True, False):
        changed = configs.from_dict({**tables, "checkpoint": {"every": 64, "replay": saved}})
        fields = {field.name: getattr(changed, field.name) for field in dataclasses.fields(changed)}
        folder = tmp_path / str(saved)
        interrupt(folder, monkeypatch, **fields)
        newest = folder / "checkpoints" / str(checkpoint.numbers(folder / "checkpoints")[-1])
        manifest = checkpoint.read_manifest(newest)
        assert manifest["replay"] is saved
        sizes.append(sum(".replay" in path for path, _, _ in manifest["tree"]))
        result = experiments.resume(folder)
        assert np.all(np.isfinite([row["return_mean"] for row in result.evaluations]))
    assert sizes[0] > 0
    assert sizes[1] == 0


@pytest.mark.thorough
def test_the_summary_says_where_a_seed_failed(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(
        """
import dataclasses
import jax.numpy as jnp
from rollax.agents import ppo


def make(observation_space, action_space, config: ppo.Config):
    agent = ppo.make(observation_space, action_space, config)

    def update(state, batch, key):
        state, report = agent.update(state, batch, key)
        bias = state.hyperparameters["discount"] + jnp.where(state.updates == 3, jnp.nan, 0.0)
        return dataclasses.replace(state, hyperparameters={**state.hyperparameters, "discount": bias}), report

    return dataclasses.replace(agent, update=update)
"""
    )
    train = dataclasses.replace(config().train, agent=f"{agent}:make")
    result = experiments.run(dataclasses.replace(config(), train=train), seeds=SEEDS, out=tmp_path / "run")
    assert result.summary["failed_seeds"] == [0, 1]
    assert result.summary["failed_at"] == [3 * 32, 3 * 32]
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert written["failed_at"] == [96, 96]
