"""Calls of kernels in an entry, and the loops and branches around them as basic blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tilewright.arith import simplify
from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value
from tilewright.ir.dtype import i64
from tilewright.ir.expr import Expr, Var, const, is_const, product
from tilewright.ir.rewrite import variables
from tilewright.native.text import Writer, identifier
from tilewright.runtime.limits import CONTROL, REFUSED
from tilewright.runtime.specs import RegionSpec, StepSpec, Work, divided
from tilewright.support.classes import dataclass
from tilewright.targets.abi import address_bytes
from tilewright.targets.target import Target


def load_dim(out: Writer, index: int) -> str:
    where = out.inst(f"getelementptr inbounds i64, ptr %dims, i64 {index}")
    return out.inst(f"load i64, ptr {where}, align 8", f"dim{index}")


def polynomial(work: Work, variables: Sequence[Var]) -> Expr:
    """The polynomial `work`, which names its variables, as an expression of `variables`."""
    named = {v.name: v for v in variables}
    total: Expr = const(0)
    for coefficient, terms in work:
        total = total + coefficient * product([named[name] // divisor for name, divisor in map(divided, terms)])
    return simplify(total)


class Caller:
    """Writes calls of kernels into one entry. Pointers and symbols that it has loaded from `slots` and `dims` are
    reused until `forget`."""

    def __init__(self, symbols: Sequence[Var], target: Target) -> None:
        self.state = State(target, frozenset(), evaluate)
        self.out = self.state.out
        self.symbols = symbols
        self.address = address_bytes(target.triple)
        self.threads = not target.isa.compact
        self.pointers: dict[tuple[int, Expr], str] = {}
        self.integers: dict[int, str] = {}
        self.numbers: dict[Var, str] = {}
        """The LLVM operands with the iteration numbers of the enclosing loops, by their variables."""
        self.fork: int | None = None
        """The fork to which the last call belongs; None if it belongs to none."""
        self.owners: dict[int, str] = {}

    def forget(self) -> None:
        self.pointers.clear()
        self.integers.clear()

    def call(self, step: StepSpec, waiting: bool) -> bool:
        """Write the call of `step`, after a barrier if it must wait for earlier calls (`waiting`: some have not been
        waited for). Returns whether later calls must wait for it."""
        fork = None if step.branch is None else step.branch[0]
        together = step.alone or fork is not None  # nothing needs what the calls before have written
        if waiting and not (together and fork == self.fork):
            self.wait()
        self.fork = fork
        shifts = [self.shift(work) for work in step.shifts] or [const(0)] * len(step.slots)
        arguments = [f"ptr {self.pointer(*where)}" for where in zip(step.slots, shifts, strict=True)]
        arguments += [f"i64 {self.integer(index)}" for index in step.symbols]
        arguments += [f"i64 {size}" for size in step.sizes]
        kernel = identifier(step.kernel, "@")
        if step.branch is None:
            arguments += ["i64 %tid", "i64 %nthreads", "ptr %barrier"] if self.threads else []
            self.out.effect(f"call void {kernel}({', '.join(arguments)})")
            return step.alone
        arguments += ["i64 0", "i64 1", "ptr %barrier"] if self.threads else []
        mine, after = self.out.fresh("mine"), self.out.fresh("behind")
        self.out.branch(self.out.inst(f"icmp eq i64 %tid, {self.owner(step.branch[1])}"), mine, after)
        self.out.start(mine)
        self.out.effect(f"call void {kernel}({', '.join(arguments)})")
        self.out.jump(after)
        self.out.start(after)
        return True

    def owner(self, branch: int) -> str:
        """Emit the number of the thread that runs branch number `branch` of the fork; returns its name."""
        if branch not in self.owners:
            self.owners[branch] = f"%owner{branch}"
            self.out.entry.append(f"  %owner{branch} = urem i64 {branch}, %nthreads")
        return self.owners[branch]

    def wait(self) -> None:
        """Write a barrier, at which all threads of the call wait for each other."""
        self.out.effect("call void @tw_barrier(ptr %barrier, i64 %nthreads)")

    def shift(self, work: Work) -> Expr:
        """A polynomial of the symbols and the iteration numbers as an expression."""
        return polynomial(work, (*self.symbols, *self.numbers))

    def pointer(self, slot: int, shift: Expr) -> str:
        entry = self.pointers.get((slot, shift))
        if entry is None and is_const(shift, 0):
            where = self.out.inst(f"getelementptr inbounds ptr, ptr %slots, i64 {slot}")
            entry = self.out.inst(f"load ptr, ptr {where}, align {self.address}", f"slot{slot}")
        elif entry is None:
            base = self.pointer(slot, const(0))
            entry = self.out.inst(f"getelementptr inbounds i8, ptr {base}, i64 {self.number(shift)}")
        self.pointers[slot, shift] = entry
        return entry

    def number(self, e: Expr) -> str:
        """Emit the value of an expression of symbols and iteration numbers as an i64; returns its name."""
        for v in variables(e):
            operand = self.numbers[v] if v in self.numbers else self.integer(self.symbols.index(v))
            self.state.env[v] = Value(i64, (operand,))
        return self.state.scalar(e)

    def integer(self, index: int) -> str:
        """Emit the load of entry `index` of `dims`, which is a symbol or, after the symbols, an extent that an earlier
        step has computed; returns its name."""
        if index not in self.integers:
            self.integers[index] = load_dim(self.out, index)
        return self.integers[index]


@dataclass(slots=True)
class _Open:
    """A region that has begun. Its labels begin with `label`; `pointers`, `integers` and `numbers` are the values that
    were loaded before it, which are valid after it."""

    spec: RegionSpec
    label: str
    pointers: dict[tuple[int, Expr], str]
    integers: dict[int, str]
    number: Var | None = None
    line: int = 0
    """The index of the line with the phi of the iteration number, which is completed at the region's end."""
    bounded: bool = True
    otherwise: bool = False
    numbers: dict[Var, str] = field(default_factory=dict)


class Regions:
    """Writes the LLVM text of a program's loops, branches, checks and extents, between its calls of kernels. `control`
    is the number of the slot with the address of the words that limit loops' iterations."""

    def __init__(self, caller: Caller, control: int) -> None:
        self.caller = caller
        self.out = caller.out
        self.control = control
        self.open: list[_Open] = []
        self.count = 0
        self.extents = self.checks = 0
        self.controlled = False
        self.budget = self.spent = ""
        """The names of the variables on each thread's stack that count how many iterations are still allowed, and how
        many this call was allowed so far."""

    def meet(self, spec: RegionSpec, waiting: bool) -> None:
        """Write the beginning or end of a loop, branch or other region. `waiting`: earlier calls have not been waited
        for."""
        if waiting or spec.count is not None or spec.condition is not None:
            self.caller.wait()
        match spec.kind:
            case "extent":
                self.extent(spec)
            case "check":
                self.check(spec)
            case "loop":
                self.loop(spec)
            case "if":
                self.branch(spec)
            case "else":
                self.orelse()
            case _ if self.open[-1].spec.kind == "loop":
                self.end_loop(spec)
            case _:
                self.end_branch()

    def begin(self, spec: RegionSpec) -> _Open:
        self.count += 1
        caller = self.caller
        result = _Open(spec, f"region{self.count}", dict(caller.pointers), dict(caller.integers))
        result.numbers = dict(caller.numbers)
        self.open.append(result)
        caller.state.enter()
        return result

    def restore(self, region: _Open) -> None:
        """Forget the values that were loaded inside a region, as they do not dominate the code after it."""
        caller = self.caller
        caller.state.leave()
        caller.pointers, caller.integers = dict(region.pointers), dict(region.integers)
        caller.numbers = dict(region.numbers)

    def place(self, slot: int, shift: Work) -> str:
        """Emit the address of a value in `slot`, `shift` bytes on; returns its name."""
        return self.caller.pointer(slot, self.caller.shift(shift))

    def flag(self, slot: int, shift: Work) -> str:
        """Emit the load of the bool in `slot`, `shift` bytes on, and a barrier, so that all threads have read it before
        any may change it. Returns the name of the i1."""
        result = self.out.inst(f"load i8, ptr {self.place(slot, shift)}, align 1")
        self.caller.wait()
        return self.out.inst(f"icmp ne i8 {result}, 0")

    def loop(self, spec: RegionSpec) -> None:
        out, caller = self.out, self.caller
        limit = None if spec.trip is None else caller.number(caller.shift(spec.trip))
        if spec.count is not None:
            count = out.inst(f"load i64, ptr {self.place(spec.count, spec.shift(0))}, align 8")
            caller.wait()
            limit = count if limit is None else out.intrinsic("llvm.smin.i64", "i64", [("i64", count), ("i64", limit)])
        entered = None if spec.condition is None else self.flag(spec.condition, spec.shift(1))
        region = self.begin(spec)
        region.bounded = spec.ends
        if not region.bounded:
            self.allowance()
        before, label = out.block, region.label
        if entered is None:
            out.jump(f"{label}.head")
        else:
            before = f"{label}.entered"
            out.branch(entered, before, f"{label}.never")
            out.start(f"{label}.never")
            out.jump(f"{label}.done")
            out.start(before)
            out.jump(f"{label}.head")
        out.start(f"{label}.head")
        region.number = Var(spec.number)
        region.line = out.reserve()
        caller.numbers[region.number] = f"%{label}.i"
        out.fill(region.line, f"%{label}.i = phi i64 [ 0, %{before} ], [ %{label}.next, %{label}.latch ]")
        if limit is not None:
            more = out.inst(f"icmp slt i64 %{label}.i, {limit}")
            out.branch(more, f"{label}.more", f"{label}.left")
            out.start(f"{label}.more")
        if not region.bounded:
            self.spend(label)
        if spec.counter is not None:
            self.by_one_thread(f"store i64 %{label}.i, ptr {self.place(spec.counter, spec.shift(2))}, align 8", label)

    def end_loop(self, spec: RegionSpec) -> None:
        out = self.out
        region = self.open.pop()
        label = region.label
        continues = None if spec.condition is None else self.flag(spec.condition, spec.shift(1))
        out.jump(f"{label}.latch")
        out.start(f"{label}.latch")
        out.effect(f"%{label}.next = add nuw nsw i64 %{label}.i, 1")
        if continues is None:
            out.jump(f"{label}.head")
        else:
            out.branch(continues, f"{label}.head", f"{label}.stopped")
        sources: list[tuple[str, str]] = []
        if continues is not None:
            out.start(f"{label}.stopped")
            out.jump(f"{label}.done")
            sources.append((f"%{label}.next", f"{label}.stopped"))
        if region.spec.trip is not None or region.spec.count is not None:
            out.start(f"{label}.left")
            out.jump(f"{label}.done")
            sources.append((f"%{label}.i", f"{label}.left"))
        if region.spec.condition is not None:
            sources.append(("0", f"{label}.never"))
        out.start(f"{label}.done")
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in sources)
        total = out.inst(f"phi i64 {pairs}") if sources else "0"
        self.restore(region)
        if spec.counter is not None:
            where = self.place(spec.counter, spec.shift(2))
            self.by_one_thread(f"store i64 {total}, ptr {where}, align 8", f"{label}.total")

    def extent(self, spec: RegionSpec) -> None:
        """Load a number from memory as a new symbol, clamped to between 0 and the bound in `spec`."""
        out, caller = self.out, self.caller
        assert spec.count is not None and spec.trip is not None
        result = out.inst(f"load i64, ptr {self.place(spec.count, spec.shift(0))}, align 8")
        caller.wait()
        result = out.intrinsic("llvm.smax.i64", "i64", [("i64", result), ("i64", "0")])
        bound = caller.number(caller.shift(spec.trip))
        result = out.intrinsic("llvm.smin.i64", "i64", [("i64", result), ("i64", bound)])
        caller.integers[len(caller.symbols) + self.extents] = result
        caller.numbers[Var(spec.number)] = result
        self.extents += 1

    def check(self, spec: RegionSpec) -> None:
        """Return from the entry if a condition does not hold, after the control words were told which check failed, and
        the number that decided it."""
        out = self.out
        assert spec.count is not None and spec.condition is not None
        label = f"check{self.checks}"
        holds = self.flag(spec.condition, spec.shift(1))
        where = self.place(spec.count, spec.shift(0))
        self.load_control()
        out.branch(holds, f"{label}.holds", f"{label}.fails")
        out.start(f"{label}.fails")
        first = out.inst("icmp eq i64 %tid, 0")
        out.branch(first, f"{label}.say", f"{label}.end")
        out.start(f"{label}.say")
        got = out.inst(f"load i64, ptr {where}, align 8")
        for value, offset in ((got, CONTROL.got), (str(REFUSED + self.checks), CONTROL.status)):
            word = out.inst(f"getelementptr inbounds i64, ptr %control, i64 {offset // 8}")
            out.effect(f"store i64 {value}, ptr {word}, align 8")
        out.jump(f"{label}.end")
        out.start(f"{label}.end")
        out.effect("ret void")
        out.start(f"{label}.holds")
        self.checks += 1

    def by_one_thread(self, effect: str, label: str) -> None:
        """Emit the instruction `effect`, which thread 0 alone executes while the others wait. `label` begins the names
        of the blocks."""
        out = self.out
        first = out.inst("icmp eq i64 %tid, 0")
        out.branch(first, f"{label}.one", f"{label}.all")
        out.start(f"{label}.one")
        out.effect(effect)
        out.jump(f"{label}.all")
        out.start(f"{label}.all")
        self.caller.wait()

    def allowance(self) -> None:
        """Allocate, once, the variables with which `spend` counts iterations."""
        if not self.budget:
            self.budget = self.out.alloca("i64", 1, "budget", 8)
            self.spent = self.out.alloca("i64", 1, "spent", 8)
            self.load_control()
            self.out.entry += [f"  store i64 0, ptr {name}, align 8" for name in (self.budget, self.spent)]

    def load_control(self) -> None:
        """Load, once, the address of the control words."""
        if not self.controlled:
            self.controlled = True
            self.out.entry += [
                f"  %control.at = getelementptr inbounds ptr, ptr %slots, i64 {self.control}",
                f"  %control = load ptr, ptr %control.at, align {self.caller.address}",
            ]

    def spend(self, label: str) -> None:
        """Emit code that counts down the iterations that are still allowed. At zero it asks the runtime for more, and
        returns from the entry if it gets none.

        All threads reach zero at the same iteration. Thread 0 asks, and the others read the answer between two
        barriers.
        """
        out = self.out
        left = out.inst(f"load i64, ptr {self.budget}, align 8")
        out.branch(out.inst(f"icmp sgt i64 {left}, 0"), f"{label}.allowed", f"{label}.ask")
        out.start(f"{label}.ask")
        before = out.inst(f"load i64, ptr {self.spent}, align 8")
        more = self.told(before, f"{label}.ask")
        out.effect(f"store i64 {out.inst(f'add nsw i64 {before}, {more}')}, ptr {self.spent}, align 8")
        out.effect(f"store i64 {more}, ptr {self.budget}, align 8")
        out.branch(out.inst(f"icmp sgt i64 {more}, 0"), f"{label}.allowed", f"{label}.endless")
        out.start(f"{label}.endless")
        out.effect("ret void")
        out.start(f"{label}.allowed")
        left = out.inst(f"load i64, ptr {self.budget}, align 8")
        out.effect(f"store i64 {out.inst(f'sub nsw i64 {left}, 1')}, ptr {self.budget}, align 8")

    def told(self, spent: str, label: str) -> str:
        """Emit the request for more iterations: thread 0 calls the function in the control words, with the number
        `spent` so far, and all threads read its answer, whose operand is returned. Names of blocks begin with
        `label`."""
        out = self.out
        told = out.inst(f"getelementptr inbounds i64, ptr %control, i64 {CONTROL.told // 8}")
        first = out.inst("icmp eq i64 %tid, 0")
        out.branch(first, f"{label}.one", f"{label}.all")
        out.start(f"{label}.one")
        word = "ptr" if self.caller.address == 8 else "i64"
        where = out.inst(f"getelementptr inbounds {word}, ptr %control, i64 {CONTROL.poll // 8}")
        poll = out.inst(f"load ptr, ptr {where}, align 8")
        out.effect(f"store i64 {out.inst(f'call i64 {poll}(ptr %control, i64 {spent})')}, ptr {told}, align 8")
        out.jump(f"{label}.all")
        out.start(f"{label}.all")
        self.caller.wait()
        result = out.inst(f"load i64, ptr {told}, align 8")
        self.caller.wait()
        return result

    def branch(self, spec: RegionSpec) -> None:
        assert spec.condition is not None
        condition = self.flag(spec.condition, spec.shift(1))
        region = self.begin(spec)
        self.out.branch(condition, f"{region.label}.then", f"{region.label}.else")
        self.out.start(f"{region.label}.then")

    def orelse(self) -> None:
        region = self.open[-1]
        region.otherwise = True
        self.out.jump(f"{region.label}.done")
        self.out.start(f"{region.label}.else")
        self.restore(region)
        self.caller.state.enter()

    def end_branch(self) -> None:
        region = self.open.pop()
        self.out.jump(f"{region.label}.done")
        if not region.otherwise:
            self.out.start(f"{region.label}.else")
            self.out.jump(f"{region.label}.done")
        self.out.start(f"{region.label}.done")
        self.restore(region)
