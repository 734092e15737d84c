"""Other compilers that compile parts of a model: the interface for their plug-ins, and how a program calls the results.

    kernel -> i64 tw_external(ptr descriptor, ptr arrays, ptr sizes)     0, or the number of a failure

The descriptor is a constant of the kernel: the compiler's name, the types of the part's arrays, and the bytes that the
compiler produced at compile time (`ops/lowered/external_call.py` writes it). So a program only needs the plug-in
wherever it is loaded. A part is loaded when it is first called, and shared by the programs that contain it.

Results are checked and copied into the program's memory. If a part fails, its results are zeros, and the check that
follows it ends the call with an error.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tilewright.ir.dtype import BY_NAME
from tilewright.runtime.interop import Array, array_at
from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import ArtifactError, CallError, Error, PluginError

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph, TensorType
    from tilewright.transform.graph.patterns import Pattern

TILEWRIGHT = "tilewright"
"""The name by which a list of compilers refers to Tilewright itself."""
SYMBOL = "tw_external"
MAX_PARTS = 256
"""The most parts that stay loaded; the one called longest ago is unloaded first, and loaded again when called."""
MAX_FAILURES = 64
"""The most errors that are stored until their calls raise them."""

Arrays = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A region as its compiler compiled it.

    Args:
        payload: bytes from which `Compiler.load` creates the part, in any process.
        packed: types of the arrays that `prepare` computes from the region's weights whenever these change, and that
            calls get in their place. None: calls get the weights themselves.
    """

    payload: bytes
    packed: tuple[TensorType, ...] | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A part of a program, compiled by another compiler, that is loaded in this process. Its arguments are read-only,
    and only valid during the call.

    Args:
        run: from the part's inputs and its weights (or the results of `prepare`) to its outputs, in order.
        prepare: from the part's weights to the packed ones.
    """

    run: Callable[[Arrays, Arrays], Arrays]
    prepare: Callable[[Arrays], Arrays] | None = None


@dataclass(frozen=True, slots=True)
class Compiler:
    """Another compiler, which a plug-in of the group "compilers" provides.

    Args:
        name: by which `tw.compile(model, compilers=[name])` asks for it.
        patterns: the graphs that it can compile; those of higher priority first, then in this order.
        compile: compiles a region, a graph of source operators with weights as its parameters. Any exception means that
            it cannot.
        load: creates a callable part from `Compiled.payload`. Several threads may call it at once.
        version: of the compiler or its library. Cached programs of another version are compiled again.
    """

    name: str
    patterns: tuple[Pattern, ...]
    compile: Callable[[Graph], Compiled]
    load: Callable[[bytes], Loaded]
    version: str = ""


# --- the registry -----------------------------------------------------------------------------------------------------

_registry: dict[str, Compiler] = {}


def register(compiler: Compiler) -> Compiler:
    """Register a compiler, so that models can be compiled with it. Raises PluginError if another one has its name."""
    _check_new([compiler])
    plugins.count(compiler.compile, compiler.load)
    _registry[compiler.name] = compiler
    return compiler


def unregister(name: str) -> None:
    """Remove a registered compiler."""
    compiler = _registry.pop(name)
    plugins.discount(compiler.compile, compiler.load)
    _parts.clear()


def _check_new(compilers: Sequence[Compiler]) -> None:
    plugins.check_new("compiler", [c.name for c in compilers], [TILEWRIGHT, *_registry])


def _register_all(plugin: plugins.Plugin, loaded: object) -> tuple[str, ...]:
    compilers = plugins.several(loaded, Compiler)
    _check_new(compilers)
    for compiler in compilers:
        register(compiler)
    return tuple(f"compiler {c.name}" for c in compilers)


def names() -> tuple[str, ...]:
    """The names of all compilers."""
    plugins.load_group("compilers", _register_all)
    return tuple(_registry)


def find(name: str) -> Compiler:
    """The compiler of this name. Raises PluginError, which lists the existing names."""
    if name not in names():
        hint = "a plug-in brings it (docs/compilers.md)"
        expected = ", ".join((*names(), TILEWRIGHT))
        raise PluginError("no such compiler is installed", expected=expected, got=repr(name), hint=hint)
    return _registry[name]


def versions(asked: Collection[str]) -> tuple[str, ...]:
    """Names and versions of the compilers, a part of the keys of cached objects."""
    return tuple(f"{name} {find(name).version}" for name in asked if name != TILEWRIGHT)


# --- descriptors ------------------------------------------------------------------------------------------------------

_HEAD = struct.Struct("<16sqq")
"""The head of a descriptor: a digest of all that follows, the bytes of the JSON, and the bytes of the payload."""

Side = Sequence[tuple[str, int]]
"""Element types and ranks of arrays."""
_SIDES = ("inputs", "weights", "outputs")


def descriptor(compiler: str, part: str, sides: Sequence[Side], payload: bytes) -> bytes:
    """The bytes from which `tw_external` finds a part of a program and its compiler: a digest, the names with the types
    of `sides` (inputs, weights and results), and `payload`, the part's code."""
    arrays = dict(zip(_SIDES, sides, strict=True))
    text = json.dumps({"compiler": compiler, "part": part, **arrays}, sort_keys=True).encode()
    content = blake2b(digest_size=16)
    content.update(struct.pack("<q", len(text)) + text + payload)
    return _HEAD.pack(content.digest(), len(text), len(payload)) + text + payload


PREPARE = ".prepare"
"""The suffix of the names of parts that pack weights."""


class _Part:
    """A part that another compiler compiled, loaded in this process, with the types of its arrays."""

    def __init__(self, text: bytes, payload: bytes) -> None:
        described = json.loads(text)
        self.name, self.compiler = str(described["part"]), str(described["compiler"])
        self.sides = [[(BY_NAME[kind].numpy, int(rank)) for kind, rank in described[side]] for side in _SIDES]
        self.loaded = loaded(find(self.compiler), payload)

    def call(self, arrays: int, sizes: int) -> None:
        """Run the part on arrays whose addresses native code passes at the address `arrays`, and their extents at
        `sizes`, outputs last. Outputs are zeros if it fails."""
        at = 0
        arguments: list[list[Array]] = []
        count = sum(map(len, self.sides))
        addresses = (ctypes.c_int64 * count).from_address(arrays)
        extents = (ctypes.c_int64 * sum(rank for side in self.sides for _, rank in side)).from_address(sizes)
        numbers = iter(addresses)
        for side in self.sides:
            arguments.append([])
            for kind, rank in side:
                arguments[-1].append(array_at(next(numbers), kind, extents[at : at + rank]))
                at += rank
        inputs, weights, outputs = arguments
        for target in outputs:
            target[...] = 0
        for array in (*inputs, *weights):
            array.flags.writeable = False
        for target, result in zip(outputs, self.results(inputs, weights, outputs), strict=True):
            target[...] = result

    def results(self, inputs: Arrays, weights: Arrays, outputs: Arrays) -> list[Array]:
        """The part's results for these inputs and weights. Raises CallError unless they have the shapes and types of
        `outputs`."""
        if self.name.endswith(PREPARE):
            assert self.loaded.prepare is not None
            results = self.loaded.prepare(weights)
        else:
            results = self.loaded.run(inputs, weights)
        if not isinstance(results, list | tuple) or len(results) != len(outputs):
            got = f"{len(results)}" if isinstance(results, list | tuple) else f"a {type(results).__name__}"
            raise CallError("gives another number of results", expected=f"a list of {len(outputs)}", got=got)
        for k, (result, target) in enumerate(zip(results, outputs, strict=True)):
            fits = isinstance(result, np.ndarray) and (result.dtype, result.shape) == (target.dtype, target.shape)
            if not fits:
                raise CallError(f"gives a wrong result {k}", expected=_described(target), got=_described(result))
        return list(results)


def _described(value: object) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def loaded(compiler: Compiler, payload: bytes) -> Loaded:
    """A compiler's part, loaded. Raises PluginError if the result is invalid, and any exception of the compiler's."""
    result: object = compiler.load(payload)
    if not isinstance(result, Loaded):
        raise PluginError(
            "gives no part", where=f"compiler {compiler.name!r}", expected="a Loaded", got=_described(result)
        )
    return result


_parts: OrderedDict[bytes, _Part] = OrderedDict()
_lock = threading.Lock()


def _part(address: int) -> _Part:
    """The loaded part whose descriptor is at `address`: from a cache of recent ones, else loaded now."""
    digest, text, payload = _HEAD.unpack(ctypes.string_at(address, _HEAD.size))
    with _lock:
        if digest in _parts:
            _parts.move_to_end(digest)
            return _parts[digest]
    begin = address + _HEAD.size
    part = _Part(ctypes.string_at(begin, text), ctypes.string_at(begin + text, payload))
    with _lock:
        _parts[digest] = part
        while len(_parts) > MAX_PARTS:
            _parts.popitem(last=False)
    return part


# --- calls and failures -----------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_failures: OrderedDict[int, Error] = OrderedDict()
_noted = threading.local()


def _call(address: int, arrays: int, sizes: int) -> int:
    """Run the part whose descriptor is at `address`, with tables of arrays and sizes at the addresses `arrays` and
    `sizes`, as `tw_external` does; returns 0, or the number of a failure."""
    part: _Part | None = None
    try:
        part = _part(address)
        part.call(arrays, sizes)
    except BaseException as error:  # of foreign code, which native code called
        return _note(part, error)
    return 0


def _note(part: _Part | None, error: BaseException) -> int:
    """Record the failure of a part for the call that will raise it. Returns the failure's number."""
    where = f"part {part.name!r} by the compiler {part.compiler!r}" if part is not None else "a part by a compiler"
    reason = error.headline() if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    failed = CallError("failed", where=where, got=reason)
    failed.__cause__ = error
    with _lock:
        number = next(_numbers)
        _failures[number] = failed
        while len(_failures) > MAX_FAILURES:
            _failures.popitem(last=False)
    _noted.number = number
    return number


def failure(number: int) -> Error:
    """Remove the error that was noted under `number`, and return it."""
    with _lock:
        known = _failures.pop(number, None)
    return known or CallError("a part by another compiler failed", got=f"failure {number} of another process")


def raise_noted() -> None:
    """Raise the error of a part that has failed in this thread since the last call of `raise_noted`; nothing if none
    has."""
    number = getattr(_noted, "number", 0)
    _noted.number = 0
    if number and number in _failures:
        raise failure(number)


@cache
def address() -> int:
    """The address of `tw_external` in this process."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(_call)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))  # threads may run programs while the interpreter ends
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def imports(needed: Collection[str], where: str) -> dict[str, int]:
    """(symbol -> address) for a program that contains parts by the compilers `needed`. Raises ArtifactError if one of
    them is not installed."""
    missing = [name for name in needed if name not in names()]
    if missing:
        hint = "install the plug-in that brings it"
        raise ArtifactError("needs a compiler that is not installed", where=where, got=", ".join(missing), hint=hint)
    return {SYMBOL: address()} if needed else {}


def _after_fork() -> None:
    """In the child of a fork: unload all parts, as their threads do not exist here, and locks may be held by such
    threads."""
    global _lock
    _lock = threading.Lock()
    _parts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Compiled", "Compiler", "Loaded", "find", "names", "register", "unregister"]
