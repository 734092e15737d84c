"""Bundles in C: built with every warning an error and with sanitizers, equal to the Python runtime bit by bit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import policy_suite
from tests.bundle.built import STRICT, build, call, check_equal
from tests.codegen.c.c_run import COMPILER, needs_compiler
from tests.codegen.llvm.test_flushing import SIZE, flushes_here, halved
from tilewright.bundle.write import ALLOWED
from tilewright.runtime.program import Program
from tilewright.support.errors import CompileError, UnsupportedError

pytestmark = needs_compiler


def m64(**dims: object) -> Program:
    return tw.compile_program(policy_suite.m64(), dims=dims)  # type: ignore[arg-type]


def observations(rows: int) -> dict[str, np.ndarray]:
    return {"obs": np.random.default_rng(rows).standard_normal((rows, 17)).astype(np.float32)}


def test_a_bounded_dimension_is_an_argument(tmp_path: Path) -> None:
    check_equal(m64(batch=tw.dim(1, 64)), tmp_path, observations(5), {"batch": 5})


def test_sizes_out_of_range_and_crooked_memory_are_refused(tmp_path: Path) -> None:
    m64(batch=tw.dim(2, 8)).bundle(tmp_path, name="policy")
    (tmp_path / "main.c").write_text(
        """
#include "policy.h"
static _Alignas(64) unsigned char constants[POLICY_CONSTANTS_BYTES], activations[POLICY_ACTIVATIONS_BYTES + 1];
static _Alignas(64) unsigned char weights[POLICY_WEIGHTS_BYTES], workspace[POLICY_WORKSPACE_BYTES];
static float obs[POLICY_OBS_ELEMENTS], action[POLICY_ACTION_ELEMENTS], value[POLICY_VALUE_ELEMENTS];
int main(void) {
    if (policy_prepare(constants, weights + 1, workspace) != POLICY_BAD_ALIGNMENT) return 1;
    if (policy_prepare(constants, weights, workspace) != POLICY_OK) return 2;
    if (policy_run(constants, activations + 1, 2, obs, action, value) != POLICY_BAD_ALIGNMENT) return 3;
    if (policy_run(constants, activations, 1, obs, action, value) != POLICY_BAD_SIZE) return 4;
    if (policy_run(constants, activations, 9, obs, action, value) != POLICY_BAD_SIZE) return 5;
    if (policy_run(constants, activations, INT64_MIN, obs, action, value) != POLICY_BAD_SIZE) return 6;
    return policy_run(constants, activations, 8, obs, action, value) == POLICY_OK ? 0 : 7;
}
"""
    )
    assert subprocess.run([build(tmp_path, "policy")]).returncode == 0


def test_new_weights_by_another_prepare(tmp_path: Path) -> None:
    program = m64(batch=1)
    model, inputs = tw.Model(program, threads=1), observations(1)
    model.update({name: w * 2 for name, w in program.weights.items()})
    wanted = model.run(inputs)
    program.bundle(tmp_path)
    file = tmp_path / "m64.weights"
    (np.fromfile(file, np.float32) * 2).tofile(file)
    (tmp_path / "io").mkdir()
    inputs["obs"].tofile(tmp_path / "io" / "obs.bin")
    build(tmp_path, "m64")
    assert subprocess.run(["./main", "io"], cwd=tmp_path, capture_output=True).stdout == b"done\n"
    assert (tmp_path / "io" / "action.bin").read_bytes() == wanted["action"].tobytes()


def test_fixed_dimensions_and_weights_in_the_object(tmp_path: Path) -> None:
    check_equal(m64(batch=1), tmp_path, observations(1), embed=True)
    assert not (tmp_path / "m64.weights").exists()


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_the_object_shows_two_functions_and_needs_nothing(tmp_path: Path) -> None:
    m64(batch=1).bundle(tmp_path)
    lines = subprocess.run(["nm", "-g", tmp_path / "m64.o"], capture_output=True, text=True).stdout.splitlines()
    names = [tuple(line.split()[-2:]) for line in lines]
    assert {n for kind, n in names if kind != "U"} == {"m64_prepare", "m64_run"}
    assert {n for kind, n in names if kind == "U"} <= ALLOWED


@flushes_here
def test_flushing_lasts_for_a_call(tmp_path: Path) -> None:
    """`flush_denormals` holds inside of a bundle's function, with the bits of the Python runtime, and ends with it."""
    program = tw.compile_program((halved(), {"half": np.full(1, 0.5, np.float32)}), flush_denormals=True)
    x = np.tile(np.array([2.0**-126, 2.0**-140, 3.0, -(2.0**-126)], np.float32), SIZE // 4)
    binding = check_equal(program, tmp_path, {"x": x}, name="halved")
    (got,) = call(["./main"], tmp_path, binding, {"x": x}, {})
    np.testing.assert_array_equal(got, np.where(np.abs(x) < 1, 0, x / 2))
    main = (tmp_path / "main.c").read_text()
    done, check = 'printf("done', "volatile float tiny = 0x1p-126f; if (tiny * 0.5f == 0.0f) return 9; "
    assert main.count(done) == 1
    (tmp_path / "main.c").write_text(main.replace(done, check + done))
    build(tmp_path, "halved")
    call(["./main"], tmp_path, binding, {"x": x}, {})


def test_two_models_in_one_program(tmp_path: Path) -> None:
    for name, program in (("first", m64(batch=1)), ("second", m64(batch=tw.dim(1, 4)))):
        program.bundle(tmp_path, name=name)
    (tmp_path / "main.c").write_text(
        '#include "first.h"\n#include "second.h"\n'
        "int main(void) { return first_prepare == second_prepare ? 1 : FIRST_OK; }\n"
    )
    line = [COMPILER, *STRICT, "main.c", "first.o", "second.o", "-lm", "-o", "main"]
    done = subprocess.run([str(x) for x in line], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "main"]).returncode == 0


def test_what_cannot_be_bundled_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"dimension 'batch' has no bound.*\n?.*batch=1\.\.64"):
        m64().bundle(tmp_path / "x")
    with pytest.raises(CompileError, match="no name for functions"):
        m64(batch=1).bundle(tmp_path / "x", name="new")
    with pytest.raises(CompileError, match="no such setting of lang"):
        m64(batch=1).bundle(tmp_path / "x", lang="ada")
    assert not (tmp_path / "x").exists()


def test_numbers_of_the_header_are_those_of_the_memory(tmp_path: Path) -> None:
    m64(batch=1).bundle(tmp_path)
    text = (tmp_path / "m64.h").read_text()
    numbers = dict(re.findall(r"#define M64_(\w+) (\d+)", text))
    assert int(numbers["WEIGHTS_BYTES"]) == (tmp_path / "m64.weights").stat().st_size
    assert all(int(n) % 64 == 0 for name, n in numbers.items() if name.endswith("_BYTES") or name.startswith("AT_"))
