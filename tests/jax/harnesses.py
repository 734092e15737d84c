"""JAX's own test cases (`test_harnesses`): each function compiled, run, and compared with jax.jit.

The cases are those that jax.jit itself runs on a CPU, without complex numbers and without LAPACK's routines.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import tilewright as tw
from tilewright.frontend.stablehlo import import_stablehlo
from tilewright.ops.interpret import run_graph

LAPACK = {
    "svd",
    "eig",
    "eigh",
    "qr",
    "lu",
    "cholesky",
    "triangular_solve",
    "custom_linear_solve",
    "schur",
    "hessenberg",
}
LAPACK |= {"tridiagonal", "tridiagonal_solve", "householder_product"}

RELATIVE = {"f64": 1e-9, "f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}
"""Differences that are allowed, of the larger of 1 and the largest number of an output."""


def harnesses() -> list[Any]:
    """All cases, in JAX's order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jax._src.internal_test_util import test_harnesses

        return [h for h in test_harnesses.all_harnesses if _is_ours(h)]


def _is_ours(h: Any) -> bool:
    kinds = [h.dtype, *(v for v in h.params.values() if isinstance(v, type | np.dtype))]
    for kind in kinds:
        try:
            if np.issubdtype(np.dtype(kind), np.complexfloating):
                return False
        except TypeError:
            continue
    return h.group_name not in LAPACK and h.filter("cpu")


def arguments(h: Any) -> list[Any]:
    return list(h.dyn_args_maker(np.random.RandomState(0)))


def uses_complex(leaves: Iterator[Any]) -> bool:
    return any(np.iscomplexobj(np.asarray(x)) for x in leaves)


def check(h: Any, *, native: bool) -> str:
    """Run one case: "passed", "left out: why", "refused: why" or "wrong: how"."""
    args = arguments(h)
    jitted = jax.jit(h.dyn_fun)
    try:
        expected = jitted(*args)
    except Exception as error:  # JAX refuses some of its cases
        return f"left out: JAX says {type(error).__name__}"
    leaves = [x for x in jax.tree.leaves(expected) if hasattr(x, "dtype")]
    if uses_complex(iter([*jax.tree.leaves(args), *leaves])) or "complex<" in jitted.lower(*args).as_text():
        return "left out: complex numbers"
    if any(
        jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        for x in [*jax.tree.leaves(args), *leaves]
        if hasattr(x, "dtype")
    ):
        return "left out: keys of random numbers as arguments"
    feeds = [np.asarray(a) for a in jax.tree.leaves(args)]
    try:
        result = _run(jitted, tuple(args), feeds, native)
    except tw.Error as error:
        return "refused: " + " | ".join(str(error).splitlines())[:400]
    if h.group_name == "sort" and not h.params.get("is_stable"):
        result, leaves = _ordered(h, result), _ordered(h, leaves)
    if h.group_name == "approx_top_k":  # of equal values any may be taken
        result, leaves = result[:1], leaves[:1]
    return compare(result, leaves)


def _ordered(h: Any, arrays: list[Any]) -> list[Any]:
    """The part of a sort's results that holds without stability: the keys, and the other operands in any order."""
    keys, axis = h.params.get("num_keys", 1), h.params.get("dimension", -1)
    return [np.asarray(a) if k < keys else np.sort(np.asarray(a), axis) for k, a in enumerate(arrays)]


def _run(jitted: Any, args: tuple[Any, ...], feeds: list[Any], native: bool) -> list[Any]:
    if native:
        model = tw.compile(jitted, args)
        chosen = _read_arguments(model.inputs, jitted, args, feeds)
        results = model(*chosen)
        return list(results) if isinstance(results, tuple) else [results]
    imported = import_stablehlo(jitted, args)
    chosen = _read_arguments(imported.graph.inputs, jitted, args, feeds)
    named = {v.name: a for v, a in zip(imported.graph.inputs, chosen, strict=True)}
    with np.errstate(all="ignore"):
        return list(run_graph(imported.graph, named, imported.weights).values())


def _read_arguments(inputs: Any, jitted: Any, args: tuple[Any, ...], feeds: list[Any]) -> list[Any]:
    """The arguments that the function reads, which are those that the module has."""
    if len(inputs) == len(feeds):
        retained = range(len(feeds))
    else:
        retained = sorted(jitted.trace(*args).lower()._lowering.compile_args["kept_var_idx"])  # type: ignore[assignment]
    chosen = [feeds[k] for k in retained]
    return [a.astype(_narrow(a.dtype)) for a in chosen]


def _narrow(t: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(t)


def compare(result: list[Any], expected: list[Any]) -> str:
    if len(result) != len(expected):
        return f"wrong: {len(result)} outputs instead of {len(expected)}"
    for k, (a, e) in enumerate(zip(result, expected, strict=True)):
        x, y = np.asarray(a), np.asarray(e)
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"wrong: output {k} is {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
        if x.dtype.kind in "iub" or "int" in x.dtype.name:
            bad = x != y
        else:
            kind = {"float64": "f64", "float32": "f32", "float16": "f16"}.get(x.dtype.name, "bf16")
            x, y = x.astype(np.float64), y.astype(np.float64)
            finite = np.abs(y[np.isfinite(y)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            with np.errstate(all="ignore"):
                bad = ~(same | (np.abs(x - y) <= RELATIVE[kind] * scale))
        if bad.any():
            at = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
            return f"wrong: output {k} at {at}: {x[at]!r} instead of {y[at]!r} ({int(bad.sum())} of {bad.size})"
    return "passed"
