"""A bundle is called from C++ and from Rust."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import control_models, policy_suite
from tests.bundle.built import call
from tilewright.bundle.write import described
from tilewright.runtime.program import Program

COMMANDS = {
    "cpp": ["c++", *"-std=c++17 -Wall -Wextra -Werror -pedantic main.cpp".split()],
    "rust": ["rustc", "-D", "warnings", "main.rs"],
}
RNG = np.random.default_rng(52)


def check(program: Program, folder: Path, lang: str, inputs: dict[str, np.ndarray], embed: bool, **sizes: int) -> None:
    if shutil.which(COMMANDS[lang][0]) is None:
        pytest.skip(f"there is no {COMMANDS[lang][0]}")
    program.bundle(folder, lang=lang, embed=embed)
    binding = described(program)
    obj = f"{binding.name}.o"
    link = ["-C", f"link-arg={obj}"] if lang == "rust" else [obj, "-lm"]
    done = subprocess.run([*COMMANDS[lang], *link, "-o", "main"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = call(["./main"], folder, binding, inputs, sizes)
    wanted = tw.Model(program, threads=1).run(dict(inputs))
    for array, out in zip(binding.outputs, result, strict=True):
        assert out[: wanted[array.name].size].tobytes() == np.ascontiguousarray(wanted[array.name]).tobytes()


def test_cpp_with_a_dimension_as_argument(tmp_path: Path) -> None:
    program = tw.compile_program(policy_suite.m64(), dims={"batch": tw.dim(1, 8)})
    check(program, tmp_path, "cpp", {"obs": RNG.standard_normal((3, 17)).astype(np.float32)}, False, batch=3)


def test_rust_with_a_dimension_as_argument(tmp_path: Path) -> None:
    program = tw.compile_program(policy_suite.m64(), dims={"batch": tw.dim(1, 8)})
    check(program, tmp_path, "rust", {"obs": RNG.standard_normal((3, 17)).astype(np.float32)}, False, batch=3)


def test_rust_with_weights_in_the_object_and_extents(tmp_path: Path) -> None:
    program = tw.compile_program(control_models.detector(size=32, channels=8))
    check(program, tmp_path, "rust", {"image": RNG.standard_normal((1, 3, 32, 32)).astype(np.float32)}, True)
