"""The algorithms by name, and how a name, a file or a function becomes one. Imports no JAX."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from rollax.errors import InputError, nearest
from rollax.importing import import_object, is_import_path

AGENTS: dict[str, str] = {
    "reinforce": "REINFORCE (Williams 1992), with a baseline or without",
    "a2c": "Advantage actor-critic (Mnih et al. 2016)",
    "pqn": "Parallelised Q-network, Q(lambda) without replay (Gallici et al. 2025)",
    "dqn": "Deep Q-learning and its family up to Rainbow: Double, Dueling, C51, QR-DQN, IQN, noisy, Munchausen",
    "ppo": "Proximal policy optimisation (Schulman et al. 2017): clipped, with a KL penalty, or discovered (DPO)",
    "impala": "IMPALA, V-trace for actors that lag behind (Espeholt et al. 2018)",
    "vmpo": "V-MPO, on-policy maximum a posteriori policy optimisation (Song et al. 2020)",
    "awr": "Advantage-weighted regression (Peng et al. 2019)",
    "sac": "Soft actor-critic, continuous and discrete, and its family: TQC, CrossQ, REDQ, DroQ",
    "ddpg": "Deep deterministic policy gradient, TD3 and D4PG",
    "mpo": "Maximum a posteriori policy optimisation (Abdolmaleki et al. 2018), continuous and discrete",
    "r2d2": "Recurrent replay distributed DQN (Kapturowski et al. 2019)",
}
"""Each shipped algorithm, a module of `rollax.agents`, and what it is."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """The parts of an algorithm's file that training needs."""

    name: str
    make: Callable[..., Any]  # (observation_space, action_space, config) -> Agent
    config_type: type  # the dataclass of `[agent]`
    check: Callable[..., None] | None  # (config, num_steps, num_envs) -> None, raises InputError


def resolve(agent: str | Callable[..., Any]) -> Algorithm:
    """Returns the algorithm that `agent` names.

    Args:
        agent: A name of `rollax list agents`; `package.module:make` or `file.py:make`; or a make function. The third
            parameter of the function is annotated with the config's dataclass, and a function `check` that stands
            beside it in its module is used too.

    Raises:
        InputError: There is no such algorithm, or its make function has another form.
    """
    if isinstance(agent, str):
        if agent in AGENTS:
            make = importlib.import_module(f"rollax.agents.{agent}").make
        elif is_import_path(agent):
            make = import_object(agent, "train.agent")
        else:
            raise InputError(f"train.agent = {agent!r} is no known agent: {nearest(agent, AGENTS)}")
    else:
        make = agent
    function = make.func if isinstance(make, functools.partial) else make
    check = getattr(sys.modules.get(getattr(function, "__module__", "")), "check", None)
    name = agent if isinstance(agent, str) else _name(make)
    return Algorithm(name, make, _config_type(make, function, name), check)


def _name(make: Any) -> str:
    return f"{make.__module__}:{make.__qualname__}" if hasattr(make, "__qualname__") else repr(make)


def _config_type(make: Callable[..., Any], function: Callable[..., Any], name: str) -> type:
    form = "must be a function make(observation_space, action_space, config: Config) whose Config is a dataclass"
    if not callable(make):
        raise InputError(f"train.agent = {name!r} {form}.")
    try:
        parameters = list(inspect.signature(make).parameters)
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"train.agent = {name!r} {form} ({error}).") from error
    if len(parameters) < 3 or not dataclasses.is_dataclass(hints.get(parameters[2])):
        raise InputError(f"train.agent = {name!r} {form}.")
    config_type = hints[parameters[2]]
    assert isinstance(config_type, type)
    return config_type
