"""Programs on a GPU: calls, weights and errors, with a driver of ours and kernels in the emulator."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.codegen.ptx.cases import ROWS, emit, tensor
from tests.runtime.gpu.fake_driver import OUT_OF_MEMORY, FakeArray, FakeDriver, Modules, recorded_modules
from tilewright.compiler import compile_program
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.plans.gpu import products
from tilewright.runtime.gpu.native import CALL
from tilewright.runtime.gpu.timing import copy_bandwidth, times
from tilewright.runtime.layout import function
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.support.errors import CallError, TargetError, UnsupportedError, WeightError

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the fake driver is a library for x86-64")


def network() -> Graph:
    """softmax(tanh(x w + c) v)."""
    b = GraphBuilder("network")
    x, c = b.input("x", tensor(ROWS, 20)), b.param("c", tensor(32))
    h = emit(b, "tanh", emit(b, "add", emit(b, "matmul", x, b.param("w", tensor(20, 32))), c))
    y = emit(b, "matmul", h, b.param("v", tensor(32, 40)))
    return b.finish((emit(b, "softmax", y, axis=-1),))


def weights(seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {"w": (20, 32), "c": (32,), "v": (32, 40)}
    return {name: random.standard_normal(s).astype(np.float32) / 4 for name, s in shapes.items()}


def wanted(x: Array, w: dict[str, Array]) -> Array:
    z = np.tanh(x @ w["w"] + w["c"]).astype(np.float64) @ w["v"]
    powers = np.exp(z - z.max(1, keepdims=True))
    result: Array = powers / powers.sum(1, keepdims=True)
    return result


def rows(n: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, 20)).astype(np.float32)


@pytest.fixture(scope="module")
def compiled() -> tuple[Program, Modules]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", "0")
        patch.setenv("TILEWRIGHT_PROCESSES", "1")
        modules = recorded_modules(patch)
        program = compile_program((network(), weights(0)), target="nvidia-sm_90")
    gc.collect()
    gc.freeze()  # each test collects, in what has come since
    return program, modules


@pytest.fixture
def fake(compiled: tuple[Program, Modules], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    driver = FakeDriver(tmp_path, compiled[1])
    monkeypatch.setenv("TILEWRIGHT_CUDA", str(driver.path))
    yield driver
    driver.failing.clear()
    gc.collect()
    assert not driver.problems and not driver.left()


def test_tiles_by_tensor_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver encodes a map for each factor where the call's graph is made; new weights are found by it, too."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setenv("TILEWRIGHT_PROCESSES", "1")
    monkeypatch.setattr(products, "TILES", ())
    modules = recorded_modules(monkeypatch)
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(ROWS, 64, t="f16")), b.param("w", tensor(24, 64, t="f16"))
    graph = b.finish((emit(b, "matmul", x, w, transpose_b=True),))
    random = np.random.default_rng(0)
    first, second = (random.standard_normal((24, 64)).astype(np.float16) for _ in range(2))
    program = compile_program((graph, {"w": first}), target="nvidia-sm_90a")
    assert any(launch.maps for _, launch in modules.values())
    fake = FakeDriver(tmp_path, modules)
    monkeypatch.setenv("TILEWRIGHT_CUDA", str(fake.path))
    model = Model(program)
    for version, weight in enumerate((first, second), 1):
        if version > 1:
            model.update({"w": weight}, version=version)
        for n in (5, 70):
            rows = random.standard_normal((n, 64)).astype(np.float16)
            exact = rows.astype(np.float64) @ weight.T.astype(np.float64)
            np.testing.assert_allclose(model(rows), exact, rtol=2e-2, atol=2e-2)
    assert fake.counts["cuTensorMapEncodeTiled"] == 8 and not fake.problems


def test_a_call_is_one_launch(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    x = rows(5)
    np.testing.assert_allclose(model(x), wanted(x, weights(0)), atol=2e-3)
    before = len(fake.calls)
    out = np.empty((5, 40), np.float32)
    assert model(x, out=out) is out
    np.testing.assert_allclose(out, wanted(x, weights(0)), atol=2e-3)
    assert fake.calls[before:] == [
        "cuCtxPushCurrent_v2",
        "cuMemcpyAsync",
        "cuGraphLaunch",
        "cuMemcpyAsync",
        "cuStreamSynchronize",
        "cuCtxPopCurrent_v2",
    ]
    steps = compiled[0].manifest.run_steps
    assert fake.counts["cuGraphAddKernelNode_v2"] == len(steps) == 3


def test_new_sizes_and_new_weights(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    for version in range(1, 4):
        assert model.update(weights(version)) == version
        for n in (3, 1, 17):
            x = rows(n)
            y, used = model.versioned(x)
            assert used == version
            np.testing.assert_allclose(y, wanted(x, weights(version)), atol=2e-3)
    # Two slots take turns, so that later versions need no graphs of their own.
    assert fake.counts["cuGraphInstantiateWithFlags"] == 6
    np.testing.assert_array_equal(model.weights["v"], weights(3)["v"])
    with pytest.raises(WeightError, match="NaN"):
        model.update(weights(4) | {"c": np.full(32, np.nan, np.float32)})
    assert model.version == 3


def test_graphs_of_sizes_long_ago_go(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    fake.emulate = False
    model = Model(compiled[0])
    for n in range(1, 40):
        model(rows(n))
    assert len(fake.live["exec"]) <= 16 and fake.counts["cuGraphExecDestroy"] >= 23


def test_threads(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    wrong: list[str] = []

    def call(k: int) -> None:
        x = rows(k + 1)
        for _ in range(2):
            if not np.allclose(model(x), wanted(x, weights(0)), atol=2e-3):
                wrong.append(f"{k}")

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    m = compiled[0].manifest
    assert len(fake.live["module"]) == len({s.kernel for s in (*m.run_steps, *m.prepare_steps)})


def test_arrays_of_the_device(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    """Inputs, outputs and weights by DLPack, after the stream that makes them."""
    model = Model(compiled[0])
    x = FakeArray(fake, rows(6))
    y = FakeArray(fake, np.zeros((6, 40), np.float32))
    assert model(x, out=y) is y and x.streams[0] in fake.live["stream"]
    np.testing.assert_allclose(y.read(), wanted(rows(6), weights(0)), atol=2e-3)
    np.testing.assert_allclose(model(x), wanted(rows(6), weights(0)), atol=2e-3)
    new = {name: FakeArray(fake, a) if name != "c" else a for name, a in weights(1).items()}
    model.update(new)
    np.testing.assert_allclose(model(rows(6)), wanted(rows(6), weights(1)), atol=2e-3)
    columns = FakeArray(fake, rows(6), (1, 6))
    with pytest.raises(CallError, match=r"'x'.*must be contiguous"):
        model(columns)
    with pytest.raises(CallError, match=r"wrong dimension.*f32\[rows, 20\]"):
        model(y)
    with pytest.raises(CallError, match=r"does not fit.*f32\[6, 20\]"):
        model(x, out=x)
    for array in (x, y, columns, new["w"], new["v"]):
        array.free()


def test_the_child_of_a_fork_is_told(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    x = rows(2)
    model(x)
    child = os.fork()
    if child == 0:
        try:
            model(x)
        except TargetError as error:
            os._exit(17 if "lost in the child of a fork" in str(error) else 18)
        os._exit(19)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    model(x)


def test_a_stream_and_a_file(compiled: tuple[Program, Modules], fake: FakeDriver, tmp_path: Path) -> None:
    """Both are ways to the same code; new weights reach streams at once."""
    model = Model(compiled[0])
    stream = model.stream()
    x = rows(3)
    np.testing.assert_allclose(stream(x), wanted(x, weights(0)), atol=2e-3)
    model.update(weights(1))
    np.testing.assert_allclose(stream(x), wanted(x, weights(1)), atol=2e-3)
    model.save(tmp_path / "m.tw")
    np.testing.assert_allclose(Model.load(tmp_path / "m.tw")(x), wanted(x, weights(1)), atol=2e-3)
    with pytest.raises(UnsupportedError, match="timing of kernels of a program on a GPU"):
        model.profile(x)


LOADING = (
    "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
    "cuStreamCreate", "cuMemAlloc_v2", "cuMemcpyAsync", "cuStreamSynchronize",
)  # fmt: skip
CALLING = (
    "cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags",
    "cuMemcpyAsync", "cuGraphLaunch", "cuStreamSynchronize", "cuModuleLoadDataEx", "cuModuleGetFunction",
)  # fmt: skip


@pytest.mark.parametrize("name", LOADING)
def test_errors_of_loading_are_named(name: str, compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    fake.failing[name] = OUT_OF_MEMORY, 0
    with pytest.raises(TargetError, match=rf"{name} of the NVIDIA driver failed.*CUDA_ERROR_OUT_OF_MEMORY"):
        Model(compiled[0])


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("name", CALLING)
def test_errors_of_calls_are_named(name: str, after: int, compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    fake.emulate = False
    fake.failing[name] = 700, after
    x = rows(4)
    with pytest.raises(TargetError, match=rf"{name} of the NVIDIA driver failed.*CUDA_ERROR_ILLEGAL_ADDRESS"):
        for _ in range(3):
            model._slow_call(x)
            model(rows(7))
    fake.failing.clear()
    fake.emulate = True
    np.testing.assert_allclose(model(x), wanted(x, weights(0)), atol=2e-3)


def test_an_update_that_fails_changes_nothing(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    model = Model(compiled[0])
    x = rows(2)
    for name in ("cuMemAlloc_v2", "cuMemcpyAsync", "cuStreamSynchronize"):
        fake.failing[name] = OUT_OF_MEMORY, 0
        with pytest.raises(TargetError, match=name):
            model.update(weights(1))
        fake.failing.clear()
        np.testing.assert_allclose(model(x), wanted(x, weights(0)), atol=2e-3)
    assert model.update(weights(1)) == 1
    np.testing.assert_allclose(model(x), wanted(x, weights(1)), atol=2e-3)


def test_what_the_drivers_compiler_says(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    fake.failing["ptxas"] = 218, 0
    with pytest.raises(TargetError, match=r"CUDA_ERROR_INVALID_PTX.*ptxas error: no such thing"):
        Model(compiled[0])(rows(1))


def test_other_devices_are_refused(
    compiled: tuple[Program, Modules], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver(tmp_path, compiled[1], capability=(8, 6))
    monkeypatch.setenv("TILEWRIGHT_CUDA", str(driver.path))
    with pytest.raises(TargetError, match=r"older.*9\.0.*8\.6"):
        Model(compiled[0])
    assert not driver.left()


def test_no_driver(compiled: tuple[Program, Modules], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CUDA", "libnosuchcuda.so.1")
    with pytest.raises(TargetError, match=r"no NVIDIA driver.*libnosuchcuda"):
        Model(compiled[0])


def test_times(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    fake.emulate = False
    model = Model(compiled[0])
    t = times(model, rows(3), repeat=10, rounds=2)
    assert t.graph == pytest.approx(1e-3 / 10) and min(t.submitted, t.launched, t.call) > 0
    assert fake.counts["cuLaunchKernel"] >= 2 * 10 * len(compiled[0].manifest.run_steps)
    device = model._engine.device
    assert device is not None and copy_bandwidth(device, 1024, 2) > 0


def test_grids_that_no_launch_has(compiled: tuple[Program, Modules], fake: FakeDriver) -> None:
    """Without blocks nothing is launched; with too many the call says so, before the driver is asked."""
    device = Model(compiled[0])._engine.device
    assert device is not None
    before = len(fake.calls)
    for grid, refused in (((0, 1, 1), False), ((1 << 31, 1, 1), True), ((1, 65536, 1), True), ((1, 1, 65536), True)):
        sizes = (ctypes.c_int64 * 7)(*grid, 32, 1, 1, 0)
        launch = function(device.own[CALL.launch], None, *[ctypes.c_void_p] * 7)
        launch(device.own.address, 0, 0, 0, 0, ctypes.addressof(sizes), 0)
        if refused:
            with pytest.raises(UnsupportedError, match=r"more blocks than a GPU launches.*65535 in y and z"):
                device.raise_failed()
    device.raise_failed()
    assert fake.calls[before:] == []
