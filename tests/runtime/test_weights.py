"""New weights: checked as a whole, swapped at once, and never half."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.model import Model
from tilewright.runtime.weights.check import MAX_TREE, flattened
from tilewright.support.errors import WeightError

X = np.linspace(-1, 1, 50, dtype=np.float32)


def weights(value: float) -> dict[str, np.ndarray]:
    w = np.arange(6, dtype=np.float32).reshape(2, 3) * value
    return {"w": w, "scale": np.array([value], np.float32)}


def test_update_equals_fresh() -> None:
    model, fresh = Model(affine()), Model(dataclasses.replace(affine(), weights=weights(3)))
    before = model(X)[0].copy()
    assert model.update(weights(3)) == 1
    assert (model(X)[0] == fresh(X)[0]).all()
    assert not (model(X)[0] == before).all()
    np.testing.assert_allclose(model(X)[0], affine_reference(X, weights(3)["w"]), rtol=1e-5)


def test_arrays_may_change_after() -> None:
    model = Model(affine())
    inputs = weights(2)
    model.update(inputs)
    before = model(X)
    inputs["w"][:] = -1
    inputs["scale"][:] = -1
    after = model(X)
    assert (before[0] == after[0]).all()
    assert after[1][0] == 2
    assert model.weights["scale"][0] == 2
    with pytest.raises(ValueError):
        model.weights["w"][0, 0] = 1


def test_versions_grow() -> None:
    model = Model(affine())
    assert model.version == 0
    assert model.update(weights(1)) == 1
    assert model.update(weights(1), version=17) == 17
    for bad in (17, 3, -1):
        with pytest.raises(WeightError, match="does not grow"):
            model.update(weights(2), version=bad)
    for bad in ("18", 18.0, True):
        with pytest.raises(WeightError, match="a whole number from 18"):
            model.update(weights(2), version=bad)
    assert model.version == 17
    assert model(X)[1][0] == 1
    assert model.update(weights(2)) == 18


def test_everything_wrong_is_listed() -> None:
    model = Model(affine())
    expected = model(X)[0]
    with pytest.raises(WeightError) as caught:
        model.update({"scale": np.zeros((2,), np.float32), "nobody": np.zeros(1), "other": 3})
    text = str(caught.value)
    assert "weight 'w': is missing" in text
    assert "weight 'scale': wrong shape or type: expected f32[1], got f32[2]" in text
    assert "weight 'nobody': there is no such weight" in text
    assert len(caught.value.problems) == 4
    assert model.version == 0
    assert (model(X)[0] == expected).all()


def test_tied_weights_stay_one() -> None:
    """A second name of a weight may be left out, or hold the same numbers; others are refused, not dropped."""
    program = affine()
    tied = dataclasses.replace(program.manifest, ignored=("twin", "unread"), tied=(("twin", "w"),))
    model = Model(dataclasses.replace(program, manifest=tied))
    unread = np.ones(7)
    assert model.update({**weights(1), "unread": unread}) == 1
    arguments = weights(2)
    assert model.update({**arguments, "twin": arguments["w"]}) == 2
    assert model.update({**arguments, "twin": arguments["w"].copy(), "unread": unread}) == 3
    arguments["w"][0, 1] = np.nan
    assert model.update({**arguments, "twin": arguments["w"].copy()}, finite=False) == 4
    for twin in (weights(2)["w"], arguments["w"][:1], arguments["w"].astype(np.float64)):
        with pytest.raises(WeightError, match="weight 'twin': was one tensor with 'w' when the model was compiled"):
            model.update({**arguments, "twin": twin}, finite=False)
    with pytest.raises(WeightError, match="weight 'twin'"):
        model.update({**arguments, "twin": "w"}, finite=False)
    assert model.version == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros((2, 3))}, "got f64[2, 3]"),
        ({"w": np.zeros((3, 2), np.float32)}, "got f32[3, 2]"),
        ({"w": [[0.0] * 3] * 2}, "not an array"),
        ({"w": None}, "not an array"),
        ({"w": np.zeros((2, 3), ">f4")}, "wrong shape or type"),
        ({"w": np.full((2, 3), np.nan, np.float32)}, "holds NaN or infinity"),
        ({"w": np.full((2, 3), np.inf, np.float32)}, "holds NaN or infinity"),
    ],
)
def test_refused(change: dict[str, object], message: str) -> None:
    model = Model(affine())
    with pytest.raises(WeightError) as caught:
        model.update({**weights(1), **change})
    assert message in str(caught.value)
    assert model.version == 0


def test_only_weights_of_another_precision_are_told_to_be_converted() -> None:
    model = Model(affine())
    half = ("f2", "f8", BY_NAME["bf16"].numpy)
    for dtype, shape, told in (*((d, (2, 3), True) for d in half), ("i4", (2, 3), False), ("f2", (3, 2), False)):
        with pytest.raises(WeightError) as caught:
            model.update({**weights(1), "w": np.zeros(shape, dtype)})
        assert ("w.float()" in str(caught.value)) == told, (dtype, shape)


def test_not_a_mapping() -> None:
    with pytest.raises(WeightError, match="not a mapping"):
        Model(affine()).update([1, 2])


def test_trees_of_weights_by_the_paths_to_their_leaves() -> None:
    tree = {"layers": [{"w": 1}, ({"b": 2}, 3)], "scale": 4, "none": {}}
    assert flattened(tree) == {"layers.0.w": 1, "layers.1.0.b": 2, "layers.1.1": 3, "scale": 4}
    deep: object = 7
    for _ in range(MAX_TREE + 1):
        deep = [deep]
    assert flattened(deep) == {".".join("0" * (MAX_TREE + 1)): 7}
    with pytest.raises(WeightError, match="too deep"):
        flattened([deep])


def test_infinity_by_wish_and_large_values() -> None:
    model = Model(affine())
    model.update({**weights(1), "scale": np.array([np.inf], np.float32)}, finite=False)
    assert model(X)[1][0] == np.inf
    # A sum that overflows is not a value that is not finite.
    model.update({**weights(1), "w": np.full((2, 3), 3e38, np.float32)})


def test_transposed_and_strided_are_selected() -> None:
    model = Model(affine())
    w = weights(1)["w"]
    model.update({**weights(1), "w": np.asfortranarray(w)})
    np.testing.assert_allclose(model(X)[0], affine_reference(X, w), rtol=1e-5)


def test_constants_of_the_model_stay() -> None:
    base = affine()
    fixed = tuple(dataclasses.replace(p, fixed=p.name == "scale") for p in base.manifest.params)
    model = Model(dataclasses.replace(base, manifest=dataclasses.replace(base.manifest, params=fixed)))
    assert [p.name for p in model.params] == ["w"] == list(model.weights)
    for value in (2, 3):
        model.update({"w": weights(value)["w"]})
        y, c = model(X)
        np.testing.assert_allclose(y, affine_reference(X, weights(value)["w"]), rtol=1e-5)
        assert c[0] == 7
    with pytest.raises(WeightError, match="weight 'scale': there is no such weight"):
        model.update(weights(1))


def test_no_weights() -> None:
    model = Model(copy16())
    assert model.update({}) == 1
    with pytest.raises(WeightError):
        model.update({"w": X})


def test_never_torn() -> None:
    """Every call sees one version: the output's slope and its `c` belong together."""
    model = Model(affine())
    model.update(weights(1))
    stop, failures, seen = threading.Event(), [], set()

    def work() -> None:
        x = np.zeros(64, np.float32)
        last = 0.0
        while not stop.is_set():
            y, c = model(x)
            # exp(0) w0 + w1 = (3, 5, 7) times the version's value
            if not (y == np.array([3, 5, 7], np.float32) * c[0]).all():
                failures.append((y[0].tolist(), float(c[0])))
            if c[0] < last:
                failures.append(("went back", last, float(c[0])))
            last = float(c[0])
            seen.add(last)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for t in callers:
        t.start()
    for value in range(2, 300):
        model.update(weights(value))
    stop.set()
    for t in callers:
        t.join()
    assert not failures
    assert model(X)[1][0] == 299


def test_memory_of_old_versions_is_used_once_more() -> None:
    model = Model(affine())
    places = set()
    for value in range(20):
        model.update(weights(value))
        places.add(model._weight_addresses()[0])
    assert len(places) == 2


def test_weights_handed_out_stay_as_they_are() -> None:
    model = Model(affine())
    handed = []
    for value in range(1, 20):
        model.update(weights(value))
        handed.append(model.weights["w"])
    for value, w in enumerate(handed, 1):
        assert (w == weights(value)["w"]).all()


def test_a_call_can_tell_its_version() -> None:
    model = Model(affine(), version=4)
    for value in range(5, 9):
        assert model.update(weights(value)) == value
        (_, c), version = model.versioned(X)
        assert version == value == c[0]
        (_, c), version = model.versioned(X[::2])  # through the slow path
        assert version == value == c[0]
