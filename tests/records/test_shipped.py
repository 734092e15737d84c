"""The records that the package brings: sound, small, found by machines of their class, and still of use.

Shipped records rot silently: who changes a plan's labels, an operator's attributes or an estimate makes them miss, and
nothing else fails. `STAND` counts those that a compile takes; it goes down on purpose only.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.ir.expr import as_int
from tilewright.ir.graph import Graph
from tilewright.records import places
from tilewright.records.check import checked
from tilewright.records.places import SHIPPED, stores
from tilewright.records.record import Record, parse_workload
from tilewright.records.store import Store, read
from tilewright.runtime.examples import random_inputs
from tilewright.targets.target import Target

STAND = 1
"""Shipped records that a compile takes. Raise it with each that is added."""
MAX_BYTES = 256 << 10
"""The most bytes of all records: every installation carries them."""
L2 = {"znver4": 1 << 20, "x86-64-v3": 1 << 20}
"""The second level of the machines of a class, where it is not what the target's name says."""

FILES = sorted(SHIPPED.glob("*/*.json"))
ROOT = Path(__file__).parents[2]


def machine(record: Record) -> Target:
    """A machine of the class that a record is about, wherever the test runs."""
    name = record.target.split(" ")[1]
    entry = Target.parse(name).adjusted(l2=L2.get(name, Target.parse(name).l2))
    assert f"{entry.kind} threads={record.threads}" == record.target, "no machine is of this class any more"
    return replace(entry, threads=record.threads)


def state(record: Record) -> tuple[str, str]:
    """The state of a record in a compile of nothing but the decision's workload, and why."""
    program = parse_workload(record.workload)
    if not isinstance(program, Graph):
        verdict = checked(record, machine(record))
        return verdict.state, verdict.why
    graph = replace(program, inputs=program.inputs[:1], params=program.inputs[1:])
    specs = [_Spec(v.name, v.type.dtype.name, tuple(as_int(d) or 1 for d in v.type.shape)) for v in graph.params]
    model = tw.compile_program((graph, random_inputs(specs, {})), target=machine(record), records=SHIPPED)
    uses = [use for use in model.manifest.records if use.decision == record.decision]
    return (uses[0].state, uses[0].why) if uses else ("unusable", "no such decision is made")


class _Spec:
    def __init__(self, name: str, dtype: str, shape: tuple[int | str, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem[:8])
def test_each_is_sound_and_a_verified_gain(path: Path) -> None:
    record = read(path)
    assert path == Store(SHIPPED).path(record.digest, record.target)
    assert record.setting != record.untuned and record.gain.median > 1.01 and record.gain.low > 1.0
    assert record.key().name == record.decision
    assert not record.provenance.author


def test_they_are_small_and_no_decision_has_two() -> None:
    records = [read(path) for path in FILES]
    assert sum(path.stat().st_size for path in FILES) <= MAX_BYTES
    assert len({(r.decision, r.target) for r in records}) == len(records)


def test_they_still_stand() -> None:
    said = {path.stem: state(read(path)) for path in FILES}
    standing = [name for name, (candidate, _) in said.items() if candidate in ("used", "unverified")]
    assert len(standing) >= STAND, f"shipped records have rotted: {said}"


def test_the_package_carries_them() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tilewright"]
    package = ROOT / "src" / "tilewright"
    carried = {path for pattern in data for path in package.glob(pattern)}
    assert set(FILES) <= carried and FILES


def test_they_are_the_last_place_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_RECORDS", raising=False)
    assert [s.folder for s in stores()][-1] == places.SHIPPED and len(stores()) == 2
    assert stores(None) == ()
    monkeypatch.setenv("TILEWRIGHT_RECORDS", "none")
    assert stores() == ()
