"""Episodes drawn from finished runs: what is played, which frames there are, and what is refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rollax import InputError, envs, experiments
from rollax.experiments import cli, render
from rollax.experiments.config import from_dict

MAX_STEPS = 12
TABLES: dict[str, Any] = {
    "env": {
        "id": "CartPole-v1",
        "max_steps_in_episode": MAX_STEPS,
        "transforms": [{"name": "select", "indices": [0, 2]}, {"name": "frame_stack", "size": 2}],
    },
    "train": {"total_env_steps": 64, "num_envs": 4, "num_steps": 16},
    "agent": {"hidden_sizes": [8], "num_minibatches": 1, "num_epochs": 1},
    "evaluation": {"episodes": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds, barely trained: transforms, and episodes of 12 steps at most."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    experiments.run(from_dict(TABLES), seeds=2, out=folder)
    return folder


class Sum:
    """The state is the sum of all actions, from 0 on; at 6 the episode is over."""

    default_params = ()

    def observation_space(self, params: Any = None) -> envs.Box:
        return envs.Box(0.0, 100.0, (1,))

    def action_space(self, params: Any = None) -> envs.Discrete:
        return envs.Discrete(10)

    def reset(self, key: jax.Array, params: Any) -> Any:
        return jnp.zeros(()), envs.timestep(jnp.zeros(1))

    def step(self, key: jax.Array, state: Any, action: jax.Array, params: Any) -> Any:
        state = state + action
        return state, envs.timestep(state[None], action, state >= 6)

    def render(self, state: Any, params: Any) -> Any:
        return np.full((2, 3, 3), state, np.uint8)


class Counter:
    """A policy whose actions are the steps of the episode so far, which it can only know from its memory."""

    def init_memory(self, num_envs: int) -> jax.Array:
        return jnp.full((num_envs,), 9, jnp.int32)

    def __call__(self, observation: Any, memory: Any, *, is_first: Any, action_mask: Any) -> Any:
        assert observation.shape == (1, 1) and action_mask is None
        steps = jnp.where(is_first, 0, memory + 1)
        return steps, steps


@pytest.mark.parametrize(
    ("max_steps", "max_frames", "states", "length", "total", "ended"),
    [
        (100, None, [0, 0, 1, 3, 6], 4, 6, True),
        (100, 3, [0, 1, 6], 4, 6, True),
        (2, None, [0, 0, 1], 2, 1, False),
        (0, None, [0], 0, 0, False),
    ],
)
def test_an_episode_is_played_with_its_memory_to_its_end(
    max_steps: int, max_frames: int | None, states: list[int], length: int, total: float, ended: bool
) -> None:
    episode = render.play(Counter(), Sum(), 0, max_steps, max_frames)  # type: ignore[arg-type]
    assert [int(frame[0, 0, 0]) for frame in episode.frames] == states
    assert (episode.length, episode.episode_return, episode.ended) == (length, total, ended)


def test_frames_are_evenly_spaced() -> None:
    assert render.evenly(5, 3) == [0, 2, 4]
    assert render.evenly(3, 12) == [0, 1, 2]
    assert render.evenly(10, 1) == [0]


def test_animation(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "episode.gif"
    assert cli.main(["render", str(run), "--out", str(out), "--seed", "1", "--fps", "20"]) == 0
    said = re.fullmatch(rf"{out}: (\d+) frames of (\d+) steps, return (\d+)\.00\n", capsys.readouterr().out)
    assert said is not None
    frames, length, total = map(int, said.groups())
    assert frames - 1 == length == total  # CartPole pays 1 for each step
    assert 5 < length <= MAX_STEPS
    with Image.open(out) as image:
        assert (image.format, image.size) == ("GIF", (300, 102))
        assert image.info["loop"] == 0
        shown, seconds = [], 0.0
        for index in range(image.n_frames):  # type: ignore[attr-defined]
            image.seek(index)
            shown.append(np.asarray(image.convert("RGB")))
            seconds += image.info["duration"] / 1_000
    assert seconds == pytest.approx(frames / 20)  # frames that are alike are one that lasts longer
    assert len(shown) > 3
    assert all((one != other).any() for one, other in itertools.pairwise(shown))


def test_seeds_of_run_and_episode_and_the_first_frames(run: Path, tmp_path: Path) -> None:
    def first(**keywords: Any) -> Any:
        return render.render_run(run, tmp_path / "e.gif", max_frames=4, **keywords)

    episode, again, other = first(), first(seed="best", episode_seed=0), first(episode_seed=1)
    assert (len(episode.frames), episode.length, episode.ended) == (4, 3, False)
    np.testing.assert_array_equal(episode.frames[0], again.frames[0])
    assert (episode.frames[0] != other.frames[0]).any()


def test_sheet(run: Path, tmp_path: Path) -> None:
    episode = render.render_run(run, tmp_path / "sheet.png", max_frames=6)
    assert episode.ended
    height, width, _ = episode.frames[0].shape
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"
        page = np.asarray(image)
    assert page.shape == (2 * height + 4, 4 * width + 12, 3)
    np.testing.assert_array_equal(page[:height, :width], episode.frames[0])
    np.testing.assert_array_equal(page[height + 4 :, width + 4 : 2 * width + 4], episode.frames[5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"out": "e.mp4"}, r"--out = 'e\.mp4' is no picture: end it with \.gif"),
        ({"out": "none/e.gif"}, "is in no folder that exists"),
        ({"max_frames": 0}, "--max-frames = 0 must be at least 1"),
        ({"fps": 51}, "--fps = 51 must be at least 1 and at most 50"),
        ({"episode_seed": -1}, "--episode-seed = -1 must be at least 0"),
        ({"seed": 2}, "it has the seeds 0 to 1"),
    ],
)
def test_what_cannot_work_is_a_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        render.render_run(run, **{"out": "e.gif", **arguments})
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_with_status_2(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "e.gif")]
    assert cli.main(["render", str(tmp_path), *out]) == 2
    assert cli.main(["render", str(run), *out, "--seed", "first"]) == 2
    assert "--seed = 'first' is no seed of a run" in capsys.readouterr().err
