"""Bundles as WebAssembly, in Node: within rounding of the Python runtime's numbers on this machine."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from benchmarks import control_models, policy_suite
from tests.bundle.built import call
from tilewright.bundle import web
from tilewright.bundle.write import described
from tilewright.native.link import Library, compile_text, host_triple

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
WEB = "wasm32-simd128"
RNG = np.random.default_rng(53)


@needs_node
def test_a_policy_and_its_errors(tmp_path: Path) -> None:
    dims = {"batch": tw.dim(1, 8)}
    program = tw.compile_program(policy_suite.m64(), dims=dims, target=WEB)
    program.bundle(tmp_path)
    assert json.loads((tmp_path / "package.json").read_text())["main"] == "m64.js"
    inputs = {"obs": RNG.standard_normal((3, 17)).astype(np.float32)}
    results = call(["node", "example.mjs"], tmp_path, described(program), inputs, {"batch": 3})
    wanted = tw.compile(policy_suite.m64(), dims=dims).run(inputs)
    for out, name in zip(results, ("action", "value"), strict=True):
        np.testing.assert_allclose(out, wanted[name].ravel(), rtol=1e-5, atol=1e-6)
    (tmp_path / "wrong.mjs").write_text(
        """
import { load } from './m64.js';
const model = await load();
const tried = (f) => { try { f(); return 'fine'; } catch (e) { return e.message; } };
console.log(tried(() => model.run({}, { batch: 9 })));
console.log(tried(() => model.run({ odd: [1] })));
console.log(tried(() => model.run({ obs: new Float32Array(1000) })));
console.log(tried(() => model.update(new Uint8Array(3))));
const before = model.run({ obs: new Float32Array(17).fill(1) }, { batch: 1 }).action;
model.update(new Uint8Array(model.memory.buffer.slice(model.weights, model.weights + 44416)).fill(0));
const after = model.run({}, { batch: 1 }).action;
console.log(before.length, before.some((x) => x !== 0), after.every((x) => x === 0));
"""
    )
    said = subprocess.run(["node", "wrong.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.splitlines() == [
        "m64: a dimension is out of its range, or sizes do not fit each other; nothing was done",
        "there is no input odd",
        "obs: at most 136 elements",
        "weights: 44416 bytes expected",
        "6 true true",
    ], said.stderr


@needs_node
def test_a_loop_with_weights_in_the_module(tmp_path: Path) -> None:
    model = control_models.decoder(layers=1, width=32, heads=2, words=64, most=8)
    program = tw.compile_program(model, target=WEB)
    program.bundle(tmp_path, embed=True)
    assert not (tmp_path / "control.weights").exists()
    (results,) = call(["node", "example.mjs"], tmp_path, described(program), {"first": np.array([[3]])}, {})
    assert results.tolist() == tw.compile(model)(np.array([[3]])).ravel().tolist()


@needs_node
@pytest.mark.parametrize("embed", [False, True])
def test_threads_share_a_call(embed: bool, tmp_path: Path) -> None:
    """Bit by bit a single thread's results: of many calls, after new weights, after a pause in which workers sleep."""
    program = tw.compile_program(policy_suite.m64(), dims={"batch": 48}, threads=3, target=WEB)
    assert not program.manifest.alone
    program.bundle(tmp_path / "one")
    paths = program.bundle(tmp_path / "three", threads=3, embed=embed)
    assert "m64.worker.js" in {p.name for p in paths}
    assert "m64.worker.js" in json.loads((tmp_path / "three" / "package.json").read_text())["files"]
    (tmp_path / "turns.mjs").write_text(
        """
import { readFileSync } from 'node:fs';
import { load as single } from './one/m64.js';
import { load } from './three/m64.js';
const [one, three] = [await single(), await load({ threads: 3 })];
const obs = new Float32Array(48 * 17).map((_, i) => Math.sin(i));
const bits = (model) => Object.values(model.run({ obs })).map((x) => Buffer.from(x.buffer).toString('hex')).join();
let wanted = bits(one);
const equal = () => bits(three) === wanted;
console.log(three.workers.length, Array.from({ length: 300 }, equal).every((x) => x));
const weights = new Uint8Array(readFileSync(new URL('./one/m64.weights', import.meta.url)));
new Float32Array(weights.buffer).forEach((x, i, all) => { all[i] = x / 2; });
one.update(weights);
three.update(weights);
console.log(bits(one) !== wanted);
wanted = bits(one);
console.log(equal());
await new Promise((ready) => setTimeout(ready, 30));
console.log(equal());
three.close();
console.log(three.workers.length, equal(), (await load({ threads: 1 })).workers.length);
"""
    )
    said = subprocess.run(["node", "turns.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines() == ["2 true", "true", "true", "true", "0 true 0"], said.stderr


@pytest.fixture(scope="module")
def fma() -> ctypes._CFuncPtr:
    text = web.support(host_triple()).replace("@fma(", "@own_fma(")
    library = Library({"support": compile_text(text, cache=False)}, ["own_fma"])
    library.keep_forever()
    return ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_double] * 3)(library["own_fma"])


NUMBERS = st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_the_multiply_add_is_rounded_once(fma: ctypes._CFuncPtr, a: float, b: float, c: float) -> None:
    assert fma(a, b, c) == float(Fraction(a) * Fraction(b) + Fraction(c))
    close = -a * b * (1 + 2**-52)
    assert fma(a, b, close) == float(Fraction(a) * Fraction(b) + Fraction(close))


def test_the_multiply_add_of_what_is_no_number(fma: ctypes._CFuncPtr) -> None:
    assert fma(math.inf, 1.0, 1.0) == math.inf and fma(1e300, 1e300, 0.0) == math.inf
    assert math.isnan(fma(math.nan, 1.0, 1.0)) and math.isnan(fma(math.inf, 0.0, 1.0))
