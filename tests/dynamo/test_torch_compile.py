"""`torch.compile(model, backend="tilewright")` without gradients, against eager PyTorch."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.dynamo.torch_backend import assert_same, check, compiled, register
from tilewright.support.errors import CallError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn = torch.nn


@pytest.fixture(autouse=True)
def strict() -> Any:
    """A part that falls back without being asked is a failure."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")  # PyTorch's, of that very release
        yield


def mlp(width: int = 17) -> Any:
    return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 6)).eval()


@torch.library.custom_op("tilewright_tests::turned", mutates_args=())
def flipped(x: torch.Tensor) -> torch.Tensor:
    return torch.flip(x, [-1]) * 2


@flipped.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


flipped.register_autograd(lambda ctx, g: torch.flip(g, [-1]) * 2)


class Custom(nn.Module):
    """An unknown operator between two known ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(17, 32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.a(x))
        y = flipped(y)
        return torch.tanh(self.b(y)).sum(1), y.shape[0] * 2


def test_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    entry = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]
    assert entry == {"tilewright": "tilewright.dynamo.backend:tilewright"}
    register()
    assert "tilewright" in torch._dynamo.list_backends()


def test_mlp() -> None:
    (report,) = check(mlp(), (torch.randn(8, 17),))
    assert report.coverage().share == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_batches(dynamic: bool | None) -> None:
    reports = check(mlp(), *[(torch.randn(n, 17),) for n in (5, 3, 1, 9, 64)], dynamic=dynamic)
    assert len(reports) <= 3


def test_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 16, 5),
    ).eval()  # fmt: skip
    nn.init.uniform_(model[1].running_var, 0.5, 2)
    check(model, (torch.randn(2, 3, 8, 8),))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_custom_operator_in_the_middle(dynamic: bool) -> None:
    calls = [(torch.randn(n, 17),) for n in ((8, 9, 4) if dynamic else (8,))]
    (report,) = check(Custom(), *calls, parts=2, dynamic=dynamic)
    (lacking,) = report.uncompiled
    assert lacking.operator == "tilewright_tests.turned" and "test_torch_compile.py" in lacking.where
    assert "y = flipped(y)" in lacking.where


def test_full_refuses() -> None:
    f = compiled(Custom(), full=True)
    with pytest.raises(Exception) as caught, torch.no_grad():
        f(torch.randn(8, 17))
    error = caught.value.inner_exception
    assert isinstance(error, UnsupportedError) and "tilewright_tests.turned" in str(error)


def test_unknown_options() -> None:
    f = compiled(mlp(), speed=11)
    with pytest.raises(Exception) as caught:
        f(torch.randn(8, 17))
    error = caught.value.inner_exception
    assert isinstance(error, CallError) and "speed" in str(error) and "min_block_size" in str(error)


def test_strides_are_those_traced() -> None:
    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Any, y: Any) -> Any:
            c = torch.relu(self.conv(x))
            z = torch.sin(y) + 1
            return c, c.permute(0, 2, 3, 1), z, z.t(), z[:, ::2], z[0].expand(4, -1), y.t()

    x = torch.randn(2, 3, 8, 8)
    for case in (x, x.contiguous(memory_format=torch.channels_last)):
        check(Strided(), (case, torch.randn(6, 7)), (case, torch.randn(7, 6).t()))
    last = Strided().to(memory_format=torch.channels_last)
    check(last, (x.contiguous(memory_format=torch.channels_last), torch.randn(6, 7)))
    check(Strided(), (x, torch.randn(6, 14)[:, ::2]), parts=None)


def test_strides_along_one_element_are_those_traced_where_sizes_are_symbolic() -> None:
    """The stride of a dimension that has one element only: of no use, but what eager PyTorch says."""

    def transposed(x: Any, y: Any) -> Any:
        x, y = x * 2 + 1, y * 2
        return x.sum(0, keepdim=True).t(), x.sum(1, keepdim=True), y[1:].t(), torch.exp(y)

    torch._dynamo.reset()
    f = torch.compile(transposed, backend="tilewright", dynamic=True)
    for rows, columns in ((6, 5), (7, 3)):
        x, y = torch.randn(rows, columns), torch.randn(rows, 1)
        for got, want in zip(f(x, y), transposed(x, y), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


def test_random_operators_draw_what_eager_pytorch_draws() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Any) -> Any:
            y = torch.sin(x) * 2 + 1
            y = y + torch.randn_like(y)
            y = torch.exp(torch.tanh(y)) + torch.rand(3)
            return nn.functional.dropout(y, 0.5, training=True) * 2

    model, x = Noisy(), torch.randn(4, 3)
    f = compiled(model)
    with torch.no_grad():
        for seed in (1, 2):
            torch.manual_seed(seed)
            expected = model(x)
            torch.manual_seed(seed)
            assert_same(f(x), expected)


def test_state_that_forward_changes() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            self.seen += x.mean(0)
            return torch.relu(self.linear(x)) + self.seen

    model, other = Counter(), Counter()
    other.load_state_dict(model.state_dict())
    f = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 3)
            assert_same(f(x), other(x), rtol=1e-5, atol=1e-5)
    assert_same(model.seen, other.seen)


def test_two_modules_of_one_class_share_code_and_keep_their_weights() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.linear(x)) * 2

    blocks = [Block() for _ in range(4)]
    x = torch.randn(3, 8)
    register()
    torch._dynamo.reset()
    fs = [torch.compile(b, backend="tilewright") for b in blocks]
    with torch.no_grad():
        for _ in range(3):
            for f, b in zip(fs, blocks, strict=True):
                assert_same(f(x), b(x), rtol=1e-5, atol=1e-5)
            blocks[1].linear.weight.data.mul_(1.5)


def test_a_defect_of_ours_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("tilewright.dynamo.graphs.compile_graph", broken)
    model, x = mlp(), torch.randn(8, 17)
    f = compiled(model)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="a defect"):
        result = f(x)
    assert_same(result, model(x).detach())


def test_a_transformer_layer() -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()

    class Block(nn.Module):
        """With a mask, so that PyTorch's own fast path for inference stays away."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Any) -> Any:
            q = x.view(*x.shape[:2], 4, 8).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            return self.layer.norm1(x + y.transpose(1, 2).reshape(x.shape)), self.layer.linear2(self.layer.linear1(x))

    (report,) = check(Block(), (torch.randn(2, 7, 32),), dynamic=False)
    assert report.coverage().share == 1
    check(Block(), (torch.randn(2, 7, 32),), (torch.randn(3, 5, 32),), dynamic=True)


def test_inference_mode_and_autocast() -> None:
    model, x = mlp(), torch.randn(4, 17)
    f = compiled(model)
    with torch.inference_mode():
        result = f(x)
        assert_same(result, model(x), rtol=1e-5, atol=1e-5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert_same(compiled(model)(x), model(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_element_types(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        z = torch.where(x == y, x, y)
        return z.flip(0), torch.stack([x, z]), (x != y).sum(1)

    x, y = (torch.randint(0, 2, (5, 3)).to(dtype) for _ in range(2))
    check(function, (x, y), parts=None)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (1, 1), (7, 0)])
def test_small_shapes(shape: tuple[int, int]) -> None:
    def function(x: Any) -> Any:
        return torch.tanh(x) * 2 + 1, x.sum(0), torch.exp(x).t()

    check(function, (torch.randn(shape),), parts=None)


def test_inputs_that_are_views() -> None:
    def function(x: Any, y: Any) -> Any:
        return torch.sin(x) * y + 1, torch.exp(y - x).sum(0)

    base = torch.randn(6, 10)
    for y in (base[:, ::2], base[:, 5:], base.t()[:5].t(), base[:, :1].expand(6, 5), base[3, :5]):
        check(function, (torch.randn(6, 5), y), parts=None)


def test_constants_of_a_graph() -> None:
    def function(x: Any) -> Any:
        return torch.where(x > 0, torch.tensor(float("-inf")), x) * 2 + torch.tensor([1.0, 2.0, 3.0])

    check(function, (torch.randn(4, 3),))


def test_what_comes_out_may_be_what_went_in() -> None:
    def function(x: Any, y: Any) -> Any:
        z = torch.sin(x) * 2 + y
        return x, z, z.view(-1), [x.view(-1), z], {"y": y}, 3, None

    check(function, (torch.randn(3, 4), torch.randn(4)), parts=None)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "views",
    [
        lambda n, x, w: w.reshape(-1)[n // 2 :],
        lambda n, x, w: w.view(-1)[n:].unsqueeze(0)[:, 1:],
        lambda n, x, w: x.view(-1)[n // 2 :].split(n),
        lambda n, x, w: x.view(-1)[n:].view(-1, n)[1:].unbind(),
        lambda n, x, w: (lambda y: (y, y.view(-1)[n:], y.view(-1)[n // 2 :].view(-1)))(x * 2),
        lambda n, x, w: (lambda y: (y.view(-1)[n:], y.view(-1)[n // 2 :]))(x * 2),
    ],
)
def test_views_of_views_beside_a_part(views: Any, dynamic: bool | None) -> None:
    """The part that computes the rest gave these results, too, and said that they begin where their base does."""
    weight = nn.Parameter(torch.arange(16.0).view(4, 4))

    def function(x: Any, s: Any) -> Any:
        return views(x.shape[0], x, weight), torch.logical_xor(x > 0, s), torch.remainder(x, s), x.sum(0) * s + 1

    function_compiled = compiled(function, dynamic=dynamic)
    for n in (5, 6, 3, 7):
        x, s = torch.arange(n * 4.0).view(n, 4) - 6, torch.tensor(-1.75)
        with torch.no_grad():
            assert_same(function_compiled(x, s), function(x, s))


def test_sums_into_nothing() -> None:
    check(
        lambda x, k: x.index_add(0, k, torch.ones(2, 3)) * 2 + 1, (torch.ones(0, 3), torch.tensor([0, 1])), parts=None
    )


def test_tangents_that_are_lazily_zero() -> None:
    """`torch.func.jvp` gives parameters tangents that have no memory, which parts of the gradient read."""
    weight = nn.Parameter(torch.randn(4, 4))

    def function(x: Any) -> Any:
        return torch.func.jvp(lambda v: v.tanh() @ weight, (x,), (torch.ones_like(x),))

    function_compiled, x = compiled(function, dynamic=True), torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        flows = []
        for f in (function_compiled, function):
            value, tangent = f(x)
            flows.append(torch.autograd.grad((value**2).sum() + (tangent**2).sum(), (x, weight)))
        assert_same(*flows, rtol=2e-5, atol=2e-5)


def test_marked_dimensions() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    register()
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tilewright")
    model = mlp()
    f = torch.compile(model, backend=counter)
    with torch.no_grad():
        for n in range(2, 65, 7):
            x = torch.randn(n, 17)
            torch._dynamo.mark_dynamic(x, 0)
            assert_same(f(x), model(x), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("tilewright")
    f = torch.compile(model, backend=counter)
    with torch.no_grad():
        for n in range(1, 65):
            x = torch.randn(n, 17)
            assert_same(f(x), model(x), rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= 3


def test_threads_may_call_at_once_while_weights_change() -> None:
    import threading

    model, x = mlp(), torch.randn(8, 17)
    f = compiled(model)
    with torch.no_grad():
        f(x)
    failures: list[str] = []

    def run() -> None:
        with torch.no_grad():
            for _ in range(50):
                if not bool(torch.isfinite(f(x)).all()):
                    failures.append("not finite")

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    for _ in range(50):
        model[0].weight.data.mul_(1.01)
    for t in threads:
        t.join()
    assert not failures
    with torch.no_grad():
        assert_same(f(x), model(x), rtol=1e-5, atol=1e-5)


def test_complex_tensors_stay_inside_parts() -> None:
    def inside(x: Any, w: Any) -> Any:
        return torch.fft.irfft(torch.fft.rfft(x) * w, n=x.shape[-1])

    x = torch.randn(3, 24, 32)
    (report,) = check(inside, (x, torch.randn(17)))
    assert not report.uncompiled


def test_complex_tensors_neither_enter_nor_leave_parts() -> None:
    def out(x: Any) -> Any:
        z = torch.fft.rfft(x.relu() * 2)
        return z, (z.real + 1).tanh()

    def between(x: Any, w: Any) -> Any:
        z = torch.fft.rfft(x * 2) * w.to(torch.complex64)
        return torch.fft.irfft(z.sgn(), n=x.shape[-1]).relu() * 2

    def supplied(z: Any) -> Any:
        return (z * z).real.relu() * 2

    (report,) = check(out, (torch.randn(3, 32),), parts=2)
    reasons = {u.operator: u.reason for u in report.uncompiled}
    assert reasons["aten._fft_r2c"] == "complex tensors neither enter nor leave a part"
    check(between, (torch.randn(3, 32), torch.randn(17)), parts=None)
    check(supplied, (torch.randn(3, 4, dtype=torch.complex64),), parts=1)


def branched(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: torch.tanh(x) * 2, lambda x: x - 1, (x,))


def branched_on_sizes(x: Any) -> Any:
    return torch.cond(x.shape[0] > 4, lambda x: torch.tanh(x) * 2, lambda x: x - 1, (x,))


def halved(x: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    goes_on = lambda k, v: (v.abs().sum() > 1) & (k < 20)  # noqa: E731
    return while_loop(goes_on, lambda k, v: (k + 1, v / 2), (torch.tensor(0), x))[1]


def running(x: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda total, row: (total + row, total * row), torch.zeros(3), x, dim=0)


@pytest.mark.parametrize("function", [branched, branched_on_sizes, halved, running])
def test_control_flow_is_compiled(function: Any) -> None:
    x = torch.randn(6, 3)
    reports = check(function, *((v,) for v in (x, x[:3].clone(), x[:4] + 3, x[:5] * 9)), dynamic=True)
    assert all(report.coverage().share == 1 for report in reports)


def test_a_branch_without_a_rule_is_left_to_pytorch_and_named() -> None:
    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.special.airy_ai(x), lambda x: x - 1, (x,)).relu() * 3

    (report,) = check(function, (torch.randn(6, 3),), (torch.ones(6, 3),), parts=None)
    assert [item.operator for item in report.uncompiled if "airy_ai" in item.reason] == ["cond"]


def test_gradients_through_a_branch() -> None:
    x = torch.randn(6, 3, requires_grad=True)
    for shift in (9.0, -9.0):
        got = torch.autograd.grad((compiled(branched)(x + shift) ** 2).sum(), x)
        torch.testing.assert_close(got, torch.autograd.grad((branched(x + shift) ** 2).sum(), x))


def test_decompositions_are_computed_once() -> None:
    """A table for each graph took as long as tracing a small one; no caller can change the shared one."""
    from tilewright.dynamo.decompose import decompositions

    table = decompositions()
    assert decompositions() is table and not hasattr(table, "pop")
    assert torch.ops.aten.addmm.default not in table and len(table) > 100
