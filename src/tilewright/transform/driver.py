"""The driver of passes. Each pass is a named function from a program to a program; the driver times it, announces it,
prints the program before and after the pass if flags say so, and checks the pass's result.

    graph = run_passes(graph, [("fold scales", fold_scales), ...], stage, log)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from tilewright.ir.graph import Graph
from tilewright.ir.loops import PrimFunc
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.errors import FlagError, VerifyError
from tilewright.support.log import PassLog

T = TypeVar("T", Graph, PrimFunc)
Passes = Sequence[tuple[str, Callable[[T], T]]]
Check = Callable[[T], None]

VERIFY_STAGES, VERIFY_PASSES = 1, 2
"""Values of TILEWRIGHT_VERIFY: from 1 on the result of each stage is checked, from 2 on that of each pass."""

ANNOUNCED, GRAPHS_SHOWN, LOOPS_SHOWN = 1, 2, 3
"""Values of TILEWRIGHT_DEBUG from which passes over graphs are announced, graphs are printed after each of them, and
passes over loops are announced. A kernel has some fifteen passes over loops."""


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """The kind of program that a list of passes works on.

    begin, each, end    checks of the first input, of each pass's result, and of the last result (None: no such check)
    every               the value of TILEWRIGHT_VERIFY from which `each` is checked
    announced, shown    the values of TILEWRIGHT_DEBUG from which passes are announced, and programs printed (None: only
                        where TILEWRIGHT_DUMP names the pass)
    """

    begin: Check[T]
    each: Check[T]
    end: Check[T] | None
    every: int
    announced: int
    shown: int | None


def run_passes(program: T, passes: Passes[T], stage: Stage[T], log: PassLog | None = None, what: str = "graph") -> T:
    """Run passes on a program and return the result. `what` names the program in the log. Raises VerifyError, which
    names the pass, if a pass's result breaks the rules of the stage."""
    log = log or PassLog(level=0, dumps=())
    level, shown = flags.VERIFY(), None
    if level >= VERIFY_STAGES:
        _checked(stage.begin, program, what)
    with log.announcing(stage.announced, what):
        for name, function in passes:
            before = program
            if log.dumps_after(name) and shown is not before:
                log.show(f"{what} before {name}", str(before))
            program = log.run(name, function, before)
            if log.dumps_after(name) or (stage.shown is not None and log.level >= stage.shown):
                log.show(f"{what} after {name}", str(program))
                shown = program
            if level >= stage.every and program is not before:
                _checked(stage.each, program, f"{what} after the pass {name!r}")
    if level >= VERIFY_STAGES and stage.end is not None:
        _checked(stage.end, program, what)
    return program


def _checked(check: Check[T], program: T, where: str) -> None:
    try:
        check(program)
    except VerifyError as error:
        raise VerifyError("is not what it must be", where=where, problems=error.each()) from None


def check_names(log: PassLog, known: Iterable[str]) -> None:
    """Raise FlagError if TILEWRIGHT_DUMP names a pass that is not among the `known` ones."""
    known = list(dict.fromkeys(known))
    for name in log.dumps:
        if name != "all" and name not in known:
            where = f"environment variable {flags.DUMP.name}"
            raise FlagError("no such pass", where=where, expected=", ".join(("all", *known)), got=repr(name))
