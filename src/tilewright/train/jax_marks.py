"""JAX's derivative rules, inserted into a loss function as calls that the importer recognises.

A StableHLO module only computes a function's values. So the function is traced, and wherever JAX's derivative differs
from that of the imported operators, the result becomes `surrogate(value, like)`: gradients flow through `like`, which
is JAX's own rule of forward mode, linear in the operands, applied at operands without gradients:

    y = f(x)   ->   y = surrogate(f(x), jvp(f)(stop_gradient(x), x))

This applies to `stop_gradient`, functions with derivatives of their own (`custom_jvp`, and `custom_vjp` whose backward
pass is linear), and functions with corners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from tilewright.support.errors import UnsupportedError

Values = Sequence[Any]

BY_RULE = frozenset(
    "abs asin bessel_i0e bessel_i1e cbrt cummax cummin cumprod cumlogsumexp custom_linear_solve digamma erfc erf_inv "
    "igamma igammac lgamma logistic polygamma regularized_incomplete_beta zeta".split()
)
"""Primitives that are differentiated by JAX's rule: those with corners, those that are imported as several operators,
and `custom_linear_solve`, whose matrix has no gradient on the way that its solution is computed."""

OURS = ("relu", "_softmax")
"""Functions of JAX with custom derivatives that equal those of Tilewright's operators, and which passes recognise."""


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with marks, of equal arguments and results, to be jitted. Tracing it raises UnsupportedError for a
    custom backward pass (`custom_vjp`) that is not linear in the gradients."""

    def run(*arguments: Any) -> Any:
        closed, about = jax.make_jaxpr(function, return_shape=True)(*arguments)
        result = _evaluated(closed, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(about), result)

    return run


def _evaluated(closed: Any, arguments: Values) -> list[Any]:
    """The results of the traced JAX function `closed` for these arguments, evaluated equation by equation, with marks
    for gradients."""
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True))
    for equation in jaxpr.eqns:
        inputs = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        values.update(zip(equation.outvars, _applied(equation, inputs), strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def _applied(equation: Any, arguments: Values) -> Values:
    """The results of one equation for these arguments, marked so that gradients follow JAX's rule for its primitive."""
    name, params = equation.primitive.name, equation.params
    inner = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
    match name:
        case "stop_gradient":
            return [_still(x) for x in arguments]
        case "max" | "min":
            return _bound(equation, arguments) if any(map(_is_infinite, arguments)) else _by_rule(equation, arguments)
        case "clamp":  # whose rule wants bounds of the operand's shape
            return _by_rule(equation, [jnp.broadcast_to(x, arguments[1].shape) for x in arguments])
        case "scatter" if not params["unique_indices"]:  # of updates of one place, the last has the gradient
            return _by_rule(equation, arguments)
        case "custom_jvp_call":
            return _bound(equation, arguments) if _called(inner) in OURS else _by_rule(equation, arguments)
        case "custom_vjp_call":
            return _by_way_back(equation, arguments)
        case "jit" | "pjit" | "closed_call" | "core_call" | "checkpoint" | "remat2":
            return _evaluated(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), arguments)
        case "scan" | "while" | "cond":
            return _bound(equation.replace(params={k: _marked_bodies(v) for k, v in params.items()}), arguments)
    return _by_rule(equation, arguments) if name in BY_RULE else _bound(equation, arguments)


def _marked_bodies(param: Any) -> Any:
    """`param`, a parameter of an equation, with all functions in it (the bodies of loops and branches) marked."""
    if isinstance(param, tuple) and param and all(isinstance(p, ClosedJaxpr) for p in param):
        return tuple(map(_marked_bodies, param))
    if not isinstance(param, ClosedJaxpr):
        return param
    about = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in param.in_avals]
    return jax.make_jaxpr(lambda *xs: _evaluated(param, xs))(*about)


def _is_infinite(x: Any) -> bool:
    """Whether an operand is known to be infinity, as in the maximum of a softmax."""
    return isinstance(x, np.ndarray | np.generic | float) and np.ndim(x) == 0 and bool(np.isinf(x))


def _called(jaxpr: Any) -> str:
    """The name of the traced function."""
    return str(getattr(jaxpr, "jaxpr", jaxpr).debug_info.func_name)


def _bound(equation: Any, arguments: Values) -> list[Any]:
    """The results of an equation for these arguments, by its primitive itself, without marks."""
    said = equation.primitive.get_bind_params(equation.params)
    functions, params = ((), said) if isinstance(said, dict) else said  # by release of JAX
    result = equation.primitive.bind(*functions, *arguments, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def _by_rule(equation: Any, arguments: Values) -> list[Any]:
    """The results of an equation, marked so that their gradients are those of JAX's forward-mode rule."""
    moved, still, places = _function(equation, arguments)
    _, like = jax.jvp(moved, still, [arguments[k] for k in places])
    return _surrogates(_bound(equation, arguments), like)


def _function(equation: Any, arguments: Values) -> tuple[Callable[..., list[Any]], list[Any], list[int]]:
    """(an equation as a function of those operands that may have gradients; these operands, with gradients stopped;
    their positions)."""
    fixed = [_still(x) for x in arguments]
    places = [k for k, x in enumerate(arguments) if _moves(x)]

    def moved(*xs: Any) -> list[Any]:
        whole = list(fixed)
        for k, x in zip(places, xs, strict=True):
            whole[k] = x
        return _bound(equation, whole)

    return moved, [fixed[k] for k in places], places


def _by_way_back(equation: Any, arguments: Values) -> list[Any]:
    """The results of `equation`, a call of a function with `custom_vjp`: gradients are the transpose of its backward
    pass, which must be linear."""
    moved, still, places = _function(equation, arguments)
    values, back = jax.vjp(moved, *still)
    try:
        earlier = jax.linear_transpose(back, [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in values])
        (like,) = earlier(tuple(arguments[k] for k in places))
    except (NotImplementedError, TypeError, AssertionError, ValueError) as error:
        raise UnsupportedError(
            "a backward pass of one's own that is not linear in what comes back is not supported",
            got=_called(equation.params.get("call_jaxpr", equation.params.get("fun_jaxpr"))),
            hint="say it in operators, or give the loss's gradient by JAX to an update of its own",
        ) from error
    return _surrogates(_bound(equation, arguments), like)


def _surrogates(values: Values, like: Values) -> list[Any]:
    return [_surrogate(v, w) if _moves(v) else v for v, w in zip(values, like, strict=True)]


def _moves(x: Any) -> bool:
    """Whether a value may have a gradient."""
    return isinstance(x, jax.Array) and bool(jnp.issubdtype(jnp.result_type(x), jnp.floating))


def _still(x: Any) -> Any:
    """A value through which no gradient flows."""
    if not _moves(x):
        return x
    return jax.ffi.ffi_call("tilewright.stop_gradient", jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)))(x)


def _surrogate(value: Any, like: Any) -> Any:
    """`value`, through which gradients flow as if it were `like`."""
    about = jax.ShapeDtypeStruct(value.shape, value.dtype)
    return jax.ffi.ffi_call("tilewright.surrogate", about)(_still(value), like)
