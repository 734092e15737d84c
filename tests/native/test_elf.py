"""The small linker: our objects without LLVM, the same answers as LLVM's linker, and no harm from damaged images."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.runtime.programs import AFFINE, affine, copy16
from tilewright.native import elf, link
from tilewright.native.link import Library, compile_text, host_triple, missing_features
from tilewright.runtime.layout import function
from tilewright.runtime.model import Model
from tilewright.runtime.native import support_text
from tilewright.runtime.threads import pool

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not host_triple().startswith("x86_64"), reason="links x86-64 objects alone")


def large(text: str) -> bytes:
    """An object in the large code model, which reaches data and functions through a table of addresses."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, reloc="pic", codemodel="large")
    module = llvm.parse_assembly(text)
    module.triple = host_triple()
    return bytes(machine.emit_object(module))


CODE = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@counter = global i64 5
@names = internal constant [2 x ptr] [ptr @counter, ptr @table]
declare i64 @labs(i64)
declare i64 @outside(i64)
define i64 @bump(i64 %by) {
  %old = load i64, ptr @counter
  %new = add i64 %old, %by
  store i64 %new, ptr @counter
  ret i64 %new
}
define i64 @mixed(i64 %k) {
  %p = getelementptr i64, ptr @table, i64 %k
  %v = load i64, ptr %p
  %n = sub i64 0, %v
  %a = call i64 @labs(i64 %n)
  %b = call i64 @outside(i64 %a)
  %q = load ptr, ptr @names
  %c = load i64, ptr %q
  %s = add i64 %b, %c
  ret i64 %s
}
define double @choose(i64 %k) {
  switch i64 %k, label %other [i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e]
a: ret double 1.5
b: ret double 2.25
c: ret double 3.0e300
d: ret double 4.0
e: ret double 5.0
other: ret double -1.0
}
"""


@pytest.mark.parametrize("compile", [compile_text, large], ids=["small", "large"])
def test_code_data_and_calls(compile: object) -> None:
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda v: v + 1000)
    outside = ctypes.cast(callback, ctypes.c_void_p).value or 0
    image = compile(CODE)  # type: ignore[operator]
    loaded = elf.load([image], ["bump", "mixed", "choose"], {"outside": outside})
    bump = function(loaded.addresses["bump"], ctypes.c_int64, ctypes.c_int64)
    mixed = function(loaded.addresses["mixed"], ctypes.c_int64, ctypes.c_int64)
    choose = function(loaded.addresses["choose"], ctypes.c_double, ctypes.c_int64)
    assert [bump(2), bump(3)] == [7, 10]
    assert [mixed(k) for k in range(4)] == [1020, 1030, 1040, 1050]
    assert [choose(k) for k in range(-1, 6)] == [-1, 1.5, 2.25, 3e300, 4, 5, -1]
    # Another library of the same image has variables of its own; so has the child of a fork.
    other = elf.load([image], ["bump"], {"outside": outside})
    assert function(other.addresses["bump"], ctypes.c_int64, ctypes.c_int64)(0) == 5
    pid = os.fork()
    if pid == 0:
        os._exit(bump(1))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 11
    assert bump(0) == 10


def test_code_is_not_writable() -> None:
    loaded = elf.load([compile_text(CODE)], ["bump"], {"outside": 0})
    at = loaded.addresses["bump"]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= at < end:
            assert line.split()[1] == "r-xp"
            return
    pytest.fail("the code is not mapped")


def test_same_as_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is linked both ways computes equal bytes."""
    x = np.linspace(-1, 1, 33, dtype=np.float32)
    ours = [Model(affine(), threads=2)(x), Model(copy16())(x[:16])]

    def refuse(*_: object) -> None:
        raise elf.Unknown("asked to")

    monkeypatch.setattr(elf, "load", refuse)
    theirs = [Model(affine(), threads=2)(x), Model(copy16())(x[:16])]
    assert ours[0][0].tobytes() == theirs[0][0].tobytes()
    assert ours[1].tobytes() == theirs[1].tobytes()


def test_what_it_does_not_know_goes_to_llvm() -> None:
    """Thread-local variables, for one."""
    text = """
    @x = internal thread_local global i64 3
    define i64 @f() { %v = load i64, ptr @x ret i64 %v }
    """
    with pytest.raises(elf.Unknown):
        elf.load([compile_text(text)], ["f"], {})
    with pytest.raises(elf.Unknown, match="twice"):
        elf.load([compile_text("define void @f() { ret void }")] * 2, ["f"], {})
    with pytest.raises(elf.Unknown, match="not defined"):
        elf.load([compile_text("define void @f() { ret void }")], ["g"], {})
    weak = compile_text("define weak i64 @f() { ret i64 1 }"), compile_text("define i64 @f() { ret i64 2 }")
    for images in (weak, weak[::-1]):
        loaded = elf.load(images, ["f"], {})
        assert function(loaded.addresses["f"], ctypes.c_int64)() == 2


def test_damaged_images() -> None:
    """Any bytes: linked or refused, never a crash. Nothing of it is run."""
    source = random.Random(3)
    images = [compile_text(AFFINE), compile_text(CODE), compile_text(support_text)]
    refused = 0
    for number in range(20_000 if os.environ.get("TILEWRIGHT_FUZZ") else 600):
        data = bytearray(images[number % 3])
        for _ in range(source.choice([1, 1, 2, 10])):
            area = source.choice([64, len(data), 2048])
            at = source.randrange(min(area, len(data)))
            at = at if source.random() < 0.5 else len(data) - 1 - at
            data[at] = source.choice([0, 1, 255, source.randrange(256)])
        if source.random() < 0.1:
            del data[source.randrange(len(data)) :]
        try:
            elf.load([bytes(data)], ["bump"] if number % 3 == 1 else [], {"tw_barrier": pool().barrier, "outside": 1})
        except elf.Unknown:
            refused += 1
    assert refused > 100


def test_the_machine_is_known_without_llvm() -> None:
    """The answer without LLVM is LLVM's."""
    assert host_triple() == llvm.get_process_triple()
    theirs = llvm.get_host_cpu_features()
    present = {name for name, candidate in theirs.items() if candidate}
    assert missing_features(present) == []
    absent = sorted(set(theirs) - present - link._UNUSED)
    assert missing_features(absent) == absent
    assert missing_features(["no-such-thing", *present]) == ["no-such-thing"]


def test_a_model_runs_without_llvm(tmp_path: Path) -> None:
    path = tmp_path / "affine.tw"
    Model(affine()).save(path)
    code = f"""
import sys, numpy as np, tilewright as tw
y, c = tw.load({str(path)!r})(np.zeros(3, np.float32))
print(y.tolist()[0], "llvmlite.binding" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == "[3.0, 5.0, 7.0] False\n"


def test_library_keeps_code() -> None:
    library = Library({"f": compile_text("define i64 @f() { ret i64 7 }")}, ["f"])
    assert function(library["f"], ctypes.c_int64)() == 7
