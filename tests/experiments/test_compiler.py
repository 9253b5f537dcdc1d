"""`[compiler]`: options of XLA and the precision of products reach the programs of a run; wrong ones are sentences."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from tests.contract.jobs import BEACON, ROLLOUT_AGENT, make_config

from rollax import experiments
from rollax.errors import InputError
from rollax.experiments import compiler
from rollax.experiments.config import CompilerConfig, from_dict, to_toml

PRODUCT = jax.jit(lambda x: x @ x)
X = jnp.ones((2, 2))


@pytest.mark.parametrize(("precision", "written"), [("default", "HIGHEST"), ("high", "HIGH"), ("highest", "HIGHEST")])
def test_products_have_the_precision_and_the_users_own_where_none_is_set(
    precision: Any, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[str] = []
    monkeypatch.setattr(
        compiler, "_compile", lambda function, arguments, _: programs.append(function.lower(*arguments).as_text())
    )
    with jax.default_matmul_precision("highest"):
        compiler.compiled(CompilerConfig(precision), PRODUCT, X)
    assert f"precision = [{written}, {written}]" in programs[0]


def test_options_reach_every_program_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"xla_backend_optimization_level": 0, "xla_cpu_enable_fast_math": False}
    seen: list[dict[str, Any]] = []
    compile_with = compiler._compile

    def compile_and_note(function: Any, arguments: Any, options: Any) -> Any:
        seen.append(dict(options))
        return compile_with(function, arguments, options)

    monkeypatch.setattr(compiler, "_compile", compile_and_note)
    config = make_config(ROLLOUT_AGENT, BEACON, 2, 2, iterations=1)
    result = experiments.run(dataclasses.replace(config, compiler=CompilerConfig(options=options)))
    assert result.summary["failed_seeds"] == []
    checked, programs = seen[:2], seen[2:]
    assert checked == [{name: value} for name, value in options.items()]
    assert programs == [options] * 4  # the chunk, two evaluations and the choice of the best


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("xla_nope", 1, "No such compile option"),
        ("xla_backend_optimization_level", "fast", "not a valid int32 value"),
    ],
)
def test_a_wrong_option_is_a_sentence_before_anything_is_compiled(
    name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "compiled", lambda *_: pytest.fail("it was compiled"))
    config = make_config(ROLLOUT_AGENT, BEACON, 2, 2, iterations=1)
    config = dataclasses.replace(config, compiler=CompilerConfig(options={name: value}))
    with pytest.raises(InputError, match=rf"compiler\.{name} = .* is refused by XLA \(.*{reason}.*\): give an"):
        experiments.run(config)


def test_the_table_is_read_from_a_file_and_written_to_one() -> None:
    table = {"matmul_precision": "highest", "xla_gpu_autotune_level": 0}
    read = from_dict({"env": {"id": "CartPole-v1"}, "compiler": table})
    assert read.compiler == CompilerConfig("highest", {"xla_gpu_autotune_level": 0})
    assert to_toml(read).count("xla_gpu_autotune_level = 0") == 1


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("matmul_precison", "high", r"is no key of \[compiler\].*did you mean 'matmul_precision'"),
        ("--xla_gpu_autotune_level", 1, r"is no key of \[compiler\].*begins with xla_"),
        ("xla_gpu_autotune_level", [1], "must be true or false, a number or a string"),
        ("xla_gpu_autotune_level", {"a": 1}, "must be true or false, a number or a string"),
    ],
)
def test_what_is_no_option_is_told_by_the_config(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_dict({"env": {"id": "CartPole-v1"}, "compiler": {name: value}})


def test_a_sweep_with_a_wrong_option_leaves_its_folder_alone(tmp_path: Path) -> None:
    config = make_config(ROLLOUT_AGENT, BEACON, 2, 2, iterations=1)
    config = dataclasses.replace(
        config,
        compiler=CompilerConfig(options={"xla_nope": 1}),
        sweep=experiments.SweepConfig(parameters={"agent.learning_rate": [0.1, 0.2]}),
    )
    with pytest.raises(InputError, match=r"compiler\.xla_nope"):
        experiments.sweep(config, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()
