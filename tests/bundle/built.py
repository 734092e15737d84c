"""Bundles built by a C compiler around them, and called beside the Python runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tests.codegen.c.c_run import COMPILER
from tilewright.bundle.binding import Binding
from tilewright.bundle.write import described
from tilewright.runtime.program import Program

Array = np.ndarray[Any, Any]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-fsanitize=address,undefined")


def build(folder: Path, name: str, compiler: str | None = None, flags: Sequence[str] = STRICT) -> Path:
    """The example of a bundle as a program. Fails the test with the compiler's messages."""
    objects = [p.name for p in sorted(folder.glob(f"{name}*.o"))]
    pool = ["-lpthread"] if len(objects) > 1 else []
    line = [compiler or str(COMPILER), *flags, "main.c", *objects, "-lm", *pool, "-o", "main"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "main"


def call(
    command: Sequence[str], folder: Path, binding: Binding, inputs: Mapping[str, Array], sizes: Mapping[str, int]
) -> list[Array]:
    """The outputs that a built example writes for inputs by the model's names, flat; sizes by the model's names of
    dimensions."""
    io = folder / "io"
    io.mkdir(exist_ok=True)
    for a in binding.inputs:
        np.ascontiguousarray(inputs[a.name]).tofile(io / f"{a.identifier}.bin")
    line = [*command, "io", *(str(sizes[s.spec.name]) for s in binding.sizes)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (
        f"{done.returncode} {done.stdout} {done.stderr[-4000:]}"
    )
    return [np.fromfile(io / f"{a.identifier}.bin", a.dtype.numpy) for a in binding.outputs]


def check_equal(
    program: Program, folder: Path, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None, **options: Any
) -> Binding:
    """Bundle a program, build it with sanitizers and compare a call with the Python runtime's, bit by bit."""
    program.bundle(folder, **options)
    binding = described(program, **{k: v for k, v in options.items() if k != "embed"})
    build(folder, binding.name)
    wanted = tw.Model(program, threads=1).run(dict(inputs))
    result = call(["./main"], folder, binding, inputs, sizes or {})
    for array, out in zip(binding.outputs, result, strict=True):
        expected = np.ascontiguousarray(wanted[array.name])
        assert out[: expected.size].tobytes() == expected.tobytes(), f"{array.name} differs"
    return binding
