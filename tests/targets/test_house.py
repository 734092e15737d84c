"""Machines are described in `targets/` alone: nothing else asks which one it is, or has sizes of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tilewright

SRC = Path(tilewright.__file__).parent

FORBIDDEN = {
    "which machine it is": r"has_avx512|is_x86\b",
    "how many registers, as a number": r"registers\s*[<>]=?\s*\d",
    "a line of cache": r"\b_?LINE(_BYTES)?\s*=\s*(16|32|64|128)\b",
    "what a family's names are": r'startswith\("(x86|aarch64|riscv|wasm)',
}
MAY = {
    "what a family's names are": (
        "collective/kernels.py",  # reductions that run on this machine alone, below targets
        "native/assembler.py",  # native code that runs on this machine alone, below targets
        "runtime/watch.py",  # likewise: variants of a function for this family's vectors
        "support/machine.py",  # describes this machine to those who measure it, below targets
    ),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_one_else_knows(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    result = []
    for path in sorted(SRC.rglob("*.py")):
        place = path.relative_to(SRC).as_posix()
        if place.startswith(("targets/", "ir/")) or place in MAY.get(what, ()):
            continue
        lines = path.read_text().splitlines()
        result += [f"{place}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert not result, "\n".join(result)
