"""A nest with known ranges to stages of a tensor expression; types are checked and every read is proved to be inside.

No type is converted silently: operands have one type, literals take that of what they stand beside. A reduction has its
operand's type; 16-bit floats are reduced in f32 and rounded once. Indices and sizes are i64. An index that comes from
data is moved to the nearest element; one into an empty dimension reads zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, NoReturn

from tilewright import te
from tilewright.arith import prove, simplify, symbolic_bounds
from tilewright.formulas.functions import BINARY, UNARY, conversion
from tilewright.formulas.nests import Nest
from tilewright.formulas.ranges import Extent, Scope, index_value
from tilewright.formulas.source import Source
from tilewright.formulas.syntax import Apply, Name, Node, Number, Read, Reduction, Size, walk
from tilewright.ir.dtype import DType, boolean, f32, i32, i64, u64
from tilewright.ir.expr import (
    Const,
    Expr,
    Load,
    Var,
    all_of,
    binary,
    call,
    cast,
    const,
    is_const,
    maximum,
    minimum,
    select,
)
from tilewright.ir.guarded import guarded_loads
from tilewright.ir.op_types import readable
from tilewright.ir.rewrite import loads
from tilewright.ir.scalar_ops import OPS
from tilewright.support.classes import dataclass

Value = Expr | bool | int | float
"""The value of an expression: an element, or a literal, which has no type yet."""

_OPERATORS: dict[str, str] = {
    "+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "**": "pow",
    "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
} | BINARY  # fmt: skip
_REDUCERS: dict[str, Callable[..., Any]] = {
    "sum": te.sum, "prod": te.prod, "max": te.max, "min": te.min, "any": te.max, "all": te.min,
}  # fmt: skip


def lower(nest: Nest, extents: Mapping[str, Extent], tensors: Mapping[str, te.Tensor], scope: Scope) -> te.Tensor:
    """The tensor expression of a nest of loops over `tensors`, which it reads by name."""
    return _Lowering(nest, extents, tensors, scope).run()


@dataclass(slots=True)
class _Lowering:
    nest: Nest
    extents: Mapping[str, Extent]
    tensors: Mapping[str, te.Tensor]
    scope: Scope
    names: dict[str, Expr] = field(default_factory=dict)
    axes: dict[Var, Expr] = field(default_factory=dict)
    reads: dict[Load, Read] = field(default_factory=dict)
    """The read of the text that each load comes from, if the load must be proved to be in bounds."""

    @property
    def source(self) -> Source:
        return self.scope.source

    def run(self) -> te.Tensor:
        nest = self.nest
        if nest.reducer is None:
            return self.stage(nest.target, lambda: self.typed(self.element(nest.body)))
        if nest.reducer in ("argmax", "argmin"):
            return self.position()
        kinds: list[DType] = []

        def reduction() -> Expr:
            kinds.append(self.reducible().dtype)
            return self.reduced(_REDUCERS[nest.reducer or "sum"], lambda: self.wide(self.reducible()))

        total = self.stage(nest.target, reduction)
        return _cast_to(total, kinds[0], f"{nest.target}_rounded")

    def stage(self, name: str, body: Callable[[], Expr]) -> te.Tensor:
        """A stage called `name` over the indices on the left of the nest, with the element that `body` returns."""
        nest = self.nest
        shape = [self.extents[i].size for i in nest.left]

        def element(*point: Expr) -> Expr:
            self.names = {i: p + self.extents[i].start for i, p in zip(nest.left, point, strict=True)}
            self.axes = dict(zip((p for p in point if isinstance(p, Var)), shape, strict=True))
            created = body()
            if nest.reducer is None:
                self.check_reads(created, const(True))
            return created

        result: te.Tensor = te.compute(shape, te.labelled(element, nest.left), name=name)
        return result

    def reduced(self, reducer: Callable[..., Any], value: Callable[[], Expr]) -> Expr:
        """The reduction by `reducer`, over the reduced indices, of the element that `value` returns."""
        nest = self.nest
        over = [te.reduce_axis(self.extents[i].size, i) for i in nest.reduced]
        self.names |= {i: a.var + self.extents[i].start for i, a in zip(nest.reduced, over, strict=True)}
        self.axes |= {a.var: a.extent for a in over}
        condition = const(True) if nest.condition is None else self.truth(nest.condition)
        element = value()
        self.check_reads(condition, const(True))
        self.check_reads(element, condition)
        if loads(condition):  # what is read for the condition must lie after all bounds, so it stands in the element
            start = reducer(element, axis=over).reducer.identity[0]
            element, condition = select(condition, element, start), const(True)
        created: Expr = te.or_identity(reducer(element, axis=over, where=condition))
        return created

    def reducible(self) -> Expr:
        """The element that the nest reduces. It is also called outside of the reduction's loops, to learn its type."""
        nest = self.nest
        named = self.names
        self.names = {i: const(0) for i in nest.reduced} | named
        value = self.typed(self.element(nest.body))
        self.names = named
        if nest.reducer in ("any", "all") and value.dtype is not boolean:
            self.fail(f"{nest.reducer} is of conditions", nest.body, got=value.dtype, hint="compare it: x != 0")
        if nest.reducer not in ("any", "all") and value.dtype is boolean:
            hint = "any and all are of conditions; i64(condition) is a number"
            self.fail(f"{nest.reducer} is of numbers", nest.body, got="a condition", hint=hint)
        return value

    def wide(self, value: Expr) -> Expr:
        """`value` in the type in which it is reduced: f32 for 16-bit floats."""
        return cast(value, f32) if value.dtype.is_float and value.dtype.bits == 16 else value

    def position(self) -> te.Tensor:
        """The rule of argmax and argmin: the first index of the extreme element, or of a NaN; -1 where the condition
        excludes every element."""
        nest = self.nest
        largest = nest.reducer == "argmax"
        (index,) = nest.reduced
        if not prove(self.extents[index].size > 0):
            got = self.extents[index].size
            self.fail(f"{nest.reducer} needs an element", nest, expected="an index that takes values", got=got)
        extreme = te.max if largest else te.min
        best = self.stage("best", lambda: self.reduced(extreme, lambda: self.wide(self.reducible())))
        none = const(i32.max, i32)

        def at() -> Expr:
            here = best[tuple(self.axes)]

            def candidate() -> Expr:
                value = self.wide(self.reducible())
                match = call("eq", value, here)
                if value.dtype.is_float:
                    match = match | call("isnan", value)  # there is none, or the best is one
                return select(match, cast(self.names[index], i32), none)

            return self.reduced(te.min, candidate)

        first = self.stage("index", at)

        def result(*point: Expr) -> Expr:
            match = first[point]
            if nest.condition is not None:
                match = select(call("eq", match, none), const(-1, i32), match)
            return cast(match, i64)

        tensor: te.Tensor = te.compute(first.shape, result, name=nest.target)
        return tensor

    # -- elements ------------------------------------------------------------------------------------------------------

    def fail(self, what: str, node: Node | Nest, **details: Any) -> NoReturn:
        self.source.fail(what, node.at, **details)

    def typed(self, value: Value) -> Expr:
        """`value` as an element; a literal becomes an f32, i64 or bool."""
        return value if isinstance(value, Expr) else const(value)

    def truth(self, node: Node) -> Expr:
        value = self.typed(self.element(node))
        if value.dtype is not boolean:
            self.fail("not a condition", node, expected="a comparison", got=value.dtype)
        return value

    def element(self, node: Node) -> Value:
        """The value of the expression `node`, with indices as `names` has them."""
        match node:
            case Number(value=value):
                return value
            case Name(name=name):
                entry = self.names.get(name, self.scope.sizes.get(name))
                if entry is None:
                    self.fail(f"{name!r} is not known here", node)
                return entry
            case Size():
                return self.scope.size(node)
            case Read():
                return self.read(node)
            case Apply():
                return self.apply(node)
            case Reduction():
                self.fail("a reduction stands inside of an expression", node)

    def apply(self, node: Apply) -> Value:
        name = node.name
        kind = conversion(name)
        if kind is not None:
            value = self.element(node.args[0])
            return cast(value, kind) if isinstance(value, Expr) else self.literal(value, kind, node)
        if name == "if":
            then, condition, orelse = node.args
            chosen = self.truth(condition)
            return self.joined("select", [self.element(then), self.element(orelse)], [then, orelse], node, chosen)
        if name in ("and", "or", "not"):
            parts = [self.truth(a) for a in node.args]
            return ~parts[0] if name == "not" else parts[0] & parts[1] if name == "and" else parts[0] | parts[1]
        if name == "neg":
            return self.signed(node)
        if name in UNARY or name in ("relu", "isfinite"):
            return self.function(node)
        if name == "/":
            return self.quotient(node)
        return self.joined(_OPERATORS[name], [self.element(a) for a in node.args], node.args, node)

    def signed(self, node: Apply) -> Value:
        value = self.element(node.args[0])
        if not isinstance(value, Expr):
            return -value
        if value.dtype is boolean:
            self.fail("a condition has no sign", node, hint="not x")
        return -value

    def function(self, node: Apply) -> Value:
        arguments, name = self.element(node.args[0]), node.name
        if name in ("abs", "relu") and not isinstance(arguments, Expr | bool):
            return abs(arguments) if name == "abs" else max(arguments, 0)
        value = self.typed(arguments)
        if name == "relu":
            if value.dtype is boolean:
                self.fail("relu is of numbers", node, got=value.dtype)
            return maximum(value, const(0, value.dtype))
        if not value.dtype.is_float and not (name == "abs" and value.dtype is not boolean):
            hint = "f32(x) converts"
            self.fail(f"{name} is of floats", node, got=value.dtype, hint=hint)
        if name == "isfinite":
            return ~(call("isnan", value) | call("isinf", value))
        return call(UNARY[name], value)

    def quotient(self, node: Apply) -> Value:
        a, b = (self.element(x) for x in node.args)
        for value in (a, b):
            if isinstance(value, Expr) and not value.dtype.is_float:
                self.fail("/ is of floats", node, got=value.dtype, hint="// divides integers; f32(x) converts")
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            if b == 0:
                self.fail("division by zero", node)
            return a / b
        return self.joined("div", [a, b], node.args, node)

    def joined(
        self, op: str, values: Sequence[Value], args: Sequence[Node], node: Apply, condition: Expr | None = None
    ) -> Value:
        """The operator `op` of the node `node`, or a selection by `condition` if that is passed, applied to `values`.
        These are the operands `args`, lowered; they have one type, which literals take too. Raises ComprehensionError
        if types differ."""
        kinds = [v.dtype for v in values if isinstance(v, Expr)]
        if not kinds and condition is None:
            folded = self.folded(op, values, node)
            if folded is not None:
                return folded
        kind = kinds[0] if kinds else _joint(values)
        if any(k is not kind for k in kinds):
            self.disagree(values, args, node)
        typed = [v if isinstance(v, Expr) else self.literal(v, kind, a) for v, a in zip(values, args, strict=True)]
        if kind.kind not in OPS[op].kinds:
            hint = (
                "// divides integers" if kind.is_int else "f32(x) converts" if op in ("pow", "atan2", "fmod") else None
            )
            self.fail(f"{node.name} is not defined on {kind}", node, hint=hint)
        if condition is not None:
            return select(condition, *typed)
        return binary(op, *typed)

    def folded(self, op: str, values: Sequence[Value], node: Apply) -> Value | None:
        """The result of the operator `op` on the two literals `values`; None if they have to become elements first.
        Fails at `node` for an integer that is too large."""
        a, b = values
        if isinstance(a, bool) or isinstance(b, bool) or isinstance(a, Expr) or isinstance(b, Expr):
            return None
        match op:
            case "add":
                result: int | float = a + b
            case "sub":
                result = a - b
            case "mul":
                result = a * b
            case "min":
                result = min(a, b)
            case "max":
                result = max(a, b)
            case _:
                return None
        if isinstance(result, int) and abs(result) >= 1 << 63:
            self.fail("the number is too large", node)
        return result

    def literal(self, value: bool | int | float, kind: DType, node: Node) -> Const:
        """The literal `value` as an element of type `kind`. Raises ComprehensionError if the type has no such value."""
        if isinstance(value, bool) != (kind is boolean):
            self.fail(f"{value} is no {kind}", node, expected=f"a literal of {kind}")
        if kind.is_int and (value != value or value in (float("inf"), -float("inf")) or value != int(value)):
            self.fail(f"{value} is no {kind}", node, hint="f32(x) converts what stands beside it")
        if kind.is_int and not kind.min <= value <= kind.max:
            self.fail(f"{value} does not fit {kind}", node, expected=f"{kind.min} to {kind.max}")
        return const(value, kind)

    def disagree(self, values: Sequence[Value], args: Sequence[Node], node: Apply) -> NoReturn:
        kinds = [v.dtype for v in values if isinstance(v, Expr)]
        wanted = next((k for k in kinds if k.is_float), kinds[0])
        other = next(i for i, v in enumerate(values) if isinstance(v, Expr) and v.dtype is not wanted)
        start, end = args[other].at
        text = self.source.text[start:end] or "x"
        hint = f"no type is converted silently: {wanted}({text})"
        self.fail(f"{node.name}: the operands have different types", node, got=" and ".join(map(str, kinds)), hint=hint)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def read(self, node: Read) -> Expr:
        """The element of a tensor that `node` reads: where the index is out of bounds the value that the text defines,
        and for an index from data the nearest element."""
        tensor = self.tensors[node.tensor]
        if len(node.indices) != tensor.ndim:
            got = f"{len(node.indices)} indices"
            self.fail(f"{node.tensor!r} has {tensor.ndim} dimensions", node, expected=tensor.ndim, got=got)
        place: list[Expr] = []
        inside: list[Expr] = []
        filled: list[Expr] = []
        for index, extent in zip(node.indices, tensor.shape, strict=True):
            if self.is_gather(index) or node.outside in ("clamp", "wrap"):
                value = self.integer(index)
                if not prove(extent > 0):
                    filled.append(extent)
                moved = value % maximum(extent, const(1)) if node.outside == "wrap" else None
                place.append(maximum(minimum(value, extent - 1), const(0)) if moved is None else moved)
                continue
            value = self.affine(index)
            place.append(value)
            if node.outside == "pad":
                inside += [c for c in (value >= 0, value < extent) if not prove(c, self.axes)]
        element: Expr = tensor[tuple(place)]
        if isinstance(element, Load) and not node.outside:
            self.reads.setdefault(element, node)
        for extent in filled:
            element = select(extent > 0, element, const(0, tensor.dtype))
        if node.outside != "pad":
            return element
        fill = self.element(node.fill) if node.fill is not None else 0
        other = fill if isinstance(fill, Expr) else self.literal(fill, tensor.dtype, node)
        if other.dtype is not tensor.dtype:
            self.fail("what is outside has another type", node, expected=tensor.dtype, got=other.dtype)
        return select(all_of(inside), element, other) if inside else element

    def is_gather(self, index: Node) -> bool:
        return any(isinstance(n, Read) for n in walk(index))

    def affine(self, index: Node) -> Expr:
        """The value of an index expression of numbers, indices and sizes. Raises ComprehensionError if it has anything
        else."""
        value = index_value(index, self.names, self.scope)
        if value is None:
            expected = "whole numbers, indices and sizes with + - * // % min max"
            self.fail("this is no index", index, expected=expected)
        return value

    def integer(self, index: Node) -> Expr:
        """The value of an index that comes from data, as i64. Raises ComprehensionError if it is no integer."""
        value = self.typed(self.element(index))
        if not value.dtype.is_int:
            self.fail("this is no index", index, expected="integers", got=value.dtype, hint="i64(x) truncates")
        if value.dtype is u64:
            value = minimum(value, const(i64.max, u64))
        return cast(value, i64)

    def check_reads(self, e: Expr, condition: Expr) -> None:
        """Raise ComprehensionError unless every read in `e` is proved to be in bounds, under the conditions under which
        it happens."""
        if any(is_const(n, 0) for n in self.axes.values()):
            return  # nothing is read
        premises = () if is_const(condition, True) else (condition,)
        wanted = {x for x in loads(e) if x in self.reads}
        for load, conditions in guarded_loads(e, wanted, premises):
            for d, (index, extent) in enumerate(zip(load.indices, load.buffer.shape, strict=True)):
                if self.is_gather(self.reads[load].indices[d]):
                    continue
                if not (prove(index >= 0, self.axes, conditions) and prove(index < extent, self.axes, conditions)):
                    self.outside(load, d)

    def outside(self, load: Load, d: int) -> NoReturn:
        """Raise ComprehensionError for a load whose index `d` is not proved to be in bounds."""
        node = self.reads[load]
        index, extent = load.indices[d], load.buffer.shape[d]
        ends = symbolic_bounds(index, self.axes)
        got = "an index of unknown size"
        if ends is not None:
            got = f"{readable(simplify(ends[0]))} to {readable(simplify(ends[1]))}"
        named = next((n.name for n in walk(node.indices[d]) if isinstance(n, Name)), None)
        text = self.source.text[node.at[0] : node.at[1]] or f"{node.tensor}[...]"
        hint = f"pad({text}, 0), clamp({text}) or wrap({text}) say what is outside"
        if named is not None:
            hint = f"where {named} in ...:... keeps it inside; {hint}"
        what = f"dimension {d} of {node.tensor!r} is not proved to be read inside"
        self.fail(what, node.indices[d], expected=f"0 to {readable(simplify(extent - 1))}", got=got, hint=hint)


def _joint(values: Sequence[Value]) -> DType:
    """The type that literals get when all operands of an operator are literals."""
    if any(isinstance(v, float) for v in values):
        return f32
    return boolean if all(isinstance(v, bool) for v in values) else i64


def _cast_to(tensor: te.Tensor, kind: DType, name: str) -> te.Tensor:
    """A stage called `name` that rounds `tensor` to type `kind`; the tensor itself if it has that type."""
    if tensor.dtype is kind:
        return tensor
    result: te.Tensor = te.compute(tensor.shape, lambda *i: cast(tensor[i], kind), name=name)
    return result
