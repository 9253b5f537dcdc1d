"""Configs that are wrong in random ways: the tables of a shipped one, filled with its defaults and then mutated."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from datetime import date
from typing import Any

from rollax.agents.registry import AGENTS
from rollax.envs.catalogue import GYMNAX
from rollax.envs.transforms import TRANSFORMS
from rollax.experiments import config as configs
from rollax.experiments.tables import to_table

Tables = dict[str, Any]

# All that a TOML file can hold, at its edges.
VALUES: tuple[Any, ...] = (
    *(0, 1, 2, 3, 7, 64, -1, -(2**31), 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-45, 1e-8, 1e8, 1e38, 3.5e38, 1e308, math.nan, math.inf, -math.inf),
    *(True, False, "", "none", "ppo", "uniform", "relu", "tanh", "linear", "cosine", "categorical", "quantile", "mlp"),
    *("cnn", "gru", "transformer", "sequence", "prioritised", "ref", "\x00", "é" * 200, "a:b", "no.module:NAME", ":"),
    *([], [0], [1, 2], [-1], [0.5], ["a"], [[]], [[1], 2], [64] * 50, [2**40], [True], [math.nan]),
    *({}, {"a": 1}, {"id": 1}, {"id": "CartPole-v1"}, {"": {}}, date(2020, 1, 1)),
)
KEYS = ("", "x", "learning_rat", "num_envs", "id", "a.b", "é", "name", "every", "transforms", "\x00", "a" * 100)
ENV_ARGUMENTS = ("max_steps_in_episode", "gravity", "size", "memory_length", "length", "force_mag", "g", "max_speed")
ARGUMENTS = ("size", "limit", "count", "probability", "indices", "scale", "hidden", "gravity", "length", "seed", "env")


def filled(name: str) -> Tables:
    """Returns the tables of a shipped config with every default written out."""
    config = configs.load(name)
    return {**to_table(config), "agent": to_table(config.agent)}


def mutant(bases: list[Tables], seed: int) -> Tables:
    """Returns the mutant of one of the bases that a seed chooses."""
    draw = random.Random(seed)
    tables = copy.deepcopy(draw.choice(bases))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choices(MUTATIONS, WEIGHTS)[0](tables, draw)
    return tables


def _table(tables: Tables, draw: random.Random) -> Tables:
    """Returns one of the tables, or the root."""
    named = [table for table in tables.values() if isinstance(table, dict)]
    return draw.choice([tables, *named]) if draw.random() < 0.1 or not named else draw.choice(named)


def _replace(tables: Tables, draw: random.Random) -> None:
    """Puts any value in place of another."""
    table = _table(tables, draw)
    if table:
        table[draw.choice(list(table))] = copy.deepcopy(draw.choice(VALUES))


def _nudge(tables: Tables, draw: random.Random) -> None:
    """Moves a number, which leaves most configs in range."""
    table = _table(tables, draw)
    numbers = [key for key, value in table.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        key = draw.choice(numbers)
        value = table[key]
        table[key] = draw.choice((value + 1, value - 1, value * 2, value * 10, -value, value / 2, value // 3, value**2))


def _flip(tables: Tables, draw: random.Random) -> None:
    """Turns a switch, or puts one word of the config's own in place of another."""
    table = _table(tables, draw)
    keys = [key for key, value in table.items() if isinstance(value, bool | str)]
    if keys:
        key = draw.choice(keys)
        words = WORDS.get(key, ("none", "linear"))
        table[key] = not table[key] if isinstance(table[key], bool) else draw.choice(words)


def _add(tables: Tables, draw: random.Random) -> None:
    """Adds a key or a table that does not exist, or may."""
    _table(tables, draw)[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))


def _remove(tables: Tables, draw: random.Random) -> None:
    table = _table(tables, draw)
    if table:
        del table[draw.choice(list(table))]


def _other_agent(tables: Tables, draw: random.Random) -> None:
    """Trains another agent, with the table of the one before or none."""
    if isinstance(tables.get("train"), dict):
        tables["train"]["agent"] = draw.choice(list(AGENTS))
    if draw.random() < 0.7:
        tables["agent"] = {}
    if draw.random() < 0.3:
        tables.pop("replay", None)


def _other_env(tables: Tables, draw: random.Random) -> None:
    if isinstance(tables.get("env"), dict):
        tables["env"] = {"id": draw.choice(GYMNAX), **({} if draw.random() < 0.5 else tables["env"])}


def _transforms(tables: Tables, draw: random.Random) -> None:
    """Wraps the environment in transforms with arguments of any kind."""
    if isinstance(tables.get("env"), dict):
        tables["env"]["transforms"] = [_transform(draw) for _ in range(draw.choice((1, 1, 2)))]


def _transform(draw: random.Random) -> Any:
    name = draw.choice(list(TRANSFORMS))
    values = (1, 2, 4, 100, 0.1, 0.5, [0, 1], [0.5, 1.5], *VALUES)
    own = ARGUMENTS_OF.get(name, ())
    arguments = {key: draw.choice(values) for key in own}
    if draw.random() < 0.2:
        arguments[draw.choice(ARGUMENTS)] = draw.choice(values)
    return name if not arguments and draw.random() < 0.5 else {"name": name, **arguments}


def _env_argument(tables: Tables, draw: random.Random) -> None:
    """Sets a param of the environment, or an argument of its constructor."""
    if isinstance(tables.get("env"), dict):
        tables["env"][draw.choice(ENV_ARGUMENTS)] = copy.deepcopy(draw.choice(VALUES))


def _evaluation_env(tables: Tables, draw: random.Random) -> None:
    if isinstance(tables.get("evaluation"), dict):
        tables["evaluation"]["env"] = (
            {"id": draw.choice(GYMNAX)} if draw.random() < 0.5 else copy.deepcopy(tables.get("env"))
        )


def _sweep(tables: Tables, draw: random.Random) -> None:
    """Sweeps something, over anything."""
    values = ([1e-4, 1e-3], {"low": 0.1, "high": 0.5, "points": 3}, *VALUES)
    parameters = {draw.choice(SWEPT): draw.choice(values) for _ in range(draw.choice((1, 2)))}
    fields = {key: draw.choice((1, 2, "random", {}, {"keep": 0.5}, *VALUES)) for key in draw.sample(SWEEP_FIELDS, 2)}
    tables["sweep"] = copy.deepcopy({"parameters": parameters, **fields})


SWEPT = ("agent.learning_rate", "agent.discount", "train.num_envs", "env.gravity", "agent.x", "x", "", "agent")
SWEEP_FIELDS = ("method", "samples", "seed", "seeds", "test_seeds", "halving", "population", "max_lanes", "memory_gb")
ARGUMENTS_OF = {
    "select": ("indices",),
    "frame_stack": ("size",),
    "time_feature": ("limit",),
    "time_limit": ("limit",),
    "action_repeat": ("count",),
    "sticky_action": ("probability",),
    "observation_noise": ("scale",),
    "action_noise": ("scale",),
    "randomise": ("gravity",),
    "tasks": ("gravity", "hidden"),
    "cached_reset": ("count", "seed"),
}
WORDS = {
    "distribution": ("none", "categorical", "quantile", "implicit"),
    "memory": ("none", "gru", "lstm", "linear", "transformer"),
    "torso": ("mlp", "cnn", "rollax.agents.torsos:TORSOS"),
    "bonus": ("none", "rnd", "icm"),
    "kind": ("uniform", "prioritised", "sequence"),
    "storage": ("array", "ref"),
    "compute_dtype": ("float32", "bfloat16", "float16"),
    "activation": ("tanh", "relu", "gelu", "silu", "elu"),
    "agent": tuple(AGENTS),
    "id": GYMNAX,
    "objective": ("clip", "kl", "dpo"),
    "normalise_advantage": ("minibatch", "batch", "none"),
    "target_entropy": ("auto", "dimensions", "log_actions"),
    "learning_rate_schedule": ("constant", "linear", "cosine"),
}
MUTATIONS: tuple[Callable[[Tables, random.Random], None], ...] = (
    _replace,
    _nudge,
    _flip,
    _add,
    _remove,
    _other_agent,
    _other_env,
    _transforms,
    _env_argument,
    _evaluation_env,
    _sweep,
)
WEIGHTS = (6, 6, 6, 1, 1, 2, 2, 2, 1, 1, 1)
