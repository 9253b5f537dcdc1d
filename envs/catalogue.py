"""The environment ids that `rollax.envs.make` knows: a static table, so that listing them imports no JAX."""

from __future__ import annotations

import dataclasses

GYMNAX: tuple[str, ...] = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "MNISTBandit-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)

PGX: tuple[str, ...] = (
    "2048",
    "animal_shogi",
    "backgammon",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_9x9",
    "go_19x19",
    "hex",
    "kuhn_poker",
    "leduc_holdem",
    "minatar-asterix",
    "minatar-breakout",
    "minatar-freeway",
    "minatar-seaquest",
    "minatar-space_invaders",
    "othello",
    "shogi",
    "sparrow_mahjong",
    "tic_tac_toe",
)


@dataclasses.dataclass(frozen=True)
class Suite:
    """A package of environments beside gymnax; its name is that of its adapter and extra, and starts its ids."""

    package: str  # what its adapter imports
    ids: tuple[str, ...]  # without the suite's name


SUITES: dict[str, Suite] = {
    "pgx": Suite("pgx", PGX),
}

ENVIRONMENTS: tuple[str, ...] = GYMNAX + tuple(
    f"{name}/{env_id}" for name, suite in SUITES.items() for env_id in suite.ids
)
"""All ids, in the order in which `rollax list envs` prints them."""
