"""Products and convolutions by pieces and attention with NaN, infinities, zeros, numbers near the largest and the least
in any operand and place, against f32: `python -m tests.fuzz.split_values --cases 100000`.

AMX is emulated (`tests/codegen/llvm/amx_run.py`), so this runs on any machine with a C compiler. NaN and infinities
must be where f32 has them; other numbers are within the stated bound of the product or convolution in double precision
(docs/accuracy.md#products-by-pieces), or, of attention, of what f32 gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import numpy as np
import pytest

import tilewright as tw
from tests.algorithms.attention_tiles.test_attention_tiles import graph_of
from tests.algorithms.attention_tiles.test_attention_tiles import key_of as attention_key
from tests.codegen.llvm.amx_run import amx
from tests.ops.test_attention import attributes
from tests.plans.convolution import test_split_convolution, test_split_transposed
from tests.plans.matmul.test_split import COMPONENTWISE
from tests.plans.matmul.test_split import key_of as product_key
from tests.plans.matmul.test_split_both import both
from tilewright.plans.framework.decisions import forcing
from tilewright.targets.target import Target

VALUES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-30, 1e-40, -1e-45, 0.0, -0.0)
ROWS, DEPTH, COLUMNS = 18, 40, 20
LANES = 16
"""Numbers of a row of a register of sums."""
LARGEST = float(np.finfo(np.float32).max)

Case = Callable[[np.random.Generator], str]
"""Run one case: what is wrong with it, "" if nothing."""


def spoiled(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Normal numbers, up to four of which are others, in any operand and place."""
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    spoil(rng, *arrays)
    return arrays


def spoil(rng: np.random.Generator, *arrays: np.ndarray) -> None:
    """Put up to four such numbers into arrays."""
    for _ in range(int(rng.integers(0, 5))):
        one = arrays[int(rng.integers(len(arrays)))]
        one.flat[int(rng.integers(one.size))] = VALUES[int(rng.integers(len(VALUES)))]


def product(target: Target, terms: int) -> Case:
    """Products of two computed factors."""
    graph = both(ROWS, DEPTH, COLUMNS)
    key = product_key(graph, target)
    with forcing({key: f"split terms={terms},least=16"}):
        model = tw.compile((graph, {}), target=target)
    with forcing({key: "packed"}):
        ordinary = tw.compile((graph, {}), target=target)

    def case(rng: np.random.Generator) -> str:
        x, w = spoiled(rng, (ROWS, DEPTH), (DEPTH, COLUMNS))
        got, single = np.asarray(model(x, w)), np.asarray(ordinary(x, w))
        with np.errstate(all="ignore"):
            size = np.abs(x).astype(np.float64) @ np.abs(w)
            want = np.maximum(x.astype(np.float64) @ w, 0)
            absolute = DEPTH * 2.0**-123 * (1 + np.abs(x).max() + np.abs(w).max())
            bound = (COMPONENTWISE[terms] + 2 * DEPTH * 2.0**-24) * size + absolute
            wrong = np.abs(got - want) > bound
        sure = size < LARGEST  # sums of others may pass the largest number on their way, in f32's order or another
        return verdict(got, single, sure, wrong)

    return case


def attention(target: Target, scores: int, outputs: int) -> Case:
    """Attention of two heads."""
    shape, attrs = (1, ROWS, 2, 8), attributes()
    graph = graph_of([np.zeros(shape, np.float32)] * 3, attrs)
    key = attention_key(graph, target, fast="auto" if outputs == 3 else "exact")
    with forcing({key: f"attention_tiles scores={scores},outputs={outputs}"}):
        model = tw.compile((graph, {}), target=target, fast="auto")
    with forcing({key: "packed"}):
        ordinary = tw.compile((graph, {}), target=target)

    def case(rng: np.random.Generator) -> str:
        arrays = spoiled(rng, shape, shape, shape)
        got, single = np.asarray(model(*arrays)), np.asarray(ordinary(*arrays))
        values = np.abs(arrays[2])
        most = values.max(where=np.isfinite(values), initial=0.0)
        with np.errstate(all="ignore"):
            wrong = np.abs(got - single) > 2e-5 * most
            scale = float(np.abs(arrays[0]).max()) * float(np.abs(arrays[1]).max())
        # Scores that large differ by more than their exponentials bear, in f32 too.
        sure = np.full(got.shape, not 1e10 < scale < np.inf and most < 1e38)
        return verdict(got, single, sure, wrong)

    return case


def convolution(target: Target, name: str, way: int, terms: int) -> Case:
    """Convolutions of a map: with padding, in groups, of few channels, or transposed."""
    tests: ModuleType = test_split_transposed if name in test_split_transposed.CASES else test_split_convolution
    label = [label for label in tests.labels_of(name) if f"terms={terms}" in label][way]
    _, parameters = tests.arrays(name)
    model = tw.compile((tests.chosen(name, label), parameters), target=target)
    ordinary = tw.compile((tests.chosen(name, "direct"), parameters), target=target)

    def case(rng: np.random.Generator) -> str:
        x, parameters = tests.arrays(name, int(rng.integers(1 << 30)))
        spoil(rng, x, parameters["w"])
        for program in (model, ordinary):
            program.update(parameters, finite=False)
        got, single, w = np.asarray(model(x)), np.asarray(ordinary(x)), parameters["w"]
        depth = w.size // min(w.shape[:2])  # or more
        with np.errstate(all="ignore"):
            size = tests.exact(name, np.abs(x), {key: np.abs(value) for key, value in parameters.items()})
            want = tests.exact(name, x, parameters)
            absolute = depth * 2.0**-123 * (1 + np.abs(x).max() + np.abs(w).max())
            bound = (COMPONENTWISE[terms] + 2 * depth * 2.0**-24) * size + absolute
            wrong = np.abs(got - want) > bound
        return verdict(got, single, size < LARGEST, wrong)

    return case


def verdict(got: np.ndarray, single: np.ndarray, sure: np.ndarray, wrong: np.ndarray) -> str:
    if not np.array_equal(np.isnan(got)[sure], np.isnan(single)[sure]):
        return "NaN is not where f32 has it"
    if not np.array_equal(np.isinf(got)[sure], np.isinf(single)[sure]):
        return "infinities are not where f32 has them"
    finite = sure & np.isfinite(single)
    infinite = sure & np.isinf(single)
    if not np.array_equal(got[infinite], single[infinite]):
        return "an infinity has another sign"
    return "numbers are outside the bound" if wrong[finite].any() else ""


KINDS: dict[str, Callable[[Target], Case]] = {
    "product x3": lambda target: product(target, 3),
    "product x6": lambda target: product(target, 6),
    "attention x6 and x3": lambda target: attention(target, 6, 3),
    "attention x6": lambda target: attention(target, 6, 6),
}
CONVOLUTIONS: dict[str, Callable[[Target], Case]] = {
    f"{name} x{terms}": partial(convolution, name=name, way=way, terms=terms)
    for name, way, terms in (
        ("padded", 0, 3),
        ("padded", 1, 6),
        ("groups of a block", 0, 6),
        ("stem, three lines", 0, 3),
        ("one channel", 1, 6),
        ("taps by phase", 0, 3),
        ("three taps", 1, 6),
    )
}
"""Convolutions by pieces, which need vectors as wide as the registers of matrices are: 16 numbers."""


def failures(cases: int, seed: int, *names: str) -> Iterator[tuple[str, int, str]]:
    """The cases that are wrong: which, by which seed, and why."""
    with pytest.MonkeyPatch.context() as patch:
        target = amx(patch)
        cases_of = [(name, (KINDS | CONVOLUTIONS)[name](target)) for name in names]
        for number in range(cases):
            name, case = cases_of[number % len(cases_of)]
            if problem := case(np.random.default_rng((seed, number))):
                yield name, number, problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="kinds whose names have this in them")
    options = parser.parse_args()
    wide = Target.host().lanes(4) == LANES
    names = [name for name in KINDS | (CONVOLUTIONS if wide else {}) if (options.only or "") in name]
    if not wide:
        print("vectors of this machine are narrower than 16 numbers: no convolutions")
    count = 0
    for count, (name, number, problem) in enumerate(failures(options.cases, options.seed, *names), 1):
        print(f"{name}, case {number}: {problem}")
        if count == 20:
            break
    print(f"{options.cases} cases, {count} wrong")
    return int(count > 0)


if __name__ == "__main__":
    raise SystemExit(main())
