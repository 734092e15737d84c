"""The parts of the replay of a learned residual; LightGBM itself is an extra, and is not asked here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.bench_residual import Features, Preferred, folds_of, order, residual
from tilewright.tuning.replay import Recorded, play

LABELS = ("tiles rows=4,width=8", "tiles rows=6,width=8", "direct")
SPACE = Recorded("matmul(f32[3, 64], f32[64, 8])", LABELS, (10.0, 20.0, 40.0), (1.0, 0.9, 1.2), (1.0, 0.95, 1.1))


def test_features_have_the_same_columns_for_all_spaces() -> None:
    other = replace(SPACE, about="conv(f32[1])", labels=("direct", "winograd tile=4"), estimates=(1.0, 2.0))
    features = Features([SPACE, other])
    assert features.kinds == ["direct", "tiles", "winograd"] and features.knobs == ["rows", "tile", "width"]
    mine, theirs = features.of(SPACE), features.of(other)
    assert mine.shape == (3, theirs.shape[1]) and theirs.shape[0] == 2
    assert mine[:, 0].tolist() == [1, 1, 0] and np.allclose(mine[:, 1], np.log([1, 2, 4]))
    assert np.allclose(mine[0, -8:], [*np.log2([4, 65, 65, 9]), -1, -1, -1, -1]), "f32 is no size"


def test_what_is_learned_is_relative_to_a_space() -> None:
    left = residual(SPACE)
    assert abs(left.mean()) < 1e-12 and np.allclose(np.diff(left), np.log([0.9 / 2, 1.2 / 0.9 / 2]))
    assert np.allclose(left, residual(replace(SPACE, estimates=tuple(7 * e for e in SPACE.estimates))))


def test_a_workload_is_in_one_fold() -> None:
    groups = ["a", "b", "a", "c", "b", "a"]
    folds = folds_of(groups, 2)
    assert sorted(k for fold in folds for k in fold) == list(range(6))
    assert all(len({f for f, fold in enumerate(folds) for k in fold if groups[k] == g}) == 1 for g in "abc")
    assert len(folds_of(groups, 10)) == 3


def test_the_best_estimate_is_played_and_pairs_are_told() -> None:
    assert play(SPACE, Preferred).choice == LABELS[0]
    transposed = replace(SPACE, estimates=(20.0, 10.0, 40.0))
    assert play(transposed, Preferred).choice == LABELS[1] and play(transposed, Preferred).regret == 0.0
    assert order(SPACE) == 2 / 3 and order(transposed) == 1.0
