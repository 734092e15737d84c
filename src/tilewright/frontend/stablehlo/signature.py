"""Facts about a module's arguments and results besides their types: names, which are weights, symbolic sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilewright.frontend.stablehlo.module import Module
from tilewright.ir.expr import Expr
from tilewright.support.classes import dataclass

Size = Callable[[Callable[[str], Expr]], Any]
"""A function that computes a dimension; its argument maps symbols' names to expressions."""

MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of `main`: an input with a name, a weight with its array, or the size of a symbolic dimension
    (`size_of`), which callers need not pass."""

    name: str
    weight: Any = None
    size_of: str = ""
    shape: Sequence[Size] | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of `main` in order, the names of its results ("" for none), and arrays that the function has
    captured, by name: constants that are weights."""

    arguments: tuple[Argument, ...]
    results: tuple[str, ...] = ()
    arrays: dict[str, Any] = field(default_factory=dict)
    sized: bool = False
    """Whether some arguments were recognised as sizes by `with_sizes`; callers pass them beside the arrays."""
    constraints: tuple[tuple[str, Size], ...] | None = None
    """Conditions on sizes, each as text and function; None where only the module's own assertions state them."""

    @classmethod
    def of(cls, module: Module) -> Signature:
        """The signature that the module itself states."""
        main = module.functions[module.main]
        names = distinct([path_name(n) or f"arg{k}" for k, n in enumerate(_named(module))])
        arguments = [Argument(n, size_of=s) for n, s in zip(names, main.symbols, strict=True)]
        return cls(tuple(arguments), main.results)

    def with_sizes(self, module: Module) -> Signature | None:
        """The signature with leading integer scalars taken as the sizes of symbolic dimensions, which older exports of
        JAX pass; None if there are none."""
        results = list(self.arguments)
        for k, (about, t) in enumerate(zip(self.arguments, module.functions[module.main].body.types, strict=False)):
            if t.shape != () or t.element not in ("i32", "i64") or about.weight is not None or about.size_of:
                break
            results[k] = replace(about, size_of=about.name)
        return None if results == list(self.arguments) else replace(self, arguments=tuple(results), sized=True)

    def argument(self, k: int) -> Argument:
        return self.arguments[k] if k < len(self.arguments) else Argument(f"arg{k}")

    def outputs(self, count: int) -> list[str]:
        """A name for each result: its path in the pytree of results, or "output" and its number."""
        paths = [path_name(r.removeprefix("result")) for r in self.results] if len(self.results) == count else []
        names = [p if p and not p[0].isdigit() else f"output{k}" for k, p in enumerate(paths or [""] * count)]
        return distinct(names)

    def captured(self, array: Any) -> str | None:
        """The name of the weight that equals `array`, a constant of the module; None if none does."""
        for name, held in self.arrays.items():
            if held.shape == array.shape and held.dtype == array.dtype and np.array_equal(held, array, equal_nan=True):
                return name
        return None


def _named(module: Module) -> tuple[str, ...]:
    """The names of main's arguments; if it has none, those of the function that JAX's export wraps, without sizes."""
    main = module.functions[module.main]
    inner = module.functions.get("_wrapped_jax_export_main")
    if any(main.names) or inner is None:
        return main.names
    others = (n for n, s in zip(inner.names, inner.symbols, strict=True) if not s)
    return tuple("" if s else next(others, "") for s in main.symbols)


def path_name(path: str) -> str:
    """A key path as a name: "p['l1'].w[0]" is "p_l1_w_0"."""
    return "_".join(re.findall(r"[^\[\]'\".<>\s]+", path[:MAX_NAME]))


def distinct(names: Sequence[str]) -> list[str]:
    """The names, made distinct by numbers."""
    used_names: set[str] = set()
    results: list[str] = []
    for name in names:
        unique, k = name, 1
        while unique in used_names:
            unique, k = f"{name}_{k}", k + 1
        used_names.add(unique)
        results.append(unique)
    return results
