"""Single operators of PyTorch in narrow types on awkward numbers: tiny, near the type's largest, far from zero, NaN.

A case is a function of its seed: an operator with its settings, sizes among them 0 and 1, an element type, and numbers
of some scale. PyTorch computes most operators of 16 bits in f32 inside, so that what is right is its result or that in
f64, rounded.

    python -m tests.fuzz.narrow 17 300      the cases 17 to 316, by hand
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import tilewright as tw

TYPES = (torch.float16, torch.bfloat16, torch.float16, torch.bfloat16, torch.float64, torch.float32)
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
ULPS = 6.0
"""Units in the last place of a result's largest number that ours may be from eager's, or from that in f64, rounded."""
SENSITIVE = 30.0
"""How many times the change of a result ours may be from it, when operands change in the last place of the type that
PyTorch computes in."""

Random = random.Random
Make = Callable[[Random], tuple[Callable[..., Any], list["Draw"]]]


@dataclass(frozen=True, slots=True)
class Draw:
    """A tensor to be drawn. `kind`: "scaled" numbers of the case's scale, "normal" ones of the normal distribution,
    "positive", "share" in (0, 1), or "index" below `limit`."""

    shape: Sequence[int]
    kind: str = "scaled"
    limit: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its tensors, and a line that tells what it is."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    label: str


# --- numbers ----------------------------------------------------------------------------------------------------------


def _scales(dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Functions of normal numbers in f64, by kind."""
    info = torch.finfo(dtype)
    # Squares and sums of f16 are computed in f32; those of other types overflow in eager too.
    wide = dtype is not torch.float16
    return {
        "one": lambda x: x,
        "small": lambda x: x * 1e-3,
        "tiny": lambda x: x * (info.smallest_normal**0.3 if wide else info.smallest_normal * 8),
        "denormal": lambda x: x * info.smallest_normal * 0.2,
        "squares overflow": lambda x: x * (info.max**0.25 if wide else info.max**0.5 * 3),
        "near the largest": lambda x: x.clamp(-2, 2) * (info.max**0.3 if wide else info.max / 2.5),
        "tens": lambda x: x * 20,
        "far from zero": lambda x: x + 200,
        "very far from zero": lambda x: x * 1e-2 + 1000,
        "zeros": lambda x: x * 0,
        "mixed": lambda x: x * torch.where(torch.arange(x.numel()).reshape(x.shape) % 3 == 0, 100.0, 0.01),
        "some not finite": _speckled,
    }


def _speckled(x: torch.Tensor) -> torch.Tensor:
    numbers = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype)
    return torch.where(torch.rand(x.shape) < 0.08, numbers[torch.randint(0, 3, x.shape)], x)


def _tensor(rng: Random, draw: Draw, dtype: torch.dtype, scale: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    shape = list(draw.shape)
    if draw.kind == "index":
        return torch.randint(0, max(draw.limit, 1), shape)
    x = torch.randn(shape, dtype=torch.float64)
    match draw.kind:
        case "scaled":
            x = scale(x)
        case "positive":
            x = scale(x).abs()
        case "share":
            x = x.sigmoid()
    return _laid_out(rng, x.to(dtype))


def _laid_out(rng: Random, x: torch.Tensor) -> torch.Tensor:
    """A tensor of equal elements, in one case of four as a view of others: transposed, every second one, or one for
    all."""
    match rng.randrange(12):
        case 0 if x.ndim > 1:
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        case 1 if x.ndim:
            wide = torch.empty((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
            wide[..., ::2] = x
            return wide[..., ::2]
        case 2 if x.ndim > 2:
            return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x


# --- operators --------------------------------------------------------------------------------------------------------


def size(rng: Random, least: int = 0) -> int:
    return 0 if not least and rng.random() < 0.06 else max(least, rng.choice(SIZES))


def shape(rng: Random, rank: int, least: int = 0) -> list[int]:
    return [size(rng, least) for _ in range(rank)]


def image(rng: Random, rank: int, least: int = 1) -> list[int]:
    """[batch, channels, *spatial]"""
    return [rng.choice((1, 2, 3)), rng.choice((1, 2, 4, 5)), *(max(least, rng.choice(SIZES[:9])) for _ in range(rank))]


def axis(rng: Random, x: Sequence[int]) -> int:
    return rng.randrange(-len(x), len(x))


POINTWISE: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in (
        "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac lgamma log log10 log1p "
        "log2 neg reciprocal relu round rsqrt sigmoid sign sin sinc sinh sqrt square tan tanh trunc digamma erfinv "
        "deg2rad rad2deg nan_to_num logit isnan signbit positive i0"
    ).split()
}
POINTWISE |= {
    name: getattr(F, name)
    for name in (
        "gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 silu softplus "
        "softshrink softsign tanhshrink"
    ).split()
}
POINTWISE |= {
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus 3": lambda x: F.softplus(x, beta=3.0),
    # exp(x) - 1 has an absolute error: of numbers near zero it is not looked at
    "elu": lambda x: F.elu(x - 0.5, 0.3),
    "selu": lambda x: F.selu(x - 0.5),
    "celu": lambda x: F.celu(x - 0.5),
    "pow 0.5": lambda x: x**0.5,
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow 4": lambda x: x**4,
    "pow -2": lambda x: x**-2,
    "pow -0.5": lambda x: x**-0.5,
    "pow 1.7": lambda x: x.abs() ** 1.7,
    "pow of": lambda x: 1.5**x,
    "clamp": lambda x: x.clamp(-0.3, 7),
    "threshold": lambda x: F.threshold(x, 0.1, 20),
    "round 2": lambda x: x.round(decimals=2),
    "add a number": lambda x: x + 0.1,
    "add alpha": lambda x: torch.add(x, x, alpha=0.3),
    "rsub": lambda x: 3.3 - x,
    "mul a number": lambda x: x * 1.1,
    "div a number": lambda x: x / 3,
    "number by": lambda x: 3 / x,
    "floor by": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "trunc by": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "remainder": lambda x: x % 0.7,
    "fmod": lambda x: torch.fmod(x, 0.7),
    "xlogy": lambda x: torch.xlogy(x, x.abs()),
    "entr": torch.special.entr,
    "log_ndtr": torch.special.log_ndtr,
    "ndtr": torch.special.ndtr,
    "to i32": lambda x: x.nan_to_num().clamp(-1000, 1000).to(torch.int32),
    "to f16": lambda x: x.to(torch.float16),
    "to bf16": lambda x: x.to(torch.bfloat16),
    "to f32": lambda x: x.to(torch.float32),
    "glu": lambda x: F.glu(torch.cat([x, x], -1), -1) if x.ndim else x,
}
BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in "add sub mul div maximum minimum fmax fmin hypot atan2 copysign fmod remainder logaddexp logaddexp2 "
    "xlogy floor_divide eq lt heaviside nextafter true_divide pow".split()
}
BINARY |= {
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp tensor": lambda a, b: torch.lerp(a, b, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.3),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.3),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=2.5),
    "where": lambda a, b: torch.where(a > b, a, 0.1),
    "cosine": lambda a, b: F.cosine_similarity(a, b, dim=-1) if a.ndim else a,
    "pairwise": lambda a, b: F.pairwise_distance(a, b) if a.ndim else a,
    "dist": lambda a, b: torch.dist(a, b),
    "isclose": lambda a, b: torch.isclose(a, b),
}


def unary(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    f = POINTWISE[rng.choice(list(POINTWISE))]
    return f, [Draw(shape(rng, rng.randrange(4)))]


def binary(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    f = BINARY[rng.choice(list(BINARY))]
    whole = shape(rng, rng.randrange(1, 4))
    other = [1 if rng.random() < 0.2 else d for d in whole]
    return f, [Draw(whole), Draw(other, rng.choice(("scaled", "normal")))]


def reduction(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    x = shape(rng, rng.randrange(1, 4))
    d, keep = axis(rng, x), rng.random() < 0.5
    p = rng.choice((0, 1, 2, 3, 0.5, float("inf"), -float("inf")))
    fs: list[Callable[..., Any]] = [
        lambda x: x.sum(d, keepdim=keep),
        lambda x: x.mean(d, keepdim=keep),
        lambda x: x.nansum(d),
        lambda x: x.nanmean(d),
        lambda x: x.prod(d, keepdim=keep),
        lambda x: x.amax(d, keepdim=keep),
        lambda x: x.amin(d),
        lambda x: x.max(d)[0],
        lambda x: x.aminmax(dim=d),
        lambda x: x.argmax(d),
        lambda x: x.var(d, keepdim=keep),
        lambda x: x.std(d, unbiased=False),
        lambda x: torch.var_mean(x, d),
        lambda x: torch.std_mean(x, correction=0),
        lambda x: x.logsumexp(d, keepdim=keep),
        lambda x: x.norm(p, d, keepdim=keep),
        lambda x: torch.linalg.vector_norm(x, p),
        lambda x: x.norm(),
        lambda x: F.normalize(x, p=p if p > 0 else 2, dim=d),
        lambda x: x.cumsum(d),
        lambda x: x.cumprod(d),
        lambda x: x.cummax(d)[0],
        lambda x: x.logcumsumexp(d),
        lambda x: x.softmax(d),
        lambda x: x.log_softmax(d),
        lambda x: F.softmin(x, d),
        lambda x: x.softmax(d, dtype=torch.float32),
        lambda x: x.sum(d, dtype=torch.float32),
        lambda x: x.median(d)[0],
        lambda x: x.sort(d)[0],
        lambda x: x.diff(dim=d),
        lambda x: torch.renorm(x, 2, 0, 1.0) if x.ndim > 1 else x.sum(),
        lambda x: torch.trapezoid(x, dim=d),
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.var(),
        lambda x: x.any(d),
        lambda x: x.count_nonzero(d),
        lambda x: torch.quantile(x.float(), 0.3, d),
    ]
    return rng.choice(fs), [Draw(x)]


def normalisation(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    x = image(rng, rng.randrange(1, 4))
    c = x[1]
    groups = rng.choice([g for g in (1, 2, 4, 5) if c % g == 0])
    eps = rng.choice((1e-5, 1e-5, 1e-3, 1e-12))
    last, nearby = x[-rng.randrange(1, 3) :], rng.choice((2, 3))
    vectors = [Draw([c], "normal"), Draw([c], "normal")]
    stats = [Draw([c], "normal"), Draw([c], "share")]
    fs: list[tuple[Callable[..., Any], list[Draw]]] = [
        (lambda x, w, b: F.group_norm(x, groups, w, b, eps), vectors),
        (lambda x: F.group_norm(x, groups), []),
        (lambda x, w, b: F.layer_norm(x, last, w, b, eps), [Draw(last, "normal"), Draw(last, "normal")]),
        (lambda x: F.layer_norm(x, last), []),
        (lambda x, w: F.rms_norm(x, last, w), [Draw(last, "normal")]),
        (lambda x, w, b: F.instance_norm(x, None, None, w, b, True, 0.1, eps), vectors),
        (lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False, 0.1, eps), stats + vectors),
        (lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, eps), vectors),
        (lambda x: F.local_response_norm(x, nearby, 1e-2), []),
        (lambda x, w, b: torch.native_layer_norm(x, last, w, b, eps), [Draw(last, "normal"), Draw(last, "normal")]),
        (lambda x, w, b: torch.native_group_norm(x, w, b, x.shape[0], c, x[0, 0].numel(), groups, eps), vectors),
    ]
    f, more = rng.choice(fs)
    return f, [Draw(x), *more]


def pool(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    rank = rng.randrange(1, 4)
    x = image(rng, rank, 3)
    if rng.random() < 0.2:
        x = x[1:]
    k = rng.randrange(1, 4)
    s, p, ceil, inside = rng.randrange(1, 4), rng.randrange(k // 2 + 1), rng.random() < 0.3, rng.random() < 0.5
    out = [rng.choice((1, 2, 3, 5)) for _ in range(rank)]
    f = getattr
    fs: list[Callable[..., Any]] = [
        lambda x: f(F, f"max_pool{rank}d")(x, k, s, p, ceil_mode=ceil),
        lambda x: f(F, f"max_pool{rank}d")(x, k, s, p, ceil_mode=ceil, return_indices=True),
        lambda x: f(F, f"avg_pool{rank}d")(x, k, s, p, ceil, inside),
        lambda x: f(F, f"adaptive_avg_pool{rank}d")(x, out),
        lambda x: f(F, f"adaptive_max_pool{rank}d")(x, out),
        lambda x: f(F, f"lp_pool{min(rank, 2)}d")(x, 2.0, k, s, ceil),
    ]
    if rank > 1:
        fs.append(lambda x: f(F, f"avg_pool{rank}d")(x, k, s, p, divisor_override=5))
    return rng.choice(fs), [Draw(x)]


def resize(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    rank = rng.randrange(1, 4)
    x = image(rng, rank)
    modes = ["nearest", "nearest-exact", "area", {1: "linear", 2: "bilinear", 3: "trilinear"}[rank]]
    mode = rng.choice([*modes, "bicubic"] if rank == 2 else modes)
    smooth = "linear" in mode or "cubic" in mode
    corners = rng.random() < 0.4 if smooth else None
    aa = rank == 2 and smooth and rng.random() < 0.3
    out = [rng.choice((1, 2, 3, 5, 8, 11)) for _ in range(rank)]
    factor = rng.choice((0.5, 2.0, 1.3, 3.0))
    if rng.random() < 0.5 and all(int(d * factor) for d in x[2:]):
        return lambda x: F.interpolate(x, scale_factor=factor, mode=mode, align_corners=corners, antialias=aa), [
            Draw(x)
        ]
    return lambda x: F.interpolate(x, out, mode=mode, align_corners=corners, antialias=aa), [Draw(x)]


def sampling(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    rank = rng.choice((2, 2, 3))
    x = image(rng, rank)
    out = [rng.choice((1, 2, 3, 5)) for _ in range(rank)]
    mode = rng.choice(("bilinear", "nearest", "bicubic") if rank == 2 else ("bilinear", "nearest"))
    padding, corners = rng.choice(("zeros", "border", "reflection")), rng.random() < 0.5
    if rng.random() < 0.3:
        theta = Draw([x[0], rank, rank + 1], "normal")
        return lambda theta: F.affine_grid(theta, [x[0], x[1], *out], align_corners=corners), [theta]
    return (
        lambda x, grid: F.grid_sample(x, grid, mode, padding, corners),
        [Draw(x), Draw([x[0], *out, rank], rng.choice(("normal", "share", "scaled")))],
    )


def product(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    b, m, k, n = (size(rng) for _ in range(4))
    other = rng.choice(("scaled", "normal"))
    fs: list[tuple[Callable[..., Any], list[Draw]]] = [
        (lambda x, w, b: F.linear(x, w, b), [Draw([m, k]), Draw([n, k], other), Draw([n], other)]),
        (torch.matmul, [Draw([b, m, k]), Draw([b, k, n], other)]),
        (torch.matmul, [Draw([k]), Draw([k], other)]),
        (torch.mv, [Draw([m, k]), Draw([k], other)]),
        (lambda c, x, y: torch.addmm(c, x, y, beta=0.3, alpha=0.7), [Draw([m, n]), Draw([m, k]), Draw([k, n], other)]),
        (lambda c, x, y: torch.baddbmm(c, x, y), [Draw([b, m, n]), Draw([b, m, k]), Draw([b, k, n], other)]),
        (torch.outer, [Draw([m]), Draw([n], other)]),
        (lambda x, y: torch.einsum("bij,bkj->bik", x, y), [Draw([b, m, k]), Draw([b, n, k], other)]),
        (torch.cdist, [Draw([m, k]), Draw([n, k], other)]),
        (lambda x, y: torch.cdist(x, y, p=1.0), [Draw([b, m, k]), Draw([b, n, k], other)]),
        (lambda x: torch.pdist(x), [Draw([m, k])]),
        (lambda x, y, w: F.bilinear(x, y, w), [Draw([m, k]), Draw([m, n]), Draw([3, k, n], other)]),
        (lambda x, y: torch.kron(x, y), [Draw([m, 2]), Draw([2, n], other)]),
        (lambda x, y: torch.tensordot(x, y, 1), [Draw([b, m, k]), Draw([k, n], other)]),
        (torch.linalg.cross, [Draw([m, 3]), Draw([m, 3], other)]),
    ]
    return rng.choice(fs)


def convolution(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    rank = rng.randrange(1, 4)
    groups = rng.choice((1, 1, 2))
    c, out, k = groups * rng.randrange(1, 5), groups * rng.randrange(1, 5), rng.randrange(1, 4)
    x = [rng.choice((1, 2)), c, *(rng.choice((3, 5, 6, 9)) for _ in range(rank))]
    s, p, d = rng.randrange(1, 3), rng.randrange(2), rng.choice((1, 1, 2))
    bias, kind = rng.random() < 0.5, rng.choice(("normal", "scaled"))
    if d * (k - 1) + 1 > min(x[2:]):
        d = 1
    if rng.random() < 0.5:
        f, weight = getattr(F, f"conv{rank}d"), [out, c // groups, *[k] * rank]
        run: Callable[..., Any] = lambda x, w, b=None: f(x, w, b, s, p, d, groups)  # noqa: E731
    else:
        f, weight = getattr(F, f"conv_transpose{rank}d"), [c, out // groups, *[k] * rank]
        extra, p = rng.randrange(max(s, d)), min(p, k // 2)
        run = lambda x, w, b=None: f(x, w, b, s, p, extra, groups, d)  # noqa: E731
    return run, [Draw(x), Draw(weight, kind), *([Draw([out], kind)] if bias else [])]


def attention(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    b, h, m, n, d, e = rng.choice((1, 2)), rng.choice((1, 2, 3)), *(size(rng, 1) for _ in range(4))
    q, k, v = Draw([b, h, m, d]), Draw([b, h, n, d]), Draw([b, h, n, e])
    scale = rng.choice((None, None, 0.3))
    masks = [Draw([m, n], "normal"), Draw([b, 1, m, n], "normal")]
    match rng.randrange(4):
        case 0:
            return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale), [q, k, v]
        case 1:
            f = lambda q, k, v, a: F.scaled_dot_product_attention(q, k, v, attn_mask=a, scale=scale)  # noqa: E731
            return f, [q, k, v, rng.choice(masks)]
        case 2:
            f = lambda q, k, v, a: F.scaled_dot_product_attention(q, k, v, attn_mask=a > 0.5)  # noqa: E731
            return f, [q, k, v, rng.choice(masks)]
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=scale), [q, k, v]


def loss(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    n, c = size(rng, 1), rng.choice((2, 3, 7))
    x, y = Draw([n, c]), Draw([n, c], rng.choice(("normal", "scaled")))
    share, labels = Draw([n, c], "share"), Draw([n], "index", c)
    how = rng.choice(("mean", "sum", "none"))
    smoothing, ignored = rng.choice((0.0, 0.1)), rng.choice((-100, 1))
    fs: list[tuple[Callable[..., Any], list[Draw]]] = [
        (lambda x, y: F.mse_loss(x, y, reduction=how), [x, y]),
        (lambda x, y: F.l1_loss(x, y, reduction=how), [x, y]),
        (lambda x, y: F.smooth_l1_loss(x, y, reduction=how, beta=0.5), [x, y]),
        (lambda x, y: F.huber_loss(x, y, reduction=how, delta=2.0), [x, y]),
        (lambda x, y: F.binary_cross_entropy(x, y, reduction=how), [share, share]),
        (lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=how), [x, share]),
        (
            lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w, reduction=how),
            [x, share, Draw([c], "share")],
        ),
        (lambda x, y: F.kl_div(x, y, reduction=how), [x, share]),
        (lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), [Draw([n, c], "normal"), y]),
        (lambda x, y: F.poisson_nll_loss(x, y, reduction=how), [x, share]),
        (lambda x, y: F.soft_margin_loss(x, y.sign(), reduction=how), [x, y]),
        (lambda x, y: F.multilabel_soft_margin_loss(x, y, reduction=how), [x, share]),
        (lambda x, y: F.hinge_embedding_loss(x, y.sign(), reduction=how), [x, Draw([n, c], "normal")]),
        (lambda x, y: F.cross_entropy(x, y, reduction=how, label_smoothing=smoothing), [x, labels]),
        (lambda x, y: F.cross_entropy(x, y, reduction=how, ignore_index=ignored), [x, labels]),
        (lambda x, y, w: F.cross_entropy(x, y, w, reduction=how), [x, labels, Draw([c], "share")]),
        (lambda x, y: F.cross_entropy(x, y.softmax(-1), reduction=how), [x, Draw([n, c], "normal")]),
        (lambda x, y: F.nll_loss(x, y, reduction=how), [x, labels]),
        (lambda x, y: F.multi_margin_loss(x, y, reduction=how), [x, labels]),
        (lambda x, y, z: F.triplet_margin_loss(x, y, z, reduction=how), [x, y, Draw([n, c], "normal")]),
        (lambda x, y, z: F.cosine_embedding_loss(x, y, z[:, 0].sign(), reduction=how), [x, y, Draw([n, 1], "normal")]),
        (lambda x, y, z: F.margin_ranking_loss(x, y, z.sign(), 0.1, reduction=how), [x, y, Draw([n, c], "normal")]),
    ]
    return rng.choice(fs)


def lookup(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    rows, width, n = size(rng, 1), size(rng, 1), size(rng)
    table, places = Draw([rows, width]), Draw([n, 3], "index", rows)
    mode = rng.choice(("sum", "mean", "max"))
    d = rng.randrange(2)
    fs: list[tuple[Callable[..., Any], list[Draw]]] = [
        (lambda w, i: F.embedding(i, w), [table, places]),
        (lambda w, i: F.embedding_bag(i, w, mode=mode), [table, places]),
        (
            lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
            [table, places, Draw([n, 3], "normal")],
        ),
        (lambda w, i: w.index_select(0, i.flatten()), [table, places]),
        (lambda x, i: x.gather(0, i), [table, Draw([n, width], "index", rows)]),
        (lambda x, i, y: x.index_add(0, i, y), [table, Draw([n], "index", rows), Draw([n, width])]),
        (lambda x, i, y: x.scatter_add(0, i, y), [table, Draw([n, width], "index", rows), Draw([n, width])]),
        (
            lambda x, i, y: x.scatter_reduce(0, i, y, rng_mode, include_self=bool(d)),
            [table, Draw([n, width], "index", rows), Draw([n, width])],
        ),
        (lambda x, i, y: x.index_put((i,), y, accumulate=True), [table, Draw([n], "index", rows), Draw([n, width])]),
    ]
    rng_mode = rng.choice(("sum", "mean", "amax", "prod"))
    return rng.choice(fs)


def moving(rng: Random) -> tuple[Callable[..., Any], list[Draw]]:
    x = image(rng, 2, 2)
    p, mode = rng.randrange(2), rng.choice(("constant", "reflect", "replicate", "circular"))
    fs: list[Callable[..., Any]] = [
        lambda x: F.pad(x, (p, 1, 1, p), mode),
        lambda x: F.pad(x, (p, 1), value=float("inf")),
        lambda x: F.unfold(x, 2, padding=p),
        lambda x: F.fold(F.unfold(x, 2), x.shape[2:], 2),
        lambda x: F.pixel_unshuffle(x[..., :2, :2], 2),
        lambda x: x.roll((1, -1), (2, 3)),
        lambda x: x.topk(1, -1)[0],
        lambda x: x.tril() + x.triu(1),
        lambda x: torch.stft(x.flatten().float()[:64].repeat(2), 16, return_complex=True).abs(),
        lambda x: torch.fft.rfft(x.float(), dim=-1).abs(),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: torch.histc(x.float(), 4, -1, 1),
        lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)),
        lambda x: torch.linalg.matrix_norm(x.float()),
        lambda x: x.unfold(-1, 2, 1).sum(-1),
        lambda x: F.channel_shuffle(x, 1),
        lambda x: x.expand(3, *x.shape).mean(0),
    ]
    return rng.choice(fs), [Draw(x)]


FAMILIES: tuple[Make, ...] = (
    unary,
    binary,
    reduction,
    reduction,
    normalisation,
    pool,
    resize,
    sampling,
    product,
    convolution,
    attention,
    loss,
    lookup,
    moving,
)


def drawn(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    torch.manual_seed(seed)
    family = rng.choice(FAMILIES)
    dtype = rng.choice(TYPES)
    scales = _scales(dtype)
    # What is infinite times zero is NaN: samples of weight zero, which PyTorch reads and we do not, and taps of
    # transposed convolutions, of which we read more than PyTorch. Attention gives zeros for rows of NaN, not always;
    # of several NaN in a window PyTorch takes the last place.
    usual = family not in (resize, sampling, attention, convolution, pool)
    scale = rng.choice([s for s in scales if usual or s != "some not finite"])
    function, draws = family(rng)
    later = scales["one" if scale == "some not finite" else scale]  # zero times an infinite weight is left open
    tensors = tuple(_tensor(rng, d, dtype, later if k else scales[scale]) for k, d in enumerate(draws))
    shapes = " ".join(str(list(t.shape)) for t in tensors)
    return Case(function, tensors, f"{family.__name__}, {str(dtype).removeprefix('torch.')}, {scale}: {shapes}")


# --- what is right ----------------------------------------------------------------------------------------------------


class Applied(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def copies(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Tensors in memory of their own, laid out as they are; numbers in another type where one is given."""
    created = []
    for t in tensors:
        kind = t.dtype if dtype is None or not t.is_floating_point() else dtype
        created.append(torch.empty_strided(t.shape, t.stride(), dtype=kind).copy_(t))
    return created


def results(result: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected results: eager's result, that in f64 where there is one, and how far this moves with its
    operands."""

    eager: torch.Tensor
    exact: torch.Tensor
    moved: float


def expected(case: Case) -> list[Expected]:
    """Raises what eager raises."""
    eager = results(quiet(case.function, *copies(case.tensors)))
    try:
        wide = copies(case.tensors, torch.float64)
        exact = results(quiet(case.function, *wide))
        moved = results(quiet(case.function, *map(_shaken, wide, case.tensors)))
        return [
            Expected(a, b, _distance(b, c)) for a, b, c in zip(eager, exact, moved, strict=True) if a.shape == b.shape
        ]
    except Exception:  # a function that has no f64
        return [Expected(a, a, 0.0) for a in eager]


def _shaken(x: torch.Tensor, array: torch.Tensor) -> torch.Tensor:
    """Numbers that differ in the last place of the type that PyTorch computes in."""
    if not array.is_floating_point():
        return x
    eps = torch.finfo(torch.promote_types(array.dtype, torch.float32)).eps
    return x * (1 + eps * (torch.rand(x.shape, dtype=x.dtype) - 0.5))


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    difference = (a.double() - b.double()).abs()
    difference = difference[difference.isfinite()]
    return float(difference.max()) if difference.numel() else 0.0


def differs(ours: Sequence[torch.Tensor], wanted: Sequence[Expected]) -> str:
    """How results differ from what is right; "" if they do not."""
    if len(ours) != len(wanted):
        return f"{len(ours)} results, expected {len(wanted)}"
    for k, (candidate, right) in enumerate(zip(ours, wanted, strict=True)):
        if candidate.dtype != right.eager.dtype or candidate.shape != right.eager.shape:
            eager = right.eager
            return f"result {k} is {candidate.dtype}{list(candidate.shape)}, expected {eager.dtype}{list(eager.shape)}"
        text = _deviation(candidate, right)
        if text:
            return f"result {k}: {text}"
    return ""


def _deviation(ours: torch.Tensor, right: Expected) -> str:
    eager, exact = right.eager, right.exact
    if not eager.is_floating_point():
        if torch.equal(ours, eager) or torch.equal(ours, exact.to(ours.dtype)):
            return ""
        wrong = (ours != eager).nonzero()[0].tolist()
        return f"at {wrong}: {ours[tuple(wrong)]} for {eager[tuple(wrong)]}"
    info, wide = torch.finfo(eager.dtype), torch.finfo(torch.promote_types(eager.dtype, torch.float32))
    a, b, c = (t.double() for t in (ours, eager, exact.to(eager.dtype)))
    finite = torch.cat([t[t.isfinite()].abs().flatten() for t in (b, c)])
    allowed = ULPS * info.eps * (float(finite.max()) if finite.numel() else 0.0)
    allowed += max(wide.smallest_normal, info.smallest_normal * info.eps)
    allowed += 2 * _distance(b, c) + SENSITIVE * right.moved

    def like(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # next to the largest number one rounds to infinity where the other does not
        same = (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= allowed)
        brink = 0.95 * info.max  # sums with a bias are rounded twice here
        return same | ((x.abs() >= brink) & (y.abs() >= brink) & (x.sign() == y.sign()))

    fine = like(a, b) | like(a, c)
    fine |= ~b.isfinite() & c.isfinite()  # eager's own squares and sums overflow
    fine |= exact.double().abs() > wide.max / 100  # the order of summands decides what it overflows to
    if bool(fine.all()):
        return ""
    place = tuple((~fine).nonzero()[0].tolist())
    text = f"at {list(place)}: {a[place]} for {b[place]} (in f64 {float(exact[place])})"
    return f"{text}, {int((~fine).sum())} of {fine.numel()}"


def quiet(f: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return f(*args)


def check(case: Case) -> str:
    """ "right", "refused: why", "left out" where eager has no result; "wrong: how", "crashed: how" are faults."""
    try:
        wanted = expected(case)
    except Exception as error:
        return f"left out: {type(error).__name__}"
    if not wanted or not all(w.eager.layout is torch.strided and not w.eager.is_complex() for w in wanted):
        return "left out: no tensors"
    try:
        model = quiet(lambda: tw.compile(Applied(case.function), tuple(copies(case.tensors)), dynamic=None))
        ours = results(model(*copies(case.tensors)))
    except tw.Error as error:
        return f"refused: {str(error).splitlines()[0][:160]}"
    except Exception as error:
        return f"crashed: {type(error).__name__}: {str(error)[:300]}"
    result = differs(ours, wanted)
    return f"wrong: {result}" if result else "right"


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        case = drawn(seed)
        result = check(case)
        outcomes[result.split(":")[0]] += 1
        if not result.startswith(("right", "left out")):
            print(seed, case.label, source(case.function), "|", result, flush=True)
    print(dict(outcomes))


def source(function: Callable[..., Any]) -> str:
    """The line that made a function."""
    import inspect

    try:
        return " ".join(inspect.getsource(function).split())[:150]
    except (OSError, TypeError):
        return str(getattr(function, "__name__", function))


if __name__ == "__main__":
    main()
