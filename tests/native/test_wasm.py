"""WebAssembly objects linked into one module: run in Node, damaged objects refused."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.test_relocatable import ONE, TWO
from tilewright.native.toolchain import machine_for, parsed
from tilewright.native.wasm import link
from tilewright.support.errors import CompileError, Error

INDIRECT = """
declare double @cos(double)
declare i64 @two(i64) nounwind
define i64 @through(i64 %x) nounwind {
  %p = alloca ptr
  store volatile ptr @two, ptr %p
  %f = load volatile ptr, ptr %p
  %y = call i64 %f(i64 %x)
  %d = call double @cos(double 0.0)
  %z = fptosi double %d to i64
  %r = add i64 %y, %z
  ret i64 %r
}
"""


@cache
def compiled(text: str) -> bytes:
    machine = machine_for("wasm32-unknown-unknown", opt=1, every_target=True)
    return bytes(machine.emit_object(parsed(text, "wasm32-unknown-unknown", machine, "a test")))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_calls_addresses_and_constants(tmp_path: Path) -> None:
    objects = {name: compiled(text) for name, text in (("one", ONE), ("two", TWO), ("three", INDIRECT))}
    linked = link(objects, ["one", "through"], {"blob": b"tilewright"})
    assert linked.needs == ("cos",) and linked.heap % 64 == 0
    (tmp_path / "a.wasm").write_bytes(linked.module)
    script = """
const m = new WebAssembly.Module(require('fs').readFileSync('a.wasm'));
const { one, through, blob, heap, memory } = new WebAssembly.Instance(m, { env: { cos: Math.cos } }).exports;
const text = Buffer.from(memory.buffer, blob.value, 10).toString();
console.log(one(1n), through(0n), text, blob.value % 64, heap.value >= blob.value + 10);
"""
    done = subprocess.run(["node", "-e", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "2n 41n tilewright 0 true\n", done.stderr


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(CompileError, match="defined twice"):
        link({"a": compiled(TWO), "b": compiled(TWO)}, [])
    with pytest.raises(CompileError, match="not defined"):
        link({"a": compiled(TWO)}, ["three"])
    with pytest.raises(CompileError, match="not a WebAssembly object"):
        link({"a": b"\x7fELF"}, [])


@given(st.data())
def test_damaged_objects_end_in_an_error_or_a_module(data: st.DataObject) -> None:
    image = bytearray(compiled(INDIRECT))
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Error):
        link({"damaged": bytes(image[: data.draw(st.integers(0, len(image)))])}, [])
