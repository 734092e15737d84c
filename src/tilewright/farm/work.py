"""The work of one job: text in, text out. It does not depend on the queue, so that any scheduler may call it.

result = run_job(job_text(job))          JSON: records that were made, what was confirmed, core-seconds
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from tilewright.farm.intake import decoded, parse
from tilewright.farm.queue import Job
from tilewright.identity import code_version
from tilewright.plans.framework.decision_key import key_of_program, target_class
from tilewright.records.record import MAX_BYTES, from_bytes, parse_workload
from tilewright.runtime.schema import encode
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error, RecordError
from tilewright.targets.target import Target
from tilewright.tuning.alone import tune_alone
from tilewright.tuning.rerace import Claim, confirm

MAX_RESULT_BYTES = 64 << 20
MAX_RECORDS = 1000
"""The most records of one result: a model of one layer has some ten decisions."""
VERDICTS = ("", "confirmed", "refused", "undecided")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job.

    Args:
        records: contents of records' files, as text; the one about the job's decision first.
        verdict: the verdict of a confirmation, one of `VERDICTS`.
        why: what happened, in words.
        spent: the core-seconds that the job took.
    """

    records: tuple[str, ...]
    verdict: str
    why: str
    spent: float


def job_text(job: Job, seconds: float = 120.0) -> str:
    """The text that describes a job to a worker, wherever it runs; a search ends after `seconds`."""
    return json.dumps({"name": job.name, "kind": job.kind, "target": job.target, "body": job.body, "seconds": seconds})


def run_job(text: str) -> str:
    """Do a job on this machine. Raises Error if it cannot be done here."""
    job = json.loads(text)
    body = json.loads(job["body"])
    start = time.monotonic()
    threads = 1 if job["kind"] == "simulate" else int(job["target"].rpartition("=")[2])
    match job["kind"]:
        case "simulate":
            time.sleep(float(body["seconds"]))
            outcome = Outcome((), "", "waited", 0.0)
        case "tune":
            outcome = _tune(body, job["target"], float(job["seconds"]))
        case "confirm":
            outcome = _confirm(body, job["target"])
        case kind:
            raise Error("no kind of job", got=repr(kind)[:60])
    return json.dumps(encode(replace(outcome, spent=threads * (time.monotonic() - start))))


def parse_outcome(text: str) -> Outcome:
    """Parse the outcome that a worker has sent. Raises Error for anything that `run_job` does not write."""
    outcome = decoded(Outcome, parse(text, MAX_RESULT_BYTES), "result")
    wrong = (
        len(outcome.records) > MAX_RECORDS
        or any(len(r) > MAX_BYTES for r in outcome.records)
        or outcome.verdict not in VERDICTS
        or len(outcome.why) > 2000
        or not outcome.why.isprintable()
        or not 0.0 <= outcome.spent < 1e7
    )
    if wrong:
        raise Error("a result is not possible")
    return outcome


def _tune(body: Any, target: str, seconds: float) -> Outcome:
    machine = machine_for(target, body["compiler"])
    kind = str(body["decision"]).partition(" ")[0]
    key = key_of_program(kind, parse_workload(body["workload"]), target)
    if key.name != body["decision"]:
        raise RecordError("the workload is not the one that is to be tuned", expected=body["decision"], got=key.name)
    done = tune_alone(key, machine, seconds=seconds)
    texts = tuple(r.to_bytes().decode("ascii") for r in done.records)
    return Outcome(texts, "", _line(done.why), 0.0)


def _confirm(body: Any, target: str) -> Outcome:
    record = from_bytes(str(body["record"]).encode("ascii"))
    machine = machine_for(target, record.compiler)
    result = confirm(Claim.of(record, record.key()), machine)
    verdict = {"verified": "confirmed", "dropped": "refused"}.get(result.state, "undecided")
    if verdict == "refused" and (result.gain is None or result.gain.high >= 1.0):
        verdict = "undecided" if result.gain is not None and result.gain.median >= 1.0 else "refused"
    return Outcome((), verdict, _line(result.why), 0.0)


def machine_for(target: str, compiler: str) -> Target:
    """The target for a class of machines and a compiler version. Raises Error if this machine or compiler is another
    one."""
    machine = replace(Target.host(), threads=int(target.rpartition("=")[2]))
    if target_class(machine) != target:
        raise Error("this machine is of another class", expected=target, got=target_class(machine))
    if compiler != code_version():
        raise Error("this compiler is of another version", expected=compiler, got=code_version())
    return machine


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]


__all__ = ["Outcome", "job_text", "machine_for", "parse_outcome", "run_job"]
