"""`rollax table`: trains configs one after another, the cheapest first, and writes a page of what they scored.

The page is made from the run folders alone. A finished run is kept and an interrupted one goes on, so a table grows
over as many calls as it takes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments import files, run_folder, runner, score_page
from rollax.experiments.config import ExperimentConfig
from rollax.experiments.results import number
from rollax.experiments.saving import agents_like
from rollax.experiments.trainer import Trainer, make_trainer
from rollax.importing import is_import_path


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one config."""

    name: str
    summary: Mapping[str, Any] | None  # as in summary.json; None if there is none
    reason: str = ""  # why there is none

    def __str__(self) -> str:
        if self.summary is None:
            return f"{self.name}: {self.reason}"
        score, low, high = (number(value) for value in (self.summary["iqm"], *self.summary["interval"]))
        return f"{self.name}: IQM {score} [{low}, {high}]"


def run_table(
    sources: Sequence[str | Path] = (),
    *,
    seeds: int = 10,
    out: str | Path = "runs/table",
    docs: str | Path = "docs/scores.md",
    minutes: float = math.inf,
    progress: bool = False,
) -> Iterator[Outcome]:
    """Trains configs that have no finished run yet, and writes the page after each.

    Args:
        sources: Names of shipped configs or paths of TOML files; none: all shipped configs.
        seeds: Of each run.
        out: The folder of the run folders, each named as its config.
        docs: The page to write, from every finished run in `out`.
        minutes: After this time no further config is begun; the one that is being trained then goes on to its end.
        progress: As of `run`.

    Yields:
        The outcome of each config: what can't be built here (a suite that isn't installed) at first, then the rest in
        the order of training.

    Raises:
        InputError: A config can't be read, or a folder holds a run of another config or number of seeds.
        KeyboardInterrupt: As of `run`; the next call goes on with the run.
        OSError: A file can't be written.
    """
    folder, page = Path(out), Path(docs)
    if not page.parent.is_dir():
        raise InputError(f"--docs {str(docs)!r} is in no folder that exists: make {str(page.parent)!r} first.")
    files.require_file(page, "--docs")
    files.require_folder(folder, "--out")
    started = time.monotonic()
    if not minutes >= 0:
        raise InputError(f"minutes = {minutes} is no time: give 0 or more.")
    if not 1 <= seeds <= run_folder.MAX_SEEDS:
        raise InputError(f"seeds = {seeds} must be between 1 and {run_folder.MAX_SEEDS}.")
    chosen = [configs.load(source) for source in sources or configs.shipped()]
    if twice := [name for name, count in Counter(config.name for config in chosen).items() if count > 1]:
        raise InputError(f"two configs have the name {twice[0]!r}, and so one folder: leave one out, or rename it.")
    order, missing = _plan(chosen)
    for config in order:
        _check_run(folder / config.name, config, seeds)
    outcomes = {outcome.name: outcome for outcome in missing}

    def write_page() -> None:
        waiting = {config.name: _waiting(folder / config.name) for config in order if config.name not in outcomes}
        reasons = {name: outcome.reason for name, outcome in outcomes.items() if outcome.summary is None}
        files.replace_file(page, score_page.page(folder, {**reasons, **waiting}).encode())

    write_page()
    yield from missing
    for config in order:
        if (folder / config.name / "summary.json").exists() or time.monotonic() - started < 60 * minutes:
            outcome = _train(config, seeds, folder / config.name, progress)
        else:
            outcome = Outcome(config.name, None, f"{_waiting(folder / config.name)}: the time was over")
        outcomes[config.name] = outcome
        write_page()
        yield outcome


def cost(trainer: Trainer) -> float:
    """Returns about how much work a run is: the size of the agent's state times the rows it acts on and learns from.

    It compares configs, and has no unit; what an environment costs is left out.
    """
    config, replay = trainer.config, trainer.config.replay
    train = config.train
    if replay is None:
        learnt = train.total_env_steps * train.updates_per_iteration * getattr(config.agent, "num_epochs", 1)
    else:
        rows = replay.batch_size * (replay.length if replay.samples == "sequences" else replay.n_step)
        iterations = -(-train.total_env_steps // (train.num_envs * train.num_steps))
        learnt = iterations * train.updates_per_iteration * rows
    learnt *= getattr(config.agent, "num_samples", 1)  # MPO evaluates so many actions in each row
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(agents_like(trainer, 1)))
    return float(size * (train.total_env_steps + learnt))


def _plan(chosen: Sequence[ExperimentConfig]) -> tuple[list[ExperimentConfig], list[Outcome]]:
    """Returns the configs in the order of training, MinAtar and suites last, and the outcomes of the others."""
    costs: dict[str, tuple[bool, float]] = {}
    missing = []
    for config in chosen:
        try:
            trainer = make_trainer(config)
        except InputError as error:
            missing.append(Outcome(config.name, None, str(error)))
        else:
            env = str(config.env.id)
            suite = "/" in env and not is_import_path(env)
            costs[config.name] = (suite or env.endswith("-MinAtar"), cost(trainer))
    by_name = {config.name: config for config in chosen}
    return [by_name[name] for name in sorted(costs, key=costs.__getitem__)], missing


def _check_run(path: Path, config: ExperimentConfig, seeds: int) -> None:
    """Raises InputError if there is a run in a folder, and it is another one than would be trained."""
    run = run_folder.RunFolder(path)
    if run.config_path.exists():
        difference = ""
        if run.config_path.read_text(encoding="utf-8") != configs.to_toml(config):
            difference = "another config"
        elif (held := run.read_manifest()["seeds"]) != seeds:
            difference = f"{held} seeds in place of {seeds}"
        if difference:
            raise InputError(f"run {str(path)!r} is one of {difference}: move it away, or choose another --out.")


def _waiting(path: Path) -> str:
    return "interrupted" if run_folder.RunFolder(path).config_path.exists() else "not begun"


def _train(config: ExperimentConfig, seeds: int, path: Path, progress: bool) -> Outcome:
    """Trains a config, or goes on with it, unless it is finished."""
    run = run_folder.RunFolder(path)
    if not run.summary_path.exists():
        try:
            if run.config_path.exists():
                runner.resume(path, progress=progress)
            else:
                runner.run(config, seeds, out=path, overwrite=True, progress=progress)
        except InputError as error:
            return Outcome(config.name, None, str(error))
        jax.clear_caches()  # the programs of one config are of no use to the next
    return Outcome(config.name, run.read_summary())
