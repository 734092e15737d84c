"""Bundles of models with state, loops, branches and sizes that data decides, equal to the Python runtime bit by bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from benchmarks import control_models, decoder_model, policy_suite
from tests.bundle.built import build, check_equal
from tests.codegen.c.c_run import needs_compiler
from tilewright.support.errors import UnsupportedError

pytestmark = needs_compiler
RNG = np.random.default_rng(51)

DECODE = """
#include <stdio.h>
#include "gpt.h"
static _Alignas(64) unsigned char weights[GPT_WEIGHTS_BYTES], constants[GPT_CONSTANTS_BYTES], state[GPT_STATE_BYTES];
static _Alignas(64) unsigned char workspace[GPT_WORKSPACE_BYTES], activations[GPT_ACTIVATIONS_BYTES];
static float logits[GPT_LOGITS_ELEMENTS];
int main(void) {
    FILE *file = fopen("gpt.weights", "rb"), *out = fopen("logits.bin", "wb");
    if (!file || !out || fread(weights, 1, sizeof weights, file) != sizeof weights) return 1;
    if (gpt_prepare(constants, weights, workspace) != GPT_OK) return 2;
    const int64_t ids[8] = {3, 1, 4, 1, 5, 9, 2, 6};
    const int64_t counts[] = {4, 1, 1, 2};
    int64_t at = 0;
    for (int k = 0; k < 4; ++k) {
        if (gpt_run(constants, activations, state, counts[k], ids + at, logits) != GPT_OK) return 3;
        fwrite(logits, sizeof *logits, (size_t)counts[k] * 20, out);
        at += counts[k];
    }
    if (gpt_run(constants, activations, state, 5, ids, logits) != GPT_FULL) return 4;
    *(int64_t *)(void *)state = -1;
    if (gpt_run(constants, activations, state, 1, ids, logits) != GPT_FULL) return 5;
    fclose(out);
    return fclose(file);
}
"""


def test_a_decoder_keeps_its_rows_in_memory_of_the_caller(tmp_path: Path) -> None:
    model = decoder_model.decoder(layers=1, width=32, heads=2, vocabulary=20)
    program = tw.compile_program(model, state="auto", dims={"batch": 1, "n": tw.dim(1, 8)})
    with pytest.raises(UnsupportedError, match="nothing says for how many rows"):
        program.bundle(tmp_path, name="gpt")
    program.bundle(tmp_path, name="gpt", rows=12)
    (tmp_path / "main.c").write_text(DECODE)
    assert subprocess.run([build(tmp_path, "gpt")], cwd=tmp_path).returncode == 0
    state, ids = tw.Model(program, threads=1).state(capacity=12), np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    wanted = [np.ascontiguousarray(state(ids[:, a:b])) for a, b in ((0, 4), (4, 5), (5, 6), (6, 8))]
    assert (tmp_path / "logits.bin").read_bytes() == b"".join(w.tobytes() for w in wanted)


def test_a_loop_as_long_as_its_input(tmp_path: Path) -> None:
    program = tw.compile_program(control_models.recurrence(hidden=32, size=16), dims={"length": tw.dim(1, 50)})
    inputs = {
        "h0": RNG.standard_normal((1, 32)).astype(np.float32),
        "xs": RNG.standard_normal((7, 1, 16)).astype(np.float32),
    }
    check_equal(program, tmp_path, inputs, {"length": 7})


def test_a_loop_with_a_graph_inside(tmp_path: Path) -> None:
    program = tw.compile_program(control_models.decoder(layers=1, width=32, heads=2, words=64, most=8))
    check_equal(program, tmp_path, {"first": np.array([[3]])})


def test_sizes_that_data_decides(tmp_path: Path) -> None:
    program = tw.compile_program(control_models.detector(size=32, channels=8))
    inputs = {"image": RNG.standard_normal((1, 3, 32, 32)).astype(np.float32)}
    check_equal(program, tmp_path, inputs)
    retained = len(tw.Model(program, threads=1).run(inputs)["boxes"])
    said = subprocess.run(["./main", "io"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert retained > 0 and f" = {retained}\n" in said


def test_threads_share_a_call(tmp_path: Path) -> None:
    program = tw.compile_program(policy_suite.m256(), dims={"batch": 64}, threads=2)
    assert not program.manifest.alone
    binding = check_equal(
        program, tmp_path, {"obs": RNG.standard_normal((64, 376)).astype(np.float32)}, threads=2, name="wide"
    )
    assert binding.threads == 2 and (tmp_path / "wide_pool.o").exists()
    assert "wide_pool.o" in (tmp_path / "wide.cmake").read_text()
    other = tw.compile_program(policy_suite.m256(), dims={"batch": 64}, target="cortex-m4")
    with pytest.raises(UnsupportedError, match="no thread pool"):
        other.bundle(tmp_path, threads=2)
