"""Records to test with: of a real decision, and of any that hypothesis draws."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.transform.graph.graphs import tensor
from tilewright import ops
from tilewright.ir.graph import GraphBuilder
from tilewright.plans.framework.decision_key import Key, key_of_nodes, target_class
from tilewright.records.record import (
    LEVELS,
    NONE,
    OUTCOMES,
    REGIMES,
    Candidate,
    Difference,
    Gain,
    Policy,
    Provenance,
    Record,
)
from tilewright.targets.target import Target

ZEN4, HASWELL = Target.parse("znver4"), Target.parse("haswell")
POLICY = Policy("paired 1", "cold", "kernel", 11, 5)
PROVENANCE = Provenance("0" * 32, "LLVM 22.1.0", "a machine, 2 cores", "1" * 32, 1_800_000_000)
LABELS = ("direct", "winograd rows=2,tile=4", "winograd rows=2,tile=6")


@cache
def product(rows: int, columns: int = 64, target: Target = ZEN4) -> Key:
    """The key of a decision about a matrix product of `rows` x 32 with 32 x `columns`."""
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(rows, 32)), b.param("w", tensor(32, columns))
    ops.emit1(b, "matmul", x, w)
    return key_of_nodes("algorithm", b.nodes, target)


def record(rows: int = 8, columns: int = 64, target: Target = ZEN4, **changes: Any) -> Record:
    """A record of a product: the third of three settings is 4 % faster than the first."""
    values: dict[str, Any] = {
        "setting": LABELS[2],
        "untuned": LABELS[0],
        "policy": POLICY,
        "candidates": tuple(Candidate(label, "timed", 100.0, (1e-5, 1.1e-5)) for label in LABELS),
        "gain": Gain(1.04, 1.02, 1.06, 55),
        "provenance": PROVENANCE,
    }
    return Record.of(product(rows, columns, target), target, LABELS, **{**values, **changes})


def _settings() -> st.SearchStrategy[str]:
    knobs = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.integers(-9, 1 << 40), max_size=3)
    kinds = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
    return st.builds(
        lambda kind, knobs: " ".join(filter(None, [kind, ",".join(f"{k}={v}" for k, v in knobs.items())])), kinds, knobs
    )


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record about a product."""
    times = st.floats(0.0, 1e6, allow_nan=False)
    texts = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
    labels = draw(st.lists(_settings(), min_size=1, max_size=5, unique=True))
    candidates = tuple(
        Candidate(
            label, draw(st.sampled_from(OUTCOMES)), draw(times), tuple(draw(st.lists(times, max_size=4))), draw(texts)
        )
        for label in labels
    )
    setting, untuned = draw(st.sampled_from(labels)), draw(st.sampled_from(labels))
    low = draw(st.floats(1.0001, 2.0))
    gain = NONE if setting == untuned else Gain(low * 1.5, low, low * 2, draw(st.integers(0, 1 << 20)))
    policy = Policy(
        draw(texts), draw(st.sampled_from(REGIMES)), draw(st.sampled_from(LEVELS)), 3, draw(st.integers(0, 9))
    )
    target = draw(st.sampled_from((ZEN4, HASWELL)))
    return Record.of(
        product(draw(st.integers(1, 40)), target=target),
        target,
        labels,
        setting=setting,
        untuned=untuned,
        policy=policy,
        candidates=candidates,
        gain=gain,
        provenance=Provenance(
            "a" * 32, draw(texts), draw(texts), "b" * 32, draw(st.integers(0, 1 << 39)), author=draw(texts)
        ),
        difference=draw(st.none() | st.builds(Difference, times, times)),
    )


__all__ = ["HASWELL", "LABELS", "PROVENANCE", "POLICY", "ZEN4", "product", "record", "records", "target_class"]
