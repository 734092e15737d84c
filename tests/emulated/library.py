"""A program's code in a process of an emulator, with the face of a library in memory.

Its entries are functions of this process that send a call there: a word for the function (run, prepare, shapes), the
iterations that its loops may have, the dimensions, for each buffer its bytes and whether they are sent and come back,
then the bytes that are sent. What comes back are buffers, and the control words of the call.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import struct
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

from tests.emulated.machines import Machine
from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.limits import CONTROL
from tilewright.runtime.program import Program

INPUT, OUTPUT = 1, 2
RUN, PREPARE, SHAPES = range(3)
PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, ctypes.c_void_p)
SHAPER = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)
Buffer = tuple[int, int, int]
"""Address, bytes, and whether the call reads it (`INPUT`) and writes it (`OUTPUT`)."""

failures: list[str] = []
"""Messages of calls that failed: their callers are native and cannot be told."""


class EmulatedLibrary:
    """The counterpart, for another machine, of the library that `tilewright.runtime.program.link` returns: calls run in
    an emulator."""

    def __init__(self, program: Program, machine: Machine) -> None:
        folder = Path(tempfile.mkdtemp(prefix="emulated-"))
        weakref.finalize(self, shutil.rmtree, folder, True)
        self._manifest = program.manifest
        self._process = subprocess.Popen(
            machine.command(program.objects, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "said").open("wb"),
        )
        self._said = folder / "said"
        weakref.finalize(self, _end, self._process)
        this = weakref.ref(self)  # the functions are the library's: it must not be theirs
        self._functions = {
            "tw_run": PROTOTYPE(_reported(this, EmulatedLibrary._run)),
            "tw_prepare": PROTOTYPE(_reported(this, EmulatedLibrary._prepare)),
            "tw_shapes": SHAPER(_reported(this, EmulatedLibrary._shapes)),
        }

    def __getitem__(self, symbol: str) -> int:
        if symbol not in self._functions:
            raise KeyError(f"{symbol}: single kernels of an emulated program cannot be called")
        return ctypes.cast(self._functions[symbol], ctypes.c_void_p).value or 0

    def keep_forever(self) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _run(self, table: int, dims: int, thread: int, _threads: int, _barrier: int) -> None:
        if thread:
            return  # the first one does all
        m = self._manifest
        extents = _words(dims, len(m.symbols))
        shapes = self._asked(extents)
        sizes = dict(zip((s.name for s in m.symbols), extents, strict=True))
        counts = [prod(d if isinstance(d, int) else sizes[d] for d in i.shape) for i in m.inputs]
        buffers = [
            (n * BY_NAME[i.dtype].itemsize, INPUT | OUTPUT * i.written) for i, n in zip(m.inputs, counts, strict=True)
        ]
        rest = iter(shapes[len(m.run_temps) :])
        buffers += [(prod(next(rest) for _ in o.shape) * BY_NAME[o.dtype].itemsize, OUTPUT) for o in m.outputs]
        buffers += [(p.nbytes, INPUT) for p in m.packed]
        buffers += [(nbytes, 0) for nbytes in shapes[: len(m.run_temps)]]
        slots = _words(table, len(buffers) + 1)
        control = (ctypes.c_int64 * len(CONTROL_WORDS)).from_address(slots[-1]) if slots[-1] else None
        limit = 1 << 60 if control is None else control[0]
        words = self._call(RUN, limit, extents, [(a, *b) for a, b in zip(slots, buffers, strict=False)])
        if control is not None:
            control[1], control[len(control) - 1] = words[1], words[len(control) - 1]

    def _prepare(self, table: int, steps: int, thread: int, _threads: int, _barrier: int) -> None:
        if thread:
            return
        m = self._manifest
        buffers = [(p.nbytes, INPUT) for p in m.params]
        buffers += [(p.nbytes, INPUT | OUTPUT) if p.alias is None else (p.nbytes, INPUT) for p in m.packed]
        # Weights are packed in several calls: temporaries of one are read by the next.
        buffers += [(t.nbytes or 0, INPUT | OUTPUT) for t in m.prepare_temps]
        slots = _words(table, len(buffers))
        self._call(PREPARE, 0, _words(steps, 2), [(a, *b) for a, b in zip(slots, buffers, strict=True)])

    def _shapes(self, dims: int, out: int) -> None:
        shapes = self._asked(_words(dims, len(self._manifest.symbols)))
        (ctypes.c_int64 * max(len(shapes), 1)).from_address(out)[: len(shapes)] = shapes

    def _asked(self, dims: Sequence[int]) -> list[int]:
        """The results of `tw_shapes` for these values of the symbols: bytes of temporaries, and extents of outputs."""
        m = self._manifest
        out = (ctypes.c_int64 * (len(m.run_temps) + m.output_rank_total + len(m.assumptions) + 1))()
        self._call(SHAPES, 0, dims, [(ctypes.addressof(out), ctypes.sizeof(out) - 8, OUTPUT)])
        return list(out[:-1])

    def _call(self, function: int, limit: int, dims: Sequence[int], buffers: Sequence[Buffer]) -> list[int]:
        """Send a call, take what comes back; its control words."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        head = [function, limit, len(dims), *dims, len(buffers), *(n for b in buffers for n in b[1:])]
        stdin.write(struct.pack(f"<{len(head)}q", *head))
        for address, nbytes, flags in buffers:
            if flags & INPUT and nbytes:
                stdin.write(ctypes.string_at(address, nbytes))
        stdin.flush()
        for address, nbytes, flags in buffers:
            if flags & OUTPUT and nbytes:
                ctypes.memmove(address, self._read(nbytes), nbytes)
        return list(struct.unpack("<16q", self._read(128)))

    def _read(self, nbytes: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(nbytes)
        if len(data) < nbytes:
            code = self._process.wait()
            raise RuntimeError(f"{self._manifest.name}: the emulator ended: {code} {self._said.read_text()[-2000:]}")
        return data


CONTROL_WORDS = tuple(range(CONTROL.size // 8))


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []


def _reported(library: weakref.ref[EmulatedLibrary], method: Callable[..., None]) -> Callable[..., None]:
    """The method, whose errors are noted."""

    def call(*arguments: int) -> None:
        try:
            owner = library()
            assert owner is not None
            method(owner, *arguments)
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    return call


def _end(process: subprocess.Popen[bytes]) -> None:
    """The emulator ends when its pipe does."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
