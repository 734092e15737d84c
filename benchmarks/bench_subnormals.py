"""Operators that make or meet numbers below the normal ones: `python -m benchmarks.bench_subnormals`, on any x86-64.

Each operator that has a case in `tests/ops/test_compute.py` is compiled for this machine as one on which such numbers
cost nothing, and as one on which they do, and called with

    ordinary     the case's own numbers
    vanishing    the same times 2^-100: products of two are below the normal numbers
    steep        the same times 100: exponentials of negative ones are below the normal numbers
    subnormal    the same times 2^-130: numbers that are subnormal themselves

A core sets a flag where an operand is subnormal (DE of MXCSR) and where a result underflows (UE), whatever it takes
there, so that the table holds for every machine: Intel's cores take some hundred cycles for each such vector, others a
few. It names the operators that raise a flag, how many of the outputs are subnormal, and how many of NumPy's are: where
the last is 0 they only cost. `--json FILE` keeps the rows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.ops.oracle import type_of
from tests.ops.test_compute import CASES
from tilewright import ops
from tilewright.ir.graph import GraphBuilder
from tilewright.targets.costs import Origin
from tilewright.targets.target import Target

DENORMAL, UNDERFLOW = 0x02, 0x10
"""Bits of MXCSR (Intel SDM, volume 1, 10.2.3)."""
SCALES = {"ordinary": 1.0, "vanishing": 2.0**-100, "steep": 100.0, "subnormal": 2.0**-130}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """The flags and results of a call of one operator. `denormal`: an operand was subnormal; `underflow`: a result
    underflowed; `outputs`: how many of its results are subnormal; `expected`: how many of NumPy's."""

    op: str
    kind: str
    machine: str
    denormal: bool
    underflow: bool
    outputs: int
    expected: int


def machines(host: Target) -> dict[str, Target]:
    """A machine as one on which subnormal numbers cost nothing, and as one on which they do."""
    cycles = {"free": 0.0, "slow": 150.0}
    return {
        name: replace(host, costs=host.costs.fitted(Origin("here"), subnormal=cost)) for name, cost in cycles.items()
    }


class Flags:
    """The flags of this thread's MXCSR, by the C library's environment of floating point."""

    def __init__(self) -> None:
        if platform.machine() != "x86_64":
            raise RuntimeError("flags are those of x86-64's MXCSR")
        self.libm, self.environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()

    def clear(self) -> None:
        """Forget what happened so far."""
        self.libm.fegetenv(self.environment)
        self.environment[7] &= ~0x3F  # MXCSR stands last
        self.libm.fesetenv(self.environment)

    def read(self) -> tuple[bool, bool]:
        """Whether an operand was subnormal, and whether a result underflowed."""
        self.libm.fegetenv(self.environment)
        return bool(self.environment[7] & DENORMAL), bool(self.environment[7] & UNDERFLOW)


def scaled(array: Any, scale: float) -> Any:
    """An array of f32 times a scale; any other as it is."""
    if array is None or array.dtype != np.float32:
        return array
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(array * np.float32(scale)).reshape(array.shape)


def subnormal(arrays: Sequence[Any]) -> int:
    """How many numbers of arrays of f32 are subnormal."""
    tiny = np.finfo(np.float32).tiny
    floats = [np.asarray(a) for a in arrays if np.asarray(a).dtype == np.float32]
    return int(sum(np.count_nonzero((a != 0) & (np.abs(a) < tiny)) for a in floats))


def cases() -> dict[str, tuple[Sequence[Any], Mapping[str, Any]]]:
    """By operator of models: the arrays and attributes of its first case with f32."""
    result: dict[str, tuple[Sequence[Any], Mapping[str, Any]]] = {}
    for op, arrays, keywords in CASES:
        floats = any(a is not None and a.dtype == np.float32 for a in arrays)
        if floats and not op.startswith("lowered."):
            result.setdefault(op, (arrays, keywords))
    return result


def sweep(
    op: str,
    arrays: Sequence[Any],
    keywords: Mapping[str, Any],
    kinds: Sequence[str] = tuple(SCALES),
    host: Target | None = None,
) -> Iterator[Row]:
    """The rows of an operator, by machine and kind of input. `host` has instructions of this machine; all of them if
    None."""
    attrs, flags = ops.attributes(op, keywords), Flags()
    builder = GraphBuilder("one")
    values = [None if a is None else builder.input(f"x{i}", type_of(a)) for i, a in enumerate(arrays)]
    graph = builder.finish(ops.emit(builder, op, *values, attrs=attrs))
    for machine, target in machines(host or Target.host()).items():
        model = tw.compile((graph, {}), target=target)
        for kind in kinds:
            scaled_arrays = [scaled(a, SCALES[kind]) for a in arrays]
            feeds = {
                f"x{i}": np.ascontiguousarray(a).reshape(a.shape) for i, a in enumerate(scaled_arrays) if a is not None
            }
            model.run(feeds)
            flags.clear()
            got = model.run(feeds)
            denormal, underflow = flags.read()
            with np.errstate(all="ignore"):
                want = ops.get(op).reference(scaled_arrays, attrs)
            yield Row(op, kind, machine, denormal, underflow, subnormal(list(got.values())), subnormal(want))


def rows(only: str = "") -> Iterator[Row]:
    """All rows; an operator whose case is refused with such numbers (sizes that are floats) has none."""
    for op, (arrays, keywords) in sorted(cases().items()):
        if only not in op:
            continue
        try:
            yield from sweep(op, arrays, keywords)
        except tw.Error:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators whose names contain this")
    parser.add_argument("--json", type=Path, help="where the rows go")
    args = parser.parse_args()
    results = []
    print(f"{'operator':28}{'numbers':12}{'machine':9}{'DE':6}{'UE':6}{'subnormal outputs':19}NumPy's")
    for row in rows(args.only):
        results.append(row)
        if row.denormal or row.underflow:
            cells = "".join(f"{'yes' if flag else '':6}" for flag in (row.denormal, row.underflow))
            print(f"{row.op:28}{row.kind:12}{row.machine:9}{cells}{row.outputs:<19}{row.expected}", flush=True)
    only_cost = sorted(
        {r.op for r in results if r.machine == "slow" and r.underflow and not r.expected and r.kind != "subnormal"}
    )
    print(f"{len({r.op for r in results})} operators; where NumPy has none: {', '.join(only_cost) or 'none'}")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
