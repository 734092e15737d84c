"""The use of tuning records in a program's decisions: part of its manifest, so that users can see it, and that
compiling the model again can repeat the decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tilewright.support.classes import dataclass

STATES = ("used", "unverified", "unusable")
"""States of a record's use. used: its setting was chosen; unverified: it was chosen although it was measured with
another compiler or among other candidates, since the estimates agree with it; unusable: it was not chosen."""


@dataclass(frozen=True, slots=True)
class RecordUse:
    """The use of a tuning record by a decision.

    Args:
        decision: the name of the decision's key.
        setting: the label of the setting that the record recommends.
        record: the digest of the record.
        state: one of `STATES`.
        why: the reason for another state than "used"; else "".
    """

    decision: str
    setting: str
    record: str
    state: str
    why: str = ""


def summary(uses: Iterable[RecordUse]) -> str:
    """A summary in words: "41 used, 3 unverified, 2 unusable (not among the settings here)"."""
    results = list(uses)
    counts = Counter(use.state for use in results)
    parts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
    reasons = Counter(use.why for use in results if use.state == "unusable")
    if reasons:
        texts = [f"{why}" if count == 1 else f"{why}: {count}" for why, count in reasons.most_common()]
        parts[-1] += f" ({'; '.join(texts)})"
    return ", ".join(parts) or "none"


def describe(uses: Iterable[RecordUse]) -> str:
    """Text about the uses of tuning records: the summary, and a line for each of `uses`."""
    results = list(uses)
    lines = [f"records: {summary(results)}"]
    for use in results:
        why = f" ({use.why})" if use.why else ""
        lines.append(f"  {use.decision}: {use.setting}, {use.state}{why}, record {use.record}")
    return "\n".join(lines)
