"""A tuning record: the setting that was decided for one computation on one class of machines, and the measurements that
support it.

    record = Record.of(key, target, space, setting="winograd tile=4,...", untuned="direct", policy=..., candidates=...,
                       gain=Gain(1.043, 1.031, 1.055, 55), made=provenance(target))
    digest = store.put(record)                    a file of its own, named by its digest (`records/store.py`)
    store.find(key.name, target_class(target))    all records about it, those that count most first

The file is JSON in one canonical form, so that equal records are equal files. It holds no code: a setting is a label
that `plans/framework/space.py` reads, the workload is text that `ops.parse_func` or `ops.parse_graph` reads. The
content of a file is checked when it is read, and a compile checks again whether the space has the record's setting.

A record with another setting than the estimate's claims that paired races showed it to be faster, with the bounds in
`Gain`. A record with the estimate's setting claims that nothing better was found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cache, lru_cache
from typing import Any

from tilewright import ops
from tilewright.identity import code_version, llvm_version
from tilewright.ir.graph import Graph
from tilewright.ir.loops import PrimFunc
from tilewright.plans.framework.decision_key import Key, key_of_program, target_class
from tilewright.plans.framework.space import Setting, Space, space_digest
from tilewright.runtime.schema import SchemaError, decode, encode
from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error, ParseError, Problems, RecordError
from tilewright.support.machine import describe
from tilewright.targets.target import Target

VERSION = 1
"""The version of the file format. Files of a later version are left out."""
MAX_BYTES = 1 << 20
"""Record files larger than this many bytes are not read."""
MAX_CANDIDATES = 4096
MAX_TURNS = 4096
"""The most turns that a candidate may have in a record."""
MAX_TEXT = 2000
"""The most characters of any text in a record other than the workload."""

OUTCOMES = ("timed", "refused", "wrong", "crashed", "timeout", "memory")
"""The outcomes of a candidate: timed; no code could be made; its result was not the interpreter's; its process died; it
took too long; it took too much memory."""
LEVELS = ("kernel", "pair", "model")
"""The values of `Policy.level`, what the accepted setting was raced in: a kernel alone, two kernels with what lies
between them, the whole model."""
REGIMES = ("cold", "warm", "model")
"""The values of `Policy.regime`, where weights and inputs came from while candidates were timed: from memory, from
caches, as in the model."""

_DECISION = re.compile(r"[a-z][a-z0-9_]{0,39} [0-9a-f]{32}")
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.+=-]*[A-Za-z0-9.+=-])?"
"""The pattern of the name of a class of machines; without an underscore at its ends, since folders are named after it
(`store.py`)."""
_CLASS = re.compile(rf"{_WORD}(?: {_WORD}){{1,11}} threads=[1-9]\d{{0,3}}")
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting that was tried, with its outcome.

    Args:
        setting: its label.
        outcome: one of `OUTCOMES`.
        estimate: the estimated cycles, 0.0 if nothing is estimated.
        turns: the seconds of a call in each turn, in the order of measurement (`rounded`).
        why: the reason in a few words if the outcome is not "timed".
    """

    setting: str
    outcome: str
    estimate: float
    turns: tuple[float, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Gain:
    """How many times faster the setting is than the estimate's, by paired races of freshly loaded copies: the median
    and the bounds of its interval, which holds the true ratio with `confidence`, from so many `rounds`."""

    median: float
    low: float
    high: float
    rounds: int
    confidence: float = 0.9


NONE = Gain(1.0, 1.0, 1.0, 0)
"""The gain of the estimate's own setting."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The measuring procedure: only records of one policy are comparable.

    Args:
        name: the procedure's name with its version: "paired 1".
        regime: one of `REGIMES`.
        level: one of `LEVELS`.
        rounds, copies: turns of a finalist, and how often it was loaded anew.
    """

    name: str
    regime: str
    level: str
    rounds: int
    copies: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference from the interpreter's result, relative to that result's largest element: of the program
    with the setting, and of that with the estimate's on the same inputs."""

    setting: float
    untuned: float


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a record comes from: digests of the compiler and of code from outside it, LLVM's version, the machine and
    its ceilings (`Target.fingerprint`), when (seconds since 1970), by whom (only if that was said)."""

    compiler: str
    llvm: str
    host: str
    fingerprint: str
    time: int
    extensions: tuple[str, ...] = ()
    author: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A tuning record: what was found about one decision on one class of machines. Raises RecordError, which lists all
    inconsistencies.

    Args:
        decision: the name of its key (`plans/framework/decision_key.py`).
        target: the class of machines and the threads (`target_class`).
        about: the key's text, for people and for finding neighbours.
        workload: the key's program as text.
        setting: the label of the best setting.
        untuned: the label that the estimates prefer.
        space: the digest of the labels of all settings (`space_digest`).
        policy, candidates, gain, provenance: see `Policy`, `Candidate`, `Gain`, `Provenance`.
        difference: None where results are the same by rule (a layout).
        version: the version of the file format.
    """

    decision: str
    target: str
    about: str
    workload: str
    setting: str
    untuned: str
    space: str
    policy: Policy
    candidates: tuple[Candidate, ...]
    gain: Gain
    provenance: Provenance = field(metadata={"key": "made"})
    difference: Difference | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        problems = Problems()
        for what, where in _inconsistent(self):
            problems.add(RecordError(what, where=f"record: {where}"))
        problems.raise_if_any("the record is not consistent", kind=RecordError)

    @classmethod
    def of(cls, key: Key, target: Target, space: Space | Iterable[str], **rest: Any) -> Record:
        """The record of the decision `key` among the settings of `space` on a machine like the target; `rest` are the
        other fields."""
        labels = space.labels if isinstance(space, Space) else space
        return cls(
            decision=key.name,
            target=target_class(target),
            about=key.text,
            workload=str(key.program),
            space=space_digest(labels),
            **rest,
        )

    @property
    def kind(self) -> str:
        """The kind of the decision: "plan", "algorithm", ..."""
        return self.decision.partition(" ")[0]

    @property
    def threads(self) -> int:
        """The number of threads of a call."""
        return int(self.target.rpartition("=")[2])

    @property
    def compiler(self) -> str:
        """The digest of the compiler that measured the record."""
        return self.provenance.compiler

    @property
    def time(self) -> int:
        """The time of measurement in seconds since 1970."""
        return self.provenance.time

    @property
    def measured(self) -> tuple[str, ...]:
        """The labels with turns, and the estimate's label, which was always raced."""
        return tuple(dict.fromkeys([self.untuned, *(c.setting for c in self.candidates if c.turns)]))

    def to_bytes(self) -> bytes:
        """The file's content, the same for equal records."""
        return _canonical(encode(self))

    @property
    def digest(self) -> str:
        """The digest of the file's content, which is also the file's name."""
        return content_digest(self.to_bytes())

    def key(self) -> Key:
        """The decision's key, recomputed from the workload. Raises RecordError if it differs from `decision`: the text
        was changed, or this compiler makes keys in another way."""
        key = key_of_program(self.kind, parse_workload(self.workload), self.target)
        if key.name != self.decision:
            raise RecordError(
                "the workload is not the one that was decided about",
                where=f"record {self.digest}",
                expected=self.decision,
                got=key.name,
            )
        return key


def from_bytes(content: bytes) -> Record:
    """The record that a file's content describes. Raises RecordError if the content is not what `to_bytes` would
    write."""
    if len(content) > MAX_BYTES:
        raise RecordError("too large for a record", expected=f"at most {MAX_BYTES} bytes", got=len(content))
    try:
        data = json.loads(content.decode("ascii"))
        result = decode(Record, data, "record")
    except SchemaError as error:
        raise RecordError(error.what, where=error.path) from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}", where="record") from None
    if _canonical(data) != content:  # a key twice, other white space
        raise RecordError("not in the canonical form", where="record")
    return result


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=True, allow_nan=False)


def _canonical(data: Any) -> bytes:
    return f"{_ENCODER.encode(data)}\n".encode("ascii")


def content_digest(content: bytes) -> str:
    """The digest of a file's content, which names the file."""
    return blake2b(content, digest_size=16).hexdigest()


def parse_workload(text: str) -> PrimFunc | Graph:
    """The program that a workload's text describes. Raises RecordError if it cannot be parsed."""
    try:
        return ops.parse_func(text) if text.startswith("func") else ops.parse_graph(text)
    except ParseError as error:
        raise RecordError(f"the workload does not parse: {error}", where="record: workload") from None
    except Error as error:  # what the constructors of the IR refuse, such as an operator that there is not
        raise RecordError(f"the workload is no program: {error}", where="record: workload") from None


def provenance(target: Target, time: int, author: str = "") -> Provenance:
    """The provenance of a record made with this compiler on this machine at `time`, in seconds since 1970, by
    `author`."""
    extensions = tuple(plugins.digests())
    return Provenance(code_version(), llvm_version(), _host(), target.fingerprint, time, extensions, author)


@cache
def _host() -> str:
    machine = describe()
    return f"{machine.model}, {machine.cores} cores"


def rounded(seconds: float) -> float:
    """A time rounded to four significant digits, finer than clocks reproduce, and short in a file."""
    return float(f"{seconds:.4g}")


def _inconsistent(r: Record) -> Iterable[tuple[str, str]]:
    """The inconsistencies of a record, each with the field where it is."""
    if r.version != VERSION:
        yield f"of version {r.version}, this compiler reads {VERSION}", "version"
    for pattern, text, name in ((_DECISION, r.decision, "decision"), (_CLASS, r.target, "target")):
        if len(text) > MAX_TEXT or not pattern.fullmatch(text):
            yield f"{text[:80]!r} is none", name
    for text, name in (
        (r.space, "space"),
        (r.compiler, "made.compiler"),
        (r.provenance.fingerprint, "made.fingerprint"),
    ):
        if not _DIGEST.fullmatch(text):
            yield f"{text[:80]!r} is no digest", name
    texts = (r.provenance.llvm, r.provenance.host, r.provenance.author, r.policy.name, *r.provenance.extensions)
    # All at once, as they nearly always are; only where they are not, it is said which.
    if not (r.about + "".join(texts)).isprintable() or max(map(len, texts)) > MAX_TEXT or len(r.about) > MAX_BYTES:
        yield from _bad_texts(r)
    if not r.workload or not all(line.isprintable() for line in r.workload.split("\n")):
        yield "no text", "workload"
    if not 0 <= r.time < 1 << 40:
        yield "no time", "made.time"
    yield from _bad_policy(r.policy)
    yield from _bad_labels(r)
    yield from _bad_numbers(r)


def _bad_texts(r: Record) -> Iterable[tuple[str, str]]:
    texts = {
        "about": r.about,
        "made.llvm": r.provenance.llvm,
        "made.host": r.provenance.host,
        "made.author": r.provenance.author,
    }
    texts |= {"policy.name": r.policy.name} | {
        f"made.extensions[{k}]": t for k, t in enumerate(r.provenance.extensions)
    }
    for name, text in texts.items():
        limit = MAX_BYTES if name == "about" else MAX_TEXT
        if len(text) > limit or not text.isprintable():
            yield "too long, or has characters that cannot be printed", name


def _bad_policy(p: Policy) -> Iterable[tuple[str, str]]:
    for value, known, name in ((p.regime, REGIMES, "regime"), (p.level, LEVELS, "level")):
        if value not in known:
            yield f"{value[:80]!r} is none of {', '.join(known)}", f"policy.{name}"
    if not (0 <= p.rounds <= MAX_TURNS and 0 <= p.copies <= MAX_TURNS):
        yield "not so many", "policy"


def _bad_labels(r: Record) -> Iterable[tuple[str, str]]:
    if len(r.candidates) > MAX_CANDIDATES:
        yield f"more than {MAX_CANDIDATES}", "candidates"
        return
    for name, label in (("setting", r.setting), ("untuned", r.untuned)):
        yield from _bad_label(label, name)
    for k, c in enumerate(r.candidates):
        yield from _bad_label(c.setting, f"candidates[{k}].setting")
        if c.outcome not in OUTCOMES:
            yield f"{c.outcome[:80]!r} is none of {', '.join(OUTCOMES)}", f"candidates[{k}].outcome"
        if len(c.why) > MAX_TEXT or not c.why.isprintable():
            yield "too long, or has characters that cannot be printed", f"candidates[{k}].why"
    labels = [c.setting for c in r.candidates]
    if len(set(labels)) != len(labels):
        yield "a setting stands twice", "candidates"


def _bad_label(label: str, where: str) -> Iterable[tuple[str, str]]:
    if len(label) > MAX_TEXT:
        yield "too long", where
    elif not _is_label(label):
        yield f"{label[:80]!r} is no setting, or not as one is written", where


@lru_cache(maxsize=1 << 12)
def _is_label(label: str) -> bool:
    try:
        return Setting.parse(label).label == label
    except (ParseError, ValueError):
        return False


def _bad_numbers(r: Record) -> Iterable[tuple[str, str]]:
    for k, c in enumerate(r.candidates):
        if len(c.turns) > MAX_TURNS or not (_within(c.turns, 0.0, 1e6) and 0.0 <= c.estimate <= 1e30):
            yield "times or estimate are not possible", f"candidates[{k}]"
    g = r.gain
    if not (0.0 < g.low <= g.median <= g.high < 1e9 and 0 <= g.rounds <= 1 << 30 and 0.5 <= g.confidence < 1.0):
        yield "not an interval around its median", "gain"
    if r.setting != r.untuned and g.low <= 1.0:
        yield "a setting that is not verified to be faster than the estimate's", "gain"
    if r.difference is not None and not _within((r.difference.setting, r.difference.untuned), 0.0, 1e30):
        yield "not possible", "difference"


def _within(values: Sequence[float], low: float, high: float) -> bool:
    return not values or (low <= min(values) and max(values) <= high)
