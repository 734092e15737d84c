"""Many stages at once: inlining of all pointwise ones, groups that move as one, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.te.conformance import close, evaluate, random
from tilewright import te
from tilewright.support.errors import ScheduleError

# --- inlining of all pointwise stages -------------------------------------------------------------------------------


def _pointwise_chain() -> tuple[te.Tensor, dict[str, te.Tensor]]:
    """Pointwise stages before and after a sum; one is reversed, one broadcasts."""
    a, k = te.placeholder((6, 5), name="A"), te.reduce_axis(5)
    b = te.compute((6, 5), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((6, 5), lambda i, j: b[5 - i, j] * 2.0, name="C")
    d = te.compute((6,), lambda i: te.sum(c[i, k], axis=k), name="D")
    e = te.compute((6,), lambda i: te.maximum(d[i], 0.0), name="E")
    f = te.compute((6, 5), lambda i, j: e[i] - b[i, j], name="F")
    g = te.compute((6, 5), lambda i, j: f[i, j] * 3.0, name="G")
    return a, {"B": b, "C": c, "D": d, "E": e, "F": f, "G": g}


@pytest.mark.parametrize(
    ("how", "gone"), [("inline_injective", ("B", "C", "E", "F")), ("inline_elementwise", ("B", "E"))]
)
def test_inlining_of_all_pointwise_stages(how: str, gone: tuple[str, ...]) -> None:
    a, t = _pointwise_chain()
    x = random((6, 5))

    def schedule(s: Any) -> None:
        assert getattr(s, how)() == gone
        assert [b.name for b in s.schedule.blocks()] == [n for n in t if n not in gone]

    d = ((x + 1)[::-1] * 2).sum(axis=1)
    expected = (np.maximum(d, 0)[:, None] - (x + 1)) * 3
    close(evaluate(t["G"], [(a, x)], schedule=schedule)[0], expected)


def test_inlining_leaves_what_was_scheduled() -> None:
    """A stage that was split, moved or placed in a memory stays, and so does a copy that a primitive made."""
    a, t = _pointwise_chain()
    x = random((6, 5))

    def schedule(s: Any) -> None:
        s[t["B"]].split(t["B"].axis[1], 4)
        s[t["C"]].set_scope("local")
        s[t["E"]].compute_at(s[t["F"]], t["F"].axis[0])
        s[t["D"]].cache_write("local")
        assert s.inline_injective() == ()  # F has E in its loop

    d = ((x + 1)[::-1] * 2).sum(axis=1)
    close(evaluate(t["G"], [(a, x)], schedule=schedule)[0], (np.maximum(d, 0)[:, None] - (x + 1)) * 3)


def test_inlining_leaves_what_a_function_needs_whole() -> None:
    a = te.placeholder((5,), name="A")
    b = te.compute((5,), lambda i: a[i] * 2.0, name="B")
    c = te.extern((5,), [b], lambda b, c: np.copyto(c, np.sort(b)), name="C")
    d = te.compute((5,), lambda i: c[i] + 1.0, name="D")
    s = te.create_schedule(d)
    assert s.inline_injective() == ()
    assert "B is not inlined" in s.schedule.refused[0]


# --- groups ---------------------------------------------------------------------------------------------------------


def _group_chain() -> tuple[te.Tensor, te.Tensor, dict[str, te.Tensor]]:
    a, z = te.placeholder((12,), name="A"), te.placeholder((12,), name="Z")
    b = te.compute((12,), lambda i: a[i] + 1.0, name="B")
    w = te.compute((12,), lambda i: z[i] * z[i], name="W")
    c = te.compute((12,), lambda i: b[i] * w[i], name="C")
    d = te.compute((12,), lambda i: c[i] - b[i], name="D")
    e = te.compute((12,), lambda i: d[i] * 0.5, name="E")
    return a, z, {"B": b, "W": w, "C": c, "D": d, "E": e}


@pytest.mark.parametrize(
    ("outputs", "inputs", "include", "members"),
    [
        ("D", ["A"], False, "BCD"),
        ("D", ["B"], False, "CD"),
        ("D", ["B"], True, "BCD"),
        ("D", ["A", "Z"], False, "BWCD"),
        ("C", ["Z"], False, "WC"),
        ("C", ["W", "B"], False, "C"),
    ],
)
def test_groups(outputs: str, inputs: list[str], include: bool, members: str) -> None:
    """The stages between the ends move as one; what does not come from the inputs stays where it was."""
    a, z, t = _group_chain()
    named = {**t, "A": a, "Z": z}
    x, y = random((12,)), random((12,), seed=1)
    reader = t["E"] if outputs == "D" else t["D"]

    def schedule(s: Any) -> None:
        group = s.create_group(outputs=t[outputs], inputs=[named[i] for i in inputs], include_inputs=include)
        assert "".join(m.name for m in group.stages) == members
        outer, _ = s[reader].split(reader.axis[0], 4)
        group.compute_at(s[reader], outer)
        assert all(s[t[m]].loops[0] == outer for m in members)
        assert all(s[t[m]].loops[0] != outer for m in t if m not in members and t[m] is not reader)

    expected = ((x + 1) * (y * y) - (x + 1)) * 0.5
    close(evaluate(t["E"], [(a, x), (z, y)], schedule=schedule)[0], expected)


def test_groups_that_are_refused() -> None:
    """A group that cannot move as a whole stays as it was."""
    a, _, t = _group_chain()
    s = te.create_schedule([t["E"], t["W"]])
    before = str(s)
    with pytest.raises(ScheduleError, match="no stage is between"):
        s.create_group(outputs=t["W"], inputs=a)
    with pytest.raises(ScheduleError):
        s.create_group(outputs=t["C"], inputs=a).compute_at(s[t["C"]], t["C"].axis[0])
    with pytest.raises(ScheduleError):  # B is read before E too
        s.create_group(outputs=[t["B"], t["C"]], inputs=a).compute_at(s[t["E"]], t["E"].axis[0])
    assert str(s) == before
    s[t["C"]].compute_at(s[t["D"]], t["D"].axis[0])
    with pytest.raises(ScheduleError, match="is around C, D of one group"):
        s.create_group(outputs=t["D"], inputs=t["B"]).compute_at(s[t["E"]], t["E"].axis[0])
