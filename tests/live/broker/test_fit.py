"""Programs that can be batched and how they lie in a ring, without a broker: options, programs, tensors, answers of
rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.live.broker.fit import MAX_LANES, check_options, check_rows, ring_spec
from tilewright.live.broker.ring import MAX_ROWS, Ring, RingSpec, RingTensor, shape_of
from tilewright.live.broker.server import _resume
from tilewright.live.broker.structs import CLAIMED, MAX_SLOTS, READY, READY_AT, SLOT, SLOT_DATA
from tilewright.runtime.specs import InputSpec, OutputSpec, SymbolSpec
from tilewright.support.errors import BrokerError

GOOD: dict[str, Any] = {"max_batch": 8, "max_wait": 0.001, "agents": 4, "rows": 2, "lanes": 1}


@dataclass(frozen=True)
class Declared:
    """The part of a program's manifest that is asked for, whether such a program could be made or not."""

    symbols: tuple[SymbolSpec, ...] = (SymbolSpec("n"),)
    inputs: tuple[InputSpec, ...] = (InputSpec("obs", "f32", ("n", 17)), InputSpec("h", "f16", (2, "n", 3)))
    outputs: tuple[OutputSpec, ...] = (OutputSpec("y", "f32", ("n", 3)), OutputSpec("best", "i64", ("n",)))
    name: str = "policy"
    structure_key: str = "key"


MANIFEST = Declared()


def ring(manifest: Declared) -> RingSpec:
    return ring_spec(manifest, agents=4, rows=2, max_batch=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "most"), [("max_batch", MAX_ROWS), ("agents", MAX_SLOTS), ("rows", MAX_ROWS), ("lanes", MAX_LANES)]
)
def test_limits_of_options(name: str, most: int) -> None:
    options = {**GOOD, "max_batch": MAX_ROWS} if name == "rows" else {**GOOD, "rows": 1}
    for value in (1, most, np.int32(1)):
        check_options(**{**options, name: value})
    for value in (0, most + 1, True, 1.0, "1", None):
        with pytest.raises(BrokerError, match=f"{name}: cannot be had: expected 1 to {most}, got"):
            check_options(**{**options, name: value})


def test_limits_of_waiting_and_of_requests() -> None:
    for wait in (0, 0.5, 10, 10.0):
        check_options(**{**GOOD, "max_wait": wait})
    for value in (-1e-9, 10.001, math.nan, "1"):
        with pytest.raises(BrokerError, match="max_wait: cannot be had: expected 0 to 10 seconds"):
            check_options(**{**GOOD, "max_wait": value})
    check_options(**{**GOOD, "rows": 8})
    with pytest.raises(BrokerError, match="rows: does not fit into a batch: expected at most 8, got 9"):
        check_options(**{**GOOD, "rows": 9})
    with pytest.raises(BrokerError) as caught:  # what one option has to do with another comes last
        check_options(**{**GOOD, "rows": 9, "lanes": 0})
    assert [p.where for p in caught.value.each()] == ["lanes"]


def test_the_ring_of_a_program() -> None:
    spec = ring(MANIFEST)
    assert (spec.name, spec.structure_key, spec.slots, spec.rows, spec.symbol) == ("policy", "key", 4, 2, "n")
    assert [t.name for t in spec.inputs] == ["obs", "h"] and [t.name for t in spec.outputs] == ["y", "best"]
    assert [(t.axis, t.outer, t.inner, t.row_bytes) for t in spec.tensors] == [
        (0, 1, 68, 68), (1, 2, 6, 12), (0, 1, 12, 12), (0, 1, 8, 8),
    ]  # fmt: skip
    assert [shape_of(t, 5) for t in spec.tensors] == [(5, 17), (2, 5, 3), (5, 3), (5,)]
    # Each tensor's two rows begin in a cache line of their own: 136, 24, 24 and 16 bytes.
    assert spec.offsets == (SLOT_DATA, SLOT_DATA + 192, SLOT_DATA + 256, SLOT_DATA + 320, SLOT_DATA + 384)
    assert spec.slot_size % 128 == 64 and spec.slot_size >= spec.offsets[-1]
    assert spec.slots_at % 4096 == 0 and spec.size >= spec.slots_at + 4 * spec.slot_size


@pytest.mark.parametrize(
    ("symbol", "said"),
    [
        (SymbolSpec("n", lo=2), "2 to 2147483647 by 1"),
        (SymbolSpec("n", multiple=2), "1 to 2147483647 by 2"),
        (SymbolSpec("n", hi=7), "1 to 7 by 1"),
    ],
)
def test_batches_of_any_size_are_needed(symbol: SymbolSpec, said: str) -> None:
    with pytest.raises(BrokerError, match=f"the batch is restricted: expected n from 1 to 8, got {said}"):
        ring(replace(MANIFEST, symbols=(symbol,)))
    ring(replace(MANIFEST, symbols=(SymbolSpec("n", lo=0, hi=8),)))


def test_programs_that_cannot_be_batched() -> None:
    for symbols in ((), (SymbolSpec("n"), SymbolSpec("m"))):
        with pytest.raises(BrokerError, match=r"expected one symbolic dimension, got \["):
            ring(replace(MANIFEST, symbols=symbols))
    wrong = replace(
        MANIFEST,
        inputs=(InputSpec("a", "f32", (3, 4)), InputSpec("b", "f32", ("n", "n")), InputSpec("c", "f32", ("n",), True)),
        outputs=(OutputSpec("d", "f32", ("m", 2)), OutputSpec("e", "f32", ("n",))),
    )
    with pytest.raises(BrokerError) as caught:
        ring(wrong)
    assert [(p.where, p.what) for p in caught.value.each()] == [
        ("program 'policy': input 'a'", "is not one row of a batch for each agent"),
        ("program 'policy': input 'b'", "is not one row of a batch for each agent"),
        ("program 'policy': input 'c'", "is written to by the program"),
        ("program 'policy': output 'd'", "is not one row of a batch for each agent"),
    ]


class Rows:
    """A model of one input and one output of a function on whole batches; remembers what it was asked."""

    def __init__(self, function: Any, shape: Any = None) -> None:
        self.function, self.shape = function, shape
        self.asked: list[Any] = []
        self.sizes: list[int] = []

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(inputs["x"])
        return {"y": self.function(inputs["x"])}

    def empty_outputs(self, x: Any) -> dict[str, Any]:
        self.sizes.append(len(x))
        return {"y": np.empty(self.shape(len(x)) if self.shape else self.function(x).shape)}


def spec_of(kind: str = "f32", out: str = "f32") -> RingSpec:
    shape = ("n", 4)
    return RingSpec("p", "k", (RingTensor("x", kind, shape),), (RingTensor("y", out, shape),), 2, 2)


def checked(function: Any, kind: str = "f32", out: str = "f32", batch: int = 8) -> Rows:
    model = Rows(function)
    check_rows(model, spec_of(kind, out), batch)  # type: ignore[arg-type]
    return model


def test_rows_that_are_their_own() -> None:
    model = checked(lambda x: np.tanh(x))
    assert sorted(model.sizes) == [3, 8] and [len(x) for x in model.asked] == [3, 1, 1, 1]
    together, *alone = model.asked
    assert together.dtype == np.float32 and len(np.unique(together)) == 12
    np.testing.assert_array_equal(np.concatenate(alone), together)
    assert checked(np.tanh, batch=1).sizes == [1]
    checked(lambda x: x + np.float32(1e-4) * x.mean(0))  # as much as roundings differ, and more
    checked(lambda x: np.where(x > 0.5, np.nan, x))
    checked(lambda x: np.where(x > 0.5, np.inf, -x))
    checked(lambda x: x * 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(0),
        lambda x: x + np.float32(0.05) * x[::-1],
        lambda x: np.where(x == x.max(0), np.nan, x),
        lambda x: np.where(x == x.max(0), np.inf, x),
    ],
)
def test_rows_that_look_at_each_other(function: Any) -> None:
    with pytest.raises(
        BrokerError, match=r"program 'p': output 'y': a row's answer depends on the other rows: got row "
    ):
        checked(function)


def test_examples_that_hold_for_any_table() -> None:
    """Indices are zeros, bytes are any; what is best of nearly equal ones is not compared."""
    assert all(not x.any() for x in checked(lambda x: x.astype(np.float32), "i64").asked)
    assert checked(lambda x: x.astype(np.float32), "u8").asked[0].any()
    checked(lambda x: np.argsort(x, 0), out="i64")
    assert checked(lambda x: x.astype(np.float32), "f16").asked[0].dtype == np.float16


def test_shapes_are_those_that_are_stated() -> None:
    for shape in (lambda n: (n,), lambda n: (n + 1, 4), lambda n: (3, 4)):
        model = Rows(np.tanh, shape)
        with pytest.raises(BrokerError, match=r"output 'y': is not one row of a batch for each agent: got \[.*\] for "):
            check_rows(model, spec_of(), 8)  # type: ignore[arg-type]


def test_an_adopted_ring_repeats_its_requests(tmp_path: Path) -> None:
    """The requests that stand in the ring, and those that the last server had begun, are ready, with their bits;
    nothing else is."""
    tensor = RingTensor("x", "f32", ("n", 2))
    ring = Ring.create(tmp_path / "ring", RingSpec("policy", "key", (tensor,), (tensor,), slots=70, rows=2))
    states = {0: READY, 1: CLAIMED, 3: READY, 65: CLAIMED, 69: READY}
    for k, state in states.items():
        ring.words[(ring.slot(k) - ring.address + SLOT.state) >> 3] = state
    idle = ring.slot_word(2, SLOT.state)
    _resume(ring)
    assert [ring.slot_word(k, SLOT.state) for k in ring.indices()] == [
        READY if k in states else idle for k in range(70)
    ]
    words = [int(w) & (1 << 64) - 1 for w in ring.words[READY_AT >> 3 : (READY_AT >> 3) + 2]]
    assert words == [0b1011, 1 << 1 | 1 << 5]
    ring.close()
