"""Operators of PyTorch in 16 bits: computed in f32 and rounded once, as eager does it.

`tests/fuzz/narrow.py` found what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import Functional, interpreted, torch
from tests.fuzz import narrow
from tilewright.frontend.torch import import_torch
from tilewright.transform.graph.attention import recognise_attention
from tilewright.transform.graph.rewrite import eliminate_dead

F = torch.nn.functional


def right(function: Callable[..., Any], *arguments: Any) -> None:
    """The graph's references give what eager PyTorch gives, or what is right in f64, rounded."""
    wanted = narrow.expected(narrow.Case(function, arguments, ""))
    result = interpreted(import_torch(Functional(function), arguments, dynamic=None), *arguments)
    ours = [narrow_tensor(a, w.eager) for a, w in zip(result, wanted, strict=True)]
    assert not narrow.differs(ours, wanted)


def narrow_tensor(array: Any, like: Any) -> Any:
    return torch.tensor(array.astype("float64") if array.dtype.kind not in "iub" else array).to(like.dtype)


def numbers(kind: Any, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Any:
    torch.manual_seed(0)
    return (torch.randn(*shape) * scale + offset).to(kind)


@pytest.mark.parametrize(("kind", "size"), [(torch.bfloat16, 20.0), (torch.float16, 300.0)], ids=["bf16", "f16"])
def test_scores_of_attention(kind: Any, size: float) -> None:
    """A score of 402.5 is rounded to 402 in bf16, which its exponential shows; one of 90,000 is infinite in f16."""
    q, k, v = (torch.tensor(x, dtype=kind)[None, None] for x in ([[size]], [[size], [size + 0.125]], [[0.0], [1.0]]))
    right(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0), q, k, v)


def test_causal_attention_keeps_nan() -> None:
    """Every row sees a key, so that none is without any: NaN is no sign of that."""
    q = numbers(torch.float32, 1, 1, 3, 4)
    k, q[0, 0, 1, 2] = q.clone(), torch.nan
    module = Functional(lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True))
    result = interpreted(import_torch(module, (q, k), dynamic=None), q, k)[0]
    assert torch.tensor(result).isnan()[0, 0].all(-1).tolist() == [False, True, False]


def test_masked_attention_keeps_nan() -> None:
    """A row that sees no key is zero; a row that sees NaN or infinity is NaN, masked or not, as in eager mode."""
    q, k, v = (numbers(torch.float32, 1, 1, n, 4, offset=0.1 * n) for n in (4, 6, 6))
    seen = torch.ones(4, 6, dtype=torch.bool)
    seen[0], q[0, 0, 1, 2], q[0, 0, 3] = False, torch.nan, torch.inf
    module = Functional(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
    for mask in (seen, torch.zeros(4, 6).masked_fill(~seen, -torch.inf)):
        wanted = F.scaled_dot_product_attention(q, k, v, mask)
        result = torch.tensor(interpreted(import_torch(module, (q, k, v, mask), dynamic=None), q, k, v, mask)[0])
        compiled = tw.compile(module, (q, k, v, mask), dynamic=None)(q, k, v, mask)
        for ours in (result, compiled):
            torch.testing.assert_close(ours, wanted, equal_nan=True)
        assert compiled.isnan().all(-1).flatten().tolist() == [False, True, False, True]
        assert not compiled[0, 0, 0].any()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_heads_that_share_keys_are_read_as_they_are(kind: Any) -> None:
    """Shared keys are repeated before they are widened, so that nothing in front of the kernel does either."""
    q, k, v = (numbers(kind, 2, heads, 3, 4) for heads in (6, 2, 2))
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # noqa: E731
    right(function, q, k, v)
    graph = import_torch(Functional(function), (q, k, v), dynamic=None).graph
    assert [n.op for n in eliminate_dead(recognise_attention(graph)).nodes] == ["lowered.attention"]


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], float]] = {
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool1d(x.abs() + 3e4, 3), ((2, 3, 7),), 1.0),
    "bilinear": (F.bilinear, ((5, 4), (5, 3), (2, 4, 3)), 100.0),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), ((3, 8),), 300.0),
    "addmm": (lambda x, a, b: torch.addmm(x, a, b, alpha=1e-3), ((4, 3), (4, 16), (16, 3)), 200.0),
    "addcmul": (lambda a, b: torch.addcmul(a, a, b, value=1e-4), ((7,), (7,)), 400.0),
    "pow": (lambda x: x**-2, ((7,),), 400.0),
    "group_norm": (lambda x: torch.native_group_norm(x, None, None, 2, 4, 6, 2, 1e-5), ((2, 4, 6),), 1e3),
    "layer_norm": (lambda x: torch.native_layer_norm(x, [8], None, None, 1e-5), ((3, 8),), 1e3),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_of_several_steps(name: str) -> None:
    function, shapes, scale = CASES[name]
    right(function, *(numbers(torch.float16, *shape, scale=scale) for shape in shapes))


WITH_BIAS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (F.linear, ((5, 2), (3, 2), (3,))),
    "linear of many rows": (F.linear, ((40, 2), (3, 2), (3,))),
    "linear of a vector": (F.linear, ((2,), (3, 2), (3,))),
    "addmm": (torch.addmm, ((3,), (5, 2), (2, 3))),
    "addmm, scaled": (lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), ((3,), (5, 2), (2, 3))),
    "baddbmm": (torch.baddbmm, ((4, 5, 3), (4, 5, 2), (4, 2, 3))),
    "addmv": (torch.addmv, ((5,), (5, 2), (2,))),
    "conv1d": (F.conv1d, ((2, 2, 7), (3, 2, 1), (3,))),
    "conv2d": (F.conv2d, ((2, 2, 7, 5), (3, 2, 1, 1), (3,))),
    "conv3d": (F.conv3d, ((2, 2, 3, 4, 5), (3, 2, 1, 1, 1), (3,))),
    "conv_transpose2d": (F.conv_transpose2d, ((2, 2, 7, 5), (2, 3, 1, 1), (3,))),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize(("kind", "size"), [(torch.bfloat16, 256.0), (torch.float16, 2048.0)], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", WITH_BIAS)
def test_a_bias_is_added_before_the_sum_is_rounded(name: str, kind: Any, size: float) -> None:
    """256 + 1 is 256 in bf16 and with another 1 258."""
    function, shapes = WITH_BIAS[name]
    inputs = [torch.ones(shape, dtype=kind) for shape in shapes]
    wide = 0 if "add" not in name else 1
    channels = 0 if inputs[wide].ndim == 1 else inputs[wide].ndim - 1 if "conv" not in name else 1
    inputs[wide].select(channels, 0).fill_(size)
    wanted = function(*(t.double() for t in inputs)).to(kind)
    compiled = tw.compile(Functional(function), tuple(inputs), dynamic=None)(*inputs)
    result = interpreted(import_torch(Functional(function), tuple(inputs), dynamic=None), *inputs)[0]
    assert torch.equal(compiled, wanted)
    assert torch.equal(narrow_tensor(result, wanted), wanted)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_rows(mode: str) -> None:
    table, rows = numbers(torch.float16, 4, 5, scale=2e4), torch.tensor([[0, 1, 1], [2, 3, 0]])
    right(lambda w, i: F.embedding_bag(i, w, mode=mode), table, rows)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16], ids=str)
def test_quotients_rounded_down(kind: Any) -> None:
    """1 // 0.1 is 9, as in Python: 0.1 is a little more than a tenth; what is infinite leaves no remainder."""
    a = torch.tensor([1.0, -1.0, 6.0, torch.inf, 3.0, 0.0, -0.5, 1.0], dtype=kind)
    b = torch.tensor([0.1, 0.1, 0.2, 2.0, torch.inf, -1.0, 3.0, 0.0], dtype=kind)
    for function in (lambda a, b: a // b, lambda a, b: torch.div(a, b, rounding_mode="floor")):
        result = interpreted(import_torch(Functional(function), (a, b), dynamic=None), a, b)[0]
        assert torch.equal(torch.tensor(result).nan_to_num(77.0), function(a, b).nan_to_num(77.0))


@pytest.mark.parametrize(
    ("mode", "factor", "size"),
    [
        ("nearest", 1.3, (7, 2)),
        ("nearest", 2.4, (3, 2)),
        ("bilinear", 1.1, (5, 7)),
        ("linear", 1.1, (7,)),
        ("trilinear", 1.3, (2, 1, 7)),
        ("bicubic", 1.1, (5, 7)),
        ("nearest", 1.3, (2,)),
        ("nearest", 2.4, (2, 2, 3)),
        ("nearest-exact", 1.3, (7, 2)),
    ],
)
def test_factors_that_leave_a_size(mode: str, factor: float, size: tuple[int, ...]) -> None:
    """Where an axis has as many elements as before, or twice as many, some ways do not look at the factor; the last
    four here do."""
    right(lambda x: F.interpolate(x, scale_factor=factor, mode=mode), numbers(torch.float32, 1, 2, *size))


@pytest.mark.parametrize("corners", [False, True])
def test_cubic_samples_at_the_border(corners: bool) -> None:
    """Each of the elements around a place is moved to the border, not the place."""
    grid = numbers(torch.float32, 2, 3, 4, 2, scale=1.3)
    image = numbers(torch.float32, 2, 3, 5, 4)
    right(lambda x, g: F.grid_sample(x, g, "bicubic", "border", corners), image, grid)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_half_way_between_elements(mode: str, padding: str, corners: bool) -> None:
    """Nearest elements of places that lie between two: which it is depends on whether places are reflected before."""
    places = torch.linspace(-2, 2, 17)
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), -1)[None]
    image = torch.arange(12, dtype=torch.float32).reshape(1, 1, 3, 4)
    right(lambda x, g: F.grid_sample(x, g, mode, padding, corners), image, grid)


@pytest.mark.filterwarnings("ignore:Since version")
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 1, 4, 5), (2, 3, 2, 1, 1)])
def test_grids_of_one_place(size: tuple[int, ...], corners: bool) -> None:
    right(lambda t: F.affine_grid(t, size, align_corners=corners), numbers(torch.float32, 2, 3, 4))
