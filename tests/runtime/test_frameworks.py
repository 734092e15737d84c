"""Other frameworks' tensors, in Python and through the tvm-ffi C ABI."""

from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.programs import affine, affine_reference, copy16
from tilewright.runtime.call import LAYOUT
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.support.errors import CallError

# Importing torch takes seconds and tvm_ffi imports it: these tests stand in a file of their own.
torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi has no wheel here")

BF16 = """
define void @copy(ptr noalias %x, ptr noalias %y, i64 %tid, i64 %nthreads, ptr %barrier) {
  %v = load <16 x i16>, ptr %x, align 2
  store <16 x i16> %v, ptr %y, align 2
  ret void
}
"""


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(affine(lo=0, hi=5000))


def test_same_kind_out(model: Model) -> None:
    x = torch.linspace(-1, 1, 20)
    for _ in range(3):  # the slow path first, then the builtin
        y, c = model(x)
        assert type(y) is torch.Tensor
        np.testing.assert_allclose(y.numpy(), affine_reference(x.numpy(), model.weights["w"]), rtol=1e-5)
        assert c.tolist() == [7.0]
    assert type(model(x.numpy())[0]) is np.ndarray


def test_into_torch_outputs(model: Model) -> None:
    x = torch.linspace(-1, 1, 20)
    expected = model(x)[0]
    for _ in range(2):
        out = (torch.zeros(20, 3), torch.zeros(1))
        assert model(x, out=out) is out
        assert torch.equal(out[0], expected)
        mixed = (np.zeros((20, 3), np.float32), torch.zeros(1))
        model(x, out=mixed)
        assert (mixed[0] == expected.numpy()).all()
    wide = torch.zeros(20, 6)
    model(x, out=(wide[:, ::2], torch.zeros(1)))
    assert torch.equal(wide[:, ::2], expected)


def test_what_torch_may_bring(model: Model) -> None:
    x = torch.linspace(-1, 1, 40)
    assert torch.equal(model(x[::2])[0], model(x[::2].contiguous())[0])
    assert torch.equal(model(torch.nn.Parameter(x))[0], model(x)[0])
    with pytest.raises(CallError, match=r"wrong element type: expected f32\[n\], got f64\[40\]"):
        model(x.double())
    with pytest.raises(CallError, match="wrong rank"):
        model(x.reshape(4, 10))
    with pytest.raises(CallError, match="on the wrong device: expected cpu, got meta"):
        model(x.to("meta"))
    with pytest.raises(CallError, match="not a dense tensor"):
        model(x.to_sparse())


def test_complex_views(model: Model) -> None:
    z = torch.complex(torch.rand(8), torch.rand(8)).conj()
    assert z.imag.is_neg()
    assert torch.equal(model(z.imag)[0], model(z.imag.resolve_neg().contiguous())[0])


def test_bfloat16() -> None:
    code = BF16 + copy16().texts["llvm"]().split("ret void\n}", 1)[1]
    model = Model(copy16("bf16", code))
    x = torch.arange(16, dtype=torch.bfloat16)
    for _ in range(2):
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert torch.equal(x, y)
    n = np.arange(16).astype(ml_dtypes.bfloat16)
    assert (model(n) == n).all()
    with pytest.raises(CallError):
        model(x.to(torch.float16))


def test_update_with_torch(model: Model) -> None:
    weights = {"w": torch.ones(2, 3, requires_grad=True), "scale": torch.tensor([7.0])}
    model.update(weights)
    assert model.weights["w"].tolist() == [[1] * 3] * 2
    with torch.no_grad():
        weights["w"].mul_(5)
    assert model.weights["w"].tolist() == [[1] * 3] * 2


def test_torch_memory_is_freed(model: Model) -> None:
    x = torch.zeros(4000)
    for _ in range(20_000):
        y, _ = model(x)
    assert y.shape == (4000, 3)
    gc.collect()


class TestForeign:
    """The tvm-ffi function."""

    def test_numpy_and_torch(self, model: Model) -> None:
        f = model.ffi_function()
        assert isinstance(f, tvm_ffi.Function)
        for n in (1, 10, 1000, 10):
            x = np.linspace(-1, 1, n, dtype=np.float32)
            y, c = np.zeros((n, 3), np.float32), np.zeros(1, np.float32)
            f(x, y, c)
            assert (y == model(x)[0]).all()
            y2, c2 = torch.zeros(n, 3), torch.zeros(1)
            f(torch.from_numpy(x), y2, c2)
            assert (y2.numpy() == y).all()

    def test_checks(self, model: Model) -> None:
        f = model.ffi_function()
        x, y, c = np.zeros(4, np.float32), np.zeros((4, 3), np.float32), np.zeros(1, np.float32)
        for args, message in (
            ((x, y), "wrong number of arguments"),
            ((x, y, c, c), "wrong number of arguments"),
            ((x.astype(np.float64), y, c), r"input 'x' must be f32\[n\]"),
            ((x, y[:3], c), r"output 'y' must be f32\[n, 3\]"),
            ((np.zeros(8, np.float32)[::2], y, c), "input 'x' must be"),
            ((x, y, 3), "output 'c' must be"),
            ((x, y, None), "output 'c' must be"),
            ((np.zeros(6000, np.float32), y, c), "outside the range"),
            ((y.reshape(-1)[:4], y, c), "shares memory"),
        ):
            with pytest.raises((TypeError, ValueError), match=message):
                f(*args)
        f(x, y, c)

    def test_a_call_leaves_its_layout_free_whether_it_is_refused_or_not(self) -> None:
        model = Model(affine(lo=0, hi=5000))
        f, engine = model.ffi_function(), model._engine
        x, y, c = np.ones(4, np.float32), np.ones((4, 3), np.float32), np.ones(1, np.float32)
        f(x, y, c)
        for outputs in ((y[:3], c), (y, y[0, :1]), (y.astype(np.float64), c), (7, c), (y, x[:1])):
            with pytest.raises((TypeError, ValueError), match="tilewright"):
                f(x, *outputs)
        f(x, y, c)
        layout = engine._layout((4,))
        assert engine._layouts[layout + LAYOUT.users] == 1, "this test's own"
        native().add(engine._layouts.address + layout + LAYOUT.users, -1)

    def test_several_threads(self) -> None:
        model = Model(affine())
        f = model.ffi_function()
        f.release_gil = True
        failures = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(200):
                n = int(rng.integers(1, 600))
                x = rng.random(n, np.float32)
                y, c = np.zeros((n, 3), np.float32), np.zeros(1, np.float32)
                f(x, y, c)
                if not np.allclose(y, affine_reference(x, model.weights["w"]), rtol=1e-5):
                    failures.append(n)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not failures

    def test_outlives_the_model(self) -> None:
        f = Model(copy16()).ffi_function()
        gc.collect()
        x, y = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
        f(x, y)
        assert (x == y).all()


def test_torch_calls_do_not_enter_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long they take is in benchmarks/bench_overhead.py."""
    slow: list[object] = []
    checked = Model._checked_call
    monkeypatch.setattr(Model, "_checked_call", lambda *args: slow.append(args) or checked(*args))
    model = Model(copy16())
    x, y = torch.arange(16, dtype=torch.float32), torch.zeros(16)
    model(x)
    model(x, out=y)
    slow.clear()  # the type is learnt now
    for _ in range(10):
        model(x)
        model(x, out=y)
    assert not slow


def test_lazy_negatives(model: Model) -> None:
    """PyTorch keeps the imaginary part of a conjugate as a view that says that it is negative."""
    for count in (1, 5):
        x = torch.randn(count, dtype=torch.complex64).conj().imag
        assert x.is_neg()
        for _ in range(3):  # the slow path, then the builtin
            np.testing.assert_allclose(
                model(x)[0].numpy(), affine_reference(x.resolve_neg().numpy(), model.weights["w"]), rtol=1e-5
            )
    dense = torch._neg_view(torch.randn(7))
    assert dense.is_neg() and dense.is_contiguous()
    for _ in range(3):
        expected = affine_reference(dense.resolve_neg().numpy(), model.weights["w"])
        np.testing.assert_allclose(model(dense)[0].numpy(), expected, rtol=1e-5)
    negative = torch._neg_view(torch.zeros(1))
    with pytest.raises(CallError, match="cannot be written to"):
        model(torch.ones(1), out=(torch.zeros(1, 3), negative))


def test_lazy_zeros(model: Model) -> None:
    """Tangents that are zero have elements, and no memory, in PyTorch."""
    for _ in range(3):  # the slow path, then the builtin
        model(torch.ones(5))
        zero = torch._efficientzerotensor((5,))
        assert zero.data_ptr() == 0
        expected = affine_reference(np.zeros(5, np.float32), model.weights["w"])
        np.testing.assert_allclose(model(zero)[0].numpy(), expected, rtol=1e-5)
        with pytest.raises(CallError, match="cannot be written to"):
            model(torch.ones(5), out=(torch.zeros(5, 3), zero))
    assert model(torch.ones(0))[0].shape[0] == 0
