"""Mutants that no test can or should notice, with the reason: `explained.toml` beside this file.

equivalent    the mutant computes the same for every input
hint          it changes how fast something is found or how a text reads, and nothing that anybody relies on
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutate.mutants import Mutant

FILE = Path(__file__).with_name("explained.toml")
KINDS = ("equivalent", "hint")


@dataclass(frozen=True, slots=True)
class Explained:
    """One entry: a mutant by path, function and text, why it lives, and of which kind that is."""

    path: str
    function: str
    before: str
    after: str
    kind: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.path, self.function, self.before, self.after


def read() -> list[Explained]:
    """All entries, in the file's order."""
    rooms = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
    results = []
    for room, entries in rooms.items():
        for e in entries:
            path = f"src/tilewright/{room}/{e['file']}"
            results.append(Explained(path, e["function"], e["before"], e["after"], e["kind"], e["reason"]))
    return results


def find(mutant: Mutant) -> Explained | None:
    return next((e for e in read() if e.key == mutant.key), None)
