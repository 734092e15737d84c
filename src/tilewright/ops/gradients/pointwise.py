"""Gradients of pointwise operators, by differentiating their scalar expressions; at points without a derivative, as in
PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.arith.derivative import derivative
from tilewright.ir.expr import Const, Expr, Op, Var, is_const
from tilewright.ir.expr import cast as cast_expr
from tilewright.ir.graph import Value
from tilewright.ops.gradients.registry import Backward, gradient
from tilewright.ops.pointwise import BODIES, AlphaAttrs, AlphaBetaAttrs, CastAttrs, ClipAttrs
from tilewright.support.errors import UnsupportedError

Result = Sequence[Value | None]


def by_derivative(b: Backward) -> Result:
    """The gradients of a pointwise operator without a rule of its own, by the derivative of its scalar expression."""
    inputs = [b.x(k) for k in range(len(b.node.inputs))]
    values = {Var(f"x{k}", v.dtype): v for k, v in enumerate(inputs)}
    body = cast_expr(BODIES[b.node.op](list(values), b.node.attrs), b.y.dtype)  # special functions compute in f64
    results: list[Value | None] = []
    for variable, value in values.items():
        slope = derivative(body, variable) if value.dtype.is_float and body.dtype.is_float else None
        if slope is None or is_const(slope, 0):
            results.append(None)
            continue
        flow = b.g if is_const(slope, 1) else b.mul(b.g, _as_graph(b, slope, values, value))
        results.append(b.reduced_to(flow, value.shape))
    return results


def _as_graph(b: Backward, e: Expr, values: Mapping[Var, Value], like: Value) -> Value:
    """Emit a scalar expression as operators on `values`, the values of its variables; constants have the type of
    `like`."""
    memo: dict[Expr, Value] = {}

    def go(node: Expr) -> Value:
        if isinstance(node, Var):
            return values[node]
        entry = memo.get(node)
        if entry is None:
            entry = memo[node] = make(node)
        return entry

    def make(node: Expr) -> Value:
        if isinstance(node, Const):
            return b.emit("constant", value=node.dtype.numpy.type(node.value))
        if not isinstance(node, Op):
            raise UnsupportedError("the derivative is no expression of the operands", where=b.node.op)
        arguments = [go(a) for a in node.args]
        if node.name == "cast":
            return b.emit("cast", arguments[0], dtype=node.dtype)
        if node.name not in BODIES:
            raise UnsupportedError(f"the derivative needs {node.name}, which is no operator", where=b.node.op)
        return b.emit(node.name, *arguments)

    return go(e)


@gradient("cast")
def cast(b: Backward) -> Result:
    x, bits = b.x(), b.of(CastAttrs).bits
    if bits and b.y.dtype.is_float:
        raise UnsupportedError("a number that is put together of another one's bits has no gradient", where=b.y.name)
    if bits or not (x.dtype.is_float and b.y.dtype.is_float):
        return [None]
    return [b.emit("cast", b.g, dtype=x.dtype)]


def _where(b: Backward, condition: Value, yes: Value, no: Value) -> Value:
    return b.emit("select", condition, yes, no)


def _above(b: Backward, x: Value, bound: float) -> Value:
    return b.emit("gt", x, b.like(bound, x))


@gradient("select")
def select(b: Backward) -> Result:
    """The gradient goes to the selected operand; the other gets a select of zero, not a product with 0, which would
    turn an infinite gradient into NaN."""
    chosen, flow = b.x(), b.g
    zero = b.like(0, flow)
    sides = ((flow, zero), (zero, flow))
    if not b.y.dtype.is_float:
        return []
    return [None, *(b.reduced_to(_where(b, chosen, *sides[k]), b.x(k + 1).shape) for k in range(2))]


@gradient("surrogate")
def surrogate(b: Backward) -> Result:
    """The forward value is the first operand; the gradient goes to the second."""
    return [None, b.reduced_to(b.g, b.x(1).shape)]


@gradient("require")
def require(b: Backward) -> Result:
    """The gradient goes to the first operand unchanged; the condition and the number that it reports get none."""
    return [b.g, None, None]


@gradient("relu")
def relu(b: Backward) -> Result:
    """The gradient at zero is zero; it is computed from the output, so that the input need not be stored."""
    return [_where(b, _above(b, b.y, 0), b.g, b.like(0, b.g))]


@gradient("clip")
def clip(b: Backward) -> Result:
    """The gradient passes where the operand is within the bounds or equal to one."""
    x, attrs, flow = b.x(), b.of(ClipAttrs), b.g
    if attrs.min is not None:
        flow = _where(b, b.emit("ge", x, b.like(attrs.min, x)), flow, b.like(0, flow))
    if attrs.max is not None:
        flow = _where(b, b.emit("le", x, b.like(attrs.max, x)), flow, b.like(0, flow))
    return [flow]


@gradient("leaky_relu")
def leaky_relu(b: Backward) -> Result:
    return [_where(b, _above(b, b.x(), 0), b.g, b.mul(b.g, b.like(b.of(AlphaAttrs).alpha, b.g)))]


@gradient("prelu")
def prelu(b: Backward) -> Result:
    x, slope = b.x(0), b.x(1)
    above, zero = _above(b, x, 0), b.like(0, b.g)
    by_x = _where(b, above, b.g, b.mul(b.g, slope))
    by_slope = _where(b, above, zero, b.mul(b.g, x))
    return [b.reduced_to(by_x, x.shape), b.reduced_to(by_slope, slope.shape)]


@gradient("celu")
def celu(b: Backward) -> Result:
    x, alpha = b.x(), b.of(AlphaAttrs).alpha
    below = b.mul(b.g, b.emit("exp", b.div(x, b.like(alpha, x))))
    return [_where(b, _above(b, x, 0), b.g, below)]


@gradient("softplus")
def softplus(b: Backward) -> Result:
    return [b.mul(b.g, b.emit("sigmoid", b.x()))]


@gradient("hard_sigmoid")
def hard_sigmoid(b: Backward) -> Result:
    """The gradient is zero at both bounds."""
    attrs = b.of(AlphaBetaAttrs)
    inside = b.emit("and", _above(b, b.y, 0), b.emit("lt", b.y, b.like(1, b.y)))
    return [_where(b, inside, b.mul(b.g, b.like(attrs.alpha, b.g)), b.like(0, b.g))]


@gradient("affine")
def affine(b: Backward) -> Result:
    return [b.mul(b.g, b.like(b.of(AlphaBetaAttrs).alpha, b.g))]


@gradient("scaled_tanh")
def scaled_tanh(b: Backward) -> Result:
    """The derivative is alpha * beta * (1 - tanh(beta x)^2)."""
    attrs, x = b.of(AlphaBetaAttrs), b.x()
    t = b.emit("tanh", b.mul(x, b.like(attrs.beta, x)))
    slope = b.emit("sub", b.like(1, t), b.mul(t, t))
    return [b.mul(b.g, b.mul(slope, b.like(attrs.alpha * attrs.beta, t)))]


@gradient("hard_swish")
def hard_swish(b: Backward) -> Result:
    x = b.x()
    slope = b.add(b.div(x, b.like(3, x)), b.like(0.5, x))
    low = b.emit("le", x, b.like(-3, x))
    high = b.emit("ge", x, b.like(3, x))
    return [b.mul(b.g, _where(b, low, b.like(0, x), _where(b, high, b.like(1, x), slope)))]
