"""Mutants tried in forks of one process that has collected all tests of a room.

Starting Python, importing the tree and collecting take seconds, the tests that kill a mutant mostly less. So a session
of pytest collects once and then, instead of running anything, waits for requests. For each it forks, and the child puts
the mutated function's code into the functions that the imported module has, and runs the request's tests. The mutated
file lies on the disk too: processes that tests start, and modules that are not imported yet, read it there.

What importing and collecting computed is there before the fork. So a function of which they ran a line is refused: its
mutant needs a process that imports it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import TextIO

import pytest
from hypothesis import Phase, settings

WALL_SECONDS = 10.0
"""Seconds that may pass for each second of a limit on processor time: the machine has other work, and tests wait."""
MEMORY = 12 << 30
"""Bytes of address space of a test process: a mutant that allocates without end must not take the machine with it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A mutant: its file and the text with it, the line that it is in, the lines of the file that importing and
    collecting run, the tests in their order with a limit on the processor's seconds for each, and one on the seconds
    that all of them take."""

    path: str
    source: str
    line: int
    outside: frozenset[int]
    limits: dict[str, float]
    most: float


def stop_at_failures() -> None:
    """A failure is enough: to find the smallest one takes longer than all other tests."""
    settings.register_profile("mutants", settings.default, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")


@contextlib.contextmanager
def limited(seconds: float, out: int | TextIO) -> Iterator[None]:
    """End this process where it works for longer, or stands still: with SIGPROF, or with a traceback."""
    faulthandler.dump_traceback_later(WALL_SECONDS * seconds, exit=True, file=out)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class Server:
    """Sends the number of tests once it has collected them. Then it answers each request with the output and the exit
    status of its tests, or with None where it refuses."""

    def __init__(self, descriptor: int) -> None:
        self.link = Connection(descriptor)
        stop_at_failures()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions()
        self.link.send(len(items))
        while (request := self.link.recv()) is not None:
            self.link.send(_serve(request, items, functions))
        return True


Functions = dict[tuple[str, str, int], list[FunctionType]]


def _functions() -> Functions:
    """All functions there are, wrapped or registered somewhere or not, by file, qualified name and first line."""
    result: Functions = {}
    for f in gc.get_objects():
        if type(f) is FunctionType:
            result.setdefault(_key(f.__code__), []).append(f)
    return result


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _serve(request: Request, items: dict[str, pytest.Item], functions: Functions) -> tuple[int, str] | None:
    file = str(Path.cwd() / request.path)
    patched: list[FunctionType] = []
    new = code_at(compile(request.source, file, "exec"), request.line)
    if any(getattr(module, "__file__", None) == file for module in list(sys.modules.values())):
        patched = functions.get(_key(new), [])
        if not patched or any(_lines(f.__code__) & request.outside for f in patched):
            return None
        if any(len(f.__code__.co_freevars) != len(new.co_freevars) for f in patched):
            return None  # such as a method that calls super() no more
    tests = [items[name] for name in request.limits if name in items]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _try(patched, new, tests, request.limits, write)
    os.close(write)
    try:
        status = _wait(child, request.most)
        os.set_blocking(read, False)
        return status, _drain(read)
    finally:
        os.close(read)


def code_at(module: CodeType, line: int) -> CodeType:
    """The code of the outermost function or method around a line."""
    return max((c for c in _outermost(module) if c.co_firstlineno <= line), key=lambda c: c.co_firstlineno)


def _outermost(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            is_class = not inner.co_flags & inspect.CO_OPTIMIZED
            yield from _outermost(inner) if is_class else (inner,)


def _lines(code: CodeType) -> set[int]:
    """The lines of a function's body, of the functions inside it too."""
    own = {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
    return own.union(*(_lines(c) for c in code.co_consts if isinstance(c, CodeType)))


def _try(
    patched: list[FunctionType], new: CodeType, tests: list[pytest.Item], limits: dict[str, float], out: int
) -> None:
    """Run the tests until one fails, and end this process. What failed, or was at its limit, is written to `out`."""
    status = 2
    try:
        for f in patched:
            f.__code__ = new
        limit_memory()
        status = 0
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            with limited(limits[item.nodeid], out):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                os.write(out, f"FAILED {item.nodeid}\n".encode())
                status = 1
                break
    finally:
        os._exit(status)


def _wait(child: int, most: float) -> int:
    """A child's exit status, 124 where it took too long; it and all in its session are ended."""
    end = time.monotonic() + most
    while not (result := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            _end(child)
            os.waitpid(child, 0)
            return 124
        time.sleep(0.005)
    _end(child)
    return os.waitstatus_to_exitcode(result[1])


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _drain(read: int) -> str:
    result = b""
    try:
        while block := os.read(read, 1 << 16):
            result += block
    except BlockingIOError:
        pass  # a process that the child started holds the other end
    return result.decode(errors="replace")
