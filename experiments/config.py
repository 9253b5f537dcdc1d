"""Experiment configs: typed, frozen dataclasses, read from TOML files and written back to them.

A config has one table for each part of an experiment: `[env]`, `[train]`, `[agent]`, `[replay]`, `[evaluation]`,
`[log]`, `[checkpoint]`, `[compiler]` and `[sweep]`. Every value is checked before anything is traced or compiled. Steps
of the environment are counted per seed, over all of its parallel environments.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rollax.errors import InputError, nearest
from rollax.experiments import sweep_config
from rollax.experiments.sweep_config import SweepConfig
from rollax.experiments.tables import REST, build, convert, dotted, show, to_table, write

_INT32_MAX = 2**31 - 1
"""What JAX's counters, shapes and seeds hold."""


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """`[env]`: what `rollax.envs.make(id, **kwargs)` builds."""

    # An id of `rollax list envs`; "FILE.py:NAME" or "package.module:NAME", where NAME is an environment, its class or
    # a function that returns one; from Python also an environment object.
    id: str | Any
    # Every other key of the table: `transforms`, a list with the innermost first (`rollax config transforms`);
    # overrides of the environment's params, and arguments of its constructor.
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata=REST)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """`[train]`: which agent learns, for how long, and from how much experience at a time."""

    # A name of `rollax list agents`; "FILE.py:make" or "package.module:make"; from Python also a `make` function.
    agent: str | Callable[..., Any] = "ppo"
    total_env_steps: int = 500_000  # budget in environment steps per seed, rounded up to whole iterations
    num_envs: int = 4  # N, parallel environments per seed
    num_steps: int = 128  # T, environment steps of each parallel environment per iteration
    updates_per_iteration: int = 1  # calls of `agent.update` per iteration
    unroll: int = 2  # steps of the rollout's scan per loop turn: changes the speed, and results only by rounding
    seed: int = 0  # the root seed; seed i of a job is folded into it
    # What `rollax train` spreads over the devices: the seeds of the job; or the environments of every seed, for one big
    # run: each device steps its share of them, and gradients are averaged. Results differ only by rounding.
    spread: Literal["seeds", "environments"] = "seeds"
    # How many of its seeds a device trains at once, at most: equal groups of them follow each other, which changes the
    # speed, the memory that activations take, and results only by rounding. 0: all.
    seeds_at_once: int = 0


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """`[replay]`: the buffer of an agent that learns from stored transitions."""

    capacity: int  # rows (environment steps) over all parallel environments of a seed, a multiple of `num_envs`
    batch_size: int  # B, samples per update
    kind: Literal["uniform", "prioritised", "sequence"] = "uniform"  # how samples are drawn
    n_step: int = 1  # successive rows per sample; not of kind "sequence"
    # L, successive rows per sample of kind "sequence"; above 1, those of kind "prioritised" are such sequences too.
    length: int = 1
    cross_episodes: bool = False  # whether a sample of sequences goes on behind the end of an episode
    min_size: int = 0  # rows over all parallel environments of a seed that are stored before anything is learnt
    storage: Literal["array", "ref"] = "array"  # what rows are kept in; the samples are the same

    @property
    def samples(self) -> Literal["transitions", "sequences"]:
        """What a sample is, as an agent's `consumes` names it."""
        sequences = self.kind == "sequence" or (self.kind == "prioritised" and self.length > 1)
        return "sequences" if sequences else "transitions"


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """`[evaluation]`: how often and how long the learned policy is tried out, apart from training."""

    every: int = 0  # environment steps per seed from one evaluation to the next; 0: a twentieth of the budget
    episodes: int = 128  # episodes per seed and evaluation
    env: EnvConfig | None = None  # the environment to evaluate in; None: the training environment
    step_cap: int = 0  # steps after which an unfinished episode is given up; 0: the environment's own limit


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """`[log]`: how often training is logged, and where to beside the CSV files of the run's folder."""

    every: int = 0  # environment steps per seed from one row of metrics.csv to the next; 0: as often as evaluations
    tensorboard: bool = False  # whether event files are written too, to the folder `tensorboard` of the run
    wandb: Literal["off", "offline", "online"] = "off"  # whether Weights & Biases gets the rows too, later or at once
    wandb_project: str = "rollax"  # the project there
    wandb_entity: str = ""  # the user or team there; "": the one that is logged in


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """`[checkpoint]`: how often the whole state of a run is saved, to resume it from."""

    every: int = 0  # environment steps per seed from one checkpoint to the next; 0: about a minute
    keep: int = 1  # how many of the newest are kept
    replay: bool = True  # whether the replay buffer is saved too; if not, a resumed run starts with an empty one


@dataclasses.dataclass(frozen=True)
class CompilerConfig:
    """`[compiler]`: how XLA compiles a run's training and evaluations. Nothing is set that is not written here."""

    # In what numbers float32 matrices are multiplied. "default" leaves it to the device: a CPU keeps float32, a recent
    # GPU rounds to TF32 (10 bits after the point), a TPU to bfloat16 (7 bits). "highest" is float32 on each.
    matmul_precision: Literal["default", "high", "highest"] = "default"
    # Every other key of the table: an option of XLA, named as in XLA_FLAGS without the dashes.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata=REST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """A whole experiment."""

    name: str = ""  # names the run's folder and figures; `load` sets the file's name where the file sets none
    env: EnvConfig
    train: TrainConfig = TrainConfig()
    agent: Any  # an instance of the agent's own Config dataclass
    replay: ReplayConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    log: LogConfig = LogConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    compiler: CompilerConfig = CompilerConfig()
    sweep: SweepConfig | None = None  # what `rollax sweep` tries; a plain run leaves it out


def load(source: str | Path, overrides: Sequence[str] = (), agent: str | None = None) -> ExperimentConfig:
    """Loads a config.

    Args:
        source: The name of a shipped config (`rollax list configs`) or the path of a TOML file.
        overrides: `"table.key=value"` each, applied in order; the value is TOML, or a string without its quotes.
        agent: Takes the place of `train.agent`. Where that names another agent, here or through `overrides`, the
            file's `[agent]` table is set aside, as it was written for the agent of the file: the new one starts from
            the defaults of its own Config, and `agent.*` among the overrides applies to it.

    Raises:
        InputError: The file cannot be read or is no TOML, an override has another form, or a value cannot work.
    """
    return from_dict(read_tables(source, overrides, agent))


def read_tables(source: str | Path, overrides: Sequence[str] = (), agent: str | None = None) -> dict[str, Any]:
    """Returns the tables of a config for `from_dict`, without a look at what is in them; arguments are those of `load`.

    Raises:
        InputError: The file cannot be read or is no TOML, or an override has another form.
    """
    settings = [_parse_override(override) for override in overrides]
    if agent is not None:
        settings.append((["train", "agent"], agent))
    name, tables = _read(source)
    if tables.get("name", "") == "":
        tables["name"] = name
    written_for = _agent_of(tables)
    own_table = tables.pop("agent", None)
    for path, value in settings:
        if path[0] != "agent":
            _set(tables, path, value)
    if own_table is not None and _agent_of(tables) == written_for:
        tables["agent"] = own_table
    for path, value in settings:
        if path[0] == "agent":
            _set(tables, path, value)
    return tables


def spread_count(tables: Mapping[str, Any], seeds: int) -> int:
    """Returns how many seeds, or environments, a run spreads over its devices. The tables need not be checked yet."""
    train = tables.get("train")
    if not isinstance(train, Mapping) or train.get("spread") != "environments":
        return seeds
    num_envs = train.get("num_envs", TrainConfig.num_envs)
    return int(num_envs) if isinstance(num_envs, int | float) and 0 < num_envs <= _INT32_MAX else seeds


def from_dict(tables: Mapping[str, Any]) -> ExperimentConfig:
    """Builds a config from the tables of a TOML file, or from a dict of the same form.

    Args:
        tables: The tables by their names; only `env` has to be there. In place of a table there may be the dataclass.

    Raises:
        InputError: A table or key is unknown or missing, or a value cannot work.
    """
    if isinstance(tables, Mapping):
        tables = {"agent": {}, **tables}
    return check(build(ExperimentConfig, tables, ""))


def check(config: ExperimentConfig) -> ExperimentConfig:
    """Returns a config with its values converted to the types of their fields, after checking all of them.

    `load` and `from_dict` end with it; what is built from the dataclasses themselves has not passed it yet. What only
    the environment, the agent or the buffer can know is checked by them, when `make_trainer` builds them.

    Raises:
        InputError: A value has another type than its field, is out of range, or does not go with the others.
    """
    config = build(ExperimentConfig, config, "")
    agent = build(_agent_config_type(config.train), config.agent, "agent")
    _check_name(config.name)
    _check_env(config.env, "env")
    if config.evaluation.env is not None:
        _check_env(config.evaluation.env, "evaluation.env")
    _check_ranges(config)
    _check_compiler(config.compiler)
    if config.replay is not None:
        _check_replay(config.replay, config.train)
    if config.sweep is not None:
        config = dataclasses.replace(config, sweep=sweep_config.check(config.sweep))
    return dataclasses.replace(config, agent=agent)


def to_toml(config: ExperimentConfig) -> str:
    """Returns a config as TOML text with every default written out.

    `from_dict` of the parsed text gives an equal config, but for values that only Python has: a function or class
    becomes its import path (`module:NAME`), and an object becomes `<module.TYPE>`, which `load` rejects.
    """
    return write({**to_table(config), "agent": to_table(config.agent)})


def shipped() -> list[str]:
    """Returns the names of the configs that come with Rollax, sorted."""
    files = _shipped_folder().iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _shipped_folder() -> Any:
    return importlib.resources.files("rollax.experiments") / "configs"


def _read(source: str | Path) -> tuple[str, dict[str, Any]]:
    """Returns the name of a config and its tables."""
    if isinstance(source, str) and source in shipped():
        return source, tomllib.loads((_shipped_folder() / f"{source}.toml").read_text(encoding="utf-8"))
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        names = nearest(path.name.removesuffix(".toml"), shipped())
        raise InputError(f"There is no file {str(source)!r} and no shipped config of that name: {names}") from error
    except IsADirectoryError as error:
        raise InputError(
            f"{str(source)!r} is a folder: name a TOML file, such as {str(path / 'config.toml')!r}."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(source)!r} is not a text file in UTF-8: name a TOML file.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{str(source)!r} cannot be read ({error}): name a TOML file.") from error
    try:
        return path.stem, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for numbers of more than 4,300 digits
        raise InputError(f"{str(source)!r} is not valid TOML: {error}.") from error


def _parse_override(text: str) -> tuple[list[str], Any]:
    """Splits `table.key=value` into the keys and the value."""
    name, separator, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not separator or not all(keys):
        raise InputError(f"The override {text!r} sets nothing: write it as table.key=value, as in train.seed=1.")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return keys, value.strip()
    return keys, parsed["value"] if len(parsed) == 1 else value.strip()


def _set(tables: dict[str, Any], path: list[str], value: Any) -> None:
    table = tables
    for depth, key in enumerate(path[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            name = ".".join(path[:depth])
            raise InputError(
                f"{show('.'.join(path))} cannot be set: {name} = {show(table)} is no table; set {name} itself."
            )
    table[path[-1]] = value


def _agent_of(tables: Mapping[str, Any]) -> Any:
    train = tables.get("train")
    return train.get("agent", TrainConfig.agent) if isinstance(train, Mapping) else TrainConfig.agent


def _agent_config_type(train: TrainConfig) -> type[Any]:
    from rollax.agents import registry  # resolving imports JAX, which this module does not

    return registry.resolve(train.agent).config_type


def _check_name(name: str) -> None:
    if name in (".", "..") or any(character in "/\\" or not character.isprintable() for character in name):
        raise InputError(f"name = {show(name)} cannot name a folder: leave out slashes and unprintable characters.")


def _check_env(env: EnvConfig, where: str) -> None:
    if not (isinstance(env.id, str) or hasattr(env.id, "reset") or callable(env.id)):
        raise InputError(f"{where}.id = {show(env.id)} is no environment: give an id of `rollax list envs`.")
    for key, value in env.kwargs.items():
        field = dotted(where, key)
        for leaf in _leaves([key, value]):
            if leaf is None or (isinstance(leaf, float) and math.isnan(leaf)):
                raise InputError(f"{field} = {show(value)} says nothing: give a value, or leave the key out.")
            if isinstance(leaf, int | str):  # within what a TOML file can hold
                convert(leaf, type(leaf), field)


def _check_compiler(settings: CompilerConfig) -> None:
    """Checks what can be known without XLA, which `compiler.check` asks."""
    for name, value in settings.options.items():
        if not name.startswith("xla_"):
            known = [field.name for field in dataclasses.fields(settings) if field.metadata != REST]
            raise InputError(
                f"{dotted('compiler', name)} = {show(value)} is no key of [compiler]: give an option of XLA, which "
                f"begins with xla_, or another key: {nearest(name, known)}"
            )
        if not isinstance(value, bool | int | float | str):
            raise InputError(f"compiler.{name} = {show(value)} must be true or false, a number or a string.")


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the values in lists and tables, however deep, and the keys of the tables."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _check_ranges(config: ExperimentConfig) -> None:
    train, evaluation, replay = config.train, config.evaluation, config.replay
    # Shapes, seeds and what is counted on the device; budgets in steps are counted by the host too.
    device = {
        "train.num_envs": (train.num_envs, 1),
        "train.num_steps": (train.num_steps, 1),
        "train.updates_per_iteration": (train.updates_per_iteration, 1),
        "train.unroll": (train.unroll, 1),
        "train.seed": (train.seed, 0),
        "train.seeds_at_once": (train.seeds_at_once, 0),
        "evaluation.episodes": (evaluation.episodes, 1),
        "evaluation.step_cap": (evaluation.step_cap, 0),
    }
    if replay is not None:
        device["replay.capacity"] = (replay.capacity, 1)
        device["replay.batch_size"] = (replay.batch_size, 1)
        device["replay.n_step"] = (replay.n_step, 1)
        device["replay.length"] = (replay.length, 1)
        device["replay.min_size"] = (replay.min_size, 0)
    host = {
        "train.total_env_steps": (train.total_env_steps, 1),
        "evaluation.every": (evaluation.every, 0),
        "log.every": (config.log.every, 0),
        "checkpoint.every": (config.checkpoint.every, 0),
        "checkpoint.keep": (config.checkpoint.keep, 1),
    }
    for field, (value, least) in {**host, **device}.items():
        if value < least:
            raise InputError(f"{field} = {value} is too small: give {least} or more.")
    for field, (value, _) in device.items():
        if value > _INT32_MAX:
            raise InputError(f"{field} = {value} is too large: give {_INT32_MAX} or less.")
    if train.unroll > max(train.num_steps, TrainConfig.unroll):
        raise InputError(
            f"train.unroll = {train.unroll} is above train.num_steps = {train.num_steps}: make it smaller."
        )
    if train.num_envs * train.num_steps > _INT32_MAX:
        raise InputError(
            f"train.num_envs = {train.num_envs} times train.num_steps = {train.num_steps} are more steps in one "
            "iteration than 32 bits can count: make them smaller."
        )


def _check_replay(replay: ReplayConfig, train: TrainConfig) -> None:
    if replay.capacity % train.num_envs:
        rounded = math.ceil(replay.capacity / train.num_envs) * train.num_envs
        raise InputError(
            f"replay.capacity = {replay.capacity} is not a multiple of train.num_envs = {train.num_envs}: "
            f"give {rounded}, say."
        )
    if replay.capacity < train.num_envs * train.num_steps:
        raise InputError(
            f"replay.capacity = {replay.capacity} cannot hold one iteration of train.num_envs = {train.num_envs} "
            f"times train.num_steps = {train.num_steps} rows: give {train.num_envs * train.num_steps} or more."
        )
    if replay.min_size > replay.capacity:
        raise InputError(
            f"replay.min_size = {replay.min_size} rows are never stored in a buffer of replay.capacity = "
            f"{replay.capacity}: make min_size smaller or capacity larger."
        )
    if replay.min_size > train.total_env_steps:
        raise InputError(
            f"replay.min_size = {replay.min_size} rows are never stored in train.total_env_steps = "
            f"{train.total_env_steps}, so nothing would be learnt: make min_size smaller."
        )
    sequences = replay.samples == "sequences"
    kind = f"replay.kind = {replay.kind!r}"
    if replay.kind == "prioritised":
        kind += f" and replay.length = {replay.length}"
    for field, value, used in (
        ("n_step", replay.n_step, not sequences),
        ("length", replay.length, sequences),
        ("cross_episodes", replay.cross_episodes, sequences),
    ):
        if value != getattr(ReplayConfig, field) and not used:
            raise InputError(f"replay.{field} = {value!r} has no use with {kind}: change one of them.")
        held = replay.capacity // train.num_envs
        if used and value > held:
            raise InputError(
                f"replay.{field} = {value} rows are more than the {held} that "
                f"replay.capacity = {replay.capacity} holds of each environment: make {field} smaller or capacity "
                "larger."
            )
