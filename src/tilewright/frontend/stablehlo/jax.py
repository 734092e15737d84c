"""Facts about a JAX function that its StableHLO module does not contain: names of arguments, which are weights,
symbolic sizes, and the structure of results."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import tree_util

from tilewright.frontend.stablehlo.module import Module
from tilewright.frontend.stablehlo.read import parse_module, read_module
from tilewright.frontend.stablehlo.signature import Argument, Signature, Size, distinct, path_name
from tilewright.ir.expr import Expr, as_expr, equal, maximum, minimum
from tilewright.support.errors import Error, ModelError
from tilewright.support.options import check_several

Params = int | str | Sequence[int | str] | Mapping[Any, Any] | None
"""The arguments that are weights: their positions or names; for an `Exported`, a mapping from these to pytrees of
arrays."""


PLATFORM = "_platform_index"
"""The name, in a module that JAX has exported for several platforms, of the number of the one that it runs on."""


def is_exported(model: Any) -> bool:
    return isinstance(model, jax.export.Exported)


def read_exported(exported: Any, params: Params) -> tuple[Module, Signature]:
    """The module and the signature of a `jax.export.Exported`. Raises ModelError."""
    module = parse_module(exported.mlir_module_serialized)
    supplied = _trees(params)
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, list(exported.in_avals))
    leaves = _leaves(args, kwargs, [f"arg{k}" for k in range(len(args))])
    said = [a.name for a in Signature.of(module).arguments]
    retained = [leaves[k] for k in exported.module_kept_var_idx]
    if len(said) == len(retained) and not any(name.startswith("arg") for name in said):
        roots = {path[0]: name for (path, _), name in zip(retained, said, strict=True) if len(path) == 1}
        leaves = [([roots.get(path[0], path[0]), *path[1:]], aval) for path, aval in leaves]
    return module, _signature(module, leaves, exported.module_kept_var_idx, supplied, dict(enumerate(args)) | kwargs)


def platform_of(exported: Any, module: Module) -> dict[str, int]:
    """The number of the CPU among the platforms of a `jax.export.Exported`, by the name that its `module` has for it;
    empty if the module asks for no platform."""
    if PLATFORM not in module.functions[module.main].symbols:
        return {}
    return {PLATFORM: exported.platforms.index("cpu") if "cpu" in exported.platforms else 0}


def read_jitted(function: Any, example: Any, params: Params) -> tuple[Module, Signature]:
    """The module and signature of a jitted function, traced with arguments of the example's types. Raises
    ModelError."""
    if example is None:
        raise ModelError("a jitted function needs an example of its arguments", expected="tw.compile(f, (x, y))")
    args, kwargs = _arguments(example)
    try:
        traced = function.trace(*args, **kwargs)
        lowered = _lowered(traced)
        parsed = lowered.compiler_ir("stablehlo")
    except Error:
        raise
    except Exception as error:  # what a function's own code raises while it is traced may be anything
        text = f"{type(error).__name__}: {error}"
        raise ModelError("the function cannot be traced", got=text[:600]) from error
    module = read_module(parsed)
    names = _positional(function, len(args))
    dynamic_args, dynamic_kwargs = lowered.args_info
    leaves = _leaves(dynamic_args, dynamic_kwargs, names)
    retained = sorted(lowered._lowering.compile_args.get("kept_var_idx", range(len(leaves))))
    supplied = _trees(params) if isinstance(params, Mapping) else _chosen(params, args, kwargs, names)
    signature = _signature(module, leaves, retained, supplied, dict(enumerate(args)) | kwargs, names)
    consts = [np.asarray(c) for c in getattr(traced.jaxpr, "consts", ()) if hasattr(c, "shape")]
    held = [c for c in consts if c.ndim and c.size > 1 and c.dtype.kind in "fV"]
    arrays = {f"constant{k}": c for k, c in enumerate(held)}
    return module, replace(signature, arrays=arrays)


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a tuple has several, a dict names them, anything else is the only one."""
    if isinstance(example, tuple):
        return example, {}
    return ((), example) if isinstance(example, dict) else ((example,), {})


def _lowered(traced: Any) -> Any:
    """The traced function lowered to StableHLO for CPUs, or for GPUs if JAX supports the algorithm of one of its
    products only there."""
    try:
        return _lowered_for(traced, "cpu")
    except ValueError as error:
        if "is not supported by dot_general" not in str(error):
            raise
        return _lowered_for(traced, "cuda")


def _lowered_for(traced: Any, platform: str) -> Any:
    """The traced function lowered to StableHLO for `platform`. For symbolic sizes it uses the options of
    `jax.export`."""
    symbolic = any(not isinstance(d, int) for a in traced.jaxpr.in_avals for d in getattr(a, "shape", ()))
    if not symbolic:
        return traced.lower(lowering_platforms=(platform,))
    from jax._src.interpreters import mlir

    options = mlir.LoweringParameters(for_export=True, export_ignore_forward_compatibility=True)
    return traced.lower(lowering_platforms=(platform,), _private_parameters=options)


def _positional(function: Any, count: int) -> list[str]:
    """Names of the first `count` positional arguments, from the function's signature; "argK" for one without a name."""
    try:
        results = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        results = []
    ordinary = [p.name for p in results if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [ordinary[k] if k < len(ordinary) else f"arg{k}" for k in range(count)]


Leaf = tuple[list[str], Any]
"""A leaf of the arguments: its path, which begins with the argument, and the description that JAX has of it."""


def _leaves(args: Any, kwargs: Any, names: Sequence[str]) -> list[Leaf]:
    results: list[Leaf] = []
    for path, leaf in tree_util.tree_flatten_with_path((args, kwargs))[0]:
        which, first, *rest = path
        root = names[first.idx] if which.idx == 0 else str(first.key)
        results.append(([root, *map(step, rest)], leaf))
    return results


def step(key: Any) -> str:
    """One key of a path into nested containers, as text."""
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return path_name(str(key))


def _trees(params: Params) -> dict[Any, Any]:
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise ModelError(
            "an exported function has no values of its weights", expected="params={argument: tree}", got=params
        )
    return dict(params)


def _chosen(params: Params, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[Any, Any]:
    """The arguments that `params` selects as weights among `args` and `kwargs` (`names` are the names of the former):
    position or keyword -> the example's value. Raises ModelError for one that does not exist."""
    if params is not None and not isinstance(params, int | str):
        check_several("params", params, "a position, a name, or several")
    wanted = [] if params is None else [params] if isinstance(params, int | str) else list(params)
    result: dict[Any, Any] = {}
    for which in wanted:
        place = names.index(which) if isinstance(which, str) and which in names else which
        if isinstance(place, int) and 0 <= place < len(args):
            result[place] = args[place]
        elif place in kwargs:
            result[place] = kwargs[place]  # type: ignore[index]
        else:
            raise ModelError("there is no such argument", expected=", ".join([*names, *kwargs]), got=which)
    return result


def _signature(
    module: Module,
    leaves: Sequence[Leaf],
    retained: Sequence[int],
    inputs: Mapping[Any, Any],
    arguments: Mapping[Any, Any],
    names: Sequence[str] = (),
) -> Signature:
    weights = _weights(leaves, inputs, arguments, names)
    main = module.functions[module.main]
    free = sum(not s for s in main.symbols)
    if free != len(retained):
        raise ModelError("the module has other arguments than the function", expected=len(retained), got=free)
    order = iter(retained)
    positions = [None if s else next(order) for s in main.symbols]
    labels = _labels([(leaves[k][0], k in weights) for k in retained])
    by_leaf = dict(zip(retained, labels, strict=True))
    results: list[Argument] = []
    for k, symbol in zip(positions, main.symbols, strict=True):
        if k is None:
            results.append(Argument(f"size_{symbol}", size_of=symbol))
        else:
            results.append(Argument(by_leaf[k], weights.get(k), shape=_sizes(leaves[k][1])))
    return Signature(tuple(results), main.results, constraints=_constraints([leaf for _, leaf in leaves]))


def _labels(paths: Sequence[tuple[list[str], bool]]) -> list[str]:
    """Names for the leaves of arguments, from (path, whether it is a weight): a weight's path is joined by points, and
    without the argument's name if all weights are in one argument."""
    roots = {path[0] for path, weight in paths if weight and len(path) > 1}
    is_long = len(roots) > 1
    names = []
    for path, weight in paths:
        if weight:
            names.append(".".join(path if is_long or len(path) == 1 else path[1:]))
        else:
            names.append("_".join(path))
    return distinct(names)


def _weights(
    leaves: Sequence[Leaf], inputs: Mapping[Any, Any], arguments: Mapping[Any, Any], names: Sequence[str]
) -> dict[int, Any]:
    """Leaf number -> array, for all leaves that are weights; `inputs` maps an argument, by position or name, to its
    tree of arrays."""
    result: dict[int, Any] = {}
    for which, tree in inputs.items():
        place = list(names).index(which) if isinstance(which, str) and which in names else which
        keys = list(arguments)
        if place not in keys:
            raise ModelError("there is no such argument", expected=", ".join(map(str, keys)), got=which)
        first = sum(len(tree_util.tree_leaves(arguments[k])) for k in keys[: keys.index(place)])
        arrays = tree_util.tree_leaves(tree)
        count = len(tree_util.tree_leaves(arguments[place]))
        if len(arrays) != count:
            raise ModelError(f"the weights {which!r} have another tree", expected=f"{count} arrays", got=len(arrays))
        for k, array in enumerate(arrays):
            if isinstance(array, jax.ShapeDtypeStruct):
                raise ModelError("weights need values", where=".".join(leaves[first + k][0]), got=array)
            result[first + k] = _checked(np.asarray(array), leaves[first + k])
    return result


def _checked(array: Any, leaf: Leaf) -> Any:
    path, about = leaf
    shape, kind = tuple(about.shape), np.dtype(about.dtype)
    if array.dtype != kind and array.dtype.kind == kind.kind:
        array = array.astype(kind)  # what JAX itself would do to 64 bits
    if array.shape != shape or array.dtype != kind:
        raise ModelError(
            "the weight does not fit",
            where=".".join(path),
            expected=f"{kind}{list(shape)}",
            got=f"{array.dtype}{list(array.shape)}",
        )
    return array


def _sizes(about: Any) -> list[Size] | None:
    """For each dimension of `about` a function that evaluates it, given the values of symbols; None if it has no
    shape."""
    shape = getattr(about, "shape", None)
    if shape is None:
        return None

    def size(d: Any) -> Size:
        return lambda look: _evaluated(d, look)

    return [size(d) for d in shape]


def _constraints(leaves: Sequence[Any]) -> tuple[tuple[str, Size], ...]:
    """The constraints that the scopes of symbolic dimensions state (`jax.export.symbolic_shape(constraints=)`).
    Equations such as "n == 2*m" are left out, as JAX has already substituted them."""
    dims = [d for leaf in leaves for d in getattr(leaf, "shape", ()) if hasattr(d, "scope")]
    scopes = dict.fromkeys(d.scope for d in dims)
    known = {name for d in dims for name in d._get_vars()}

    def is_left(said: Any) -> bool:
        return said.cmp.name != "EQ" or isinstance(said.diff, int) or said.diff._get_vars() <= known

    def condition(said: Any) -> Size:
        compare = equal if said.cmp.name == "EQ" else lambda a, b: as_expr(a) >= b
        return lambda look: compare(_evaluated(said.diff, look), 0)

    left = (c for s in scopes for c in s._explicit_constraints if is_left(c))
    return tuple((f"the constraint {c.debug_str}", condition(c)) for c in left)


def _evaluated(e: Any, look: Callable[[str], Expr]) -> Any:
    """A symbolic size of JAX as an expression: the sum of its terms, in which `look` returns the value of a symbol."""
    if isinstance(e, int):
        return e
    total: Any = 0
    for term, count in e._sorted_terms:
        part: Any = count
        for factor, power in term._factors:
            part = functools.reduce(operator.mul, [_factor(factor, look)] * power, part)
        total = total + part
    return total


def _factor(factor: Any, look: Callable[[str], Expr]) -> Expr:
    if factor.var is not None:
        return look(factor.var)
    return _OPERATIONS[factor.operation](*(as_expr(_evaluated(a, look)) for a in factor.operands))


_OPERATIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": maximum,
    "min": minimum,
}
