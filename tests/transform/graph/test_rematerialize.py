"""Cheap large values are computed again where they are read, with the same results; others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.ir.graph import Graph
from tilewright.ops.interpret import run_graph
from tilewright.support.errors import VerifyError
from tilewright.transform.graph import rematerialize
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.graph.rematerialize import rematerialize_cheap
from tilewright.transform.graph.verify import verify_groups

BIG = "f32[64, 32, 64]"


def centred(*, value: str = "mul(%n, %d)", reader: str = "mul(%t, %c)", seen: str = "%y", kind: str = BIG) -> Graph:
    """Something large that a kernel sums, and that another one reads after a product of the sums."""
    return ops.parse_graph(f"""
        graph @g(%n: {BIG}, %g: {BIG}, %k: f32[1, 1, 64], %m: f32[64, 64]) {{
          %one = constant() {{value = array f32[] (1.0)}} : f32[]
          %d = add(%k, %one) : f32[1, 1, 64]
          %c = {value} : {kind}
          %p = mul(%c, %g) : {BIG}
          %s = reduce_sum(%p) {{axes = [0, 1], keepdims = true}} : f32[1, 1, 64]
          %t = matmul(%s, %m) : f32[1, 1, 64]
          %q = {reader} : {BIG}
          %y = add(%g, %q) : {BIG}
          return {seen}
        }}""")


def groups_of(graph: Graph) -> tuple[list[Group], list[Group]]:
    before = fuse(graph)
    return before, rematerialize_cheap(before, frozenset(graph.outputs))


def written(groups: list[Group]) -> set[str]:
    return {v.name for group in groups for v in group.outputs}


@pytest.mark.parametrize("value", ["mul(%n, %d)", "sub(%n, %k)", "neg(%n)", "add(%one, %n)"])
def test_a_cheap_value_is_not_written(value: str) -> None:
    graph = centred(value=value)
    before, after = groups_of(graph)
    assert "c" in written(before) and "c" not in written(after)
    assert "c" not in {v.name for v in after[-1].inputs} and "n" in {v.name for v in after[-1].inputs}
    # What is small and made by the first kernel is handed on.
    assert ("d" in written(after)) == ("%d" in value) or "d" in written(before)


@pytest.mark.parametrize(
    "graph",
    [
        centred(value="div(%n, %d)"),
        centred(value="exp(%n)"),
        centred(value="mul(%n, %g)"),
        centred(seen="%y, %c"),
    ],
    ids=["a division", "a function", "of two large values", "an output"],
)
def test_others_are_written_once(graph: Graph) -> None:
    before, after = groups_of(graph)
    assert "c" in written(after) and after == before


def test_small_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rematerialize, "LARGE", 64 * 32 * 64 + 1)
    before, after = groups_of(centred())
    assert after == before


def test_a_product_reads_what_is_written() -> None:
    before, after = groups_of(centred(reader="matmul(%c, %m)"))
    assert "c" in written(after) and after == before


def chained() -> Graph:
    """The last kernel reads two cheap values, of which the second is made of the first."""
    return ops.parse_graph(f"""
        graph @g(%n: {BIG}, %g: {BIG}, %k: f32[1, 1, 64], %m: f32[64, 64]) {{
          %c = sub(%n, %k) : {BIG}
          %p = mul(%c, %g) : {BIG}
          %s = reduce_sum(%p) {{axes = [0, 1], keepdims = true}} : f32[1, 1, 64]
          %t = matmul(%s, %m) : f32[1, 1, 64]
          %q = mul(%t, %c) : {BIG}
          %h = mul(%q, %g) : {BIG}
          %u = reduce_sum(%h) {{axes = [0, 1], keepdims = true}} : f32[1, 1, 64]
          %v = matmul(%u, %m) : f32[1, 1, 64]
          %w = mul(%q, %v) : {BIG}
          %y = add(%w, %c) : {BIG}
          return %y
        }}""")


def test_what_is_recreated_of_what_is_there_once_more_reads_it() -> None:
    before, after = groups_of(chained())
    assert {"c", "q"} <= written(before) and {"c", "q"}.isdisjoint(written(after))
    verify_groups(chained(), after)
    assert [n.outputs[0].name for n in after[-1].nodes][:2] == ["c.again", "q.again"]


def test_kernels_that_read_what_no_one_created_are_refused() -> None:
    graph = chained()
    first, *others = fuse(graph)
    verify_groups(graph, [first, *others])
    with pytest.raises(VerifyError, match="an input is not computed yet") as result:
        verify_groups(graph, others)
    assert "%c" in str(result.value)
    with pytest.raises(VerifyError, match="reads what is not there"):
        verify_groups(graph, [replace(first, inputs=first.inputs[1:]), *others])
    with pytest.raises(VerifyError, match="no node makes an output"):
        verify_groups(graph, [replace(first, outputs=(*first.outputs, graph.outputs[0])), *others])


@pytest.mark.parametrize("graph", [centred(), chained()], ids=["one value", "one of another"])
def test_results_are_the_same(graph: Graph) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[int(str(d)) for d in v.shape]).astype(np.float32) for v in graph.inputs]
    (want,) = run_graph(graph, dict(zip((v.name for v in graph.inputs), arrays, strict=True))).values()
    got = np.asarray(tw.compile((graph, {}))(*arrays))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
