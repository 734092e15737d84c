"""Products of quantised values as products of their integers, which are exact and, by dot instructions, faster.

    a = cast(p) * s;  b = cast(q) * t             y = cast(matmul(p, q)) * (s * t)       p, q of i32, cast from narrower
    y = matmul(a, b)                       ->

`s` is one number, or one a row of a product; `t` one number, or one a column or filter, and `q` depends on weights
alone. This is what files with QuantizeLinear and DequantizeLinear around products mean ("QDQ"). A convolution in up to
four groups of several channels becomes one without groups, whose filters are zero outside of their group:

    y = conv(p, q), 2 groups       ->      y = conv(p, concat(pad(q[:f / 2]), pad(q[f / 2:])))

Where no instruction multiplies bytes, a convolution of codes is taken that is estimated to be faster, by transforms
(`algorithms/winograd/`) or in pairs of 16 bits.

Products of two computed values, as attention has them, are those of their integers too, where both have one scale.
Their sizes may be symbols; the depth must be bounded so that sums fit. Products around a softmax in floats are left for
the kernel of attention:

    y = matmul(softmax(matmul(a, b)), c)   stays

Convolutions in more groups have no such instructions on most machines (Arm's smmla takes them as they are); sums of so
few products are exact in f32, of integers too:

    y = conv(p, q)                         ->      y = cast(conv(cast(p), cast(q)))      |p| |q| depth < 2^24
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright import ops
from tilewright.arith import bounds as limits
from tilewright.ir.attributes import Attrs, AttrValue
from tilewright.ir.dtype import DType, f32, i8, i16, i32, u8
from tilewright.ir.expr import as_int, const, is_const
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.conv import ConvAttrs
from tilewright.ops.dims import dims
from tilewright.ops.matmul import MatmulAttrs
from tilewright.schedule.dot_intrinsics import find_dot
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target
from tilewright.transform.graph.bounds import MOVES, bounds, holds, largest
from tilewright.transform.graph.channels import moved_scale
from tilewright.transform.graph.matching import op
from tilewright.transform.graph.options import DEFAULTS, Options
from tilewright.transform.graph.rewrite import Match, Rule, rewrite
from tilewright.transform.problems import convolution_in_pairs, multiplies_alike
from tilewright.transform.select.convolution import codes_are_faster
from tilewright.transform.select.surroundings import InBlocks, Surroundings

EXACT: dict[DType, int] = {i32: 1 << 31, f32: 1 << 24}
"""For each type a bound: sums of integers whose magnitude stays below it are exact."""


def multiply_quantised(graph: Graph, target: Target, in_blocks: InBlocks, options: Options = DEFAULTS) -> Graph:
    """The graph with products of integers in place of those of dequantised values, where the target has instructions
    for them, or where codes are estimated to be convolved faster by other ones."""
    if not any(node.op == "cast" and node.output.dtype in EXACT for node in graph.nodes):
        return graph
    enclosing = Surroundings(graph, target, options, in_blocks)
    return rewrite(graph, [Rule(op(("conv", "matmul"), "x", "w"), lambda m: _Product(m, enclosing).written())])


MIN_CHANNELS = 4
"""The least number of channels and filters per group with which a grouped convolution is computed without groups. It is
the number of products that a dot instruction sums."""
FOLLOWED = 8
"""The largest number of softmax and pointwise nodes that are followed from one product to the next."""
MAX_GROUPS = 4
"""The largest number of groups multiplied as one: a dot instruction has four times the products of a float one."""


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A quantised value: its integers as i32, the node by which the graph computes it from them, and the scale (None
    for 1)."""

    integers: Value
    scale: Value | None


@dataclass(frozen=True, slots=True)
class _Product:
    """A product, the node of `match`, whose two factors may be quantised; `enclosing` has facts about the graph and the
    target."""

    match: Match
    enclosing: Surroundings

    @property
    def target(self) -> Target:
        return self.enclosing.target

    @property
    def fixed(self) -> set[Value]:
        return self.match.rewriter.fixed

    def written(self) -> Value | None:
        """Emit the product in integers or in exact floats and return its value; None if it stays."""
        node = self.match.node
        if len(node.inputs) != 2:
            return None
        if node.output.dtype is i32:
            return self.in_floats(node) if node.op == "conv" else None
        return self.in_integers(node) if node.output.dtype is f32 else None

    def in_floats(self, node: Node) -> Value | None:
        """Emit a grouped convolution of integers as one in f32; None if sums might not be exact."""
        x, w = node.inputs
        if x is None or w is None or node.of(ConvAttrs).groups == 1 or not self.exact(x, w, _depth(node), f32):
            return None
        if self.goes_in_pairs(node, x, w):
            return None
        total = self.emit("conv", self.cast(x, f32), self.cast(w, f32), attrs=node.attrs)
        return self.cast(total, i32)

    def in_integers(self, node: Node) -> Value | None:
        """Emit the node, a product of dequantised values, as a product of the integers from which they were
        dequantised, times the scales, and return it; None if that is not possible."""
        x, w = (None if v is None else self.quantised(v) for v in node.inputs)
        if x is None or w is None or x.integers in self.fixed:
            return None
        if w.integers not in self.fixed and not self.are_computed(node, x, w):
            return None
        pairs = self.goes_in_pairs(node, x.integers, w.integers)
        dense = not pairs and self.is_dense(node)
        single = node.op == "conv" and node.of(ConvAttrs).groups != 1 and not dense and not pairs
        kind = f32 if single else i32
        by_bytes = any(find_dot(t, i8, self.target) is not None for t in (u8, i8))
        if not single and not by_bytes and node.op != "conv":
            return None
        if not self.exact(x.integers, w.integers, _depth(node), kind):
            return None
        scales = self.scales(node, x, w)
        if scales is None:
            return None
        first, second = (self.cast(v.integers, kind) for v in (x, w))
        if dense:
            attrs = node.of(ConvAttrs)
            second = self.dense(second, attrs.groups)
            total = self.emit("conv", first, second, attrs=replace(attrs, groups=1))
        else:
            total = self.emit(node.op, first, second, attrs=node.attrs)
        if not single and not by_bytes and not self.are_faster(node, total):
            return None
        y = self.cast(total, f32)
        if not scales:
            return y
        return self.emit("mul", y, scales[0] if len(scales) == 1 else self.emit("mul", *scales))

    def are_faster(self, node: Node, total: Value) -> bool:
        """Whether a product of codes, whose sum is `total`, is estimated to take less time than `node`, the product of
        the numbers."""
        codes = self.producer(total)
        self.enclosing.fixed, self.enclosing.producers = self.fixed, self.match.rewriter.producers
        return codes is not None and codes_are_faster(self.enclosing, node, codes)

    def are_computed(self, node: Node, x: _Quantised, w: _Quantised) -> bool:
        """Whether both factors of a matrix product are computed at each call, with one scale each and types that dot
        instructions multiply."""
        if (
            node.op != "matmul"
            or w.integers in self.fixed
            or any(s is not None and not _is_single(s) for s in (x.scale, w.scale))
        ):
            return False
        rows, columns = (as_int(d) for d in node.output.shape[-2:])
        if rows == 1 or columns == 0 or not _depth(node) or node.of(MatmulAttrs).transpose_a:
            return False
        return multiplies_alike(x.integers, w.integers) and not self.is_attended(node.output)

    def is_attended(self, value: Value, depth: int = FOLLOWED) -> bool:
        """Whether a product reads `value` through softmax and pointwise nodes, at least one and at most `depth` of
        them, none of which rounds; as in attention."""
        for node in self.match.rewriter.readers.get(value, []):
            if node.op == "matmul":
                return depth < FOLLOWED
            if depth and node.op != "round" and (node.op == "softmax" or ops.get(node.op).kind == "pointwise"):
                if self.is_attended(node.output, depth - 1):
                    return True
        return False

    def goes_in_pairs(self, node: Node, x: Value, w: Value) -> bool:
        """Whether the target has instructions for a grouped convolution of 8-bit codes that multiply pairs of pixels
        and filters. `x` may be codes minus a zero point."""
        if node.op != "conv" or node.of(ConvAttrs).groups == 1:
            return False
        if (as_int(w.shape[1]) or 0) < MIN_CHANNELS or convolution_in_pairs(node, i8, i8, self.target) is None:
            return False
        moved, between = self.producer(x), bounds(self.producer, w)
        if moved is not None and moved.op == "sub":
            source, point = moved.inputs
            x = source if source is not None and point is not None and _is_single(point) else x
        return between is not None and holds(i8, between) and self.narrow(x).dtype in (u8, i8) and w in self.fixed

    def is_dense(self, node: Node) -> bool:
        """Whether a grouped convolution is computed as one without groups, with zeros outside of the groups."""
        w = node.inputs[1]
        groups = node.of(ConvAttrs).groups if node.op == "conv" else 1
        if groups == 1 or groups > MAX_GROUPS or w is None:
            return False
        filters, channels = as_int(w.shape[0]), as_int(w.shape[1])
        return filters is not None and channels is not None and min(channels, filters // groups) >= MIN_CHANNELS

    def dense(self, w: Value, groups: int) -> Value:
        """Emit the filters (i32) of a convolution without groups: zeros for the channels of other groups."""
        codes = self.narrow(w)
        filters, channels = (as_int(w.shape[0]) or 0) // groups, as_int(w.shape[1]) or 0
        rows = []
        for k in range(groups):
            begin = (k * filters, *[0] * (w.type.rank - 1))
            size, step = (const(filters), *w.shape[1:]), (1,) * w.type.rank
            own = self.emit("slice", codes, begin=dims(begin), size=size, step=step)
            before, after = ((0, n * channels, *[0] * (w.type.rank - 2)) for n in (k, groups - 1 - k))
            rows.append(self.emit("pad", own, before=dims(before), after=dims(after), mode="constant", value=0))
        return self.cast(self.emit("concat", *rows, axis=0), i32)

    def narrow(self, value: Value) -> Value:
        """The 8-bit codes that integers are cast from; the integers themselves if there are none."""
        node = self.producer(value)
        source = node.inputs[0] if node is not None and node.op == "cast" else None
        return source if source is not None and source.dtype in (u8, i8) else value

    def scales(self, node: Node, x: _Quantised, w: _Quantised) -> list[Value] | None:
        """Emit the scales of a product of integers, shaped to broadcast with it; None if that is impossible."""
        results = []
        rank = node.output.type.rank
        if x.scale is not None:
            rows = node.op == "matmul" and x.scale.type.rank == x.integers.type.rank and is_const(x.scale.shape[-1], 1)
            if not _is_single(x.scale) and not (rows and not node.of(MatmulAttrs).transpose_a):
                return None
            results.append(self.reshape(x.scale, ()) if _is_single(x.scale) else x.scale)
        if w.scale is not None:
            if _is_single(w.scale):
                results.append(self.reshape(w.scale, ()))
                return results
            size = w.integers.shape
            axis = 0 if node.op == "conv" or node.of(MatmulAttrs).transpose_b else len(size) - 1
            if node.op == "matmul" and len(size) != 2:
                return None
            shape = (1,) * (len(size) - w.scale.type.rank) + tuple(as_int(d) or 0 for d in w.scale.shape)
            if any(d != (as_int(size[k]) if k == axis else 1) for k, d in enumerate(shape)):
                return None
            columns = (1, shape[axis], *([1] * (rank - 2))) if node.op == "conv" else (shape[axis],)
            results.append(self.reshape(w.scale, columns))
        return results

    def quantised(self, value: Value) -> _Quantised | None:
        """A value as integers times a scale; None if it is not quantised."""
        node = self.producer(value)
        if node is None:
            return None
        match node.op:
            case "mul":
                for a, b in (node.inputs, node.inputs[::-1]):
                    integers = None if a is None else self.integers(a)
                    if integers is not None and b is not None:
                        return _Quantised(integers, b)
            case "cast":
                integers = self.integers(value)
                return None if integers is None else _Quantised(integers, None)
            case name if name in MOVES and node.inputs[0] is not None:
                result = self.quantised(node.inputs[0])
                if result is not None and (result.scale is None or _is_single(result.scale)):
                    return _Quantised(self.moved(node, result.integers), result.scale)
                scale = None if result is None or result.scale is None else self.scale_moved(node, result.scale)
                return None if result is None or scale is None else _Quantised(self.moved(node, result.integers), scale)
        return None

    def moved(self, node: Node, integers: Value) -> Value:
        """Emit `node`, which moves elements without changing them, on `integers` instead of the numbers that these
        stand for, and return the moved integers. Integers that are cast from narrow codes are moved as codes, and then
        cast."""
        last = self.producer(integers)
        if last is not None and last.op == "sub":
            source, zero = last.inputs
            if source is not None and zero is not None and _is_single(zero):
                return self.emit("sub", self.moved(node, source), self.reshape(zero, ()))
        codes = self.narrow(integers)
        return self.cast(self.emit(node.op, codes, attrs=node.attrs), i32)

    def scale_moved(self, node: Node, scale: Value) -> Value | None:
        """Emit the per-channel scales that belong to the result of `node`, which moves elements; None if there is no
        longer one scale per channel."""
        sizes = [as_int(d) for d in scale.shape]
        if scale not in self.fixed or None in sizes:
            return None
        moved = moved_scale(node, tuple(d or 0 for d in sizes))
        if moved is None:
            return None
        whole, shape = moved
        scale = scale if whole == tuple(sizes) else self.emit("broadcast", scale, shape=dims(whole))
        return self.reshape(scale, shape)

    def integers(self, value: Value) -> Value | None:
        """The integers with known bounds that a value is cast from; None if there are none."""
        node = self.producer(value)
        source = node.inputs[0] if node is not None and node.op == "cast" and value.dtype is f32 else None
        if source is None or not source.dtype.is_int:
            return None
        if source.dtype in (u8, i8, i16):
            return self.cast(source, i32)
        return source if source.dtype is i32 and bounds(self.producer, source) is not None else None

    def exact(self, x: Value, w: Value, depth: int | None, kind: DType) -> bool:
        """Whether all sums of `depth` products stay exact in a type."""
        of_x, of_w = bounds(self.producer, x), bounds(self.producer, w)
        if depth is None or of_x is None or of_w is None:
            return False
        return depth * largest(of_x) * largest(of_w) < EXACT[kind]

    def producer(self, value: Value) -> Node | None:
        return self.match.rewriter.producer(value)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.dtype is dtype else self.emit("cast", value, dtype=dtype)

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.emit("reshape", value, shape=shape)

    def emit(self, name: str, *inputs: Value, attrs: Attrs | None = None, **values: AttrValue) -> Value:
        return self.match.emit(name, *inputs, attrs=attrs, **values)


def _is_single(value: Value) -> bool:
    return all(is_const(d, 1) for d in value.shape)


def _depth(node: Node) -> int | None:
    """The largest number of products in one sum of a product node; None if it is not known."""
    x, w = node.inputs
    if x is None or w is None:
        return None
    if node.op == "matmul":
        return limits(x.shape[-2 if node.of(MatmulAttrs).transpose_a else -1]).hi
    sizes = [as_int(d) for d in w.shape[1:]]
    return None if None in sizes else prod(d or 0 for d in sizes)
