"""Results of workers: checked, confirmed by a second host where there is one, and signed.

    worker's result -> candidate -> a second host of the class races it -> confirmed, or refused
                                 -> no second host within the grace time -> single-host

Only the service has the private key: it signs a record when its claim was confirmed, or when it is marked as measured
on one host alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tilewright.farm.queue import Job, Queue, Wanted, job_name
from tilewright.farm.state import State, note
from tilewright.farm.work import Outcome, parse_outcome
from tilewright.records.record import Record, content_digest, from_bytes
from tilewright.records.signed import SigningKey
from tilewright.support.errors import Error
from tilewright.support.sql import Transaction

GRACE_SECONDS = 600.0
"""Seconds for which a record waits for confirmation by a second host of its class."""
CONFIRM_FIRST = 1e9
"""The priority of confirmations, above that of searches: an actual finding is worth more than a possible one."""
STATES = ("tie", "candidate", "confirmed", "single-host", "refused", "withdrawn")


def deliver(state: State, queue: Queue, job: Job, worker: str, host: str, text: str) -> bool:
    """Store the result `text` of `job`, reported by `worker` on `host`; False if the job was done before. Raises Error
    for an implausible result, without changing anything."""
    outcome = parse_outcome(text)
    records = [_checked(job, content) for content in outcome.records]

    def effect(t: Transaction) -> str:
        if job.kind == "confirm":
            _confirmed(state, t, job, outcome, worker, host)
        for record in records:
            enter(state, queue, t, record, host, job.name)
        return outcome.why

    return queue.finish(job, worker, outcome.spent, effect)


def _checked(job: Job, content: str) -> Record:
    """The record in `content`, a worker's result for `job`. Raises Error unless it is valid, and about the job's class
    of machines, compiler and program."""
    try:
        record = from_bytes(content.encode("ascii"))
    except UnicodeEncodeError:
        raise Error("a result has a record that is no record") from None
    compiler = json.loads(job.body).get("compiler")
    if job.kind != "tune" or record.target != job.target or record.compiler != compiler:
        raise Error("a result has a record about something else", expected=job.target, got=record.target)
    record.key()
    return record


def enter(state: State, queue: Queue, t: Transaction, record: Record, host: str, job: str) -> bool:
    """Add a record, measured on `host` by `job`, to the state, and queue its confirmation by a second host if it claims
    a gain; returns whether it is new."""
    content = record.to_bytes()
    digest, gain = content_digest(content), record.gain
    better = record.setting != record.untuned
    new = t.run(
        "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING",
        (
            *(digest, record.decision, record.target, record.compiler, record.setting, record.untuned),
            *(gain.median, gain.low, gain.high, record.time, content),
            *("candidate" if better else "tie", host, job, state.clock()),
        ),
    )
    if new and better:
        body = json.dumps({"record": content.decode("ascii"), "digest": digest, "compiler": record.compiler})
        name = job_name("confirm", digest)
        wanted = Wanted(name, "confirm", record.target, record.decision, record.compiler, body, CONFIRM_FIRST, host)
        queue.add(t, wanted)
    return bool(new)


def _confirmed(state: State, t: Transaction, job: Job, outcome: Outcome, worker: str, host: str) -> None:
    digest = str(json.loads(job.body)["digest"])
    states = {"confirmed": "confirmed", "refused": "refused"}
    now = states.get(outcome.verdict)
    same = t.row("SELECT 1 FROM record WHERE digest = ? AND host = ?", (digest, host)) is not None
    if now is None or (now == "confirmed" and same):  # the first host's measurement stands alone
        now = "single-host"
    t.run("UPDATE record SET state = ? WHERE digest = ? AND state IN ('candidate', 'single-host')", (now, digest))
    note(t, state.clock(), worker, "", now, (job.decision, job.target, digest), outcome.why)


def mark_single(state: State, grace: float = GRACE_SECONDS) -> int:
    """Mark candidates as single-host if no worker on another host confirmed them within `grace` seconds; returns how
    many."""
    count = 0
    with state.database.transaction() as t:
        now = state.clock()
        rows = t.rows(
            "SELECT r.digest, r.decision, r.target FROM record r WHERE r.state = 'candidate' AND r.entered < ?"
            " AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.target = r.target AND w.host <> r.host"
            " AND w.state = 'ready' AND w.seen > ?)",
            (now - grace, now - max(grace, 60.0)),
        )
        for digest, decision, target in rows:
            count += t.run(
                "UPDATE record SET state = 'single-host' WHERE digest = ? AND state = 'candidate'", (digest,)
            )
            why = "no second host of its class"
            note(t, now, "service", "", "single-host", (str(decision), str(target), str(digest)), why)
    return count


def sign(state: State, key: SigningKey, most: int = 1000) -> int:
    """Sign at most `most` valid records that are confirmed or marked as single-host; returns how many. One that
    disagrees with its row in the database is refused."""
    with state.database.transaction() as t:
        rows = t.rows(
            "SELECT digest, content, decision, target, compiler, setting, untuned, median, low, high, time FROM record"
            " WHERE signature = '' AND state IN ('confirmed', 'single-host')"
            f" LIMIT {int(most)}"
        )
        signed = 0
        for digest, content, *columns in rows:
            try:
                _agree(from_bytes(bytes(content)), columns)
            except Error as error:
                t.run("UPDATE record SET state = 'refused' WHERE digest = ?", (digest,))
                note(t, state.clock(), "service", "", "refused", ("", "", str(digest)), error.headline()[:500])
                continue
            t.run("UPDATE record SET signature = ? WHERE digest = ?", (key.sign(bytes(content)), digest))
            signed += 1
    return signed


def _agree(record: Record, columns: Sequence[Any]) -> None:
    """Raise Error if `columns`, a row of the table of records, differs from the record."""
    gain = record.gain
    wanted = (record.decision, record.target, record.compiler, record.setting, record.untuned)
    if tuple(columns) != (*wanted, gain.median, gain.low, gain.high, record.time):
        raise Error("a record is not what its columns say", expected=wanted, got=tuple(columns))


__all__ = ["deliver", "enter", "mark_single", "sign"]
