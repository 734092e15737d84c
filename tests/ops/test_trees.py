"""A forest small enough to walk by hand, by its loops and by its reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.oracle import check

NAN = np.nan
# Two trees. x[1] <= 0.5 ? (x[0] <= -1 ? row 0 : row 1) : row 2, of 5 nodes; x[0] <= 2 ? row 3 : row 4, of 3 nodes.
FEATURE = np.array([1, 0, 0, 0, 0, 0, 0, 0], np.int32)
THRESHOLD = np.array([0.5, -1, NAN, NAN, NAN, 2, NAN, NAN], np.float32)
CHILD = np.array([1, 3, 1, 2, 3, 6, 5, 6], np.int32)
LEAF = np.array([0, 0, 2, 0, 1, 0, 3, 4], np.int32)
ROOT, DEPTH = np.array([0, 5], np.int32), np.array([2, 1], np.int32)
VALUES = np.array([[1, -1], [2, -2], [4, -4], [8, -8], [16, -16]], np.float32)
X = np.array([[-1, 0.5], [-0.5, 0], [3, 1], [NAN, 0], [0, NAN]], np.float32)
LEAVES = [(0, 3), (1, 3), (2, 4), (1, 4), (2, 3)]  # of each row of X: a NaN goes right


@pytest.mark.parametrize("combine", ["sum", "min", "max"])
def test_a_forest_combines_the_leaves_that_one_walks_to(combine: str) -> None:
    of_two = {"sum": np.add, "min": np.minimum, "max": np.maximum}[combine]
    tables = (FEATURE, THRESHOLD, CHILD, LEAF, ROOT, DEPTH, VALUES)
    (together,) = check("forest", X, *tables, np.array([0, 2], np.int32), combine=combine)
    np.testing.assert_array_equal(together, [of_two(VALUES[a], VALUES[b]) for a, b in LEAVES])
    (separate,) = check("forest", X, *tables, np.array([0, 1, 2], np.int32), combine=combine)
    np.testing.assert_array_equal(separate, [[*VALUES[a], *VALUES[b]] for a, b in LEAVES])
