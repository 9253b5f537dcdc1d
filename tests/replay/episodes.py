"""Where the episodes of the rows that the tests of windows write come to an end, and which rows then count."""

from __future__ import annotations

from typing import Any

import numpy as np


def terminates(time: Any, env: Any) -> Any:
    return (3 * time + 2 * env) % 7 == 0


def is_cut_off(time: Any, env: Any) -> Any:
    return (time + env) % 5 == 4  # with some rows that terminate too


def expected_mask(ids: np.ndarray) -> np.ndarray:
    """True up to and including the first row of each window `[L, B]` that ended an episode, row by row.

    An id is 10 times its time row plus its environment.
    """
    mask = np.zeros(ids.shape, bool)
    for window in range(ids.shape[1]):
        for step, row in enumerate(ids[:, window]):
            mask[step, window] = True
            if terminates(row // 10, row % 10) or is_cut_off(row // 10, row % 10):
                break
    return mask
