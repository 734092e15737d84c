"""One kernel: plan, lower, emit, optimise, with the object kept on disk by the unscheduled function's key."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import tilewright
from tilewright.codegen.llvm import assembly, compile_llvm, emit_llvm, kernel_symbols
from tilewright.codegen.llvm_threads import runs_alone
from tilewright.ir.expr import Expr, Var
from tilewright.ir.key import key
from tilewright.ir.loops import NTHREADS, PrimFunc
from tilewright.ir.parser import parse_expr
from tilewright.ir.rewrite import substitute
from tilewright.ir.target import Target
from tilewright.plans import Planned, forced, plan
from tilewright.plans.decisions import recording
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import ParseError
from tilewright.transform.graph.memory import Workspace
from tilewright.transform.loops import lower_loops, readable_loops


@cache
def code_version() -> str:
    """A digest of the compiler's own source: what one version compiled, another does not find."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(tilewright.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in UNRELATED:
            digest.update(path.read_bytes())
    return digest.hexdigest()


UNRELATED = ("cli", "frontend", "runtime", "support")
"""Parts whose text cannot change a kernel's code."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """Object code that defines `symbol`; what it needs besides its buffers; whether one thread executes all of it."""

    symbol: str
    object: bytes
    workspaces: tuple[Workspace, ...]
    symbols: tuple[Var, ...]
    alone: bool


class KernelTexts:
    """The stages of one kernel as text, made when asked."""

    def __init__(self, func: PrimFunc, target: Target) -> None:
        self.func = func
        self.target = target

    @cached_property
    def planned(self) -> Planned:
        return plan(self.func, self.target)

    @cached_property
    def flat(self) -> PrimFunc:
        return lower_loops(self.planned.func, self.target)

    def schedule(self) -> str:
        return self.planned.describe()

    def loops(self) -> str:
        """The flat loops, mathematical functions by name: their polynomials are graphs that text would unfold."""
        return str(readable_loops(self.planned.func, self.target))

    def llvm(self) -> str:
        return emit_llvm(self.flat, self.target)

    def asm(self) -> str:
        return assembly(self.llvm(), self.target)


def compile_kernel(func: PrimFunc, target: Target, store: ObjectCache | None = None) -> CompiledKernel:
    """Native code of an unscheduled function, from the cache if it was compiled before under any names."""
    objects = store or ObjectCache()
    what = " ".join([key(func), target.fingerprint, code_version(), *(forced(func, target) if recording() else ())])
    identity = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
    symbol = f"tw_{identity}"
    canonical = {s: Var(f"s{i}", s.dtype, s.lo, s.hi, s.multiple) for i, s in enumerate(func.symbols)}
    entry = objects.get(f"kernel-{identity}")
    if entry is not None and (found := _decode(entry, symbol, canonical)) is not None:
        return found
    flat = replace(lower_loops(plan(func, target).func, target), name=symbol)
    code = compile_llvm(emit_llvm(flat, target), target)
    done = CompiledKernel(symbol, code, _workspaces(flat), kernel_symbols(flat), runs_alone(flat))
    objects.put(f"kernel-{identity}", _encode(done, canonical))
    return done


def _workspaces(flat: PrimFunc) -> tuple[Workspace, ...]:
    """The trailing parameters that lowering added. One with a leading `nthreads` dimension is sized for one thread."""
    count = int(flat.attr("workspace", 0))
    result = []
    for buffer in flat.params[len(flat.params) - count :]:
        first = buffer.shape[0] if buffer.shape else None
        per_thread = first is NTHREADS
        size = buffer.size
        if per_thread:
            size = replace(buffer, shape=buffer.shape[1:]).size
        result.append(Workspace(size * buffer.dtype.itemsize, per_thread))
    return tuple(result)


def _encode(kernel: CompiledKernel, canonical: Mapping[Var, Var]) -> bytes:
    header = {
        "workspaces": [[str(substitute(w.nbytes, canonical)), w.per_thread] for w in kernel.workspaces],
        "symbols": [list(canonical).index(s) for s in kernel.symbols],
        "alone": kernel.alone,
    }
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + kernel.object


def _decode(data: bytes, symbol: str, canonical: Mapping[Var, Var]) -> CompiledKernel | None:
    """None when the entry is not one of ours."""
    try:
        (length,) = struct.unpack_from("<I", data)
        header = json.loads(data[4 : 4 + length])
        names = {s.name: original for original, s in canonical.items()}
        workspaces = tuple(Workspace(_size(text, names), bool(each)) for text, each in header["workspaces"])
        order = list(canonical)
        symbols = tuple(order[i] for i in header["symbols"])
        alone = bool(header["alone"])
    except (ValueError, KeyError, IndexError, TypeError, struct.error, ParseError):
        return None
    return CompiledKernel(symbol, data[4 + length :], workspaces, symbols, alone)


def _size(text: str, names: Mapping[str, Var]) -> Expr:
    """The size as text over canonical names, in this function's symbols."""
    canonical = {Var(name, v.dtype, v.lo, v.hi, v.multiple): v for name, v in names.items()}
    return substitute(parse_expr(text, canonical), canonical)
