"""Spaces: what they draw, what they contain, and what they refuse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import InputError, envs
from rollax.envs.spaces import Box, Discrete, MultiDiscrete, alike, leaves, size, zeros

SPACES = {
    "Discrete": Discrete(3),
    "Discrete(1)": Discrete(1),
    "MultiDiscrete": MultiDiscrete((2, 1, 5)),
    "Box": Box([-1.0, 2.0], [1.0, 6.0]),
    "Box, scalar": Box(0, 1),
    "Box, unbounded": Box(-np.inf, np.inf, (2, 3)),
    "Box, half bounded": Box([[-np.inf, 3.0]], [[-2.0, np.inf]]),
    "Box, point": Box(2.0, 2.0, (2,)),
    "Box, bytes": Box(0, 255, (4, 4), np.uint8),
    "Box, float16": Box(-1, 1, (3,), np.float16),
}


def draws(space: Any, count: int) -> jax.Array:
    return jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), count))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_a_space_contains_what_it_draws(space: Any) -> None:
    drawn = draws(space, 64)
    assert drawn.shape == (64, *space.shape)
    assert drawn.dtype == space.dtype
    inside = jax.jit(jax.vmap(space.contains))(drawn)
    assert inside.shape == (64,)
    assert inside.dtype == jnp.bool_
    assert inside.all()


@pytest.mark.parametrize("name", ["Discrete", "MultiDiscrete", "Box", "Box, half bounded", "Box, bytes"])
def test_a_single_draw_without_jit(name: str) -> None:
    space = SPACES[name]
    alone = space.sample(jax.random.split(jax.random.key(0), 64)[5])
    np.testing.assert_array_equal(alone, draws(space, 64)[5])
    assert alone.dtype == space.dtype
    assert bool(space.contains(alone))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_zeros_are_an_example(space: Any) -> None:
    example = zeros(space)
    assert example.dtype == space.dtype
    np.testing.assert_array_equal(example, np.zeros(space.shape))
    assert size(space) == example.size


def test_discrete_draws_are_uniform() -> None:
    counts = np.bincount(draws(Discrete(4), 4000), minlength=4)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 0.75)
    drawn = np.asarray(draws(MultiDiscrete((2, 3)), 6000))
    counts = np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 5 / 6)


def test_box_draws_are_uniform_between_finite_bounds() -> None:
    drawn = np.asarray(draws(Box([-1.0, 2.0], [1.0, 6.0]), 4000), np.float64)
    np.testing.assert_allclose(drawn.mean(0), [0, 4], atol=5 * 4 / np.sqrt(12 * 4000))
    np.testing.assert_allclose(drawn.std(0), [2 / np.sqrt(12), 4 / np.sqrt(12)], rtol=0.05)
    assert (drawn.min(0) >= [-1, 2]).all()
    assert (drawn.max(0) <= [1, 6]).all()


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (Discrete(3), [0, 2, np.int64(1)], [-1, 3, np.zeros(1, np.int32), np.zeros((), np.int32)[None, None]]),
        (MultiDiscrete((2, 3)), [[0, 0], [1, 2]], [[2, 0], [0, 3], [-1, 0], [0], [0, 0, 0], 0]),
        (Box(-1, 1, (2,)), [[-1.0, 1.0], [0.0, 0.5]], [[0.0, 1.1], [-1.1, 0.0], [np.nan, 0.0], [0.0], 0.0]),
        (Box(-np.inf, np.inf, ()), [1e30, -np.inf, np.inf], [np.nan]),
        (Box([0.0, -np.inf], [np.inf, 0.0]), [[0.0, 0.0], [1e9, -1e9]], [[-1e-6, 0.0], [0.0, 1e-6]]),
        (Box(0, 255, (1,), np.uint8), [np.array([255], np.uint8)], [np.array([256]), np.array([-1])]),
    ],
    ids=["Discrete", "MultiDiscrete", "Box", "Box, unbounded", "Box, half bounded", "Box, bytes"],
)
def test_contains_by_hand(space: Any, inside: list[Any], outside: list[Any]) -> None:
    for x in inside:
        assert bool(space.contains(x)), x
        assert bool(jax.jit(space.contains)(jnp.asarray(x))), x
    for x in outside:
        assert not bool(space.contains(x)), x
        assert not bool(jax.jit(space.contains)(jnp.asarray(x))), x


def test_bounds_take_the_shape() -> None:
    box = Box(0.0, [1.0, 2.0], (3, 2))
    assert box.shape == box.low.shape == box.high.shape == (3, 2)
    np.testing.assert_array_equal(box.high, [[1, 2]] * 3)
    bound = np.zeros(2)
    box = Box(bound, np.ones(2))
    bound[:] = 7
    np.testing.assert_array_equal(box.low, [0, 0])
    assert Box(0, 1, np.array([2, 3])).shape == (2, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Discrete(0), r"Discrete\.n = 0 must be at least 1"),
        (lambda: Discrete(-2), r"Discrete\.n = -2 must be at least 1"),
        (lambda: MultiDiscrete(()), r"MultiDiscrete\.nvec = \(\) must hold at least one number"),
        (lambda: MultiDiscrete((2, 0)), r"MultiDiscrete\.nvec = \(2, 0\) .* each at least 1"),
        (lambda: Box(1.0, 0.0), r"Box\.low = 1\.0 must not be above Box\.high = 0\.0"),
        (lambda: Box([0.0, 2.0], 1.0), r"Box\.low = \[0\. 2\.\] must not be above Box\.high = \[1\. 1\.\]"),
        (lambda: Box(np.nan, 1.0), r"Box\.low = nan"),
    ],
)
def test_spaces_that_cannot_be(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_leaves_of_a_tree_of_spaces() -> None:
    tree = {"b": (Discrete(2), MultiDiscrete((2, 3))), "a": {"x": Box(0, 1)}}
    assert [type(leaf) for leaf in leaves(tree)] == [Box, Discrete, MultiDiscrete]
    example = zeros(tree)
    assert jax.tree.structure(example) == jax.tree.structure(tree)
    assert [leaf.shape for leaf in jax.tree.leaves(example)] == [(), (), (2,)]
    with pytest.raises(InputError, match="leaf of type int: use Discrete, MultiDiscrete or Box"):
        leaves({"a": Discrete(2), "b": 3})


def test_equal_spaces() -> None:
    assert Discrete(2) == Discrete(2) != Discrete(3)
    assert len({Discrete(2), Discrete(2), MultiDiscrete((2,)), MultiDiscrete((2,))}) == 2


def test_spaces_that_are_alike() -> None:
    space = {"a": Box(-1, 1, (2,)), "b": (Discrete(3), MultiDiscrete((2, 3)))}
    assert alike(space, {"a": Box(0, 9, (2,)), "b": (Discrete(3), MultiDiscrete((2, 3)))})  # bounds may differ
    for other in (
        {"a": Box(-1, 1, (3,)), "b": space["b"]},
        {"a": Box(-1, 1, (2,), np.float16), "b": space["b"]},
        {"a": space["a"], "b": (Discrete(4), MultiDiscrete((2, 3)))},
        {"a": space["a"], "b": (Discrete(3), MultiDiscrete((3, 2)))},
        {"a": space["a"], "c": space["b"]},
        {"a": space["a"], "b": list(space["b"])},
        Box(-1, 1, (2,)),
    ):
        assert not alike(space, other)


# Faults that there once were.


def test_a_box_of_integers_draws_both_bounds() -> None:
    counts = np.bincount(np.asarray(draws(Box(-1, 1, (3,), np.int32), 1000)).ravel() + 1, minlength=3)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 2 / 3)


def test_an_unbounded_box_of_integers_contains_integers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bool(Box(-np.inf, np.inf, (2,), np.int32).contains(jnp.array([3, -4])))


def test_bounds_as_large_as_a_float_can_be() -> None:
    space = envs.make("CartPole-v1").observation_space()
    drawn = draws(space, 8)
    assert np.isfinite(drawn).all()
    assert jax.vmap(space.contains)(drawn).all()


@pytest.mark.parametrize(
    ("space", "x"), [(Discrete(3), 0.5), (MultiDiscrete((3, 3)), [0.5, 1.0]), (Box(0, 3, (), np.int32), 0.5)]
)
def test_a_fraction_is_no_integer(space: Any, x: Any) -> None:
    assert not bool(space.contains(x))


def test_an_integer_below_a_fractional_bound_is_outside() -> None:
    assert not bool(Box(0.2, 0.8).contains(0))


def test_many_discrete_from_a_list_or_an_array() -> None:
    assert MultiDiscrete([2, 3]) == MultiDiscrete(np.array([2, 3])) == MultiDiscrete((2, 3))
    assert hash(MultiDiscrete([2, 3])) == hash(MultiDiscrete((2, 3)))


def test_a_shape_that_the_bounds_do_not_fit_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"\(3,\).*\(2,\)|\(2,\).*\(3,\)"):
        Box(np.zeros(3), np.ones(3), (2,))


def test_an_observation_without_leaves_is_a_sentence() -> None:
    with pytest.raises(InputError, match="observation space"):
        leaves({})


def test_a_fractional_bound_of_integers_is_the_next_integer_inside() -> None:
    space = Box(-1.5, 1.5, (), np.int32)
    assert set(np.unique(draws(space, 100))) == {-1, 0, 1}
    assert [bool(space.contains(x)) for x in (-2, -1, 1, 2)] == [False, True, True, False]


def test_rounding_leaves_no_bound() -> None:
    space = Box(0.1, 0.1, (2000,))
    assert bool(space.contains(space.sample(jax.random.key(0))))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_bytes_draw_both_ends(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    drawn = np.asarray(draws(Box(limits.min, limits.max, (4,), dtype), 2000))
    assert (drawn.min(), drawn.max()) == (limits.min, limits.max)
