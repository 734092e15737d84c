"""Damaged StableHLO as text and as bytecode, read as modules from outside are: in a process that may die.

A process for each mutant, forked from one that has loaded MLIR already.
"""

from __future__ import annotations

import os
import random
import re
import resource
import select
import signal
import time
from functools import cache
from pathlib import Path

from tilewright.frontend.stablehlo import read, rules  # noqa: F401  rules fill RULES
from tilewright.frontend.stablehlo.child import answer, unpacked
from tilewright.frontend.stablehlo.module import Module
from tilewright.frontend.stablehlo.registry import RULES
from tilewright.support.errors import ModelError

FOLDER = Path(__file__).parents[1] / "jax" / "programs"
SECONDS = 20
NUMBERS = (b"0", b"1", b"-1", b"2", b"7", b"64", b"32768", b"2147483648", b"1099511627776", b"9223372036854775807")
WORDS = (b"f32", b"f16", b"bf16", b"f64", b"i1", b"i8", b"i32", b"ui8", b"ui64", b"i4", b"complex<f32>", b"f8E4M3FN")


@cache
def sources(bytecode: bool) -> tuple[bytes, ...]:
    """The programs that mutants are of."""
    texts = [path.read_bytes() for path in sorted(FOLDER.glob("*.mlir"))]
    if not bytecode:
        return tuple(texts)
    from jaxlib.mlir.dialects import stablehlo

    version = stablehlo.get_current_version()
    with read.context():
        return tuple(stablehlo.serialize_portable_artifact_str(t.decode(), version) for t in texts)


def damaged(seed: int, bytecode: bool) -> bytes:
    """The mutant of this seed: bytes changed, left out and doubled; in text mostly numbers, types and operations."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(sources(bytecode)))
    for _ in range(rng.choice((1, 1, 2, 3, 20))):
        if bytecode or rng.random() < 0.2:
            _damage_bytes(data, rng)
        else:
            _damage_words(data, rng)
    return bytes(data)


def _damage_bytes(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    match rng.choice((0, 0, 0, 1, 2)):
        case 0:
            data[at] = rng.randrange(256)
        case 1 if len(data) > 300:
            del data[at : at + rng.choice((1, 5, 200))]
        case _:
            data[at:at] = data[: rng.choice((1, 30))]


def _damage_words(data: bytearray, rng: random.Random) -> None:
    """Another number, element type, operation or operand where one stands."""
    pattern, others = rng.choice(
        (
            (rb"\b\d+\b", list(NUMBERS)),
            (rb"\b(?:f32|i32|i64|i1|ui32)\b", list(WORDS)),
            (rb"(?<=stablehlo\.)\w+", [name.encode().split(b".")[-1] for name in sorted(RULES)]),
            (rb"%\w+", [b"%0", b"%arg0", b"%1", b"%nobody"]),
        )
    )
    match = list(re.finditer(pattern, data))
    if match:
        place = rng.choice(match)
        data[place.start() : place.end()] = rng.choice(others)


def read_forked(data: bytes) -> Module:
    """A module, read as `read_outside` does, by a copy of this process. Raises ModelError, where that one dies, too."""
    out, back = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(back, "wb") as pipe:
                pipe.write(answer(data))
        finally:
            os._exit(0)
    os.close(back)
    try:
        said = _said(out, child)
    finally:
        os.close(out)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) or len(said) < 8:
        raise ModelError("this is no StableHLO that jaxlib can read", got=f"status {status}")
    return unpacked(said)


def _said(out: int, child: int) -> bytes:
    """All that the process writes, which has so many seconds."""
    said, end = b"", time.monotonic() + 2 * SECONDS
    while select.select([out], [], [], max(end - time.monotonic(), 0.0))[0]:
        more = os.read(out, 1 << 20)
        if not more:
            return said
        said += more
    os.kill(child, signal.SIGKILL)
    return b""
