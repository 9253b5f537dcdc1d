"""Pictures of a MuJoCo model's bodies without OpenGL: the outlines of their solids, seen from one side.

The view is parallel: slanting down, so that what moves on the floor is seen as well as what moves in a plane upright.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import ConvexHull

from rollax.envs.drawing import Canvas, Picture

_ELEVATION = np.deg2rad(25.0)
_ACROSS = np.array([1.0, 0.0, 0.0])
_UPWARDS = np.array([0.0, np.sin(_ELEVATION), np.cos(_ELEVATION)])
_AWAY = np.array([0.0, np.cos(_ELEVATION), -np.sin(_ELEVATION)])
_VISIBLE_GROUPS = 3  # MuJoCo's viewers hide the geoms of higher groups too


def solids(model: Any, positions: ArrayLike, mocap: tuple[ArrayLike, ArrayLike] | None = None) -> Picture:
    """Draws the bodies of a model.

    Args:
        model: A `mujoco.MjModel`.
        positions: Its generalised positions `qpos`, `[nq]`.
        mocap: Positions `[nmocap, 3]` and quaternions `[nmocap, 4]` of bodies that are placed from outside.
    """
    data = mujoco.MjData(model)
    drawn = [
        index
        for index in range(model.ngeom)
        if _kind(model, index) not in (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
        and model.geom_group[index] < _VISIBLE_GROUPS
        and _colour(model, index)[3] > 0
    ]
    # The frame is that of the model at rest, and follows its centre of mass where that leaves it.
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    at_rest = np.concatenate([_outline(model, data, index) for index in drawn])
    low, high = at_rest.min(axis=0), at_rest.max(axis=0)
    middle, reach = (low[1] + high[1]) / 2, max(0.8 * float((high - low).max()), 1e-3)
    start = data.subtree_com[0] @ _ACROSS
    data.qpos[:] = positions
    if mocap is not None:
        data.mocap_pos[:], data.mocap_quat[:] = mocap
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    travelled = data.subtree_com[0] @ _ACROSS - start
    x = (low[0] + high[0]) / 2 + np.sign(travelled) * max(abs(travelled) - reach / 3, 0)
    canvas = Canvas((x - reach, x + reach), (middle - 0.75 * reach, middle + 0.75 * reach))
    _draw_floor(canvas, model, x, reach)
    for index in sorted(drawn, key=lambda index: -float(data.geom_xpos[index] @ _AWAY)):
        outline = _outline(model, data, index)
        hull = outline[ConvexHull(outline).vertices]
        canvas.polygon(hull, tuple(np.round(255 * _colour(model, index)[:3]).astype(int).tolist()))
        canvas.line([*hull, hull[0]], "#222222")
    return canvas.picture()


def _outline(model: Any, data: Any, index: int) -> NDArray[np.floating]:
    """Returns points `[n, 2]` of the picture whose hull is the outline of a solid."""
    points = _surface(model, index) @ data.geom_xmat[index].reshape(3, 3).T + data.geom_xpos[index]
    return np.stack([points @ _ACROSS, points @ _UPWARDS], axis=-1)


def _draw_floor(canvas: Canvas, model: Any, x: float, reach: float) -> None:
    """Draws lines across the first plane that show how far a body has moved."""
    planes = [index for index in range(model.ngeom) if _kind(model, index) == mujoco.mjtGeom.mjGEOM_PLANE]
    if not planes:
        return
    height = model.geom_pos[planes[0], 2] * _UPWARDS[2]
    spacing = reach / 2
    depth = spacing * _UPWARDS[1]
    for row in (-1, 0, 1):
        canvas.line([(x - reach, height + row * depth), (x + reach, height + row * depth)], "#CCCCCC")
    for mark in spacing * np.arange(np.ceil((x - reach) / spacing), np.floor((x + reach) / spacing) + 1):
        canvas.line([(mark, height - depth), (mark, height + depth)], "#CCCCCC")


def _surface(model: Any, index: int) -> NDArray[np.floating]:
    """Returns points `[n, 3]` whose hull is about the solid, in its own frame."""
    kind, size = _kind(model, index), model.geom_size[index]
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return size * np.array(np.meshgrid((-1, 1), (-1, 1), (-1, 1))).reshape(3, -1).T
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[index]
        start = model.mesh_vertadr[mesh]
        return model.mesh_vert[start : start + model.mesh_vertnum[mesh]]
    sphere = _sphere()
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        half = np.array([0, 0, size[1]])
        return np.concatenate([size[0] * sphere + half, size[0] * sphere - half])
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        ring = sphere[np.abs(sphere[:, 2]) < 1e-6] * [size[0], size[0], 0]
        half = np.array([0, 0, size[1]])
        return np.concatenate([ring + half, ring - half])
    radii = size if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID else size[[0, 0, 0]]
    return radii * sphere


def _sphere() -> NDArray[np.floating]:
    """Returns points `[n, 3]` on the unit sphere, some of them on its equator."""
    around, up = np.meshgrid(np.linspace(0, 2 * np.pi, 24, endpoint=False), np.linspace(-np.pi / 2, np.pi / 2, 13))
    return np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=-1).reshape(-1, 3)


def _kind(model: Any, index: int) -> Any:
    return mujoco.mjtGeom(model.geom_type[index])


def _colour(model: Any, index: int) -> NDArray[np.floating]:
    """Returns the colour of a solid, or of its material, RGBA from 0 to 1."""
    material = model.geom_matid[index]
    return model.geom_rgba[index] if material < 0 else model.mat_rgba[material]
