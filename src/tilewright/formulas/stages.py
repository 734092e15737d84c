"""A stage of a tensor expression as a statement: the inverse of `lowering.py`.

    te.compute((4, 5), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k))   ->   y[i0, i1] +! x0[i0, i2] * x1[i2, i1]

So a stage that a program made, such as an adjoint, is an operator that can be read, printed and kept like one that was
written. A read that is proved to be inside, under its conditions, stands as it is; another one gets `pad`, or `clamp`
where its index is not made of sums and quotients. As a stage reads only inside, neither changes what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tilewright.arith import prove, simplify
from tilewright.formulas.functions import BINARY, UNARY
from tilewright.formulas.nests import Nest
from tilewright.formulas.source import NOWHERE
from tilewright.formulas.syntax import Apply, Name, Node, Number, Outside, Read, Reducer, rebuild, walk
from tilewright.ir.dtype import boolean, f32, i64
from tilewright.ir.expr import Const, Expr, Load, Op, Var, const, is_const
from tilewright.ir.guarded import guarded_loads
from tilewright.ir.reduce import Reduce
from tilewright.ir.rewrite import loads, map_expr, substitute, variables
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError
from tilewright.te.adjoint import reduction_of
from tilewright.te.tensors import ComputeOp, Tensor, compute, labelled

MAX_OPERATORS = 256
"""The approximate largest number of operators of a statement; longer ones are divided into several."""
MAX_TABLE = 32
"""The largest number of entries of a table that is written as a chain of conditions."""

_SIGNS: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or", "not": "not", "neg": "neg",
} | {op: name for name, op in (BINARY | UNARY).items()}  # fmt: skip
_INDEX = frozenset("add sub mul floordiv mod min max neg".split())


@dataclass(frozen=True, slots=True)
class Stage:
    """A statement, and what its names mean: inputs x0, x1, ..., the extents of indices i0, i1, ..., sizes n0, n1,
    ..."""

    nest: Nest
    inputs: tuple[Tensor, ...]
    extents: tuple[Expr, ...]
    sizes: tuple[Expr, ...]


def statement_of(tensor: Tensor, careful: bool = False) -> Stage:
    """The statement that computes a tensor from the tensors that its stage reads. `careful` puts `pad` around every
    read that is in bounds only under conditions.

    Raises UnsupportedError for what statements cannot express: several results, user-defined reducers, functions that
    comprehensions do not know.
    """
    op = tensor.op
    if not isinstance(op, ComputeOp) or len(op.bodies) != 1:
        raise UnsupportedError("no statement: a recurrence or a stage of several results", where=tensor.name)
    return _Writer(op, careful).write()


def divided(tensor: Tensor) -> Tensor:
    """A tensor with the same elements whose body has at most `MAX_OPERATORS` operators, counted as in a tree. Parts of
    a longer body become stages of their own, those first that stand in it several times."""
    op = tensor.op
    if not isinstance(op, ComputeOp) or len(op.bodies) != 1:
        return tensor
    body = op.bodies[0]
    value = body.values[0] if isinstance(body, Reduce) else body
    box = {a.var: a.extent for a in (*op.axis, *op.reduce_axis)}
    while (sizes := _tree_sizes(value))[value] > MAX_OPERATORS:
        parts = [e for e in _elements(value) if 0 < sizes[e] <= MAX_OPERATORS // 2]
        if not parts:  # all of it stands in indices and conditions
            break
        part = max(parts, key=lambda e: sizes[e])
        own = {v: extent for v, extent in box.items() if v in set(variables(part))}

        def element(*at: Expr, part: Expr = part, own: Mapping[Var, Expr] = own) -> Expr:
            return substitute(part, dict(zip(own, at, strict=True)))

        names = [f"j{d}" for d in range(len(own))]
        stage: Tensor = compute(tuple(own.values()), labelled(element, names), name=f"{tensor.name}_part")
        read = stage[tuple(own)]
        value = map_expr(value, lambda e, part=part, read=read: read if e is part else None)  # type: ignore[misc]
    if value is (body.values[0] if isinstance(body, Reduce) else body):
        return tensor
    if isinstance(body, Reduce):
        value = Reduce(body.reducer, (value,), body.axes, body.condition)
    return Tensor(tensor.name, tensor.dtype, tensor.shape, replace(op, bodies=(value,)))


def _tree_sizes(e: Expr) -> dict[Expr, int]:
    """The number of operators in each subexpression of `e`; shared ones count as often as they occur."""
    sizes: dict[Expr, int] = {}
    for node in reversed(_parents_first(e)):
        sizes[node] = sum(sizes[c] for c in node.children) + isinstance(node, Op)
    return sizes


def _parents_first(e: Expr) -> list[Expr]:
    order: list[Expr] = []
    seen: set[Expr] = set()

    def go(node: Expr) -> None:
        if node not in seen:
            seen.add(node)
            for child in node.children:
                go(child)
            order.append(node)

    go(e)
    return order[::-1]


def _elements(e: Expr) -> list[Expr]:
    """The subexpressions of `e` that compute floats, except inside of indices and conditions."""
    result: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node in result or not isinstance(node, Op) or not node.dtype.is_float:
            continue
        result[node] = None
        stack.extend(node.args)
    return [node for node in result if node is not e]


@dataclass(slots=True)
class _Writer:
    op: ComputeOp
    careful: bool
    names: dict[Var, str] = field(default_factory=dict)
    axes: dict[Var, Expr] = field(default_factory=dict)
    inputs: dict[Tensor, str] = field(default_factory=dict)
    sizes: dict[Expr, str] = field(default_factory=dict)
    ways: dict[Load, Outside] = field(default_factory=dict)

    def write(self) -> Stage:
        body = self.op.bodies[0]
        reducer: Reducer | None = None
        value = body
        condition: Expr = const(True)
        reduced: list[tuple[Var, Expr]] = []
        if isinstance(body, Reduce):
            value, condition, reduced = body.values[0], body.condition, list(body.axes)
            reducer = self.reducer(body)
        box = [(a.var, a.extent) for a in self.op.axis]
        self.axes = dict([*box, *reduced])
        self.names = {v: f"i{k}" for k, v in enumerate(self.axes)}
        self.decide(condition, ())
        self.decide(value, () if is_const(condition, True) else (condition,))
        parts = [self.typed(value)] + ([] if is_const(condition, True) else [self.node(condition)])
        left = tuple(self.names[v] for v, _ in box)
        own = self.in_order(parts, [self.names[v] for v, _ in reduced])
        renamed = dict(zip((*left, *own), (f"i{k}" for k in range(len(self.axes))), strict=True))
        element, *where = (
            rebuild(n, lambda n: Name(renamed.get(n.name, n.name)) if isinstance(n, Name) else None) for n in parts
        )
        last = tuple(renamed[n] for n in own)
        nest = Nest("y", left, reducer, last, element, (), where[0] if where else None, NOWHERE, "y")
        result = {self.names[v]: simplify(e) for v, e in self.axes.items()}
        return Stage(nest, tuple(self.inputs), tuple(result[n] for n in (*left, *own)), tuple(self.sizes))

    def reducer(self, r: Reduce) -> Reducer:
        match reduction_of(r.reducer):
            case "sum" | "prod" | "max" | "min" as kind:
                if r.values[0].dtype is boolean:
                    return "any" if kind == "max" else "all"
                return kind
        raise UnsupportedError(f"no statement: the reducer {r.reducer.name}", where=self.op.name)

    def in_order(self, parts: Sequence[Node], reduced: Sequence[str]) -> tuple[str, ...]:
        """The indices `reduced` in the order in which a reader of the text first finds them. Raises UnsupportedError if
        one does not occur."""
        seen = dict.fromkeys(n.name for part in parts for n in walk(part) if isinstance(n, Name))
        missing = [n for n in reduced if n not in seen]
        if missing:
            raise UnsupportedError("no statement: nothing depends on an axis", where=self.op.name, got=missing[0])
        return tuple(n for n in seen if n in reduced)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def decide(self, e: Expr, assumptions: tuple[Expr, ...]) -> None:
        """Decide for each read in `e` how it is written for indices out of bounds: plainly if it is proved to be in
        bounds, else with `pad` or `clamp`."""
        empty = any(is_const(n, 0) for n in self.axes.values())
        for load, conditions in guarded_loads(e, set(loads(e)), assumptions):
            ways: list[Outside] = [
                self.way(load, d, () if self.careful else conditions) for d in range(len(load.indices))
            ]
            way: Outside = "clamp" if "clamp" in ways else "pad" if "pad" in ways and not empty else ""
            before = self.ways.get(load, "")
            self.ways[load] = "clamp" if "clamp" in (way, before) else way or before

    def way(self, load: Load, d: int, conditions: tuple[Expr, ...]) -> Outside:
        index, extent = load.indices[d], load.buffer.shape[d]
        if loads(index):
            return ""  # what comes from memory is moved inside anyway
        if not self.is_index(index):
            return "clamp"
        inside = prove(index >= 0, self.axes, conditions) and prove(index < extent, self.axes, conditions)
        return "" if inside else "pad"

    def is_index(self, e: Expr) -> bool:
        if isinstance(e, Op):
            if e.name not in _INDEX or (e.name in ("floordiv", "mod") and not prove(e.args[1] > 0)):
                return False
            return all(map(self.is_index, e.args))
        return isinstance(e, Var | Const)

    def read(self, e: Load) -> Node:
        assert isinstance(e.buffer, Tensor)
        name = self.inputs.setdefault(e.buffer, f"x{len(self.inputs)}")
        way = self.ways.get(e, "")
        fill = Number(_fill(e)) if way == "pad" else None
        return Read(name, tuple(map(self.node, e.indices)), way, fill)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def typed(self, e: Expr) -> Node:
        """The node of an expression whose type does not follow from the text around it; literals of unusual types get a
        conversion."""
        node = self.node(e)
        usual = isinstance(e, Const) and e.dtype in (f32, i64, boolean)
        return Apply(e.dtype.name, (node,)) if isinstance(e, Const) and not usual else node

    def node(self, e: Expr) -> Node:
        match e:
            case Const(value=value):
                number = float(value) if e.dtype.is_float else value
                return Number(number)
            case Var():
                return self.variable(e)
            case Load():
                return self.read(e)
            case Op(name="select", args=(condition, yes, no)):
                return Apply("if", (self.operand(yes, no), self.node(condition), self.operand(no, yes)))
            case Op(name="cast", args=(inner,)):
                return Apply(e.dtype.name, (self.typed(inner),))
            case Op(name="fma", args=(a, b, c)):
                return self.node(a * b + c)
            case Op(name="exp_nonpositive", args=(a,)):
                return Apply("exp", (self.node(a),))
            case Op(name="larger", args=(a, b)):
                return Apply("if", (self.node(b), Apply(">", (self.node(b), self.node(a))), self.node(a)))
            case Op(name="lookup", args=(index, *table)) if len(table) <= MAX_TABLE:
                return self.table(index, table)
            case Op() if e.name in _SIGNS:
                if len(e.args) == 2:
                    return Apply(_SIGNS[e.name], tuple(self.operand(a, b) for a, b in (e.args, e.args[::-1])))
                return Apply(_SIGNS[e.name], tuple(map(self.typed, e.args)))
        what = e.name if isinstance(e, Op) else type(e).__name__
        raise UnsupportedError(f"no statement: {what}", where=self.op.name)

    def operand(self, e: Expr, beside: Expr) -> Node:
        """The node of an operand, whose type follows from the operand `beside` it unless both are literals."""
        return self.typed(e) if isinstance(beside, Const) else self.node(e)

    def variable(self, v: Var) -> Node:
        name = self.names.get(v)
        return Name(name if name is not None else self.sizes.setdefault(v, f"n{len(self.sizes)}"))

    def table(self, index: Expr, entries: Sequence[Expr]) -> Node:
        """The node of a table look-up, as a chain of conditions; an index outside takes the nearest entry."""
        result = self.typed(entries[-1])
        for k, entry in reversed(list(enumerate(entries[:-1]))):
            result = Apply("if", (self.typed(entry), Apply("<=", (self.node(index), Number(k))), result))
        return result


def _fill(e: Load) -> bool | int | float:
    return False if e.dtype is boolean else 0.0 if e.dtype.is_float else 0


__all__ = ["MAX_OPERATORS", "Stage", "divided", "statement_of"]
