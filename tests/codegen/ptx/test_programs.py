"""Whole programs for a GPU: entry, launches and memory as a host has them, with the kernels in the emulator."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.codegen.ptx.cases import ROWS, emit, tensor
from tests.codegen.ptx.emulator import Emulator
from tilewright.codegen.ptx import emit as emission
from tilewright.codegen.ptx.module import Launch, Module
from tilewright.compiler import compile_program
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.native.link import Library
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.support.errors import TargetError, UnsupportedError

Array = np.ndarray[Any, Any]
LAUNCH = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_int64)] * 2)


class Device:
    """A host's context whose kernels run in the emulator, by what was emitted for each."""

    def __init__(self, modules: dict[str, tuple[Module, Launch]]) -> None:
        self.modules = modules
        self.launched: list[str] = []
        self.entry = LAUNCH(self.launch)
        self.context = (ctypes.c_void_p * 1)(ctypes.cast(self.entry, ctypes.c_void_p))
        self.errors: list[Exception] = []

    def launch(self, _context: int, ptx: int, _module: int, name: int, _function: int, sizes: Any, words: Any) -> None:
        try:
            kernel = ctypes.string_at(name).decode()
            module, launch = self.modules[kernel]
            assert f".entry {kernel}(" in ctypes.string_at(ptx).decode()
            assert tuple(sizes[k] for k in range(3, 7)) == (*launch.block, launch.shared)
            count = len(launch.buffers) + len(launch.symbols)
            values = [ctypes.c_int64.from_address(words[k]).value for k in range(count)]
            Emulator(module).launch(launch, values, [sizes[k] for k in range(3)])
            self.launched.append(kernel)
        except Exception as error:  # it cannot pass through native code
            self.errors.append(error)


def run(program: Program, device: Device, inputs: list[Array], outputs: list[Array], symbols: list[int]) -> None:
    """Prepare a program's weights and call it, as its documentation says (`runtime/program.py`)."""
    m = program.manifest
    library = Library(program.objects, ("tw_run", "tw_prepare", "tw_shapes"))
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    )

    def call(entry: str, arrays: list[Array], dims: list[int]) -> None:
        slots = np.array([a.ctypes.data for a in arrays] + [0], np.int64)
        numbers = np.array([*dims, 0], np.int64)
        signature(library[entry])(slots.ctypes.data, numbers.ctypes.data, 0, 1, device.context)
        assert not device.errors, device.errors

    raw = {p.name: np.ascontiguousarray(program.weights[p.name]) for p in m.params}
    packed = [raw[p.alias] if p.alias else np.zeros(p.nbytes, np.uint8) for p in m.packed]
    call("tw_prepare", [*raw.values(), *packed], [0, len(m.prepare_steps)])
    sizes = np.zeros(64, np.int64)
    dims = np.array([*symbols, 0], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library["tw_shapes"])(dims.ctypes.data, sizes.ctypes.data)
    temps = [np.full(sizes[k], 0xFF, np.uint8) for k in range(len(m.run_temps))]
    call("tw_run", [*inputs, *outputs, *packed, *temps], symbols)


def network() -> Graph:
    """softmax(tanh(x w + c) v)."""
    b = GraphBuilder("network")
    x, c = b.input("x", tensor(ROWS, 20)), b.param("c", tensor(32))
    h = emit(b, "tanh", emit(b, "add", emit(b, "matmul", x, b.param("w", tensor(20, 32))), c))
    y = emit(b, "matmul", h, b.param("v", tensor(32, 40)))
    return b.finish((emit(b, "softmax", y, axis=-1),))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> tuple[Program, Device, dict[str, Array]]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_PROCESSES", "1")
    modules: dict[str, tuple[Module, Launch]] = {}
    emit_module = emission.emit_module

    def recorded(*arguments: Any) -> Module:
        module = emit_module(*arguments)
        modules.update({launch.kernel: (module, launch) for launch in module.launches})
        return module

    monkeypatch.setattr(emission, "emit_module", recorded)
    random = np.random.default_rng(0)
    shapes = {"w": (20, 32), "c": (32,), "v": (32, 40)}
    weights = {name: random.standard_normal(s).astype(np.float32) / 4 for name, s in shapes.items()}
    program = compile_program((network(), weights), target="nvidia-sm_90")
    return program, Device(modules), weights


def test_a_program_of_launches(built: tuple[Program, Device, dict[str, Array]]) -> None:
    program, device, weights = built
    x = np.random.default_rng(1).standard_normal((5, 20)).astype(np.float32)
    y = np.zeros((5, 40), np.float32)
    run(program, device, [x], [y], [5])
    z = np.tanh(x @ weights["w"] + weights["c"]).astype(np.float64) @ weights["v"]
    powers = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), atol=2e-3)
    assert len(device.launched) == len(program.manifest.run_steps) + len(program.manifest.prepare_steps)


def test_it_is_for_a_gpu(
    built: tuple[Program, Device, dict[str, Array]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiling, saving and reading need no driver; a call does."""
    monkeypatch.setenv("TILEWRIGHT_CUDA", "libnosuchcuda.so.1")
    program, _, _ = built
    assert program.manifest.target.cpu == "sm_90" and "mma.sync" in str(program.texts["asm"]())  # type: ignore[operator]
    program.save(tmp_path / "network.tw")
    for make in (lambda: Model(program), lambda: Model.load(tmp_path / "network.tw")):
        with pytest.raises(TargetError, match=r"no NVIDIA driver.*libnosuchcuda"):
            make()


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8w", "int4w"])
def test_other_types_of_products_are_refused(precision: Any) -> None:
    """Types are those of the model: nothing makes others of them for a GPU, and a call must not pretend so."""
    graph = network()
    weights = {p.name: np.zeros([int(str(n)) for n in p.shape], np.float32) for p in graph.params}
    with pytest.raises(UnsupportedError, match=rf'precision="fp32", got .{precision}.'):
        compile_program((graph, weights), target="nvidia-sm_90", precision=precision)


def test_products_as_exact_as_on_a_cpu_are_refused() -> None:
    graph = network()
    weights = {p.name: np.zeros([int(str(n)) for n in p.shape], np.float32) for p in graph.params}
    with pytest.raises(UnsupportedError, match=r"TF32.*expected fast=\"auto\""):
        compile_program((graph, weights), target="nvidia-sm_90", fast="exact")
