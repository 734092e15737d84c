"""Views of the state, for people and clients: the dashboard's data, the history, and look-ups of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.farm.canary import parse_measurement
from tilewright.farm.state import State
from tilewright.identity import code_version
from tilewright.records.signed import Signed
from tilewright.support.sql import Row, Transaction
from tilewright.tuning.significance import gain

ROWS = 100
"""The most lines of a table that are shown."""
AT_ONCE = 500
"""The most decisions in one SQL statement."""
ALIVE_SECONDS = 180.0


def status(state: State) -> dict[str, Any]:
    """All data that the dashboard shows, as JSON values."""
    now = state.clock()
    with state.database.reading() as t:
        return {
            "time": now,
            "compiler": code_version(),
            "queue": {str(s): int(n) for s, n in t.rows("SELECT state, COUNT(*) FROM job GROUP BY state")},
            "jobs": [_job(r) for r in t.rows(_JOBS, (ROWS,))],
            "workers": [_worker(r, now) for r in t.rows(_WORKERS, (ROWS,))],
            "gains": [_gain(r) for r in t.rows(_GAINS, (ROWS,))],
            "records": {str(s): int(n) for s, n in t.rows("SELECT state, COUNT(*) FROM record GROUP BY state")},
            "stale": _one(t, "SELECT COUNT(*) FROM record WHERE compiler <> ?", (code_version(),)),
            "models": [_model(r) for r in t.rows(_MODELS, (ROWS,))],
            "measurements": [_measurement(r) for r in t.rows(_MEASUREMENTS, (ROWS,))],
            "cost": _cost(t, now),
            "history": _history(t),
        }


def jobs(state: State, most: int = ROWS) -> list[dict[str, Any]]:
    """Jobs: running ones first, then waiting ones, the most urgent first, then the rest."""
    with state.database.reading() as t:
        return [_job(r) for r in t.rows(_JOBS, (most,))]


def workers(state: State) -> list[dict[str, Any]]:
    """The workers of the farm as JSON objects, the one seen last first."""
    with state.database.reading() as t:
        return [_worker(r, state.clock()) for r in t.rows(_WORKERS, (ROWS,))]


def channels(state: State) -> list[dict[str, Any]]:
    """The records in the channels as JSON objects."""
    with state.database.reading() as t:
        return [_gain(r) for r in t.rows(_GAINS, (ROWS,))]


def history(state: State, most: int = ROWS) -> list[dict[str, Any]]:
    """The last `most` changes of channels and records as JSON objects, the newest first."""
    with state.database.reading() as t:
        return _history(t, most)


def lookup(state: State, channel: str, target: str, decisions: Sequence[str]) -> list[Signed]:
    """The signed records of a channel about decisions of a class of machines, read in one transaction."""
    results = []
    with state.database.reading() as t:
        for start in range(0, len(decisions), AT_ONCE):
            part = list(decisions[start : start + AT_ONCE])
            # The last one is repeated up to a power of two, so that few statements are prepared, and stay so.
            part = [*part, *[part[-1]] * ((1 << (len(part) - 1).bit_length()) - len(part))]
            marks = ", ".join("?" * len(part))
            rows = t.rows(
                "SELECT r.content, r.signature FROM channel c JOIN record r ON r.digest = c.digest"
                f" WHERE c.channel = ? AND c.target = ? AND c.decision IN ({marks})",
                (channel, target, *part),
            )
            results += [Signed(bytes(content), str(signature)) for content, signature in rows]
    return results


_JOBS = (
    "SELECT name, kind, target, decision, priority, state, tries, worker, spent, why FROM job"
    " ORDER BY CASE state WHEN 'leased' THEN 0 WHEN 'queued' THEN 1 WHEN 'failed' THEN 2 ELSE 3 END,"
    " priority DESC, finished DESC LIMIT ?"
)
_WORKERS = (
    "SELECT name, host, target, noise, neighbours, ghz, state, why, seen, done, spent FROM worker"
    " ORDER BY seen DESC LIMIT ?"
)
_GAINS = (
    "SELECT c.channel, c.decision, c.target, r.setting, r.untuned, r.median, r.low, r.high, r.digest, r.state,"
    " r.compiler,"
    " (SELECT MIN(s.about) FROM site s WHERE s.decision = c.decision AND s.target = c.target)"
    " FROM channel c JOIN record r ON r.digest = c.digest ORDER BY c.channel, r.median DESC LIMIT ?"
)
_MODELS = (
    "SELECT w.name, w.label, w.target, w.compiles, w.calls, w.seconds, COUNT(s.decision),"
    " SUM(CASE WHEN EXISTS (SELECT 1 FROM record r WHERE r.decision = s.decision AND r.target = s.target"
    " AND r.compiler = w.compiler) THEN 1 ELSE 0 END),"
    " SUM(CASE WHEN EXISTS (SELECT 1 FROM channel c WHERE c.decision = s.decision AND c.target = s.target"
    " AND c.channel = 'stable') THEN 1 ELSE 0 END)"
    " FROM workload w LEFT JOIN site s ON s.workload = w.name"
    " GROUP BY w.name, w.label, w.target, w.compiles, w.calls, w.seconds ORDER BY w.calls * w.seconds DESC LIMIT ?"
)
_MEASUREMENTS = "SELECT body, entered FROM measurement ORDER BY entered DESC LIMIT ?"


def _job(r: Row) -> dict[str, Any]:
    names = ("name", "kind", "target", "decision", "priority", "state", "tries", "worker", "spent", "why")
    return dict(zip(names, r, strict=True))


def _worker(r: Row, now: float) -> dict[str, Any]:
    names = ("name", "host", "target", "noise", "neighbours", "ghz", "state", "why", "seen", "done", "spent")
    values = dict(zip(names, r, strict=True))
    return {**values, "alive": now - float(values["seen"]) < ALIVE_SECONDS}


def _gain(r: Row) -> dict[str, Any]:
    names = ("channel", "decision", "target", "setting", "untuned", "median", "low", "high", "record", "state")
    values = dict(zip((*names, "compiler", "about"), r, strict=True))
    return {**values, "stale": values.pop("compiler") != code_version(), "about": values["about"] or ""}


def _model(r: Row) -> dict[str, Any]:
    names = ("name", "label", "target", "compiles", "calls", "seconds", "decisions", "tuned", "released")
    return dict(zip(names, (x if x is not None else 0 for x in r), strict=True))


def _measurement(r: Row) -> dict[str, Any]:
    m = parse_measurement(str(r[0]).encode())
    shown = gain([m.ratios])
    rest = {"tail": m.tail, "difference": m.difference, "calls": m.calls, "entered": r[1], "records": len(m.records)}
    return {"label": m.label or m.structure[:12], "median": shown.median, "low": shown.low, "high": shown.high, **rest}


def _history(t: Transaction, most: int = ROWS) -> list[dict[str, Any]]:
    names = ("time", "who", "channel", "action", "decision", "target", "record", "why")
    rows = t.rows(
        "SELECT time, who, channel, action, decision, target, digest, why FROM history ORDER BY number DESC LIMIT ?",
        (most,),
    )
    return [dict(zip(names, r, strict=True)) for r in rows]


def _cost(t: Transaction, now: float) -> dict[str, Any]:
    """The costs and savings of tuning: core-seconds that jobs took, core-seconds a day that the stable channel's
    records save (verified gains times production's time), and days until the savings equal the costs."""
    spent = float(_one(t, "SELECT COALESCE(SUM(spent), 0) FROM job WHERE state = 'done'") or 0.0)
    row = t.row(
        "SELECT SUM(w.calls * w.seconds * s.share * (1 - 1 / r.median)) FROM channel c"
        " JOIN record r ON r.digest = c.digest JOIN site s ON s.decision = c.decision AND s.target = c.target"
        " JOIN workload w ON w.name = s.workload WHERE c.channel = 'stable'"
    )
    first = t.row("SELECT MIN(seen) FROM workload")
    days = 1.0 if first is None or first[0] is None else max(1.0, (now - float(first[0])) / 86400.0)
    saved = float(row[0] or 0.0) / days if row is not None else 0.0
    return {"spent": spent, "saved_a_day": saved, "days_to_pay_back": spent / saved if saved > 0 else None}


def _one(t: Transaction, statement: str, values: Sequence[Any] = ()) -> Any:
    row = t.row(statement, values)
    return None if row is None else row[0]


__all__ = ["channels", "history", "jobs", "lookup", "status", "workers"]
