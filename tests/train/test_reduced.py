"""Gradients that others change before parameters move; processes that learn on parts of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.train.test_recompute import ROWS, batch, chain
from tilewright.ir.dtype import f32
from tilewright.ir.expr import as_expr
from tilewright.ir.graph import GraphBuilder, TensorType
from tilewright.ops.registry import emit1
from tilewright.support.errors import Error
from tilewright.train.arena import Arena
from tilewright.train.entry import compile_step
from tilewright.train.optimizers import Adam
from tilewright.train.plan import Group
from tilewright.train.reduced import buckets
from tilewright.transform.regions.captures import names_of

Array = np.ndarray[Any, Any]


def weights(step: Any) -> Array:
    return np.concatenate([np.ravel(v) for v in step.weights.values()])


@pytest.mark.parametrize("clip", [None, 0.1])
def test_what_changes_nothing_is_a_ordinary_step(clip: float | None) -> None:
    seen: list[Array] = []
    ordinary = compile_step(chain(3), optimizer=Adam(0.01), clip=clip)
    parted = compile_step(chain(3), optimizer=Adam(0.01), clip=clip, reduce=lambda g: seen.append(g.copy()))
    for k in range(5):
        one, other = ordinary(batch(k)), parted(batch(k))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
    np.testing.assert_allclose(weights(parted), weights(ordinary), rtol=1e-5, atol=1e-7)
    assert len(seen) == 5  # small gradients are one part
    assert np.linalg.norm(seen[-1]) == pytest.approx(other["gradient_norm"], rel=1e-5)


def test_parameters_move_by_what_is_left() -> None:
    """Parameters move once what was begun has ended."""

    class Work:
        def __init__(self, part: Array) -> None:
            self.part = part

        def wait(self) -> None:
            self.part *= 2

    ordinary = compile_step(chain(2), optimizer=tw.train.SGD(0.2))
    doubled = compile_step(chain(2), optimizer=tw.train.SGD(0.1), reduce=Work)
    norms = ordinary(batch(0))["gradient_norm"], doubled(batch(0))["gradient_norm"]
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)
    np.testing.assert_allclose(weights(doubled), weights(ordinary), rtol=1e-6, atol=1e-8)


def test_the_last_parameters_come_first() -> None:
    arena = Arena(("a", "b", "c", "d"), ((16,), (32,), (5,), (16,)))

    def cut(nbytes: int, *groups: tuple[str, ...]) -> list[tuple[int, int]]:
        return buckets(arena, tuple(Group(Adam(), names) for names in groups), nbytes)

    assert cut(1, arena.names) == [(64, 80), (48, 64), (16, 48), (0, 16)]
    assert cut(128, arena.names) == [(48, 80), (16, 48), (0, 16)]
    assert cut(1 << 20, arena.names) == [(0, 80)]
    assert cut(1 << 20, (), ("a", "b"), ("c", "d")) == [(48, 80), (0, 48)]
    assert cut(1 << 20, ("a",)) == [(0, 16)]


def test_what_is_not_finite_leaves_no_trace() -> None:
    def spoil(part: Array) -> None:
        part[0] = np.nan

    step = compile_step(chain(2), reduce=spoil)
    before = weights(step).copy()
    with pytest.raises(Error, match="parameters are as they were"):
        step(batch(0))
    np.testing.assert_array_equal(weights(step), before)
    assert step.count == 0


def test_buckets_are_handed_over_while_the_way_back_goes_on() -> None:
    """The last layer's gradients come when those of the first are not there yet; parameters are the same bits."""
    seen: list[tuple[int, Array]] = []

    def keep(part: Array) -> None:
        vector = part.base if part.base is not None else part
        seen.append((part.size, np.array(vector)))

    whole = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, reduce=lambda g: None)
    parted = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, reduce=keep, bucket=4)
    for k in range(4):
        assert whole(batch(k)) == parted(batch(k))
    np.testing.assert_array_equal(weights(parted), weights(whole))
    count = len(whole.parameters)
    assert len(seen) == 4 * count > 4
    filled = [np.count_nonzero(vector) for _, vector in seen[:count]]
    assert filled == sorted(filled) and len(set(filled)) == count  # of zeros, ever more is there
    for _, vector in seen[:count]:
        there = np.flatnonzero(vector)
        assert there[-1] == np.flatnonzero(seen[count - 1][1])[-1]  # the last ones first


def test_work_that_was_begun_ends_after_the_way_back() -> None:
    """`wait` is called once all buckets have been handed over."""
    log: list[str] = []

    class Work:
        def __init__(self, part: Array) -> None:
            log.append("begin")

        def wait(self) -> None:
            log.append("wait")

    step = compile_step(chain(2), reduce=Work, bucket=4)
    step(batch(0))
    count = len(step.parameters)
    assert log == ["begin"] * count + ["wait"] * count


@pytest.mark.parametrize("bucket", [4, 1 << 20])
def test_gradients_of_several_batches_are_reduced_once(bucket: int) -> None:
    calls: list[int] = []
    ordinary = compile_step(chain(3), optimizer=Adam(0.01), clip=0.1, accumulate=3)
    reduced = compile_step(
        chain(3), optimizer=Adam(0.01), clip=0.1, accumulate=3, reduce=lambda g: calls.append(g.size), bucket=bucket
    )
    for k in range(6):
        one, other = ordinary(batch(k)), reduced(batch(k))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
    assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-6)
    np.testing.assert_allclose(weights(reduced), weights(ordinary), rtol=1e-5, atol=1e-7)
    assert len(calls) == 2 * (len(ordinary.parameters) if bucket == 4 else 1)


def test_a_spoiled_sum_is_begun_anew(tmp_path: Path) -> None:
    step = compile_step(chain(2), accumulate=2, reduce=lambda g: None)
    before = weights(step).copy()
    step(np.full_like(batch(0), np.nan))
    with pytest.raises(Error, match="parameters are as they were"):
        step(batch(0))
    np.testing.assert_array_equal(weights(step), before)
    clean = compile_step(chain(2), accumulate=2, reduce=lambda g: None)
    for k in range(2):
        step(batch(k))
        clean(batch(k))
    np.testing.assert_array_equal(weights(step), weights(clean))


def test_a_sum_that_was_saved_is_gone_on_with(tmp_path: Path) -> None:
    steps = [compile_step(chain(2), accumulate=2, reduce=lambda g: None) for _ in range(2)]
    steps[0](batch(0))
    steps[0].save(tmp_path / "step")
    steps[1].load(tmp_path / "step")
    for step in steps:
        step(batch(1))
    np.testing.assert_array_equal(weights(steps[0]), weights(steps[1]))


def test_what_is_passed_and_read_once_more_is_retained() -> None:
    """The loss is a factor of all gradients: the first bucket's section gives it, the others read it."""

    def exponential() -> Any:
        builder = GraphBuilder("exponential")
        four = TensorType(f32, (as_expr(4),))
        x = builder.input("x", four)
        terms = [emit1(builder, "mul", x, builder.param(name, four)) for name in ("a", "b", "c")]
        total = emit1(builder, "add", emit1(builder, "add", terms[0], terms[1]), terms[2])
        loss = emit1(builder, "exp", emit1(builder, "reduce_sum", total, axes=(0,), keepdims=False))
        return builder.finish((loss,)), {name: np.zeros(4, np.float32) for name in ("a", "b", "c")}

    ordinary = compile_step(exponential(), optimizer=tw.train.SGD(0.1))
    parted = compile_step(exponential(), optimizer=tw.train.SGD(0.1), reduce=lambda g: None, bucket=4)
    x = np.arange(4, dtype=np.float32) / 8
    for _ in range(3):
        assert ordinary(x) == pytest.approx(parted(x), rel=1e-6)
    np.testing.assert_allclose(weights(parted), weights(ordinary), rtol=1e-6)


def test_what_moves_in_groups_is_there_as_early() -> None:
    """The group of a few parameters of all layers stands last, but is not there before the first layer's gradient."""
    seen: list[tuple[int, int]] = []
    graph, values = chain(4)

    def keep(part: Array) -> None:
        base = part.base if part.base is not None else part
        seen.append(((part.ctypes.data - base.ctypes.data) // 4, part.size))

    step = compile_step((graph, values), reduce=keep, bucket=4, groups={"w[03]": Adam(0.1)})
    assert list(step.parameters) == ["w1", "w2", "w0", "w3"]
    step(batch(0))
    first = min(start for start, _ in seen)
    assert [start - first for start, _ in seen] == [192, 64, 0, 128]  # w3, w2, w1, w0


def test_parameters_that_follow_others() -> None:
    """Averages follow each update, and batches between updates move nothing."""
    graph, values = chain(2)
    builder = GraphBuilder(
        graph.name, list(graph.inputs), list(graph.params), list(graph.nodes), names_of(graph) | {"x"}
    )
    target = builder.param("t0", graph.params[0].type)
    from_memory = emit1(builder, "reduce_sum", emit1(builder, "mul", target, target), axes=(0, 1), keepdims=False)
    loss = emit1(builder, "add", graph.outputs[0], from_memory)
    model = builder.finish((loss,)), values | {"t0": np.ones_like(values["w0"])}
    average = tw.train.Average("t", "w", tau=0.25)
    settings: dict[str, Any] = {"optimizer": tw.train.SGD(0.5), "averages": [average], "trained": ["w0"]}
    settings |= {"accumulate": 2}
    ordinary, reduced = (
        compile_step(model, **settings),
        compile_step(model, **settings, reduce=lambda g: None, bucket=4),
    )
    target = values["w0"] * 0 + 1
    for k in range(6):
        assert ordinary(batch(k))["loss"] == pytest.approx(reduced(batch(k))["loss"], rel=1e-6)
        if k % 2:
            target = 0.75 * target + 0.25 * ordinary.parameters["w0"]
        for step in (ordinary, reduced):
            np.testing.assert_allclose(step.weights["t0"], target, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights(reduced), weights(ordinary), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulate", [2, 3, 4])
def test_gathered_gradients_take_one_vector(accumulate: int) -> None:
    """Beside the two arenas there is one vector, where PyTorch has its gradients; a refused batch spoils no sum."""
    ordinary = compile_step(chain(3), optimizer=Adam(0.01), accumulate=accumulate)
    reduced = compile_step(chain(3), optimizer=Adam(0.01), accumulate=accumulate, reduce=lambda g: None, bucket=4)
    exact = compile_step(chain(3, rows=ROWS * accumulate), optimizer=Adam(0.01))
    for step in (ordinary, reduced):
        vectors = {id(_whole(v)): _whole(v).size for v in _vectors(step)}
        part = sum(-(-v.size // 16) * 16 for v in step.parameters.values())
        assert sum(vectors.values()) == pytest.approx(7 * part, abs=100)
    for k in range(2 * accumulate):
        with pytest.raises(Error, match="not finite"):
            ordinary(np.full_like(batch(0), np.nan))
        for step in (ordinary, reduced):
            step(batch(k))
        if (k + 1) % accumulate == 0:
            exact(np.concatenate([batch(j) for j in range(k + 1 - accumulate, k + 1)]))
            for step in (ordinary, reduced):
                np.testing.assert_allclose(weights(step), weights(exact), rtol=1e-4, atol=1e-6)


def _vectors(step: Any) -> list[Array]:
    """All that a step holds between two calls, of the size of its parameters or more."""
    held = [step._arena.now, step._arena.after, step._gradients]
    return [v for v in held if v.size >= step._layout.arena.part]


def _whole(vector: Array) -> Array:
    return vector if vector.base is None else vector.base


def test_a_function_that_fails_leaves_no_trace() -> None:
    """Whatever was begun has ended when the error is there; the next step is as if nothing had been."""
    log: list[str] = []

    class Work:
        def __init__(self, part: Array) -> None:
            if len(log) == 1 and not log[0].startswith("wait"):
                log.append("fail")
                raise OSError("the line is dead")
            log.append("begin")

        def wait(self) -> None:
            log.append("wait")

    step = compile_step(chain(3), optimizer=Adam(0.01), reduce=Work, bucket=4)
    ordinary = compile_step(chain(3), optimizer=Adam(0.01), reduce=lambda g: None, bucket=4)
    before = weights(step).copy()
    with pytest.raises(Error, match=r"not reduced; parameters are as they were.*OSError: the line is dead"):
        step(batch(0))
    assert log == ["begin", "fail", "wait"]
    np.testing.assert_array_equal(weights(step), before)
    for k in range(2):
        assert step(batch(k)) == ordinary(batch(k))
    np.testing.assert_array_equal(weights(step), weights(ordinary))


def test_work_that_fails_leaves_no_trace() -> None:
    """All others are waited for."""
    waited: list[int] = []

    class Work:
        def __init__(self, part: Array) -> None:
            self.size = part.size

        def wait(self) -> None:
            waited.append(self.size)
            if len(waited) == 1:
                raise RuntimeError("connection closed by peer")

    step = compile_step(chain(3), reduce=Work, bucket=4)
    before = weights(step).copy()
    with pytest.raises(Error, match="connection closed by peer"):
        step(batch(0))
    assert len(waited) == 3
    np.testing.assert_array_equal(weights(step), before)


@pytest.mark.parametrize("bad", [np.zeros((3, 3), np.float32), None])
def test_a_batch_that_does_not_fit_is_told_to_the_others(bad: Array | None) -> None:
    """The others wait for this process: they get NaN, and refuse the step as well."""
    seen: list[bool] = []
    step = compile_step(chain(3), reduce=lambda g: seen.append(bool(np.isnan(g).all())), bucket=4)
    step(batch(0))
    before = weights(step).copy()
    seen.clear()
    with pytest.raises(Error, match=r"as many as the example's|wrong dimension"):
        step(*([bad] if bad is not None else []))
    assert seen == [True] * 3
    np.testing.assert_array_equal(weights(step), before)
    step(batch(1))
    assert seen[3:] == [False] * 3
