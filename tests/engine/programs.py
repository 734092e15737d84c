"""Random programs for engines: operations on parts of shared arrays, which draw random numbers, fail, recover and
delete, with what they compute when called one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.engine import Engine, Operation, Random, Variable

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Line:
    """An operation: `kind` is compute, fail, recover or delete; it reads and writes arrays by number, `begin` and `end`
    say which part of a written one, and it adds random numbers if it `draws`."""

    kind: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    begin: int
    end: int
    draws: bool
    priority: int
    seed: int


def program(seed: int, arrays: int = 4, length: int = 14) -> list[Line]:
    rng = np.random.default_rng([seed, 54])
    lines = []
    alive = list(range(arrays))
    for number in range(length):
        kind = str(rng.choice(["compute", "fail", "recover", "delete"], p=[0.84, 0.06, 0.06, 0.04]))
        if kind == "delete" and len(alive) == 1:
            kind = "compute"
        reads = tuple(int(r) for r in rng.choice(alive, rng.integers(0, len(alive) + 1), replace=False))
        writes = tuple(int(w) for w in rng.choice(alive, rng.integers(0, min(2, len(alive)) + 1), replace=False))
        if kind in ("recover", "delete"):
            reads, writes = (), (int(rng.choice(alive)),)
        if kind == "delete":
            alive.remove(writes[0])
        begin, end = sorted(int(x) for x in rng.integers(0, 9, 2))
        lines.append(Line(kind, reads, writes, begin, end, bool(rng.integers(2)), int(rng.integers(-2, 3)), number))
    return lines


class Wrong(Exception):
    """The exception of operations that fail."""


def compute(line: Line, arrays: list[Array], generator: np.random.Generator) -> None:
    """Change the written arrays by what the operation reads."""
    total = sum(float(arrays[r].sum()) for r in line.reads) + line.seed
    if line.draws:
        total += float(generator.random())
    for w in line.writes:
        part = arrays[w][line.begin : line.end]  # a view: an alias of the array
        part *= -0.5
        part += total
        if line.kind == "fail":
            raise Wrong(f"line {line.seed}")


def one_by_one(lines: list[Line], size: int, seed: int) -> tuple[list[Array], list[str | None], float]:
    """Arrays, each line's failure and the next random number, if the lines run in their order: what failures do stands
    here once more, in the simplest words."""
    arrays, generator = [np.full(8, float(k)) for k in range(size)], np.random.default_rng(seed)
    carried: dict[Any, str | None] = {}
    failures: list[str | None] = []
    for line in lines:
        written = [*line.writes, *(["random"] if line.draws and line.kind in ("compute", "fail") else [])]
        failure = next(
            (carried[v] for v in (*[r for r in line.reads if r not in line.writes], *written) if carried.get(v)), None
        )
        if line.kind in ("recover", "delete"):
            failure = None
        elif failure is None:
            try:
                compute(line, arrays, generator)
            except Wrong as error:
                failure = str(error)
        for v in written:
            carried[v] = failure
        failures.append(failure)
    return arrays, failures, generator.random()


def on_engine(engine: Engine, lines: list[Line], size: int, seed: int) -> tuple[list[Array], list[str | None], float]:
    """The results of an engine; arrays are named by views of them, at random by variables."""
    arrays, random = [np.full(8, float(k)) for k in range(size)], Random(seed)
    rng = np.random.default_rng([seed, 55])

    def named(k: int) -> Array | Variable:
        match int(rng.integers(3)):
            case 0:
                return arrays[k][int(rng.integers(8)) :]
            case 1:
                return arrays[k].reshape(2, 4).T
        return engine.variable_of(arrays[k])

    def body(line: Line) -> Callable[[], None]:
        return lambda: compute(line, arrays, random.generator)

    operations: list[Operation] = []
    for line in lines:
        if line.kind == "recover":
            operations.append(engine.recover(named(line.writes[0])))
        elif line.kind == "delete":
            operations.append(engine.delete(named(line.writes[0])))
        else:
            writes = [*map(named, line.writes), *([random] if line.draws else [])]
            operations.append(engine.push(body(line), [named(r) for r in line.reads], writes, line.priority))
    engine.wait()
    failures = [None if o.failure is None else str(o.failure) for o in operations]
    return arrays, failures, random.generator.random()


def check(engine: Engine, seed: int) -> None:
    """Fails unless an engine's results are those of the lines one by one."""
    lines = program(seed)
    (arrays, failures, drawn), (wanted, expected, next_drawn) = (
        on_engine(engine, lines, 4, seed),
        one_by_one(lines, 4, seed),
    )
    assert failures == expected, seed
    assert drawn == next_drawn, seed
    for one, other in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=str(seed))
