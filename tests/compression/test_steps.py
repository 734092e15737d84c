"""Pruning, shared values and low rank, against their definitions; recipes from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compression.factors import low_rank
from tilewright.compression.recipe import Recipe, read
from tilewright.compression.steps import pruning_mask, share_values
from tilewright.support.errors import CallError

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("shape", [(7, 5), (8, 3, 3, 3), (1, 1), (5, 16)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_the_smallest_elements_are_pruned(shape: tuple[int, ...], share: float) -> None:
    w = RNG.standard_normal(shape).astype(np.float32)
    mask = pruning_mask(w, share, (1, 1))
    assert mask.shape == w.shape and set(np.unique(mask)) <= {0.0, 1.0}
    assert np.sum(mask == 0) == round(share * w.size)
    if 0 < np.sum(mask == 0) < w.size:
        assert np.abs(w[mask == 0]).max() <= np.abs(w[mask == 1]).min()


def test_blocks_are_pruned_together() -> None:
    w = RNG.standard_normal((10, 6)).astype(np.float32)
    mask = pruning_mask(w, 0.5, (4, 3))
    tiles = [mask[i : i + 4, j : j + 3] for i in range(0, 10, 4) for j in range(0, 6, 3)]
    assert all(t.min() == t.max() for t in tiles)
    assert sum(t.max() == 0 for t in tiles) == 3


@pytest.mark.parametrize("values", [2, 5, 16])
def test_shared_values_are_no_worse_than_even_levels(values: int) -> None:
    w = RNG.standard_normal((40, 30)).astype(np.float32)
    w[w < -1] = 0
    shared = share_values(w, values)
    assert len(np.unique(shared[shared != 0])) <= values and np.array_equal(shared == 0, w == 0)
    retained = w[w != 0]
    levels = np.linspace(retained.min(), retained.max(), values)
    even = levels[np.abs(retained[:, None] - levels).argmin(1)]
    assert np.sum((shared - w) ** 2) <= np.sum((even - retained) ** 2) * (1 + 1e-6)


def test_values_that_fit_the_table_stay() -> None:
    w = RNG.choice(np.asarray([-2, -0.5, 0, 1, 3], np.float32), (20, 20))
    np.testing.assert_array_equal(share_values(w, 8), w)
    np.testing.assert_array_equal(share_values(np.zeros((3, 3), np.float32), 4), 0)


def test_low_rank_has_the_least_error() -> None:
    w = (RNG.standard_normal((60, 4)) @ RNG.standard_normal((4, 50))).astype(np.float32)
    w += 0.01 * RNG.standard_normal(w.shape).astype(np.float32)
    pair = low_rank(w, 0.99)
    assert pair is not None
    u, v = pair
    assert u.shape[1] == v.shape[0] <= 4
    sizes = np.linalg.svd(w.astype(np.float64), compute_uv=False)
    left = np.sqrt(np.sum(sizes[u.shape[1] :] ** 2))
    np.testing.assert_allclose(np.linalg.norm(u.astype(np.float64) @ v - w), left, rtol=1e-3)
    assert left**2 <= 0.01 * np.sum(sizes**2)


def test_low_rank_is_left_out_where_it_gains_nothing() -> None:
    assert low_rank(RNG.standard_normal((30, 30)).astype(np.float32), 0.999) is None
    assert low_rank(np.full((30, 30), np.nan, np.float32), 0.5) is None


def test_a_recipe_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        "[prune]\nshare = 0.9\nblock = [1, 4]\nstages = 3\n[share]\nvalues = 16\n[train]\nepochs = 2\nrate = 0.01\n"
    )
    assert read(path) == Recipe(prune=0.9, block=(1, 4), stages=3, values=16, epochs=2, rate=0.01)
    assert read({"low_rank": {"energy": 0.9}}) == Recipe(energy=0.9)


@pytest.mark.parametrize(
    "tables,message",
    [
        ({"prune": {"share": 1.0}}, "less than 1"),
        ({"prune": {"share": "x"}}, "prune"),
        ({"prune": {"block": [0, 4]}}, "block"),
        ({"prune": {"block": [4]}}, "block"),
        ({"prune": {"much": 1}}, "no such key"),
        ({"quantise": {}}, "no such table"),
        ({"epochs": 3}, r"no such table: .*\nhint: epochs is a key of \[train\]"),
        ({"prune": 0.5}, r"prune is a table: expected \[prune\] with share .* got prune = 0.5"),
        ({"share": {"values": 1}}, "values"),
        ({"share": {"values": True}}, "values"),
        ({"train": {"epochs": -1}}, "epochs"),
        ({"low_rank": {"energy": 2}}, "energy"),
        ({"low_rank": {"convolutions": "all"}}, "convolutions"),
        ({"prune": {"share": 0.5, "by": "size"}}, "by"),
        ({"prune": {"share": 0.5, "by": "movement", "stages": 1}, "train": {"epochs": 1}}, "two stages"),
        ({"train": {"temperature": 0}}, "temperature"),
        ({"train": {"labels": 1.5}}, "labels"),
    ],
)
def test_bad_recipes_are_refused(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError, match=message):
        read(tables)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[prune", b"prune = 3"])
def test_bad_files_are_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(CallError):
        read(path)
    with pytest.raises(CallError):
        read(tmp_path / "missing.toml")
