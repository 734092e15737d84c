"""Many publishes: does anything grow?"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness import markdown_table
from benchmarks.live.common import Child, program, store_folder

MARKS = 4
GROWTH_BAR = 1 << 20
"""Bytes of the process's own memory that a whole run may add; files may add none."""


@dataclass(frozen=True, slots=True)
class ChurnRow:
    """A publisher and an actor in one process, after some publishes."""

    policy: str
    publishes: int
    seconds: float
    own: int  # anonymous memory
    resident: int
    shared: int  # bytes of the store's files that are in memory
    files: int
    descriptors: int

    def cells(self) -> list[object]:
        return [
            self.policy, self.publishes, f"{self.publishes / self.seconds:.0f}" if self.seconds else "-",
            f"{self.own / 1e6:.2f}", f"{self.resident / 1e6:.2f}", f"{self.shared / 1e6:.2f}", self.files,
            self.descriptors,
        ]  # fmt: skip


def measure(policy: str, publishes: int) -> list[ChurnRow]:
    """A row before and at each part of the publishes; the first 1,000 count as warming up."""
    with store_folder(), Child("churn", program=str(program(policy)), publishes=publishes, marks=MARKS) as child:
        return [ChurnRow(policy=policy, **child.receive(1200.0)) for _ in range(MARKS + 1)]


def is_flat(rows: list[ChurnRow]) -> bool:
    first, last = min(rows, key=lambda row: row.publishes), max(rows, key=lambda row: row.publishes)
    same = (first.shared, first.files, first.descriptors) == (last.shared, last.files, last.descriptors)
    return same and last.own - first.own <= GROWTH_BAR


def as_text(rows: list[ChurnRow]) -> str:
    header = ["policy", "publishes", "per second", "own MB", "resident MB", "store MB", "files", "descriptors"]
    text = markdown_table(header, [row.cells() for row in rows])
    verdict = "flat" if is_flat(rows) else "it grows"
    return text + f"\nPublisher and actor in one process; judged: {verdict}.\n"
