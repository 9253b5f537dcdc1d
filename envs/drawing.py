"""From the state of an environment to a picture, without a display: what adapters draw with, and `render`.

A picture is uint8 `[H, W, 3]`. Nothing here is traced: states are concrete, and one environment's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

from rollax.envs.base import Environment, PyTree
from rollax.envs.wrappers import Wrapper, WrapperState
from rollax.errors import InputError

Picture = NDArray[np.uint8]
Colour = str | tuple[int, ...]

_INK, _FAINT, _FIRST, _SECOND = "#222222", "#999999", "#0072B2", "#D55E00"
_SMOOTHING = 3


def render(env: Environment, state: PyTree) -> Picture:
    """Draws a state of an environment by the method `render(state, params)` of the raw one, uint8 `[H, W, 3]`.

    What transforms keep in their states is left out, as are numbers of params that they draw for an episode.

    Args:
        env: An environment, in transforms or not; none of `Vectorise`.
        state: A state of it.

    Raises:
        InputError: The environment has no such method, or its suite cannot draw it.
    """
    while isinstance(env, Wrapper):
        env = env.env
    while isinstance(state, WrapperState):
        state = state.env
    draw: Any = getattr(env, "render", None)
    if draw is None:
        raise cannot_draw(type(env).__name__)
    return np.asarray(draw(state, env.default_params), np.uint8)


def cannot_draw(name: str) -> InputError:
    """Returns the error for an environment that nothing here draws."""
    return InputError(
        f"{name} cannot be drawn: classic control and grids (MinAtar, Catch, DeepSea, Pong) of gymnax can, most of "
        "the suites, and environments with a method render(state, params) that returns uint8 [H, W, 3]."
    )


class Canvas:
    """A white picture to draw shapes on, in coordinates with y upwards."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], width: int = 300) -> None:
        """Makes a picture of the rectangle from `x[0]` to `x[1]` and from `y[0]` to `y[1]`, `width` pixels wide."""
        self._left, self._top = x[0], y[1]
        self._scale = _SMOOTHING * width / (x[1] - x[0])
        height = max(1, round(width * (y[1] - y[0]) / (x[1] - x[0])))
        self._image = Image.new("RGB", (_SMOOTHING * width, _SMOOTHING * height), "white")
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: ArrayLike, colour: Colour, width: float = 0.0) -> None:
        """Draws a line through points `[n, 2]`, of a width in their unit (a pixel at least), with round ends."""
        pixels = self._pixels(points)
        thick = max(_SMOOTHING, round(width * self._scale))
        self._draw.line(pixels, fill=colour, width=thick, joint="curve")
        if width:
            for point in np.asarray(points)[[0, -1]]:
                self.circle(point, thick / self._scale / 2, colour)

    def circle(self, centre: ArrayLike, radius: float, colour: Colour) -> None:
        """Draws a filled circle."""
        x, y = self._pixels(np.asarray(centre)[None])[0]
        size = radius * self._scale
        self._draw.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def polygon(self, points: ArrayLike, colour: Colour) -> None:
        """Draws a filled polygon with corners `[n, 2]`."""
        self._draw.polygon(self._pixels(points), fill=colour)

    def picture(self) -> Picture:
        """Returns what has been drawn, with smooth edges."""
        return np.array(self._image.reduce(_SMOOTHING))

    def _pixels(self, points: ArrayLike) -> list[tuple[float, float]]:
        return [((x - self._left) * self._scale, (self._top - y) * self._scale) for x, y in np.asarray(points, float)]


def grid(cells: ArrayLike, width: int = 300) -> Picture:
    """Draws a grid: the brightness of numbers `[H, W]` from 0 to 1, or a colour for each channel of `[H, W, C]`.

    Of several channels that are set in a cell the last one is seen.
    """
    values = np.asarray(cells, float)
    if values.ndim == 2:
        colours = np.repeat(np.round(255 * np.clip(values, 0, 1))[..., None], 3, axis=-1).astype(np.uint8)
    else:
        channels = values.shape[-1]
        palette = np.array([(0, 0, 0), *matplotlib.color_sequences["tab10"], *matplotlib.color_sequences["tab20b"]])[
            : channels + 1
        ]
        set_channel = np.max((values > 0) * (1 + np.arange(channels)), axis=-1)
        colours = np.round(255 * palette[np.minimum(set_channel, len(palette) - 1)]).astype(np.uint8)
    return enlarged(colours, width)


def enlarged(picture: Picture, width: int = 300) -> Picture:
    """Returns a small picture with each pixel repeated, as often as `width` pixels hold the longer side."""
    size = max(1, width // max(picture.shape[:2]))
    return picture.repeat(size, axis=0).repeat(size, axis=1)


def svg(text: str) -> Picture:
    """Draws an SVG.

    Raises:
        InputError: The package that does it is not installed.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise InputError("drawing an SVG needs the package resvg-py, which `rollax[pgx]` brings.") from error
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    families: dict[str, Any] = {f"{kind}_family": "DejaVu Sans" for kind in ("font", "serif", "sans_serif")}
    png = resvg_py.svg_to_bytes(svg_string=text, background="white", font_files=[str(fonts)], **families)
    return np.array(Image.open(io.BytesIO(png)).convert("RGB"))


def cart_pole(state: Any, params: Any) -> Picture:
    """Draws gymnax's CartPole."""
    edge, length = float(params.x_threshold), 2 * float(params.length)
    x, theta = float(state.x), float(state.theta)
    canvas = Canvas((-1.1 * edge, 1.1 * edge), (-0.4, 0.3 + 1.1 * length))
    canvas.line([(-1.1 * edge, 0), (1.1 * edge, 0)], _FAINT)
    for end in (-edge, edge):
        canvas.line([(end, -0.1), (end, 0.1)], _FAINT)
    canvas.polygon(_box(x, 0, 0.3, 0.15), _INK)
    canvas.line([(x, 0.15), (x + length * np.sin(theta), 0.15 + length * np.cos(theta))], _SECOND, 0.1)
    return canvas.picture()


def acrobot(state: Any, params: Any) -> Picture:
    """Draws gymnax's Acrobot, whose tip is to reach the line above."""
    first, second = float(params.link_length_1), float(params.link_length_2)
    angle = float(state.joint_angle1)
    joint = first * np.array([np.sin(angle), -np.cos(angle)])
    angle += float(state.joint_angle2)
    tip = joint + second * np.array([np.sin(angle), -np.cos(angle)])
    reach = 1.1 * (first + second)
    canvas = Canvas((-reach, reach), (-reach, reach))
    canvas.line([(-reach, 1), (reach, 1)], _FAINT)
    canvas.line(np.stack([np.zeros(2), joint]), _FIRST, 0.15)
    canvas.line(np.stack([joint, tip]), _SECOND, 0.15)
    return canvas.picture()


def pendulum(state: Any, params: Any) -> Picture:
    """Draws gymnax's Pendulum, which is to stand up."""
    length, theta = float(params.l), float(state.theta)
    reach = 1.2 * length
    canvas = Canvas((-reach, reach), (-reach, reach))
    canvas.line([(0, 0), (-length * np.sin(theta), length * np.cos(theta))], _SECOND, 0.15 * length)
    canvas.circle((0, 0), 0.04 * length, _INK)
    return canvas.picture()


def mountain_car(state: Any, params: Any) -> Picture:
    """Draws gymnax's MountainCar, with discrete or continuous actions, and the flag that is its goal."""
    low, high, goal = (float(getattr(params, f"{name}_position")) for name in ("min", "max", "goal"))
    position = float(state.position)
    canvas = Canvas((low - 0.05, high + 0.05), (-0.1, 1.3))
    track = np.linspace(low, high, 100)
    canvas.line(np.stack([track, _height(track)], axis=-1), _INK)
    canvas.line([(goal, _height(goal)), (goal, _height(goal) + 0.2)], _INK)
    canvas.polygon(
        [(goal, _height(goal) + 0.2), (goal + 0.08, _height(goal) + 0.16), (goal, _height(goal) + 0.12)], _SECOND
    )
    canvas.circle((position, _height(position) + 0.05), 0.05, _FIRST)
    return canvas.picture()


CLASSIC_CONTROL: Mapping[str, Callable[[Any, Any], Picture]] = {
    "CartPole-v1": cart_pole,
    "Acrobot-v1": acrobot,
    "Pendulum-v1": pendulum,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
}
"""What draws gymnax's classic control, by the environment's name."""


def _height(position: Any) -> Any:
    return 0.45 * np.sin(3 * position) + 0.55


def _box(x: float, y: float, half_width: float, half_height: float) -> Sequence[tuple[float, float]]:
    return [
        (x - half_width, y - half_height),
        (x + half_width, y - half_height),
        (x + half_width, y + half_height),
        (x - half_width, y + half_height),
    ]
