"""Environment flags: one table, read through typed functions. `flags.DEBUG()` reads TILEWRIGHT_DEBUG now.

A flag is read at each use, so that a test or a caller may change it while the process runs. `docs/tour.md` shows this
table, and a test compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tilewright.support.classes import dataclass
from tilewright.support.errors import FlagError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Flag(Generic[T]):
    """One environment variable.

    Args:
        name: the variable.
        parse: from its text to its value; raises ValueError with what was expected.
        default: its value when the variable is unset or empty.
        default_text: the default for people.
        help: one sentence.
    """

    name: str
    parse: Callable[[str], T]
    default: Callable[[], T]
    default_text: str
    help: str

    def __call__(self) -> T:
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as e:
            raise FlagError(
                "bad value", where=f"environment variable {self.name}", expected=e, got=repr(text), hint=self.help
            ) from None


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return int(text)

    return parse


def _switch(text: str) -> bool:
    match text.lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ValueError("0 or 1")


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)i?b?", text.lower())
    if not match:
        raise ValueError("a number of bytes such as 4096, 512M or 2G")
    return int(match[1]) * _UNITS[match[2]]


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "tilewright"


DEBUG = Flag(
    "TILEWRIGHT_DEBUG",
    _integer(0, 5),
    lambda: 0,
    "0",
    "What the compiler prints: 1 passes with their times, 2 also the graph after each pass, 3 also the loops of each "
    "kernel, scheduled and lowered, and the passes between, 4 also LLVM IR, 5 also assembly.",
)
DUMP = Flag(
    "TILEWRIGHT_DUMP",
    _names,
    lambda: (),
    "none",
    "Passes around which the program is printed, by name with commas between, such as `fold scales, partition loops`; "
    "`all` for every one.",
)
VERIFY = Flag(
    "TILEWRIGHT_VERIFY",
    _integer(0, 2),
    lambda: 1,
    "1",
    "What the compiler checks of its own work: 0 nothing, 1 graphs after each pass, each kernel's loops when scheduled "
    "and when lowered, 2 also loops after each pass.",
)
TARGET = Flag(
    "TILEWRIGHT_TARGET",
    str,
    lambda: "host",
    "host",
    "The instruction set that code is made for when the caller names no target, such as x86-64-v3; caches and measured "
    "ceilings stay this machine's.",
)
HOST = Flag(
    "TILEWRIGHT_HOST",
    str,
    lambda: "native",
    "native",
    "The machine whose caches, ceilings and fitted constants estimates take for this one's, such as graniterapids: "
    "schedules are those of that machine with these instructions, for tests.",
)
THREADS = Flag(
    "TILEWRIGHT_THREADS", _integer(1, 1024), lambda: 1, "1", "Threads of a model when the caller names none."
)
PROCESSES = Flag(
    "TILEWRIGHT_PROCESSES",
    _integer(1, 64),
    lambda: 0,
    "one a CPU, 8 at most",
    "Processes that compile the kernels of a model: its caller's and forked copies of it, which end with the compile.",
)
CUDA = Flag(
    "TILEWRIGHT_CUDA",
    str,
    lambda: "",
    "libcuda.so.1 (Windows: nvcuda.dll)",
    "The library of NVIDIA's driver, by name or path, which programs for GPUs call.",
)
CACHE = Flag("TILEWRIGHT_CACHE", _switch, lambda: True, "1", "Keep compiled objects on disk, in TILEWRIGHT_CACHE_DIR.")
CACHE_DIR = Flag(
    "TILEWRIGHT_CACHE_DIR",
    lambda text: Path(text).expanduser(),
    _default_cache,
    "~/.cache/tilewright",
    "Where compiled objects are kept.",
)
CACHE_SIZE = Flag(
    "TILEWRIGHT_CACHE_SIZE", _bytes, lambda: 2 << 30, "2G", "The cache's bound; what was used longest ago goes first."
)

RECORDS = Flag(
    "TILEWRIGHT_RECORDS",
    _names,
    lambda: (),
    "the user's and the package's",
    "Further places of tuning records, nearer than the package's: folders and https addresses of exported archives, "
    "with commas between; `none` for no records at all.",
)

COLLECT = Flag(
    "TILEWRIGHT_COLLECT",
    str,
    lambda: "",
    "nothing is collected",
    "Where compiles note what they decide and how often it runs, for a tuning service: a folder, or the service's "
    "https address.",
)
SKETCHES = Flag(
    "TILEWRIGHT_SKETCHES",
    _one_of("unplanned", "always", "alone", "never"),
    lambda: "unplanned",
    "unplanned",
    "Where schedules made by rules are offered: `unplanned` where no plan for a kind of computation fits, `always` "
    "beside all plans, `alone` instead of them wherever rules give one, or `never`.",
)

STORE_DIR = Flag(
    "TILEWRIGHT_STORE_DIR",
    lambda text: Path(text).expanduser(),
    lambda: Path("/dev/shm") / f"tilewright-{os.geteuid()}",
    "/dev/shm/tilewright-<user number>",
    "Where weight stores are; a folder in memory.",
)


PLUGINS = Flag(
    "TILEWRIGHT_PLUGINS",
    _switch,
    lambda: True,
    "1",
    "Use what other packages bring as plug-ins: operators, plans, targets, passes, frontends.",
)


def table() -> list[Flag[int] | Flag[bool] | Flag[str] | Flag[Path] | Flag[tuple[str, ...]]]:
    """All flags, in the order in which the documents show them."""
    return [
        DEBUG,
        DUMP,
        VERIFY,
        TARGET,
        HOST,
        THREADS,
        PROCESSES,
        CUDA,
        CACHE,
        CACHE_DIR,
        CACHE_SIZE,
        RECORDS,
        COLLECT,
        SKETCHES,
        STORE_DIR,
        PLUGINS,
    ]


def markdown() -> str:
    """The table as Markdown, for the documents."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    rows += [f"| `{flag.name}` | `{flag.default_text}` | {flag.help} |" for flag in table()]
    return "\n".join(rows)
