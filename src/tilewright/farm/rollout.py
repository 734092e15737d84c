"""Channels: which records compiles use. A record enters the canary channel, is measured in production, and is released
or withdrawn automatically.

    signed record -> canary -> paired measurements of models that use it -> stable
                            -> a loss, a wrong result or a worse tail     -> withdrawn

Where a model that uses several records of the canary is slower, all of them go back, and come in again one at a time:
only one that loses by itself is withdrawn. Every change has a line in the history: who, when, what and why.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.farm.canary import Measurement, parse_measurement
from tilewright.farm.state import State, note, touch
from tilewright.farm.tails import tail
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.support.sql import Transaction
from tilewright.tuning.significance import gain

CANARY, STABLE = "canary", "stable"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which records in the canary channel are released or withdrawn.

    Args:
        loadings: processes whose measurements must agree before anything is decided.
        most: the number of processes after which a decision is forced.
        loss: a median below this is a loss once there are `most`.
        tail: how many times longer the slowest hundredth of calls may take: a record goes back if more is shown.
        difference: the largest allowed difference of outputs, relative to their scale.
        hours: the time after which a record that no measured model uses is released.
    """

    loadings: int = 3
    most: int = 6
    loss: float = 0.995
    tail: float = 1.05
    difference: float = 1e-3
    hours: float = 24.0


RULES = Rules()


def enter_canary(state: State, who: str = "service") -> int:
    """Put signed records that are in no channel into the canary channel; returns how many. A record replaces an older
    one about the same decision. Records that were withdrawn together come back one at a time for each class of
    machines. The history says that `who` did it."""
    count = 0
    with state.database.transaction() as t:
        rows = t.rows(
            "SELECT digest, decision, target, median FROM record r WHERE signature <> ''"
            " AND state IN ('confirmed', 'single-host') AND NOT EXISTS"
            " (SELECT 1 FROM channel c WHERE c.digest = r.digest)"
            " AND NOT EXISTS (SELECT 1 FROM channel c JOIN record o ON o.digest = c.digest WHERE"
            " c.decision = r.decision AND c.target = r.target AND (o.time > r.time OR"
            " (o.time = r.time AND o.digest > r.digest)))"
            " ORDER BY time, digest"
        )
        for digest, decision, target, _ in rows:
            put(t, state.clock(), who, CANARY, (str(decision), str(target), str(digest)), "enters the canary")
            count += 1
        count += _try_held(state, t, who)
    return count


def _try_held(state: State, t: Transaction, who: str) -> int:
    """Put one held record of each class of machines whose canary channel is empty into it: records are held if they
    were withdrawn together with others, and are then tried alone. Returns how many; the history says that `who` did
    it."""
    count = 0
    for (target,) in t.rows("SELECT DISTINCT target FROM record WHERE state = 'held'"):
        if t.row("SELECT 1 FROM channel WHERE channel = 'canary' AND target = ?", (target,)) is None:
            row = t.row(
                "SELECT digest, decision FROM record WHERE state = 'held' AND target = ? ORDER BY median, digest",
                (target,),
            )
            if row is not None:
                t.run("UPDATE record SET state = 'trial' WHERE digest = ?", (row[0],))
                about = (str(row[1]), str(target), str(row[0]))
                put(t, state.clock(), who, CANARY, about, "is tried by itself")
                count += 1
    return count


def put(t: Transaction, now: float, who: str, channel: str, about: tuple[str, str, str], why: str) -> None:
    """Put the record `about`, (decision, class of machines, digest), into `channel` in the transaction `t` at time
    `now`, in place of the one about the same decision; the history says who did it and `why`."""
    decision, target, digest = about
    t.run(
        "INSERT INTO channel VALUES (?, ?, ?, ?, ?) ON CONFLICT (channel, decision, target)"
        " DO UPDATE SET digest = excluded.digest, since = excluded.since",
        (channel, decision, target, digest, now),
    )
    touch(t, channel, target)
    note(t, now, who, channel, "enters" if channel == CANARY else "released", about, why)


def take_back(
    t: Transaction, now: float, who: str, channel: str, about: tuple[str, str, str], why: str, state: str = "withdrawn"
) -> bool:
    """Remove the record `about`, (decision, class of machines, digest), from `channel`, set its state to `state`, and
    log that `who` did it at time `now` because of `why`. Returns whether the channel had it."""
    _, target, digest = about
    if not t.run("DELETE FROM channel WHERE channel = ? AND digest = ?", (channel, digest)):
        return False
    t.run("UPDATE record SET state = ? WHERE digest = ?", (state, digest))
    touch(t, channel, target)
    note(t, now, who, channel, "taken back" if state == "withdrawn" else "held", about, why)
    return True


def take_measurement(state: State, content: bytes) -> bool:
    """Store a measurement of a model in production, a request with the body `content`; returns False if it is already
    stored. Raises Error if it cannot be parsed."""
    m = parse_measurement(content)
    with state.database.transaction() as t:
        digests = " ".join(sorted(m.records))
        return bool(
            t.run(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
                (m.name, m.structure, m.target, digests, content.decode(), state.clock()),
            )
        )


def weigh(state: State, rules: Rules = RULES, who: str = "service") -> list[str]:
    """Release or withdraw records in the canary channel by the measurements since they entered it; returns a line of
    text for each decision. `rules` say how much must be measured, and `who` is noted in the history."""
    said = []
    with state.database.transaction() as t:
        now = state.clock()
        rows = t.rows("SELECT decision, target, digest, since FROM channel WHERE channel = 'canary' ORDER BY digest")
        measured = _measured(t, [(str(d), float(since)) for _, _, d, since in rows])
        for decision, target, digest, since in rows:
            if t.row("SELECT 1 FROM channel WHERE channel = 'canary' AND digest = ?", (digest,)) is None:
                continue  # it went back together with another one
            about = (str(decision), str(target), str(digest))
            mine = measured.get(str(digest), [])
            verdict, why = verdict_of(mine, rules)
            if verdict == "bad":
                said += _back(t, now, who, about, mine, why)
            elif verdict == "good" or (not mine and now - float(since) > 3600.0 * rules.hours):
                put(t, now, who, STABLE, about, why or "no measured model uses it")
                t.run("DELETE FROM channel WHERE channel = 'canary' AND digest = ?", (digest,))
                t.run("UPDATE record SET state = 'confirmed' WHERE digest = ? AND state = 'trial'", (digest,))
                touch(t, CANARY, str(target))
                said.append(f"{decision}: released, {why}")
    return said


def _measured(t: Transaction, canary: list[tuple[str, float]]) -> dict[str, list[Measurement]]:
    """Digest of a canary record -> the measurements of models that use it, since it entered the channel."""
    result: dict[str, list[Measurement]] = {}
    if canary:
        since = min(s for _, s in canary)
        came = dict(canary)
        for body, entered in t.rows("SELECT body, entered FROM measurement WHERE entered >= ?", (since,)):
            m = parse_measurement(str(body).encode())
            for digest in m.records:
                if digest in came and float(entered) >= came[digest]:
                    result.setdefault(digest, []).append(m)
    return result


def verdict_of(measured: Iterable[Measurement], rules: Rules) -> tuple[str, str]:
    """The verdict on a record from measurements of models that use it: "good", "bad", or "" while undecided; and the
    reason."""
    by_model: dict[str, list[Measurement]] = {}
    for m in measured:
        by_model.setdefault(m.structure, []).append(m)
    verdicts = [_verdict(of_model, rules) for of_model in by_model.values()]
    for wanted in ("bad", "", "good"):  # one bad model is enough, and all must be good
        for verdict, why in verdicts:
            if verdict == wanted:
                return verdict, why
    return "", ""


def _verdict(measured: list[Measurement], rules: Rules) -> tuple[str, str]:
    worst = max(m.difference for m in measured)
    if worst > rules.difference:
        return "bad", f"outputs differ by {worst:.1e} of their scale"
    if len(measured) < rules.loadings:
        return "", ""
    shown = gain([m.ratios for m in measured])
    slowest = tail([m.both() for m in measured])
    if shown.high < 1.0:
        return "bad", f"{shown} of the calls' speed"
    if slowest.low > rules.tail and len(measured) >= rules.most:
        return "bad", f"the slowest hundredth of calls takes {slowest} times as long"
    if shown.low > 1.0 and slowest.median <= rules.tail:
        return "good", f"{shown} times as fast in {len(measured)} processes"
    if len(measured) < rules.most:
        return "", ""
    if shown.median < rules.loss:
        return "bad", f"{shown}: no gain after {len(measured)} processes"
    return "good", f"{shown}: no loss in {len(measured)} processes"


def _back(
    t: Transaction, now: float, who: str, about: tuple[str, str, str], measured: list[Measurement], why: str
) -> list[str]:
    """Remove the record `about` from the canary channel, with all canary records in `measured`, the measurements that
    showed a loss: a single record is withdrawn, several are held, to be tried one by one later. `now`, `who` and `why`
    go to the log. Returns a description of each removal in words."""
    together = {digest for m in measured for digest in m.records}
    rows = [
        (str(d), str(c), str(n))
        for d, c, n in t.rows("SELECT decision, target, digest FROM channel WHERE channel = 'canary'")
        if str(n) in together
    ]
    state = "withdrawn" if len(rows) <= 1 else "held"
    said = []
    for row in rows or [about]:
        if take_back(t, now, who, CANARY, row, why, state):
            said.append(f"{row[0]}: {'taken back' if state == 'withdrawn' else 'held, together with others'}, {why}")
    return said


def roll_back(state: State, digest: str, who: str, why: str) -> int:
    """Withdraw the record `digest` from all channels on an operator's order, for the log with `who` and `why`; returns
    from how many channels."""
    count = 0
    with state.database.transaction() as t:
        rows = t.rows("SELECT channel, decision, target, digest FROM channel WHERE digest = ?", (digest,))
        for channel, decision, target, name in rows:
            about = (str(decision), str(target), str(name))
            count += take_back(t, state.clock(), who, str(channel), about, why)
    return count


def release(state: State, digest: str, who: str, why: str) -> None:
    """Move the record `digest` from the canary channel to the stable one on an operator's order, for the log with `who`
    and `why`. Raises Error if it is not in the canary."""
    with state.database.transaction() as t:
        row = t.row("SELECT decision, target FROM channel WHERE channel = 'canary' AND digest = ?", (digest,))
        if row is None:
            raise Error("no such record in the canary", where=digest)
        put(t, state.clock(), who, STABLE, (str(row[0]), str(row[1]), digest), why)
        t.run("DELETE FROM channel WHERE channel = 'canary' AND digest = ?", (digest,))
        touch(t, CANARY, str(row[1]))


__all__ = [
    "Rules",
    "enter_canary",
    "put",
    "release",
    "roll_back",
    "take_back",
    "take_measurement",
    "verdict_of",
    "weigh",
]
