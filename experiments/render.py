"""One greedy episode of a run's agent as an animation or a sheet of frames."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from PIL import Image

from rollax import envs
from rollax.envs.base import PyTree, TimeStep, strongly_typed, with_types_of
from rollax.envs.drawing import Picture
from rollax.errors import InputError
from rollax.experiments import config as configs
from rollax.experiments import files, run_folder
from rollax.experiments.evaluation import step_cap
from rollax.experiments.policy import Policy, load_policy
from rollax.experiments.trainer import make_env

DEFAULT_FRAMES = {".gif": 500, ".png": 12}
"""Frames at most by the suffix of the file."""

_COLUMNS, _GAP = 4, 4


@dataclasses.dataclass(frozen=True)
class Episode:
    """What was drawn of one episode."""

    frames: list[Picture]  # uint8 [H, W, 3] each
    length: int  # environment steps that were played
    episode_return: float  # over these steps, undiscounted
    ended: bool  # whether they are the whole episode


def render_run(
    folder: str | Path,
    out: str | Path,
    *,
    seed: int | Literal["best"] = 0,
    episode_seed: int = 0,
    max_frames: int | None = None,
    fps: int = 25,
) -> Episode:
    """Plays one episode greedily with a run's final agent, in the environment of its evaluations, and draws it.

    Args:
        folder: The folder of a finished run.
        out: The file to write: `.gif` is an animation of the episode's first frames, `.png` a sheet of frames that are
            evenly spaced over the episode, row by row.
        seed: The run's seed whose agent plays, or "best", as of `load_policy`.
        episode_seed: Chooses the episode.
        max_frames: Frames at most; None: 500 of an animation, 12 of a sheet.
        fps: Frames per second of an animation, rounded to one that lasts whole hundredths of a second.

    Raises:
        InputError: The folder holds no finished run or not this seed, the environment cannot be drawn, or another
            argument cannot work.
        OSError: The file cannot be written.
    """
    path = Path(out).absolute()
    suffix = path.suffix.lower()
    if suffix not in DEFAULT_FRAMES:
        raise InputError(f"--out = {str(out)!r} is no picture: end it with .gif (animation) or .png (sheet of frames).")
    if not path.parent.is_dir():
        raise InputError(f"--out = {str(out)!r} is in no folder that exists: make it first.")
    for name, value, low, high in (
        ("--max-frames", max_frames, 1, None),
        ("--fps", fps, 1, 50),
        ("--episode-seed", episode_seed, 0, 2**31 - 1),
    ):
        if value is not None and not low <= value <= (value if high is None else high):
            raise InputError(f"{name} = {value} must be at least {low}" + (f" and at most {high}." if high else "."))
    policy = load_policy(folder, seed)
    config = configs.load(run_folder.open(folder).config_path)
    env = make_env(config.evaluation.env or config.env)
    most = DEFAULT_FRAMES[suffix] if max_frames is None else max_frames
    limit = step_cap(config.evaluation, env)
    if suffix == ".gif":
        episode = play(policy, env, episode_seed, min(limit, most - 1))
        content = animation(episode.frames, fps)
    else:
        episode = play(policy, env, episode_seed, limit, most)
        content = sheet(episode.frames)
    files.replace_file(path, content)
    return episode


def play(
    policy: Policy, env: envs.Environment, episode_seed: int, max_steps: int, max_frames: int | None = None
) -> Episode:
    """Plays one episode greedily and draws its states, the first and the last ones included.

    Args:
        policy: What acts.
        env: The raw environment.
        episode_seed: Chooses the episode.
        max_steps: Steps after which it is given up.
        max_frames: States that are drawn, evenly spaced over the episode; None: all.

    Raises:
        InputError: The environment cannot be drawn; only its reset has been compiled then.
    """
    params = strongly_typed(env.default_params)
    key_reset, key_steps = jax.random.split(jax.random.key(episode_seed))
    state, timestep = jax.jit(lambda key: strongly_typed(env.reset(key, params)))(key_reset)
    envs.render(env, jax.device_get(state))

    @jax.jit
    def step(memory: PyTree, state: PyTree, timestep: TimeStep, index: int, is_first: bool) -> Any:
        observation, mask = jax.tree.map(lambda leaf: leaf[None], (timestep.observation, timestep.action_mask))
        memory, action = policy(observation, memory, is_first=is_first, action_mask=mask)
        after = env.step(jax.random.fold_in(key_steps, index), state, action[0], params)
        return memory, *with_types_of(after, (state, timestep))

    memory, states, total = policy.init_memory(1), [jax.device_get(state)], 0.0
    ended = False
    while not ended and len(states) <= max_steps:
        index = len(states) - 1
        memory, state, timestep = step(memory, state, timestep, index, index == 0)
        states.append(jax.device_get(state))
        total += float(timestep.reward)
        ended = bool(timestep.ended)
    chosen = range(len(states)) if max_frames is None else evenly(len(states), max_frames)
    frames = [envs.render(env, states[index]) for index in chosen]
    return Episode(frames, len(states) - 1, total, ended)


def evenly(count: int, most: int) -> list[int]:
    """Returns at most `most` of the indices below `count`, evenly spaced, with the first and, of two, the last one."""
    return [round(index) for index in np.linspace(0, count - 1, min(count, most))]


def animation(frames: list[Picture], fps: int) -> bytes:
    """Returns frames as a GIF that repeats. A viewer shows frames that are alike as one that lasts longer."""
    first, *others = (Image.fromarray(frame).quantize(256, dither=Image.Dither.NONE) for frame in frames)
    buffer = io.BytesIO()
    first.save(
        buffer, "GIF", save_all=True, append_images=others, duration=10 * round(100 / fps), loop=0, optimize=True
    )
    return buffer.getvalue()


def sheet(frames: list[Picture]) -> bytes:
    """Returns frames of one size as one PNG, row by row."""
    columns = min(_COLUMNS, len(frames))
    height, width, _ = frames[0].shape
    size = (
        columns * (width + _GAP) - _GAP,
        math.ceil(len(frames) / columns) * (height + _GAP) - _GAP,
    )
    page = Image.new("RGB", size, "#CCCCCC")
    for index, frame in enumerate(frames):
        row, column = divmod(index, columns)
        page.paste(Image.fromarray(frame), (column * (width + _GAP), row * (height + _GAP)))
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
