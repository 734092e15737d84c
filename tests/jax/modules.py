"""StableHLO's own programs, which carry inputs and expected results (`stablehlo/testdata` of openxla/stablehlo).

    main() { inputs = call @inputs(); wanted = call @expected(); ...; custom_call @check.expect_close(found, wanted) }

Inputs become arguments, so that the compiler cannot compute the results by itself, and what is checked becomes results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.jax.harnesses import compare
from tilewright.frontend.stablehlo.child import read_outside
from tilewright.frontend.stablehlo.importer import import_module
from tilewright.frontend.stablehlo.module import Block, Function, Module, Operation
from tilewright.ops.interpret import run_graph

COMPLEX = ("complex64", "complex128", "complex<")


@dataclass(frozen=True, slots=True)
class Case:
    """One file; `group_name` is what its name begins with."""

    path: Path

    @property
    def fullname(self) -> str:
        return self.path.stem

    @property
    def group_name(self) -> str:
        return self.path.stem.split("_")[0]


def cases(folder: Path) -> list[Case]:
    """The files of a folder, without complex numbers."""
    files = sorted(folder.glob("*.mlir"))
    return [Case(f) for f in files if not any(c in f.name for c in COMPLEX)]


def check(case: Case, *, native: bool) -> str:
    """Run one program: "passed", "left out: why", "refused: why" or "wrong: how"."""
    text = case.path.read_bytes()
    if b"complex<" in text:
        return "left out: complex numbers"
    try:
        module = read_outside(text)
        main = module.functions[module.main]
        if not any(_is_check(op) for op in main.body.body):
            import_module(module)  # without numbers nothing more can be said
            return "passed"
        opened, wanted = _opened(module, main)
        feeds = _results(module, "inputs") if "inputs" in module.functions else []
        expected = [_results(module, name)[k] for name, k in wanted]
        result = _run(opened, feeds, native)
    except tw.Error as error:
        return "refused: " + " | ".join(str(error).splitlines())[:400]
    return compare(result, expected)


def _run(module: Module, feeds: list[Any], native: bool) -> list[Any]:
    imported = import_module(module)
    if not native:
        named = {v.name: a for v, a in zip(imported.graph.inputs, feeds, strict=True)}
        with np.errstate(all="ignore"):
            return list(run_graph(imported.graph, named, imported.weights).values())
    results = tw.compile(imported)(*feeds)
    return list(results) if isinstance(results, tuple) else [results]


def _is_check(op: Operation) -> bool:
    return op.name == "stablehlo.custom_call" and str(op.attributes.get("call_target_name")).startswith("check.")


def _opened(module: Module, main: Function) -> tuple[Module, list[tuple[str, int]]]:
    """The module with inputs as arguments and what is checked as results; and for each the function and the place that
    has what is expected."""
    arguments: list[int] = []
    types: list[Any] = []
    retained: list[Operation] = []
    source: dict[int, tuple[str, int]] = {}
    results: list[int] = []
    wanted: list[tuple[str, int]] = []
    for op in main.body.body:
        callee = str(op.attributes.get("callee", ""))
        if callee == "inputs":
            arguments += op.results
            types += op.types
        elif callee == "expected":
            source.update({r: (callee, k) for k, r in enumerate(op.results)})
        elif _is_check(op):
            results.append(op.operands[0])
            wanted.append(source[op.operands[1]])
        else:
            retained.append(op)
    end = replace(main.body.operations[-1], operands=tuple(results))
    body = Block(tuple(arguments), tuple(types), (*retained, end))
    blank = ("",) * len(arguments)
    function = Function(main.name, body, blank, ("",) * len(results), blank)
    return replace(module, functions={**module.functions, main.name: function}), wanted


def _results(module: Module, name: str) -> list[Any]:
    """The results of a function of constants."""
    imported = import_module(replace(module, main=name))
    results = run_graph(imported.graph, {}, imported.weights)
    return [results[v.name] for v in imported.graph.outputs]
