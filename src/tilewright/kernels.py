"""Kernels: planned, lowered, emitted and optimised; their objects are cached on disk by the keys of the unscheduled
functions.

LLVM's part of the work runs in a `Background`, so that the next kernel is planned meanwhile.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property

from tilewright.codegen import external
from tilewright.codegen.llvm.emit import assembly, compile_llvm, emit_llvm, kernel_symbols
from tilewright.codegen.llvm.threads import runs_alone
from tilewright.identity import identity
from tilewright.ir.expr import Expr, Var, const, is_const, select
from tilewright.ir.graph import Value
from tilewright.ir.key import key
from tilewright.ir.loops import NTHREADS, PrimFunc
from tilewright.ir.notes import MayAlias, PastCaches, with_note
from tilewright.ir.rewrite import substitute
from tilewright.plans import Planned, decided, may_differ, plan
from tilewright.plans.framework.decisions import scheduled
from tilewright.runtime.specs import Work
from tilewright.support import flags, plugins
from tilewright.support.background import Background, all_done
from tilewright.support.cache import ObjectCache
from tilewright.support.classes import dataclass
from tilewright.support.copies import share
from tilewright.support.errors import ParseError
from tilewright.support.log import PassLog
from tilewright.support.machine import usable_cpus
from tilewright.support.progress import expect, tell
from tilewright.targets.host import host_of
from tilewright.targets.target import Target
from tilewright.transform.call import CompiledKernel, KernelCall, Workspace
from tilewright.transform.driver import LOOPS_SHOWN
from tilewright.transform.graph.memory import overwritable
from tilewright.transform.loops import lower_loops, readable_loops
from tilewright.transform.loops.prefetch_share import WeightPrefetch
from tilewright.transform.loops.workspace import used_where
from tilewright.transform.work import operations, traffic

MAX_ENTRY_LINES = 6000
"""A longer entry is compiled without optimisation: LLVM's register allocation takes time that is quadratic in its calls
(2 s for 1,200 of them, 0.05 s without), and what is left to gain is some loads a call."""


class KernelTexts:
    """The stages of one kernel as text, each made on request."""

    def __init__(
        self, func: PrimFunc, target: Target, prefetch: WeightPrefetch | None = None, log: PassLog | None = None
    ) -> None:
        self.func = func
        self.target = target
        self.prefetch = prefetch
        self.log = log or PassLog(level=0, dumps=())

    @cached_property
    def planned(self) -> Planned:
        with self.log.announcing(LOOPS_SHOWN):
            planned = self.log.run("plan", plan, self.func, self.target)
        for remark in planned.remarks:
            self.log.remark(f"{self.func.name}: {remark}")
        return planned

    @cached_property
    def flat(self) -> PrimFunc:
        return lower_loops(self.planned.func, self.target, self.log, self.prefetch)

    def schedule(self) -> str:
        return self.planned.describe()

    def scheduled(self) -> str:
        """The blocks and loops that the plan has made."""
        return str(self.planned.func)

    def loops(self) -> str:
        """The flat loops, mathematical functions by name: their polynomials are graphs that text would unfold."""
        return str(readable_loops(self.planned.func, self.target, self.prefetch))

    def llvm(self) -> str:
        if self.target.gpu is None:
            return emit_llvm(self.flat, self.target)
        from tilewright.codegen.ptx.emit import emit_module  # which programs for processors do without

        return emit_module(self.flat, self.target).text

    def asm(self) -> str:
        if self.target.gpu is not None:
            from tilewright.codegen.ptx.device import emit_ptx

            return emit_ptx(self.flat, self.target)[0]
        return assembly(self.llvm(), self.target)


Facts = tuple[tuple[Workspace, ...], tuple[Var, ...], bool, int]
"""The facts about a compiled kernel that its caller needs: workspaces, symbols, whether one thread runs it, and
estimated cycles."""

SHARED_KERNELS = {1: 12, 2: 3}
"""The least number of missing kernels for which it pays to compile in forked copies of the process, by the number of
copies (2: two or more). A copy costs 50 ms, most of it pages that both then write (Zen 5, 2 cores, 2026-11-30, M64:
0.91 s of processor time alone, 0.96 with a copy). On two cores LLVM's thread has the second one, so that a copy must
save more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a compiled kernel: its name in the cache, a digest of all that it depends on, the unscheduled
    function, the weights that it prefetches, and the machine."""

    name: str
    func: PrimFunc
    prefetch: WeightPrefetch | None
    target: Target

    @property
    def symbol(self) -> str:
        """The kernel's name in object code."""
        return f"tw_{self.name}"

    @property
    def canonical(self) -> dict[Var, Var]:
        """The function's symbols mapped to their canonical names in the cache."""
        return {s: s.renamed(f"s{i}") for i, s in enumerate(self.func.symbols)}


class KernelCompiler:
    """The kernels of one model: equal ones are compiled once, under whatever names, and looked for in the cache first.

    Args:
        target: the machine.
        background: where LLVM works.
        store: the cache; the user's if None.
        log: where passes over loops are announced. One that prints them gets kernels made anew.
    """

    def __init__(
        self, target: Target, background: Background, store: ObjectCache | None = None, log: PassLog | None = None
    ) -> None:
        self.target = target
        self.background = background
        self.store = store or ObjectCache()
        self.log = log or PassLog(level=0, dumps=())
        self._known: dict[str, tuple[bytes, Callable[[], bytes]]] = {}

    def asked(self, func: PrimFunc, prefetch: WeightPrefetch | None = None, target: Target | None = None) -> Asked:
        """The request for native code of an unscheduled function. With `prefetch` it has one more parameter, of which
        it prefetches a part. `target`: the machine with another number of threads than the model's."""
        target = target or self.target
        workload = key(func) if prefetch is None else f"{key(func)} {prefetch!r}"
        # What is decided about a kernel that is in the cache is listed too.
        created = decided(func, target) if may_differ(func, target) else ()
        settings = [c.forced for c in created if c.forced]
        name = identity(workload, target, decisions=settings, extensions=plugins.digests())
        scheduled(f"tw_{name}", tuple(c.decision for c in created))
        return Asked(name, func, prefetch, target)

    def asked_by(self, call: KernelCall) -> Asked:
        """The request for the kernel that a call needs."""
        return self.asked(call.func, call.prefetch, call.on(self.target))

    def compiled(self, call: KernelCall, asked: Asked) -> KernelCall:
        """The call with its code; the stages of the kernel are printed where the log shows them."""
        call = replace(call, compiled=self.log.run("kernel", self.compile, asked))
        texts = KernelTexts(call.func, asked.target, call.prefetch)
        self.log.dump(LOOPS_SHOWN, f"scheduled loops of {call.label}", texts.scheduled)
        self.log.dump(LOOPS_SHOWN, f"loops of {call.label}", texts.loops)
        self.log.dump(LOOPS_SHOWN + 1, f"LLVM IR of {call.label}", texts.llvm)
        self.log.dump(LOOPS_SHOWN + 2, f"assembly of {call.label}", texts.asm)
        return call

    def compile(self, asked: Asked) -> CompiledKernel:
        """Compile the requested kernel; its object may be finished later."""
        canonical, work = asked.canonical, (operations(asked.func), traffic(asked.func))
        result = self._cached(asked)
        done = None if result is None else _decode(*result, asked.symbol, canonical, work)
        if result is None or done is None:
            header, code, facts = self._compiled(asked)
            result, done = (header, code), CompiledKernel(asked.symbol, code, *facts, work)
        self._known[asked.name] = result
        return done

    def compile_together(self, kernels: Iterable[Asked]) -> None:
        """Compile `kernels` by several processes, without the ones that are compiled already, if that pays: a third of
        a kernel's time is LLVM's, which has a thread of its own, and the rest holds the interpreter lock."""
        missing: dict[str, Asked] = {}
        for asked in kernels:
            if asked.name not in missing and asked.name not in self._known:
                result = self._cached(asked)
                if result is None:
                    missing[asked.name] = asked
                else:
                    self._known[asked.name] = result
        jobs = list(missing.values())
        processes = flags.PROCESSES() or min(8, int(usable_cpus()))
        quiet = self.log.level == 0 and not self.log.wants_all
        if processes < 2 or len(jobs) < SHARED_KERNELS[min(processes - 1, 2)] or not (quiet and all_done()):
            return

        def own(k: int) -> None:
            header, code, _ = self._compiled(jobs[k])
            self._known[jobs[k].name] = header, code
            tell(jobs[k].func.name)

        def copied(k: int) -> bytes:
            with Background(cpus=1) as self.background:
                header, code, _ = self._compiled(jobs[k])
            return _entry(header, code())

        expect(len(jobs))
        for k, entry in share(len(jobs), own, copied, processes).items():
            tell(jobs[k].func.name)
            result = _split(entry)
            if result is not None:
                self._known[jobs[k].name] = result

    def _cached(self, asked: Asked) -> tuple[bytes, Callable[[], bytes]] | None:
        """The header and the object of a kernel from the cache, filled by this process or another one; None if it is
        missing."""
        entry = self._known.get(asked.name)
        if entry is None and not self.log.wants_all and self.log.level < LOOPS_SHOWN:
            entry = _split(self.store.get(f"kernel-{asked.name}"))
        return entry

    def _compiled(self, asked: Asked) -> tuple[bytes, Callable[[], bytes], Facts]:
        """Compile a kernel now; returns (the header of its object, a function that waits for the object, the facts in
        the header)."""
        texts = KernelTexts(asked.func, asked.target, asked.prefetch, self.log)
        flat = replace(texts.flat, name=asked.symbol)
        facts = _workspaces(flat), kernel_symbols(flat), runs_alone(flat), round(texts.planned.chosen.cycles)
        header = _encode(*facts, asked.canonical)
        if asked.target.gpu is not None:
            return header, self.background.submit(self._launching(asked, header, flat)), facts
        with self.log.announcing(LOOPS_SHOWN):
            text = self.log.run("emit", emit_llvm, flat, asked.target)
        return header, self.background.submit(self._llvm(asked, header, text, external.own_texts(flat.body))), facts

    def entry(self, text: str) -> Callable[[], bytes]:
        """The object of a program's entry; it may be finished later."""
        name = f"entry-{identity(text, self.target, extensions=plugins.digests())}"
        done = self.store.get(name)
        if done is not None:
            return lambda: done

        def make() -> bytes:
            code = compile_llvm(text, host_of(self.target), opt=0 if text.count("\n") > MAX_ENTRY_LINES else 3)
            self.store.put(name, code)
            return code

        return self.background.submit(make)

    def _launching(self, asked: Asked, header: bytes, flat: PrimFunc) -> Callable[[], bytes]:
        """A function that creates and caches the object of a GPU's kernel `flat`: the host's function that launches it,
        with its PTX. `header` is the object's header in the cache."""
        from tilewright.codegen.ptx.device import ptx_of
        from tilewright.codegen.ptx.emit import emit_module
        from tilewright.codegen.ptx.launcher import launcher_text

        with self.log.announcing(LOOPS_SHOWN):
            module = self.log.run("emit", emit_module, flat, asked.target)

        def make() -> bytes:
            host = host_of(asked.target)
            ptx = ptx_of(module.text, asked.target, asked.symbol)
            code = compile_llvm(launcher_text(flat, module, ptx, host), host)
            self.store.put(f"kernel-{asked.name}", _entry(header, code))
            return code

        return make

    def _llvm(self, asked: Asked, header: bytes, text: str, others: Sequence[str]) -> Callable[[], bytes]:
        def make() -> bytes:
            code = compile_llvm(text, asked.target, others=others)
            self.store.put(f"kernel-{asked.name}", _entry(header, code))
            return code

        return make


def _workspaces(flat: PrimFunc) -> tuple[Workspace, ...]:
    """The scratch buffers of a flat function, parameters that lowering added, with their sizes. A buffer with a leading
    `nthreads` dimension has the size for one thread; the size of a buffer that only some versions of the function use
    is 0 for calls that take another version."""
    result = []
    for buffer in flat.workspaces:
        first = buffer.shape[0] if buffer.shape else None
        per_thread = first is NTHREADS
        size = buffer.size
        if per_thread:
            size = replace(buffer, shape=buffer.shape[1:]).size
        where = used_where(flat, buffer)
        nbytes = size * buffer.dtype.itemsize
        result.append(Workspace(nbytes if is_const(where) else select(where, nbytes, const(0)), per_thread))
    return tuple(result)


def _encode(
    workspaces: tuple[Workspace, ...], symbols: tuple[Var, ...], alone: bool, cycles: int, canonical: Mapping[Var, Var]
) -> bytes:
    """The header, in JSON, of a kernel's object in the cache, with its symbols replaced as in `canonical`. `alone` says
    that one thread runs the kernel; `cycles` is its estimate."""
    header = {
        "workspaces": [[str(substitute(w.nbytes, canonical)), w.per_thread] for w in workspaces],
        "symbols": [list(canonical).index(s) for s in symbols],
        "alone": alone,
        "cycles": cycles,
    }
    return json.dumps(header).encode()


def _entry(header: bytes, code: bytes) -> bytes:
    """The cache entry of a kernel, made of its header and its code."""
    return struct.pack("<I", len(header)) + header + code


def _split(entry: bytes | None) -> tuple[bytes, Callable[[], bytes]] | None:
    """The header and the object in a cache entry; None if the entry is malformed."""
    if entry is None or len(entry) < 4:
        return None
    (length,) = struct.unpack_from("<I", entry)
    return entry[4 : 4 + length], lambda: entry[4 + length :]


def _decode(
    header: bytes,
    code: Callable[[], bytes],
    symbol: str,
    canonical: Mapping[Var, Var],
    work: tuple[Work | None, Work | None],
) -> CompiledKernel | None:
    """The kernel that a cached object's `header` describes; its other parts are arguments: `code` returns the object's
    bytes, `symbol` is its function's name, `work` its operations and the bytes that it moves. `canonical` maps the
    kernel's symbols to the cached object's. None if the header is malformed."""
    try:
        facts = json.loads(header)
        names = {s.name: original for original, s in canonical.items()}
        workspaces = tuple(Workspace(_size(text, names), bool(each)) for text, each in facts["workspaces"])
        order = list(canonical)
        symbols = tuple(order[i] for i in facts["symbols"])
        alone, cycles = bool(facts["alone"]), int(facts["cycles"])
    except (ValueError, KeyError, IndexError, TypeError, ParseError):
        return None
    return CompiledKernel(symbol, code, workspaces, symbols, alone, cycles, work)


def _size(text: str, names: Mapping[str, Var]) -> Expr:
    """The size that `text` states in canonical names, as an expression of this function's symbols."""
    from tilewright.ir.parser import parse_expr  # which kernels that are compiled do without

    canonical = {v.renamed(name): v for name, v in names.items()}
    return substitute(parse_expr(text, canonical), canonical)


def with_outputs_noted(call: KernelCall, past_caches: Set[Value]) -> KernelCall:
    """The call with notes of the inputs that its outputs may be written over, and of outputs that are written past
    the caches."""
    call = replace(call, over=overwritable(call.group))
    notes = call.func.notes
    if call.over:
        notes = with_note(notes, MayAlias())
    if not past_caches.isdisjoint(call.group.outputs):
        notes = with_note(notes, PastCaches())
    return call if notes is call.func.notes else replace(call, func=replace(call.func, notes=notes))


def with_prefetch(call: KernelCall, part: tuple[Value, WeightPrefetch] | None) -> KernelCall:
    """`call` with one more argument, a weight of a later kernel, of which the kernel prefetches a part; unchanged if
    `part` is None."""
    if part is None:
        return call
    weight, prefetch = part
    return replace(call, args=(*call.args, weight), prefetch=prefetch)
