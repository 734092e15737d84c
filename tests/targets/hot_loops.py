"""Instructions in hot loops of code for Arm: `python -m tests.targets.hot_loops [--target neoverse-n1]`, on the suite.

A hot loop is an innermost one, from a label to a branch back to it, that multiplies and adds vectors. Of each are
counted its multiply-adds, those with an element of a register as a factor (`fmla v0.4s, v1.4s, v2.s[1]`), the registers
that it adds to, and what it reads from or writes to the stack. Emulators count no cycles: this is what can be said of
the speed of code for a machine that is not there.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

import tilewright as tw
from benchmarks.onnx_builder import Builder

ADDED = re.compile(r"^(fmla|fmls|fmad|fmsb|sdot|udot|usdot|smmla|ummla|usmmla|bfdot|bfmmla|mla)\b")
LABEL = re.compile(r"^(\.L\w+):")
BRANCH = re.compile(r"^(?:b(?:\.\w+)?|cbn?z|tbn?z)\s.*?(\.L\w+)$")
ELEMENT = re.compile(r"v\d+\.(?:s|d|h|4b|2h)\[\d\]$|z\d+\.[sdh]\[\d\]$")
POINTER = re.compile(r"^(?:add|sub|mov|addvl)\s+(x\d+), (\w+)\b")
WRITTEN = re.compile(r"^(?!st|cmp|cmn|tst|b|cb|tb|prf)\w+\s+(x\d+)(?:, (x\d+), \[)?")
BASE = re.compile(r"\[(\w+)")
MIN_ACCUMULATORS = 24
"""Accumulators of 32 registers below which a loop waits for its own sums, or loads more than it need."""


@dataclass(frozen=True, slots=True)
class HotLoop:
    """Counts of one iteration."""

    function: str
    adds: int
    by_element: int
    accumulators: int
    stack: int
    kinds: tuple[str, ...]


def hot_loops(assembly: str) -> Iterator[HotLoop]:
    """The hot loops of a text of LLVM's assembly."""
    function, lines, labels = "", list[str](), dict[str, int]()
    for raw in assembly.splitlines():
        line = raw.split("//")[0].strip()
        if (label := LABEL.match(line)) is not None:
            labels[label[1]] = len(lines)
        elif line.endswith(":") and not line.startswith("."):
            function, lines, labels = line[:-1], [], {}
        elif line and not line.startswith("."):
            lines.append(line)
            branch = BRANCH.match(line)
            if branch is not None and branch[1] in labels:
                begin = labels[branch[1]]
                if not any(begin < at < len(lines) for name, at in labels.items() if _is_looped(name, at, lines)):
                    loop = _counted(function, lines[begin:], stack_pointers(lines))
                    if loop.adds:
                        yield loop


def _is_looped(label: str, at: int, lines: Sequence[str]) -> bool:
    """Whether a later line goes back to a label."""
    return any((b := BRANCH.match(line)) is not None and b[1] == label for line in lines[at:-1])


def stack_pointers(lines: Sequence[str]) -> set[str]:
    """The registers that last got an address of the stack."""
    pointers = {"sp", "x29"}
    for line in lines:
        if (moved := POINTER.match(line)) is not None:
            (pointers.add if moved[2] in pointers else pointers.discard)(moved[1])
        elif (written := WRITTEN.match(line)) is not None:
            pointers -= {written[1], written[2]}
    return pointers


def _counted(function: str, lines: Sequence[str], pointers: set[str]) -> HotLoop:
    added = [line for line in lines if ADDED.match(line)]
    places = {line.split(None, 1)[1].split(",")[0].strip().split(".")[0] for line in added}
    kinds = tuple(sorted({line.split()[0] for line in added}))
    by_element = sum(ELEMENT.search(line) is not None for line in added)
    # Of other registers than its own only what is written there counts: in order of the text a name may look stale.
    bases = [(line.startswith("st"), base[1]) for line in lines if (base := BASE.search(line)) is not None]
    stack = sum(base == "sp" or (stores and base in pointers) for stores, base in bases)
    return HotLoop(function, len(added), by_element, len(places), stack, kinds)


def _product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    b = Builder("product", seed=1)
    b.output(b.linear(b.input("x", [rows, depth]), "fc", depth, columns), "y", [rows, columns])
    return b.build()


def _convolution(channels: int, filters: int, size: int, kernel: int, stride: int = 1) -> onnx.ModelProto:
    b = Builder("convolution", seed=1)
    pad = kernel // 2
    y = b.conv(b.input("x", [1, channels, size, size]), "conv", channels, filters, kernel, pad=pad, stride=stride)
    out = (size + 2 * pad - kernel) // stride + 1
    b.output(y, "y", [1, filters, out, out])
    return b.build()


SUITE = {
    "product of 64 rows": _product(64, 256, 256),
    "product of 512 rows": _product(512, 512, 512),
    "product of one row": _product(1, 256, 256),
    "convolution of 1x1": _convolution(64, 128, 28, 1),
    "convolution of 3x3": _convolution(64, 64, 28, 3),
    "convolution of 3x3 by 2": _convolution(32, 64, 28, 3, 2),
    "convolution of 5x5": _convolution(32, 32, 28, 5),
}
"""Models of one layer each."""


def largest(model: onnx.ModelProto, target: str, **options: object) -> HotLoop:
    """The hot loop of a model's calls with the most multiply-adds an iteration."""
    program = tw.compile_program(model, target=target, **options)  # type: ignore[arg-type]
    text = program.texts["asm"]
    loops = hot_loops(text() if callable(text) else text)
    return max((loop for loop in loops if loop.function.startswith("run")), key=lambda loop: loop.adds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.targets.hot_loops", description=__doc__)
    parser.add_argument("--target", default="neoverse-n1")
    target = parser.parse_args().target
    for name, model in SUITE.items():
        loop = largest(model, target)
        print(
            f"{name:26} {loop.adds:4} {'/'.join(loop.kinds):12} by element {loop.by_element:4}"
            f"  accumulators {loop.accumulators:2}  stack {loop.stack}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
