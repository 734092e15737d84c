"""Records: what is written is read back, what is damaged or not consistent is refused, naming what."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.plans.framework.test_decisions import model
from tests.records.samples import LABELS, ZEN4, product, record, records
from tilewright.ir.key import key
from tilewright.plans.framework.decision_key import key_of_function, target_class
from tilewright.plans.framework.space import space_digest
from tilewright.records.record import (
    NONE,
    Candidate,
    Gain,
    Record,
    from_bytes,
    parse_workload,
    rounded,
)
from tilewright.support.errors import RecordError
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group


@given(records())
def test_what_is_written_is_read_back(result: Record) -> None:
    assert from_bytes(result.to_bytes()) == result
    assert result.digest == from_bytes(result.to_bytes()).digest


def test_a_record_knows_its_decision() -> None:
    result, about = record(), product(8)
    assert (result.decision, result.kind, result.threads) == (about.name, "algorithm", 1)
    assert result.target == target_class(ZEN4)
    assert result.about == "matmul(f32[8, 32], f32[32, 64])"
    assert result.key() == about
    assert key(parse_workload(result.workload)) == key(about.program)  # type: ignore[arg-type]
    assert result.space == space_digest(reversed(LABELS)) != space_digest(LABELS[1:])
    assert result.measured == LABELS


def test_a_kernel_is_retained_as_a_function() -> None:
    (group,) = fuse(model((1, 16, 16, 12, 3, 1, 1)))
    about = key_of_function(lower_group(group, "k").func, ZEN4)
    result = Record.of(
        about,
        ZEN4,
        ["direct rows=4"],
        setting="direct rows=4",
        untuned="direct rows=4",
        candidates=(),
        gain=NONE,
        policy=record().policy,
        provenance=record().provenance,
    )
    assert result.kind == "plan" and result.workload.startswith("func @k(")
    assert from_bytes(result.to_bytes()).key() == about


def test_a_changed_workload_is_noticed() -> None:
    result = record()
    other = replace(result, workload=result.workload.replace("f32[8, 32]", "f32[9, 32]"))
    with pytest.raises(RecordError, match=r"workload does not parse|not the one that was decided about"):
        other.key()
    with pytest.raises(RecordError, match="the workload does not parse"):
        replace(result, workload="graph @a(").key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decision": "plan 12"}, "record: decision: 'plan 12' is none"),
        ({"target": "../../etc threads=1"}, "record: target: .* is none"),
        ({"target": "x86_64 znver4 threads=0"}, "record: target"),
        ({"setting": "winograd tile=x"}, "record: setting: 'winograd tile=x' is no setting"),
        ({"untuned": "Direct"}, "record: untuned"),
        ({"target": "x86_64 _znver4 threads=1"}, "record: target"),
        ({"space": "0" * 31}, "record: space: .* is no digest"),
        ({"about": "a\x1b[2J"}, "record: about: .*cannot be printed"),
        ({"workload": "a\x00"}, "record: workload"),
        ({"gain": Gain(1.04, 0.99, 1.1, 55)}, "record: gain: .*not verified to be faster"),
        ({"gain": Gain(1.04, 1.05, 1.1, 55)}, "record: gain: not an interval"),
        ({"candidates": (Candidate("a", "timed", 1.0),) * 2}, "record: candidates: a setting stands twice"),
        ({"candidates": (Candidate("a", "lost", 1.0),)}, r"record: candidates\[0\].outcome: 'lost' is none of timed"),
        ({"candidates": (Candidate("a", "timed", 1.0, (-1.0,)),)}, r"record: candidates\[0\]: times"),
        ({"version": 2}, "record: version: of version 2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_consistent_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        record(**change) if change.keys() <= {"setting", "untuned", "gain", "candidates"} else replace(
            record(), **change
        )


def test_all_that_is_wrong_is_listed() -> None:
    with pytest.raises(RecordError) as error:
        replace(record(), decision="", space="", version=7)
    assert len(error.value.problems) == 3


def _json(**changes: Any) -> bytes:
    data = json.loads(record().to_bytes())
    return (json.dumps(data | changes, separators=(",", ":"), sort_keys=True) + "\n").encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "expected an object, got list"),
        (b" " * (1 << 20) + b"1", "too large"),
        (b"1" * 5000, "not JSON|expected an object"),
        (_json(more=1), r"unknown fields \['more'\]"),
        (_json(setting=3), "record.setting: expected str, got int"),
        (_json(gain=None), "record.gain: expected an object, got NoneType"),
        (_json(version=True), "record.version: expected int, got bool"),
        (record().to_bytes() + b"\n", "not in the canonical form"),
        (record().to_bytes().replace(b'"version":1', b'"version":1,"version":1'), "not in the canonical form"),
        (record().to_bytes().replace(b'"median":1.04', b'"median":1e999'), "expected a finite float, got inf"),
        (record().to_bytes().replace(b'"median":1.04', b'"median":NaN'), "expected a finite float, got nan"),
        (record().to_bytes().replace(b'"median":1.04', b'"median":1'), "expected a finite float, got int"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else "",
)
def test_foreign_content_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        from_bytes(content)


def test_times_are_short() -> None:
    assert rounded(1.23456789e-5) == 1.235e-5
