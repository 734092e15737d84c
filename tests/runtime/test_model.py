"""Introspection, profile, memory report, linking, and the budget of a call."""

from __future__ import annotations

import os
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.runtime.programs import affine, copy16
from tilewright.native.link import Library, compile_text
from tilewright.runtime import native, threads
from tilewright.runtime.model import Model
from tilewright.support.errors import CallError, CompileError


def test_introspection() -> None:
    model = Model(affine())
    assert [i.name for i in model.inputs] == ["x"]
    assert [o.name for o in model.outputs] == ["y", "c"]
    assert [p.name for p in model.params] == ["w", "scale"]
    assert repr(model) == "<Model affine(x: f32[n]) -> (y: f32[n, 3], c: f32[1]), 1 threads, weights version 0>"
    assert list(model.empty_outputs(np.zeros(4, np.float32))) == ["y", "c"]
    assert model.empty_outputs(np.zeros(4, np.float32))["y"].shape == (4, 3)


def test_show() -> None:
    model = Model(copy16())
    assert model.show("graph") == "y = x"
    assert "define void @tw_run" in model.show("llvm")
    assert "arena of a call" in model.show("memory")
    with pytest.raises(CallError, match="expected one of graph, llvm, memory"):
        model.show("smell")


@pytest.mark.parametrize("threads", [1, 2])
def test_profile(threads: int) -> None:
    model = Model(affine(), threads=threads)
    x = np.zeros(100_000, np.float32)
    result = model.profile(x, repeat=5)
    assert [k.kernel for k in result.kernels] == ["exponent", "affine", "last"]
    assert abs(sum(k.share for k in result.kernels) - 1) < 1e-6
    assert result.symbols == {"n": 100_000}
    exponent, scale, _ = result.kernels
    assert exponent.gflops is not None and scale.gflops is not None and scale.gbytes is not None
    assert exponent.gflops * exponent.seconds == pytest.approx(100_000e-9), "each kernel is called once a run"
    assert scale.gflops * scale.seconds == pytest.approx(600_000e-9)
    assert scale.gbytes * scale.seconds == pytest.approx(1_600_024e-9)
    assert exponent.gbytes is None
    assert result.kernels[2].gflops is None
    assert "multiply + add" in str(result)
    before = model(x)[0]
    assert [k.kernel for k in model.profile_prepare().kernels] == ["transpose"]
    assert (model(x)[0] == before).all()
    with pytest.raises(CallError):
        model.profile(x, repeat=0)
    with pytest.raises(CallError):
        model.profile()


def test_memory_report() -> None:
    model = Model(affine())
    report = model.memory(n=1000)
    assert report.arena == 4032
    assert report.lower_bound == 4000
    assert report.ratio < 1.01
    assert report.raw_weights == 28
    assert report.process_peak > 1 << 20
    assert "(n = 1)" in model.show("memory")
    with pytest.raises(CallError, match="there is no symbol 'k'"):
        model.memory(k=3)
    with pytest.raises(CallError, match="out of range"):
        model.memory(n=-1)


def test_too_large_for_memory() -> None:
    model = Model(affine(hi=1 << 40))
    with pytest.raises(CallError, match="not enough memory"):
        model._engine.ensure((1 << 39,))
    assert model(np.zeros(3, np.float32))[0].shape == (3, 3)


def test_outputs_too_large_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Model(affine()), np.zeros(3, np.float32)

    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", full)
        with pytest.raises(CallError, match="not enough memory for the outputs"):
            model.empty_outputs(x)
        with pytest.raises(CallError, match="not enough memory for the outputs"):
            model._slow_call(x)
    assert model(x)[0].shape == (3, 3)


def test_sixty_objects_that_call_each_other() -> None:
    objects = {}
    for k in range(60):
        text = f"""
        declare i64 @f{(k + 1) % 60}(i64)
        declare double @exp(double)
        define i64 @f{k}(i64 %n) {{
          %c = icmp sle i64 %n, 0
          br i1 %c, label %end, label %go
        go:
          %e = call double @exp(double 0.0)
          %one = fptosi double %e to i64
          %m = sub i64 %n, %one
          %r = call i64 @f{(k + 1) % 60}(i64 %m)
          %s = add i64 %r, {k}
          ret i64 %s
        end:
          ret i64 0
        }}"""
        objects[f"f{k}"] = compile_text(text)
    library = Library(objects, ["f0", "f59"])
    from ctypes import c_int64

    from tilewright.runtime.layout import function

    assert function(library["f0"], c_int64, c_int64)(120) == 2 * sum(range(60))


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"])
def test_support_code_for_other_machines(triple: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The support code compiles, and asks for nothing that only a compiler's own library has."""
    for module in ("threads", "native", "foreign"):
        monkeypatch.setattr(f"tilewright.runtime.{module}.host_triple", lambda: triple)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic")
    texts = (native.support_text, native.seldom_text, native.scans_text, native.watch_text, native.foreign_text)
    for text in (threads.pool_text(), *(make() for make in texts)):
        module = llvm.parse_assembly(text)
        module.triple = triple
        assembly = machine.emit_assembly(module)
        assert "__aarch64_" not in assembly
        assert "tw_" in assembly


def test_link_errors() -> None:
    text = "declare void @nowhere()\ndefine void @f() { call void @nowhere() ret void }"
    with pytest.raises(CompileError, match="does not link"):
        Library({"f": compile_text(text)}, ["f"])
    with pytest.raises(CompileError, match="does not link"):
        Library({}, ["g"])
    with pytest.raises(CompileError, match="LLVM refused"):
        compile_text("define void @f() { nonsense }")


def test_programs_do_not_see_each_other() -> None:
    constant = [compile_text(f"define i64 @value() {{ ret i64 {k} }}") for k in (1, 2)]
    from ctypes import c_int64

    from tilewright.runtime.layout import function

    libraries = [Library({"v": image}, ["value"]) for image in constant]
    assert [function(lib["value"], c_int64)() for lib in libraries] == [1, 2]


class Counting(Model):
    """Counts calls that take the slow path."""

    slow = 0

    def _slow_versioned(self, *inputs: object, out: object = None) -> tuple[object, int]:
        Counting.slow += 1
        return super()._slow_versioned(*inputs, out=out)


def test_ordinary_calls_do_not_enter_python() -> None:
    """How long they take is in benchmarks/bench_overhead.py."""
    model, x, y = Counting(copy16()), np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    for call in (lambda: model(x), lambda: model(x, out=y), lambda: model.versioned(x)):
        call()
        before = Counting.slow
        for _ in range(10):
            call()
        assert Counting.slow == before


def test_known_dimensions_do_not_enter_python() -> None:
    model = Counting(affine())
    arrays = [np.zeros(n, np.float32) for n in range(50)]
    for x in arrays:
        model(x)
    before = Counting.slow
    for x in arrays:
        model(x)
    assert Counting.slow == before


def test_support_code_is_compiled_before_it_is_linked() -> None:
    """Also where nothing is kept on disk."""
    code = (
        "from tilewright.native import link\n"
        "from tilewright.runtime import native\n"
        "native.compile_support()\n"
        "link._compile = lambda *_: 1 / 0\n"
        "native.native()\n"
        "native.compile_support()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TILEWRIGHT_CACHE": "0"}, check=False)
    assert done.returncode == 0
