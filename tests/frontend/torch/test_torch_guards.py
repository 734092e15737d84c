"""Assumptions of `torch.export` about sizes while it traces are checked at calls: guards, checks, ranges, slices."""

from __future__ import annotations

import contextlib
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tilewright as tw
from tilewright.support.errors import CallError, ModelError, UnsupportedError

torch = pytest.importorskip("torch")


def checked(x: Any, y: Any) -> Any:
    torch._check(x.shape[0] % 4 == 0)
    x = x * 2 if x.shape[0] % 32 else x
    x = x + 1 if y.shape[0] < 300 else x
    return x.reshape(-1, 4), y[:3], y[2]


def compiled(function: Callable[..., Any], *sizes: int) -> tuple[Any, Any]:
    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, *args: Any) -> Any:
            return function(*args)

    shapes = (tuple({0: torch.export.Dim.DYNAMIC} for _ in sizes),)
    example = tuple(torch.ones(n) for n in sizes)
    return Model(), tw.compile(torch.export.export(Model(), example, dynamic_shapes=shapes))


CASES = [(8, 7), (4, 3), (9, 3), (32, 8), (64, 5), (8, 2), (8, 0), (8, 9), (1200, 299), (1200, 300), (12, 600)]


def test_guards() -> None:
    module, model = compiled(checked, 8, 7)
    for n, m in CASES:
        x, y = torch.arange(float(n)), torch.arange(float(m))
        if n % 4 == 0 and n % 32 and 3 <= m < 300:
            assert all(torch.equal(a, b) for a, b in zip(model(x, y), module(x, y), strict=True))
            continue
        with pytest.raises(CallError) as error:
            model(x, y)
        assert "batch" in str(error.value) or "y_dim0" in str(error.value) or "dim" in str(error.value)


def test_slices_say_the_least_size() -> None:
    module, model = compiled(lambda x: (x[:2] * 2, x[1]), 8)
    base = torch.arange(64.0)
    for n in (2, 3, 9):
        assert all(torch.equal(a, b) for a, b in zip(model(base[5 : 5 + n]), module(base[5 : 5 + n]), strict=True))
    for n in (0, 1):
        with pytest.raises(CallError, match="out of range"):
            model(base[5 : 5 + n])


@pytest.mark.parametrize(
    "scale",
    [lambda x: 1 / x.shape[0], lambda x: x.shape[0] ** -0.5, lambda x: x.shape[1] / x.shape[0]],
    ids=["reciprocal", "root", "ratio"],
)
def test_a_float_argument_of_sizes_fixes_them(scale: Callable[[Any], float]) -> None:
    """PyTorch's exporter takes the number and guards it; for other sizes the results were those of that number."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], scale=scale(x))

    module, example = Model(), torch.arange(24.0).reshape(4, 6).sin()
    auto = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    models = [tw.compile(torch.export.export(module, (example,), dynamic_shapes=(auto,)))]
    try:
        models.append(tw.compile(module, (example,), dynamic={"x": {0: "n", 1: "m"}}))
    except ModelError as error:
        assert "it needs a number for n" in str(error)
    for model in models:
        torch.testing.assert_close(model(example), module(example))
        with pytest.raises(CallError, match="dimension"):
            model(example[:3])


def test_factors_may_be_sizes() -> None:
    def scaled(x: Any) -> Any:
        n, y = x.shape[0], x * x
        a, b = x.reshape(n, 1), y.reshape(1, n)
        return (
            torch.add(x, y, alpha=n),
            torch.sub(x, y, alpha=n),
            torch.addcmul(x, x, y, value=n),
            torch.addcdiv(x, x, y + 1, value=n),
            torch.nn.functional.softplus(x, beta=n),
            torch.addmm(x, a, b, beta=n, alpha=n + 1),
            torch.addmv(x, a @ b, x, beta=n, alpha=n),
            torch.index_add(x, 0, torch.zeros(1, dtype=torch.int64), y[:1], alpha=n),
        )

    module, model = compiled(scaled, 4)
    for n in (2, 4, 7):
        x = torch.arange(float(n)).cos()
        for result, expected in zip(model(x), module(x), strict=True):
            torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "first",
    [
        lambda n, m: n / 3 > 1.2,
        lambda n, m: n / m >= 0.75,
        lambda n, m: 0.5 * n + 0.25 < m / 2,
        lambda n, m: n / 3 == 1,
        lambda n, m: n / 10 != 0.3,
        lambda n, m: n**0.5 > 1.9,
        lambda n, m: 0.1 * n <= 0.3,
        lambda n, m: 0.1 * n > 0.3,
        lambda n, m: n / 3 + m / 3 > 7 / 3,
        lambda n, m: int(1.5 * n) > 4,
        lambda n, m: n / 3 > 1,
        lambda n, m: round(m / n) >= 2,
    ],
    ids=[
        "number",
        "ratio",
        "sum",
        "equal",
        "unequal",
        "root",
        "rounded",
        "rounded up",
        "rounded sum",
        "whole",
        "above one",
        "nearest",
    ],
)
def test_branches_by_floats_that_sizes_make(first: Callable[[int, int], bool]) -> None:
    """Guards by floats were left out: other sizes took the branch of the traced ones."""
    for sizes in ((4, 5), (2, 3)):
        module, model = compiled(lambda x, y: (x * 2 if first(x.shape[0], y.shape[0]) else x + 1, y), *sizes)
        for n in (2, 3, 4, 7):
            for m in (2, 3, 4, 5, 8):
                x, y = torch.arange(float(n)), torch.arange(float(m))
                try:
                    result = model(x, y)
                except CallError:
                    assert (n, m) != sizes
                    continue
                assert all(torch.equal(a, b) for a, b in zip(result, module(x, y), strict=True))


def branch(condition: Callable[..., bool]) -> Any:
    class Branch(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2 if condition(x.shape[0]) else x.sum(0, keepdim=True) - x

    return Branch()


@pytest.mark.parametrize(
    "condition",
    [
        lambda n: n > 1,
        lambda n: n < 2,
        lambda n: n == 1,
        lambda n: n // 2 != 1,
        lambda n: n // 2 >= 1,
        lambda n: n > 1.2,
        lambda n: round(n / 2) > 0.5,
        lambda n: max(n - 2, n / 4) != 4,
    ],
)
def test_a_module_that_asks_whether_sizes_are_ones(condition: Callable[..., bool]) -> None:
    """PyTorch takes sizes for 2 and more where it traces, and states no guard that follows from that."""
    module = branch(condition)
    model = tw.compile(module, (torch.ones(7, 3),), dynamic="auto")
    answers = 0
    for n in (1, 2, 3, 6, 7, 8):
        x = torch.rand(n, 3)
        try:
            got = model(x.numpy())
        except CallError:
            continue
        torch.testing.assert_close(torch.from_numpy(got), module(x))
        answers += 1
    assert answers


def test_a_module_whose_branches_give_equal_numbers_takes_a_single_row() -> None:
    class Mean(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x - x.mean(0, keepdim=True) if x.shape[0] > 1 else torch.zeros_like(x)

    model = tw.compile(Mean(), (torch.ones(7, 3),), dynamic="auto")
    assert (model(torch.rand(1, 3).numpy()) == 0).all()


@pytest.mark.parametrize("kind", ["expanded", "of inference mode", "with a gradient"])
def test_buffers_of_a_module_that_is_compared_at_one_row(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of them can be written to. Generators of other devices are left alone."""

    class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            with torch.inference_mode(kind == "of inference mode"):
                scale = torch.ones(1).expand(3) if kind == "expanded" else torch.ones(3)
            self.register_buffer("scale", scale.requires_grad_(kind == "with a gradient"))

        def forward(self, x: Any) -> Any:
            return x * self.scale if x.shape[0] > 1 else x + self.scale

    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    module = Scaled().eval()
    model = tw.compile(module, (torch.ones(4, 3),), dynamic="auto")
    assert not seeds
    x = torch.rand(5, 3)
    torch.testing.assert_close(torch.from_numpy(model(x.numpy())), module(x))


def test_sizes_that_differ_where_they_were_traced() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.sum() + y.sum() if x.shape[0] == y.shape[0] else x.sum() - y.sum()

    _, model = compiled(function, 8, 7)
    assert model(torch.ones(5).numpy(), torch.ones(3).numpy()) == 2
    with pytest.raises(CallError, match="!="):
        model(torch.ones(5).numpy(), torch.ones(5).numpy())


SIZES = {
    "floor": lambda n: math.floor(n * 0.75),
    "ceil": lambda n: math.ceil(n / 3),
    "round": lambda n: round(n / 2),
    "round of a product": lambda n: round(n * 0.75),
    "floor below zero": lambda n: math.floor(n * -0.5) + n,
    "ceil of a scaled one": lambda n: math.ceil(n / 7 / 2),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_rounded_floats(name: str) -> None:
    rounded = SIZES[name]
    module, model = compiled(lambda x: (x.new_ones(rounded(x.shape[0])).cumsum(0), x * rounded(x.shape[0])), 7)
    answers = 0
    for n in (2, 3, 5, 6, 7, 9, 10, 12, 14, 21, 33):
        x = torch.arange(float(n))
        try:
            result = model(x)
        except CallError:
            assert n != 7
            continue
        answers += 1
        assert all(torch.equal(a, b) for a, b in zip(result, module(x), strict=True))
    assert answers >= 5


def test_sizes_of_rounded_floats_that_are_rounded_before() -> None:
    """`math.floor(n * 0.1)` is not a fraction's floor for all n; it is refused, and never another size."""
    with pytest.raises(UnsupportedError, match="FloorToInt"):
        compiled(lambda x: x.new_ones(math.floor(x.shape[0] * 0.1) + 2), 7)


def test_padding_to_a_multiple_before_a_convolution_and_a_cut() -> None:
    """PyTorch's exporter finds an empty range for the sizes, where their names are stated to it."""

    class Padded(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 2, 3, 2, 1)

        def forward(self, x: Any) -> Any:
            h, w = x.shape[-2:]
            y = self.layer(torch.nn.functional.pad(x, (0, -w % 4, 0, -h % 4)))
            return torch.nn.functional.interpolate(y, scale_factor=2.0)[..., :h, :w]

    module = Padded().eval()
    model = tw.compile(module, (torch.ones(2, 1, 7, 9),), dynamic={"x": {2: "h", 3: "w"}})
    for h, w in ((7, 9), (4, 8), (5, 3), (1, 2), (13, 16)):
        x = torch.rand(2, 1, h, w)
        torch.testing.assert_close(torch.from_numpy(model(x.numpy())), module(x))


TERMS = ("n", "{a} + {b}", "{a} * 2", "{a} // 3", "{a} % 4", "{a} / 3", "{a} - 2", "math.sqrt({a} + 1)")
ROUNDED = ("int({a} * 1.5)", "max({a}, {b})", "min({a}, 3)", "round({a} / 2)", "math.ceil({a} / 3)")


def drawn(rng: Random, depth: int) -> str:
    """A number that is computed of `n` and no other name."""
    if not depth or rng.random() < 0.25:
        return "n"
    parts = {key: f"({drawn(rng, depth - 1)})" for key in "ab"}
    return rng.choice(TERMS + ROUNDED).format(**parts)


def test_random_numbers_of_sizes(tmp_path: Path) -> None:
    """In branches, as factors, and both, by the modules' door: eager PyTorch's numbers, or one of our errors."""
    answers = refused = 0
    for seed in range(24):
        rng = Random(seed)
        number, limit = drawn(rng, 2), rng.choice((1, 2, 3, 0.5, 1.2, 2.5))
        asked = f"{number} {rng.choice(('>', '>=', '<', '<=', '==', '!='))} {limit}"
        body = (f"x * 2 if {asked} else x + 1", f"x * ({number})", f"x * ({number}) if {asked} else x - 1")[seed % 3]
        file = tmp_path / f"sizes{seed}.py"
        head = "import math\nimport torch\n\n\nclass Sizes(torch.nn.Module):\n    def forward(self, x):\n"
        file.write_text(f"{head}        n = x.shape[0]\n        return {body}\n")
        module = runpy.run_path(str(file))["Sizes"]()
        try:
            model = tw.compile(module, (torch.rand(rng.choice((2, 4, 5, 7)), 3),), dynamic="auto")
        except (ModelError, UnsupportedError):
            refused += 1
            continue
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 33):
            x = torch.rand(n, 3)
            with contextlib.suppress(CallError):
                torch.testing.assert_close(torch.from_numpy(model(x.numpy())), module(x), msg=f"{n}: {body}")
                answers += 1
    assert refused <= 8 and answers >= 100


class Counting(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A module that counts its calls in a buffer, in place or by another tensor."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        if self.in_place:
            self.calls.add_(1)
        else:
            self.calls = self.calls + 1
        return x + self.calls


@pytest.mark.parametrize("in_place", [True, False])
def test_a_refused_module_has_its_buffers_as_they_were(in_place: bool) -> None:
    module = Counting(in_place)
    before = module.calls
    with pytest.raises(tw.Error, match="forward changes buffers of the module: calls"):
        tw.compile(module, (torch.ones(4, 2),))
    assert module.calls is before and type(before) is torch.Tensor and not before.any()
