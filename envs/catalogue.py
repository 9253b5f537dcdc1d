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

# Without swimmer: it computes the drag of a fluid, where brax 0.14 calls `jnp.clip` with an argument that JAX 0.10
# no longer has, and it has no other physics backend.
BRAX: tuple[str, ...] = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "walker2d",
)

JUMANJI: tuple[str, ...] = (
    "Game2048-v1",
    "GraphColoring-v1",
    "Minesweeper-v0",
    "RubiksCube-v0",
    "RubiksCube-partly-scrambled-v0",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "BinPack-v2",
    "FlatPack-v0",
    "JobShop-v0",
    "Knapsack-v1",
    "Tetris-v0",
    "Cleaner-v0",
    "Connector-v3",
    "MMST-v0",
    "CVRP-v1",
    "MultiCVRP-v0",
    "Maze-v0",
    "RobotWarehouse-v0",
    "Snake-v1",
    "TSP-v1",
    "PacMan-v1",
    "SlidingTilePuzzle-v0",
    "LevelBasedForaging-v0",
    "SearchAndRescue-v0",
)

NAVIX: tuple[str, ...] = (
    "Navix-DistShift1-v0",
    "Navix-DistShift2-v0",
    "Navix-DoorKey-16x16-v0",
    "Navix-DoorKey-5x5-v0",
    "Navix-DoorKey-6x6-v0",
    "Navix-DoorKey-8x8-v0",
    "Navix-DoorKey-Random-16x16-v0",
    "Navix-DoorKey-Random-5x5-v0",
    "Navix-DoorKey-Random-6x6-v0",
    "Navix-DoorKey-Random-8x8-v0",
    "Navix-Dynamic-Obstacles-16x16-v0",
    "Navix-Dynamic-Obstacles-5x5-Random-v0",
    "Navix-Dynamic-Obstacles-5x5-v0",
    "Navix-Dynamic-Obstacles-6x6-Random-v0",
    "Navix-Dynamic-Obstacles-6x6-v0",
    "Navix-Dynamic-Obstacles-8x8-v0",
    "Navix-Empty-16x16-v0",
    "Navix-Empty-5x5-v0",
    "Navix-Empty-6x6-v0",
    "Navix-Empty-8x8-v0",
    "Navix-Empty-Random-16x16-v0",
    "Navix-Empty-Random-5x5-v0",
    "Navix-Empty-Random-6x6-v0",
    "Navix-Empty-Random-8x8-v0",
    "Navix-FourRooms-v0",
    "Navix-GoToDoor-5x5-v0",
    "Navix-GoToDoor-6x6-v0",
    "Navix-GoToDoor-8x8-v0",
    "Navix-KeyCorridorS3R1-v0",
    "Navix-KeyCorridorS3R2-v0",
    "Navix-KeyCorridorS3R3-v0",
    "Navix-KeyCorridorS4R3-v0",
    "Navix-KeyCorridorS5R3-v0",
    "Navix-KeyCorridorS6R3-v0",
    "Navix-LavaGapS5-v0",
    "Navix-LavaGapS6-v0",
    "Navix-LavaGapS7-v0",
    "Navix-SimpleCrossingS11N5-v0",
    "Navix-SimpleCrossingS9N1-v0",
    "Navix-SimpleCrossingS9N2-v0",
    "Navix-SimpleCrossingS9N3-v0",
)

XMINIGRID: tuple[str, ...] = (
    "XLand-MiniGrid-R1-9x9",
    "XLand-MiniGrid-R1-11x11",
    "XLand-MiniGrid-R1-13x13",
    "XLand-MiniGrid-R1-15x15",
    "XLand-MiniGrid-R1-17x17",
    "XLand-MiniGrid-R2-9x9",
    "XLand-MiniGrid-R2-11x11",
    "XLand-MiniGrid-R2-13x13",
    "XLand-MiniGrid-R2-15x15",
    "XLand-MiniGrid-R2-17x17",
    "XLand-MiniGrid-R4-9x9",
    "XLand-MiniGrid-R4-11x11",
    "XLand-MiniGrid-R4-13x13",
    "XLand-MiniGrid-R4-15x15",
    "XLand-MiniGrid-R4-17x17",
    "XLand-MiniGrid-R6-13x13",
    "XLand-MiniGrid-R6-17x17",
    "XLand-MiniGrid-R6-19x19",
    "XLand-MiniGrid-R9-16x16",
    "XLand-MiniGrid-R9-19x19",
    "XLand-MiniGrid-R9-25x25",
    "MiniGrid-BlockedUnlockPickUp",
    "MiniGrid-DoorKey-5x5",
    "MiniGrid-DoorKey-6x6",
    "MiniGrid-DoorKey-8x8",
    "MiniGrid-DoorKey-16x16",
    "MiniGrid-Empty-5x5",
    "MiniGrid-Empty-6x6",
    "MiniGrid-Empty-8x8",
    "MiniGrid-Empty-16x16",
    "MiniGrid-EmptyRandom-5x5",
    "MiniGrid-EmptyRandom-6x6",
    "MiniGrid-EmptyRandom-8x8",
    "MiniGrid-EmptyRandom-16x16",
    "MiniGrid-FourRooms",
    "MiniGrid-LockedRoom",
    "MiniGrid-MemoryS8",
    "MiniGrid-MemoryS16",
    "MiniGrid-MemoryS32",
    "MiniGrid-MemoryS64",
    "MiniGrid-MemoryS128",
    "MiniGrid-Playground",
    "MiniGrid-Unlock",
    "MiniGrid-UnlockPickUp",
)


CRAFTAX: tuple[str, ...] = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)

# Without locomotion and manipulation, whose models are cloned from a repository when they are built.
PLAYGROUND: tuple[str, ...] = (
    "AcrobotSwingup",
    "AcrobotSwingupSparse",
    "BallInCup",
    "CartpoleBalance",
    "CartpoleBalanceSparse",
    "CartpoleSwingup",
    "CartpoleSwingupSparse",
    "CheetahRun",
    "FingerSpin",
    "FingerTurnEasy",
    "FingerTurnHard",
    "FishSwim",
    "HopperHop",
    "HopperStand",
    "HumanoidStand",
    "HumanoidWalk",
    "HumanoidRun",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "ReacherHard",
    "SwimmerSwimmer6",
    "WalkerRun",
    "WalkerStand",
    "WalkerWalk",
)


@dataclasses.dataclass(frozen=True)
class Suite:
    """A package of environments beside gymnax; its name is that of its adapter and extra, and starts its ids."""

    package: str  # what its adapter imports
    ids: tuple[str, ...]  # without the suite's name


SUITES: dict[str, Suite] = {
    "pgx": Suite("pgx", PGX),
    "brax": Suite("brax", BRAX),
    "jumanji": Suite("jumanji", JUMANJI),
    "navix": Suite("navix", NAVIX),
    "xminigrid": Suite("xminigrid", XMINIGRID),
    "craftax": Suite("craftax", CRAFTAX),
    "playground": Suite("mujoco_playground", PLAYGROUND),
}

ENVIRONMENTS: tuple[str, ...] = GYMNAX + tuple(
    f"{name}/{env_id}" for name, suite in SUITES.items() for env_id in suite.ids
)
"""All ids, in the order in which `rollax list envs` prints them."""
