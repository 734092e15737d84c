"""A program's steps as native code with clock readings between them: `tw_profile`, which computes the same as `tw_run`.

Times add up where regions repeat steps: `times[k]` are the nanoseconds of all calls of step k, `times[steps + k]` is
how many there were, and the word after these is 1 if loops would have had more iterations than allowed, 2 if a check
failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.native.assembler import I8, I32, I64, PTR, VOID, Function, Module, Value, Variable
from tilewright.native.link import host_triple
from tilewright.runtime.specs import RegionSpec, StepSpec, Work, divided


def profile_text(
    steps: Sequence[StepSpec], addresses: Mapping[str, int], times: int, values: Mapping[str, int], most: int
) -> str:
    """LLVM text of `tw_profile`.

    Args:
        addresses: of the kernels, by name.
        times: the address of 2 * steps + 1 words for the results.
        values: of the symbols.
        most: the most iterations of loops whose end depends on data.
    """
    m = Module(host_triple())
    with m.function("tw_profile", VOID, PARAMETERS) as (f, arguments):
        Stepper(f, arguments, steps, addresses, times, values, most).run()
        f.ret()
    return m.text()


PARAMETERS = [("slots", PTR), ("dims", PTR), ("tid", I64), ("nthreads", I64), ("barrier", PTR)]
"""The parameters of a function that all threads call."""


class Stepper:
    """Emits a program's `steps`, with clock readings between them, into the function `f`, whose parameters are
    `PARAMETERS`; the other arguments are as in `profile_text`."""

    def __init__(
        self,
        f: Function,
        arguments: Sequence[Value],
        steps: Sequence[StepSpec],
        addresses: Mapping[str, int],
        times: int,
        values: Mapping[str, int],
        most: int,
    ) -> None:
        self.f = f
        self.slots, self.dims, self.tid, self.nthreads, self.barrier = arguments
        self.steps = steps
        self.addresses = addresses
        self.times = times
        self.values = values
        self.last = f.var(I64, 0)
        self.left = f.var(I64, most)
        self.numbers: dict[str, Variable] = {}
        self.extents: list[Variable] = []

    def run(self) -> None:
        with self.f.when(self.tid.eq(0)):
            self.last.set(self.now())
        at = 0
        while at < len(self.steps):
            at = self.step(at)

    def step(self, at: int) -> int:
        """Emit step number `at`, or the whole region that begins there. Returns the number of the step after it."""
        region = self.steps[at].region
        if region is None:
            self.call(at)
            return at + 1
        if region.kind == "extent":
            self.extent(region)
            return at + 1
        if region.kind == "check":
            self.check(region)
            return at + 1
        if region.kind == "loop":
            return self.loop(at, region)
        return self.branch(at, region)

    def block(self, at: int) -> int:
        """Emit steps from `at` on up to the marker that ends their region or begins its other case. Returns the
        marker's number."""
        while True:
            region = self.steps[at].region
            if region is not None and region.kind in ("else", "end"):
                return at
            at = self.step(at)

    def call(self, k: int) -> None:
        """Emit the kernel call of step `k`, and code that records its time; in a fork the thread that makes the call
        does."""
        f, branch = self.f, self.steps[k].branch
        if branch is not None:
            self.last.set(self.now())
        self.invoke(k)
        with f.when(self.tid.eq(0) if branch is None else self.is_mine(branch[1])):
            now, place = self.now(), f.value(self.times + 8 * k, PTR)
            place[0] = place[0] + now - self.last.get()
            place[8 * len(self.steps)] += 1
            self.last.set(now)
        if self.ends_fork(k):
            self.wait()
            self.last.set(self.now())

    def invoke(self, k: int) -> None:
        """Emit the kernel call of step `k`, and a barrier if it runs on one thread and others need its results."""
        f, step = self.f, self.steps[k]
        shifts = step.shifts or ((),) * len(step.slots)
        pointers = [self.pointer(i, shift) for i, shift in zip(step.slots, shifts, strict=True)]
        symbols = [*map(self.symbol, step.symbols), *(f.value(size, I64) for size in step.sizes)]
        kernel = f.let(PTR, f"inttoptr i64 {self.addresses[step.kernel]} to ptr")
        if step.branch is not None:
            with f.when(self.is_mine(step.branch[1])):
                f.call(VOID, kernel, *pointers, *symbols, (I64, 0), (I64, 1), self.barrier)
            return
        f.call(VOID, kernel, *pointers, *symbols, self.tid, self.nthreads, self.barrier)
        following = self.steps[k + 1] if k + 1 < len(self.steps) else None
        if step.alone and following is not None and not (following.alone and following.branch is None):
            self.wait()

    def is_mine(self, branch: int) -> Value:
        """Whether this thread makes the calls of branch number `branch` of a fork."""
        return self.tid.eq(self.f.value(branch, I64) % self.nthreads)

    def ends_fork(self, k: int) -> bool:
        """Whether all threads wait after a call, because it is the last one of its fork."""
        branch = self.steps[k].branch
        following = self.steps[k + 1].branch if k + 1 < len(self.steps) else None
        return branch is not None and (following is None or following[0] != branch[0])

    def symbol(self, index: int) -> Value:
        if index < len(self.values):
            return self.dims[8 * index]
        return self.extents[index - len(self.values)].get()

    def extent(self, region: RegionSpec) -> None:
        """Emit code that defines a symbol whose value data decides: it is read from memory, and clamped to its
        bounds."""
        assert region.count is not None and region.trip is not None, "an extent has a value and a bound"
        f = self.f
        self.wait()
        result = f.var(I64, 0)
        result.set(self.pointer(region.count, region.shift(0))[0])
        self.wait()
        bound = self.number(region.trip)
        with f.when(result.get() > bound):
            result.set(bound)
        with f.when(result.get() < 0):
            result.set(0)
        self.numbers[region.number] = result
        self.extents.append(result)

    def check(self, region: RegionSpec) -> None:
        """Emit a check, which ends the run if its condition in memory is false."""
        assert region.condition is not None, "a check has no condition"
        f = self.f
        self.wait()
        holds = self.flag(region.condition, region.shift(1))
        self.wait()
        with f.when(holds.eq(0)):
            f.put(2, I64, f.value(self.times + 16 * len(self.steps), PTR))
            f.ret()

    def loop(self, at: int, region: RegionSpec) -> int:
        f = self.f
        alive, number = f.var(I64, 1), f.var(I64, 0)
        alive.set(1)
        number.set(0)
        if region.count is not None or region.condition is not None:
            self.wait()
        limits = [] if region.trip is None else [self.number(region.trip)]
        limits += [] if region.count is None else [self.pointer(region.count, region.shift(0))[0]]
        if region.condition is not None:
            alive.set(self.flag(region.condition, region.shift(1)))
        self.wait()
        self.numbers[region.number] = number
        with f.loop() as loop:
            loop.leave_if(alive.get().eq(0))
            for limit in limits:
                loop.leave_if(number.get() >= limit)
            if not region.ends:
                with f.when(self.left.get() <= 0):
                    f.put(1, I64, f.value(self.times + 16 * len(self.steps), PTR))
                    f.ret()
                self.left.add(-1)
            if region.counter is not None:
                self.write(region.counter, region.shift(2), number.get())
            end = self.block(at + 1)
            self.wait()
            closing = self.steps[end].region
            assert closing is not None, "a region has no end"
            if closing.condition is not None:
                alive.set(self.flag(closing.condition, closing.shift(1)))
                self.wait()
            number.add(1)
        del self.numbers[region.number]
        if closing.counter is not None:
            self.write(closing.counter, closing.shift(2), number.get())
        return end + 1

    def branch(self, at: int, region: RegionSpec) -> int:
        f = self.f
        assert region.condition is not None, "a branch has no condition"
        self.wait()
        condition = self.flag(region.condition, region.shift(1))
        self.wait()
        with f.when(condition.ne(0)):
            end = self.block(at + 1)
            self.wait()
        closing = self.steps[end].region
        if closing is not None and closing.kind == "else":
            with f.when(condition.eq(0)):
                end = self.block(end + 1)
                self.wait()
        return end + 1

    def flag(self, slot: int, shift: Work) -> Value:
        return self.f.load(I8, self.pointer(slot, shift)).cast(I64)

    def write(self, slot: int, shift: Work, value: Value) -> None:
        """Emit a store of `value` at a slot by thread 0, and a barrier."""
        with self.f.when(self.tid.eq(0)):
            self.pointer(slot, shift)[0] = value
        self.wait()

    def pointer(self, slot: int, shift: Work) -> Value:
        return self.f.load(PTR, self.slots, 8 * slot) + self.number(shift)

    def wait(self) -> None:
        self.f.call(VOID, "tw_barrier", self.barrier, self.nthreads)

    def number(self, work: Work) -> Value:
        """Emit the value of the polynomial `work` of symbols and iteration numbers."""
        total = self.f.value(0, I64)
        for coefficient, terms in work:
            term = self.f.value(coefficient, I64)
            for name, divisor in map(divided, terms):
                value = self.numbers[name].get() if name in self.numbers else self.values[name]
                term = term * (value if divisor == 1 else value // divisor)
            total = total + term
        return total

    def now(self) -> Value:
        return clock(self.f)


def clock(f: Function) -> Value:
    """Emit code that reads the monotonic clock, in nanoseconds: `time.perf_counter_ns` in Python."""
    spec = f.space(16)
    f.call(I32, "clock_gettime", (I32, 1), spec)
    return spec[0] * 1_000_000_000 + spec[8]
