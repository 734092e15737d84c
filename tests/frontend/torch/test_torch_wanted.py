"""Spaced numbers and pairs of rows of open sizes, covariances, incomplete gamma functions, the loss of sequences, loops
that carry integers, functions of all rows; and packed sequences, which are refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

import torch.nn.functional as F  # noqa: E402  after what may skip
from torch import nn  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import tilewright as tw  # noqa: E402
from tests.frontend.torch.torch_checks import Functional, assert_close, check, interpreted  # noqa: E402
from tilewright.frontend.torch import import_torch  # noqa: E402
from tilewright.support.errors import CallError, UnsupportedError  # noqa: E402

INF, NAN = float("inf"), float("nan")
ORDERS = [0, 0, 0, 0.5, 0.5, 2, 2, 30, 30, 300, 1e4, 1e4, -1, 1, INF, INF, 1, NAN, 1e-3, 5, 150, 1e-8, 0.2]
PLACES = [0, 1, -1, 0, 0.3, 1, 5, 25, 40, 310, 9.9e3, 1.2e4, 1, -1, 1, INF, INF, 1, 1e-4, 1.05, 170, 0.5, 1.5]


def rows(n: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(n)
    return (torch.randn(n, 5, generator=generator),)


def test_spaced_numbers_of_an_open_number() -> None:
    def spaced(x: Any) -> Any:
        return torch.linspace(-1, 2, x.shape[0]) + x[:, 0], torch.linspace(0.5, x.shape[0] - 0.5, x.shape[0]) / x.shape[
            0
        ]

    check(Functional(spaced), rows, batches=(1, 2, 3, 8, 17))
    assert torch.linspace(0, 1, 3).tolist() == [0, 0.5, 1]  # PyTorch's own again


class Looking(TorchFunctionMode):  # type: ignore[misc]
    """Notes at each function of PyTorch what other threads would call by these names."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= {torch.any, torch.linspace, torch.logspace}
        return func(*args, **(kwargs or {}))


def test_no_function_of_pytorch_is_replaced_while_a_module_is_traced() -> None:
    own = {torch.any, torch.linspace, torch.logspace}

    def spaced(x: Any) -> Any:
        return torch.linspace(-1, 2, x.shape[0]), F.gaussian_nll_loss(x, x, x.abs())

    with Looking() as looking:
        graph = import_torch(Functional(spaced), rows(3)).graph
    assert looking.seen == own
    assert any(node.op == "select" for node in graph.nodes)  # the loss is NaN for negative variances


def test_powers_of_an_open_number() -> None:
    def powers(x: Any) -> Any:
        n = x.shape[0]
        return torch.logspace(-1, 2, n) * x[:, 0], torch.logspace(0, n / 8, n + 1, base=2), torch.logspace(0, 3, 4)

    check(Functional(powers), rows, batches=(1, 2, 3, 8, 17))
    assert torch.logspace(0, 2, 3).tolist() == [1, 10, 100]  # PyTorch's own again


def test_powers_of_integers_by_integers() -> None:
    """Two and three of them in one kernel: squares that wrap, of data squared before."""

    def powers(x: Any, k: Any) -> Any:
        return x**k, torch.pow(2, k), ((x**k) ** k) ** k

    generator = torch.Generator().manual_seed(0)
    for kind in (torch.int64, torch.int32, torch.uint8):
        pairs = [(-7, 8), (-2, 40)] if kind.is_signed else [(0, 9), (0, 9)]
        x, k = (torch.randint(*ends, (37,), generator=generator).to(kind) for ends in pairs)
        wanted = powers(x, k)
        for ours, theirs in zip(tw.compile(Functional(powers), (x, k))(x, k), wanted, strict=True):
            assert torch.equal(torch.as_tensor(ours), theirs)


def test_pairs_and_covariances_of_an_open_number_of_rows() -> None:
    check(Functional(lambda x: F.pdist(x), lambda x: F.pdist(x, 1.0)), rows, batches=(2, 3, 8, 61))
    check(Functional(lambda x: torch.cov(x), lambda x: torch.corrcoef(x)), rows, batches=(2, 3, 8), tolerance=1e-5)


def test_covariances_with_a_small_number_of_columns() -> None:
    def all_of(x: Any) -> Any:
        return torch.cov(x), torch.cov(x[0], correction=0), torch.cov(x[:, :1]), torch.cov(x[:, :2], correction=5)

    module, x = Functional(all_of, lambda x: torch.cov((x * 9).long())), rows(3)
    assert_close(interpreted(import_torch(module, x, dynamic=None), *x), module(*x), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_incomplete_gamma_functions(dtype: Any) -> None:
    module = Functional(torch.igamma, torch.igammac)
    arguments = (torch.tensor(ORDERS, dtype=dtype), torch.tensor(PLACES, dtype=dtype))
    result = interpreted(import_torch(module, arguments, dynamic=None), *arguments)
    # PyTorch's f32 loses digits of small orders; its f64 has nine digits of large ones, and rounds 1 + a.
    tolerance, least = (1e-6, 1e-37) if dtype is torch.float32 else (3e-9, 1e-16)
    for one, other in zip(result, module(*(v.double() for v in arguments)), strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other.to(dtype), rtol=tolerance, atol=least, equal_nan=True)


SCORES = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(0)).log_softmax(2)
LABELS = torch.tensor([[1, 2], [3, 3], [0, 1]])


def test_the_loss_of_sequences() -> None:
    def losses(scores: Any, steps: Any, lengths: Any) -> Any:
        of = (scores, LABELS, steps, lengths)
        every = [F.ctc_loss(*of, reduction=reduction) for reduction in ("none", "mean", "sum")]
        return *every, F.ctc_loss(*of, blank=2, zero_infinity=True)

    module = Functional(losses)
    lengths = [([7, 6, 0], [2, 2, 0]), ([1, 2, 7], [2, 1, 1]), ([3, 3, 3], [2, 2, 2]), ([7, 7, 7], [0, 1, 2])]
    imported = import_torch(module, (SCORES, *map(torch.tensor, lengths[0])), dynamic=None)
    for steps, sizes in lengths:
        arguments = (SCORES, torch.tensor(steps), torch.tensor(sizes))
        assert_close(interpreted(imported, *arguments), module(*arguments), 1e-5, f"{steps} {sizes}")


def test_targets_that_follow_each_other() -> None:
    def losses(scores: Any, steps: Any) -> Any:
        labels = torch.tensor([1, 2, 3, 3, 1])
        joined = F.ctc_loss(scores, labels, steps, torch.tensor([2, 2, 1]), reduction="none")
        return (
            joined,
            F.ctc_loss(scores, LABELS, (7, 6, 5), (2, 1, 0)),
            F.ctc_loss(scores[:, 0], labels[:2], (7,), (2,)),
        )

    arguments = (SCORES, torch.tensor([7, 6, 5]))
    module = Functional(losses)
    assert_close(interpreted(import_torch(module, arguments, dynamic=None), *arguments), module(*arguments), 1e-5)


def test_lengths_beyond_the_data_are_an_error_of_the_call() -> None:
    module = Functional(lambda scores, steps: F.ctc_loss(scores, LABELS, steps, torch.tensor([2, 2, 2])))
    compiled = tw.compile(module, example=(SCORES, torch.tensor([7, 7, 7])), dynamic=None, fallback="never")
    with pytest.raises(CallError, match="lengths of the inputs of ctc_loss"):
        compiled(SCORES, torch.tensor([7, 8, 7]))


def counted(x: Any) -> Any:
    return while_loop(lambda k, v: k * 2 + 1 < 10, lambda k, v: (k + 1, v * 2 + k // 2 - (k - 3) % 2), (0, x))[1]


def indexed(x: Any) -> Any:
    return while_loop(lambda k, v: k < x.shape[0], lambda k, v: (k + 1, torch.tanh(v + x[k])), (0, x[0]))[1]


def test_loops_that_carry_integers() -> None:
    check(Functional(counted), rows)
    check(Functional(indexed), rows)
    module = Functional(lambda x: while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, v * 2), (0, x)))
    assert_close(interpreted(import_torch(module, rows(3)), *rows(3))[1:], module(*rows(3))[0][1])


def test_loops_that_carry_integers_under_torch_compile() -> None:
    """An integer that leaves the loop is refused by name."""
    torch._dynamo.reset()
    compiled = torch.compile(counted, backend="tilewright", options={"full": True})
    torch.testing.assert_close(compiled(*rows(3)), counted(*rows(3)))
    torch._dynamo.reset()
    leaving = torch.compile(
        lambda x: while_loop(lambda k, v: k < 3, lambda k, v: (k + 1, v * 2), (0, x)),
        backend="tilewright",
        options={"full": True},
    )
    with pytest.raises(Exception, match="an integer that data decides"):
        leaving(*rows(3))


def test_functions_of_all_rows() -> None:
    check(Functional(torch.vmap(lambda row: row.softmax(0) * row.sum())), rows)
    scanned = Functional(lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"))
    arguments = rows(7)
    assert_close(interpreted(import_torch(scanned, arguments, dynamic=None), *arguments), scanned(*arguments))


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 4)

    def forward(self, x: Any, lengths: Any) -> Any:
        return pad_packed_sequence(self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])[0]


def test_packed_sequences_are_refused_by_name() -> None:
    arguments = (torch.randn(6, 3, 5), torch.tensor([6, 3, 2]))
    module = Packing()
    before = module(*arguments)
    with pytest.raises(UnsupportedError, match="packs sequences of several lengths"):
        tw.compile(module, example=arguments, dynamic=None)
    torch.testing.assert_close(module(*arguments), before)
