"""Lowered groups say of which operators their blocks come, and go on saying so while they are scheduled."""

from __future__ import annotations

from tilewright import ops
from tilewright.ir.dtype import f32
from tilewright.ir.expr import Var, const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ir.key import key
from tilewright.ir.loops import Block, PrimFunc
from tilewright.ir.notes import Origin, find
from tilewright.ir.rewrite import walk
from tilewright.ir.verify import verify_func
from tilewright.plans import plan
from tilewright.plans.framework.variants import specialize
from tilewright.targets.target import Target
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group


def lowered(graph: Graph) -> PrimFunc:
    """The unscheduled function of a graph of one group."""
    (group,) = fuse(graph)
    return lower_group(group, "k").func


def origins(func: PrimFunc) -> dict[str, Origin | None]:
    return {s.name: find(s.notes, Origin) for s in walk(func.body) if isinstance(s, Block)}


def pointwise(op: str) -> Graph:
    b = GraphBuilder("pointwise")
    x = b.input("x", TensorType(f32, (const(4), const(6))))
    return b.finish((ops.emit1(b, op, ops.emit1(b, "abs", x)),))


def test_every_block_has_the_operator_and_the_stage() -> None:
    b = GraphBuilder("product")
    x, w = (b.input(name, TensorType(f32, (const(8), const(8)))) for name in "xw")
    func = lowered(b.finish((ops.emit1(b, "relu", ops.emit1(b, "matmul", x, w)),)))
    result = [origin for origin in origins(func).values() if origin is not None]
    assert len(result) == len(origins(func))
    assert [(origin.op, origin.attrs) for origin in result] == [
        ("matmul", ops.get("matmul").attrs()),
        ("relu", ops.get("relu").attrs()),
    ]
    assert ops.parse_func(str(func)) == func


def test_joined_dimensions_keep_it() -> None:
    func = lowered(pointwise("neg"))
    assert all(len(s.iters) == 1 for s in walk(func.body) if isinstance(s, Block))
    assert [origin and origin.op for origin in origins(func).values()] == ["abs", "neg"]


def test_schedules_keep_it() -> None:
    b = GraphBuilder("sum")
    x = b.input("x", TensorType(f32, (const(64), const(640))))
    func = lowered(b.finish((ops.emit1(b, "reduce_sum", x, axes=(1,), keepdims=False),)))
    scheduled = plan(func, Target.parse("znver4")).schedule.func
    stamped = [origin.op for origin in origins(scheduled).values() if origin is not None]
    assert len(stamped) > 1 and set(stamped) == {"reduce_sum"}, "all but what only copies"


def test_it_is_part_of_the_key_and_names_are_not() -> None:
    assert key(lowered(pointwise("neg"))) == key(lowered(pointwise("neg")))
    b = GraphBuilder("pointwise")
    y = b.input("y", TensorType(f32, (const(4), const(6))))
    assert key(lowered(b.finish((ops.emit1(b, "neg", ops.emit1(b, "abs", y)),)))) == key(lowered(pointwise("neg")))


def test_special_versions_have_their_numbers_in_attributes() -> None:
    n = Var("n", lo=1)
    b = GraphBuilder("part")
    x = b.input("x", TensorType(f32, (n, const(6))))
    func = lowered(b.finish((ops.emit1(b, "reshape", x, shape=(n * 2, 3)),)))
    (origin,) = origins(func).values()
    assert origin is not None and origin.attrs.exprs
    special = specialize(func, {n: 1})
    verify_func(special)
    (origin,) = origins(special).values()
    assert origin is not None and n not in origin.attrs.exprs
