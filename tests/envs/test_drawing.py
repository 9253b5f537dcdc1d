"""Pictures of states: what is where in them, through transforms, and which environments have none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, envs
from rollax.envs import drawing
from rollax.envs.catalogue import SUITES

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


@pytest.fixture(autouse=True)
def _legacy_keys() -> Iterator[None]:
    """Some suites make old-style keys of their own."""
    with jax.legacy_prng_key("allow"):
        yield


def started(env_id: str, **fields: float) -> tuple[Any, Any]:
    """Returns an environment, and a state of it with some other fields."""
    env: Any = envs.make(env_id)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    return env, state.replace(**{name: jnp.float32(value) for name, value in fields.items()})


def place(picture: drawing.Picture, colour: tuple[int, ...]) -> tuple[float, float]:
    """Returns the mean place (x, y) of the pixels of a colour, from -1 to 1 and y upwards."""
    rows, columns = np.nonzero((picture == colour).all(axis=-1))
    assert rows.size > 20
    height, width, _ = picture.shape
    return float(2 * np.mean(columns) / width - 1), float(1 - 2 * np.mean(rows) / height)


def test_canvas() -> None:
    canvas = drawing.Canvas((0, 10), (-1, 4), width=20)
    canvas.polygon([(0, -1), (5, -1), (5, 1.5), (0, 1.5)], (255, 0, 0))
    picture = canvas.picture()
    assert (picture.shape, picture.dtype) == ((10, 20, 3), np.uint8)
    np.testing.assert_array_equal(picture[6:9, 1:9], np.broadcast_to([255, 0, 0], (3, 8, 3)))
    assert (picture[:4] == 255).all() and (picture[:, 12:] == 255).all()


def test_grid() -> None:
    cells = np.zeros((2, 3, 2))
    cells[0, 0] = 1, 1  # the last channel is seen
    cells[1, 2, 0] = 1
    picture = drawing.grid(cells, width=6)
    assert picture.shape == (4, 6, 3)
    colours = picture[::2, ::2]
    np.testing.assert_array_equal(colours.reshape(-1, 3).any(axis=-1), [True, False, False, False, False, True])
    assert (colours[0, 0] != colours[1, 2]).any()
    np.testing.assert_array_equal(picture[:2, :2], np.broadcast_to(colours[0, 0], (2, 2, 3)))
    np.testing.assert_array_equal(drawing.grid([[0, 0.5, 2]], width=3)[0, :, 1], [0, 128, 255])


def test_cart_pole() -> None:
    left, right = (
        place(envs.render(*started("CartPole-v1", x=x, theta=theta)), ORANGE) for x, theta in ((-2, 0), (2, 0.2))
    )
    assert left[0] < -0.7 and right[0] > 0.7
    upright, leaning = (place(envs.render(*started("CartPole-v1", x=0, theta=theta)), ORANGE) for theta in (0, 0.4))
    assert abs(upright[0]) < 0.02 and leaning[0] > 0.05 and leaning[1] < upright[1]


def test_pendulum_is_up_at_0() -> None:
    up, down, left = (
        place(envs.render(*started("Pendulum-v1", theta=theta)), ORANGE) for theta in (0, np.pi, np.pi / 2)
    )
    assert up[1] > 0.3 and down[1] < -0.3
    assert left[0] < -0.3 and abs(left[1]) < 0.05


def test_acrobot_hangs_at_0() -> None:
    env, state = started("Acrobot-v1", joint_angle1=0, joint_angle2=0)
    first, second = (place(envs.render(env, state), colour) for colour in (BLUE, ORANGE))
    assert second[1] < first[1] < 0
    first, second = (place(envs.render(env, state.replace(joint_angle1=jnp.pi)), colour) for colour in (BLUE, ORANGE))
    assert 0 < first[1] < second[1]


@pytest.mark.parametrize("env_id", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_mountain_car_stands_on_its_track(env_id: str) -> None:
    valley, top = (place(envs.render(*started(env_id, position=position)), BLUE) for position in (-0.52, 0.45))
    assert valley[1] < -0.5 and top[1] > 0.4
    assert valley[0] < 0 < top[0]


def test_minatar_shows_what_is_seen() -> None:
    env: Any = envs.make("Breakout-MinAtar")
    state, timestep = env.reset(jax.random.key(0), env.default_params)
    picture = envs.render(env, state)
    assert picture.shape == (300, 300, 3)
    seen = np.asarray(timestep.observation).any(axis=-1)
    np.testing.assert_array_equal(picture[15::30, 15::30].any(axis=-1), seen)
    moved, _ = env.step(jax.random.key(1), state, jnp.int32(1), env.default_params)
    assert (envs.render(env, moved) != picture).any()


def test_wrappers_and_transforms_change_no_picture() -> None:
    transforms = ["flatten", {"name": "frame_stack", "size": 2}, {"name": "select", "indices": [0, 4]}]
    transforms += [{"name": "cached_reset", "count": 1}]
    raw: Any = envs.make("CartPole-v1")
    wrapped = envs.EpisodeStatistics(envs.AutoReset(envs.make("CartPole-v1", transforms=transforms)))
    state, _ = wrapped.reset(jax.random.key(0), wrapped.default_params)
    inside = state
    while hasattr(inside, "env"):
        inside = inside.env
    np.testing.assert_array_equal(envs.render(wrapped, state), envs.render(raw, inside))


def test_pgx_boards() -> None:
    pytest.importorskip("pgx")
    env: Any = envs.make("pgx/tic_tac_toe")
    state = env.env.init(jax.random.key(0))
    pictures = [envs.render(env, state), envs.render(env, env.env.step(state, jnp.int32(4)))]
    assert pictures[0].shape == pictures[1].shape == (240, 240, 3)
    changed = np.argwhere((pictures[0] != pictures[1]).any(axis=-1))
    assert len(changed) > 50
    assert (abs(changed - 120) < 40).all()  # the mark is in the middle


def test_an_svg_without_its_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(InputError, match=r"needs the package resvg-py, which `rollax\[pgx\]` brings"):
        drawing.svg("<svg/>")


class NoPicture:
    default_params = ()


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"^NoPicture cannot be drawn: classic control .* can, .* a method render"):
        envs.render(NoPicture(), ())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^Swimmer-misc cannot be drawn"):
        envs.render(*started("Swimmer-misc"))


@pytest.mark.suite
@pytest.mark.parametrize(
    "env_id",
    [
        "pgx/chess",
        "pgx/minatar-freeway",
        "brax/inverted_pendulum",
        "jumanji/Snake-v1",
        "navix/Navix-DoorKey-5x5-v0",
        "xminigrid/MiniGrid-DoorKey-5x5",
        "craftax/Craftax-Classic-Symbolic-v1",
        "playground/CartpoleBalance",
    ],
)
def test_suites_draw_their_states(env_id: str) -> None:
    pytest.importorskip(SUITES[env_id.partition("/")[0]].package)
    env: Any = envs.make(env_id)
    key = jax.random.key(0)
    state, timestep = jax.jit(env.reset)(key, env.default_params)
    pictures = [envs.render(env, jax.device_get(state))]
    step = jax.jit(env.step)
    action = envs.spaces.zeros(env.action_space())
    if timestep.action_mask is not None:
        action = jnp.argmax(timestep.action_mask).astype(action.dtype)
    elif isinstance(env.action_space(), envs.Box):
        action = action + 1
    for _ in range(5):
        state, _ = step(key, state, action, env.default_params)
        pictures.append(envs.render(env, jax.device_get(state)))
    assert all(picture.dtype == np.uint8 and picture.shape == pictures[0].shape for picture in pictures)
    assert pictures[0].ndim == 3 and pictures[0].shape[-1] == 3 and min(pictures[0].shape[:2]) >= 60
    assert any((picture != pictures[0]).any() for picture in pictures)


@pytest.mark.suite
def test_brax_fast_has_no_bodies() -> None:
    pytest.importorskip("brax")
    env = envs.make("brax/fast")
    with pytest.raises(InputError, match="Fast cannot be drawn"):
        envs.render(env, env.reset(jax.random.key(0), env.default_params)[0])
