"""The functional simulator as LLVM text: each instruction's inner work, and the three queues with their tokens.

    tw_vta_execute(word, machine) -> status          one instruction, whatever tokens say
    tw_vta_run(words, count, machine, first) -> status      a program, each queue run as far as it can in turn

`machine` is a table of addresses (`MACHINE`). A status is 0, or a code of `FAULTS` with the instruction's number above
its lowest 8 bits. Every row and address is checked, so that no word can touch memory outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.native.assembler import I1, I8, I32, I64, PTR, Function, Module, Value
from tilewright.targets.vta.config import Config, Memory
from tilewright.targets.vta.isa import AluOp, Fields, Opcode, fields, uop_fields

MACHINE = {
    name: 8 * k for k, name in enumerate(("uop", "wgt", "inp", "acc", "segments", "count", "counters", "tokens"))
}
"""Byte offsets in the machine's table: the buffers, `count` DRAM segments of (first address, bytes, where they are in
this process), the seven counters, the four token counts."""

COUNTERS: tuple[str, ...] = (
    "inp_load_nbytes",
    "wgt_load_nbytes",
    "acc_load_nbytes",
    "uop_load_nbytes",
    "out_store_nbytes",
)
COUNTERS += ("gemm_counter", "alu_counter")

FAULTS = {
    1: "it reaches beyond the end of its buffer",
    2: "it reaches DRAM that is not mapped",
    3: "there is no such opcode, memory or operation",
    4: "it has a token to a queue that there is not, or paddings that a STORE has not",
    5: "the program waits for ever: no token comes for this instruction",
}

_RANGE, _ADDRESS, _UNKNOWN, _FLAG, _STUCK = 1, 2, 3, 4, 5
L2C, C2L, C2S, S2C = 0, 8, 16, 24
"""Byte offsets of the token counts: load to compute, compute to load, compute to store, store to compute."""


def simulator_text(config: Config) -> str:
    """The LLVM text of the functional simulator of a VTA with the sizes `config`."""
    m = Module()
    _segment(m)
    _memory(m, config)
    _gemm(m, config)
    _alu(m, config)
    _execute(m, config)
    _queue(m)
    _ready(m)
    _run(m)
    return m.text()


def _get(f: Function, word: Value, layout: Fields, name: str) -> Value:
    """Emit the read of the field `name` of an instruction word in memory, as i64."""
    at = 0
    for candidate, bits in layout:
        width = abs(bits)
        if candidate == name:
            half = word[at // 64 * 8]
            low = half >> (at % 64) if at % 64 else half
            if bits > 0:
                return low & ((1 << width) - 1)
            return f.let(I64, f"ashr i64 {(low << (64 - width)).text}, {64 - width}")
        at += width
    raise KeyError(name)


def _part(f: Function, machine: Value, name: str) -> Value:
    return f.load(I64 if name == "count" else PTR, machine, MACHINE[name])


def _count(f: Function, machine: Value, name: str, by: Value) -> None:
    counters, at = _part(f, machine, "counters"), 8 * COUNTERS.index(name)
    counters[at] += by


def _segment(m: Module) -> None:
    """Define `tw_vta_at(m, at, size)`: the address in this process of the `size` bytes at DRAM address `at`; null if no
    segment contains all of them."""
    with m.function("tw_vta_at", PTR, [("m", PTR), ("at", I64), ("size", I64)], local=True) as (f, (machine, at, size)):
        segments = _part(f, machine, "segments")
        with f.each(_part(f, machine, "count")) as k:
            segment = segments + k * 24
            offset = at - segment[0]
            with f.when(offset >= 0), f.when(offset + size <= segment[8]):
                f.ret(f.load(PTR, segment, 16) + offset)
        f.ret(0, PTR)


def _memory(m: Module, config: Config) -> None:
    """Define the functions that run LOAD and STORE for one memory."""
    for memory in Memory:
        params = [("w", PTR), ("m", PTR)]
        with m.function(f"tw_vta_{memory.name.lower()}", I64, params, local=True) as (f, (word, machine)):
            if memory is Memory.OUT:
                _store(f, word, machine, config)
            else:
                _load(f, word, machine, memory, config)
            f.ret(0)


def _picture(f: Function, word: Value) -> dict[str, Value]:
    layout = fields(Opcode.LOAD)
    names = [n for n, _ in layout[6:] if n]
    return {n: _get(f, word, layout, n) for n in names}


def _load(f: Function, word: Value, machine: Value, memory: Memory, config: Config) -> None:
    p = _picture(f, word)
    source_bytes, row_bytes = config.dram_bytes(memory), config.buffer_bytes(memory)
    with f.when(p["x_size"].eq(0)):
        f.ret(0)
    width = p["x_pad_0"] + p["x_size"] + p["x_pad_1"]
    height = p["y_pad_0"] + p["y_size"] + p["y_pad_1"]
    with f.when(p["sram_base"] + width * height > config.rows(memory)):
        f.ret(_RANGE)
    dram = p["dram_base"] * source_bytes
    with f.when(p["y_size"].eq(0)), f.when(f.call(PTR, "tw_vta_at", machine, dram, (I64, 1)).eq(0)):
        f.ret(_ADDRESS)
    name = {Memory.UOP: "uop", Memory.WGT: "wgt", Memory.INP: "inp"}.get(memory, "acc")
    to = f.var(PTR, _part(f, machine, name) + p["sram_base"] * row_bytes)

    def zeros(rows: Value) -> None:
        _fill(f, to.get(), rows * row_bytes)
        to.set(to.get() + rows * row_bytes)

    zeros(p["y_pad_0"] * width)
    with f.each(p["y_size"]) as y:
        zeros(p["x_pad_0"])
        at = dram + y * p["x_stride"] * source_bytes
        source = f.call(PTR, "tw_vta_at", machine, at, p["x_size"] * source_bytes)
        with f.when(source.eq(0)):
            f.ret(_ADDRESS)
        if memory is Memory.ACC8:
            with f.each(p["x_size"] * config.lanes) as k:
                f.store(f.load(I8, source, k).signed(I32), to.get(), k * 4)
        else:
            _copy(f, to.get(), source, p["x_size"] * source_bytes)
        to.set(to.get() + p["x_size"] * row_bytes)
        zeros(p["x_pad_1"])
    zeros(p["y_pad_1"] * width)
    _count(f, machine, f"{name}_load_nbytes", p["x_size"] * p["y_size"] * row_bytes)


def _store(f: Function, word: Value, machine: Value, config: Config) -> None:
    p = _picture(f, word)
    with f.when((p["y_pad_0"] | p["y_pad_1"] | p["x_pad_0"] | p["x_pad_1"]).ne(0)):
        f.ret(_FLAG)
    with f.when(p["x_size"].eq(0)):
        f.ret(0)
    with f.when(p["sram_base"] + p["x_size"] * p["y_size"] > config.rows(Memory.ACC)):
        f.ret(_RANGE)
    lanes = config.lanes
    source = _part(f, machine, "acc") + p["sram_base"] * (4 * lanes)
    with f.each(p["y_size"]) as y:
        at = (p["dram_base"] + y * p["x_stride"]) * lanes
        to = f.call(PTR, "tw_vta_at", machine, at, p["x_size"] * lanes)
        with f.when(to.eq(0)):
            f.ret(_ADDRESS)
        line = source + y * p["x_size"] * (4 * lanes)
        with f.each(p["x_size"] * lanes) as k:
            f.store(f.load(I32, line, k * 4).cast(I8), to, k)
    _count(f, machine, "out_store_nbytes", p["x_size"] * p["y_size"] * lanes)


def _fill(f: Function, to: Value, nbytes: Value) -> None:
    f.call("void", "llvm.memset.p0.i64", to, (I8, 0), nbytes, (I1, 0))


def _copy(f: Function, to: Value, source: Value, nbytes: Value) -> None:
    f.call("void", "llvm.memcpy.p0.p0.i64", to, source, nbytes, (I1, 0))


def _gemm(m: Module, config: Config) -> None:
    with m.function("tw_vta_gemm", I64, [("w", PTR), ("m", PTR)], local=True) as (f, (word, machine)):
        layout = fields(Opcode.GEMM, config)
        acc, inp, wgt = (_part(f, machine, name) for name in ("acc", "inp", "wgt"))
        reset = _get(f, word, layout, "reset").ne(0)
        with _operations(f, word, machine, layout, config) as (dst, src, weight):
            to = acc + dst * (4 * config.lanes)
            with f.when(dst >= config.rows(Memory.ACC)):
                f.ret(_RANGE)
            clear, multiply, done = f.label(), f.label(), f.label()
            f.emit(f"br i1 {reset.text}, label %{clear}, label %{multiply}")
            f.start(clear)
            _fill(f, to, f.value(4 * config.lanes, I64))
            f.emit(f"br label %{done}")
            f.start(multiply)
            with f.when(src >= config.rows(Memory.INP)):
                f.ret(_RANGE)
            with f.when(weight >= config.rows(Memory.WGT)):
                f.ret(_RANGE)
            _multiply(f, to, inp + src * config.lanes, wgt + weight * config.block**2, config)
            f.emit(f"br label %{done}")
            f.start(done)
        with f.when(reset):
            f.ret(0)
        _count(f, machine, "gemm_counter", _number(f, word, layout))
        f.ret(0)


def _multiply(f: Function, to: Value, inp: Value, wgt: Value, config: Config) -> None:
    """Emit `acc[b][j] += sum over k of inp[b][k] * wgt[j][k]` for one operation of GEMM, in vectors over k; `to` is the
    address of acc."""
    n = config.block
    narrow, middle, wide = f"<{n} x i8>", f"<{n} x i16>", f"<{n} x i32>"
    for b in range(config.batch):
        row = f.let(narrow, f"load {narrow}, ptr {(inp + b * n).text}, align 1")
        x = f.let(middle, f"sext {narrow} {row.text} to {middle}")
        for j in range(n):
            column = f.let(narrow, f"load {narrow}, ptr {(wgt + j * n).text}, align 1")
            y = f.let(middle, f"sext {narrow} {column.text} to {middle}")
            products = f.let(wide, f"sext {middle} {x.text} to {wide}")
            other = f.let(wide, f"sext {middle} {y.text} to {wide}")
            products = f.let(wide, f"mul {wide} {products.text}, {other.text}")
            total = f.call(I32, f"llvm.vector.reduce.add.v{n}i32", products)
            at = (b * n + j) * 4
            f.store(f.load(I32, to, at) + total, to, at)


def _number(f: Function, word: Value, layout: Fields) -> Value:
    """Emit the number of operations of the GEMM or ALU instruction at the address `word`: 0 for an empty list of
    micro-operations."""
    bgn, end = _get(f, word, layout, "uop_bgn"), _get(f, word, layout, "uop_end")
    uops = f.call(I64, "llvm.smax.i64", end - bgn, (I64, 0))
    return _get(f, word, layout, "iter_out") * _get(f, word, layout, "iter_in") * uops


@contextmanager
def _operations(
    f: Function, word: Value, machine: Value, layout: Fields, config: Config
) -> Iterator[tuple[Value, Value, Value]]:
    """Emit the three nested loops of the GEMM or ALU instruction `word`, in fields of `layout`; the caller emits their
    body. Yields the row numbers (dst, src, wgt) of one operation; the function returns early if there is none, or
    micro-operations lie out of range."""
    bgn, end = (_get(f, word, layout, n) for n in ("uop_bgn", "uop_end"))
    with f.when(_number(f, word, layout).eq(0)):
        f.ret(0)
    with f.when(end > config.rows(Memory.UOP)):
        f.ret(_RANGE)
    steps = {n: _get(f, word, layout, n) for n, _ in layout if n.endswith(("_out", "_in"))}
    uop = _part(f, machine, "uop")
    with f.each(steps["iter_out"]) as o, f.each(steps["iter_in"]) as i, f.each(end - bgn) as u:
        entry = f.load(I32, uop, (bgn + u) * 4).cast(I64)
        rows, at = [], 0
        for name, bits in uop_fields(config):
            row = (entry >> at) & ((1 << bits) - 1)
            if f"{name}_out" in steps:
                row = row + o * steps[f"{name}_out"] + i * steps[f"{name}_in"]
            rows.append(row)
            at += bits
        yield rows[0], rows[1], rows[2]


def _alu(m: Module, config: Config) -> None:
    n = config.lanes
    vector = f"<{n} x i32>"

    def spread(f: Function, value: Value) -> Value:
        one = f.let(vector, f"insertelement {vector} poison, i32 {value.text}, i64 0")
        return f.let(vector, f"shufflevector {vector} {one.text}, {vector} poison, <{n} x i32> zeroinitializer")

    with m.function("tw_vta_alu", I64, [("w", PTR), ("m", PTR)], local=True) as (f, (word, machine)):
        layout = fields(Opcode.ALU, config)
        acc, op = _part(f, machine, "acc"), _get(f, word, layout, "op")
        with f.when(op > max(AluOp)):
            f.ret(_UNKNOWN)
        use_imm = _get(f, word, layout, "use_imm").ne(0)
        imm = spread(f, _get(f, word, layout, "imm").cast(I32))
        limits = [spread(f, f.value(v, I32)) for v in (0, 31)]
        with _operations(f, word, machine, layout, config) as (dst, src, _):
            for row in (dst, src):
                with f.when(row >= config.rows(Memory.ACC)):
                    f.ret(_RANGE)
            to = acc + dst * (4 * n)
            x = f.let(vector, f"load {vector}, ptr {to.text}, align 4")
            y = f.let(vector, f"load {vector}, ptr {(acc + src * (4 * n)).text}, align 4")
            y = f.let(vector, f"select i1 {use_imm.text}, {vector} {imm.text}, {vector} {y.text}")
            done = f.label()
            for code in AluOp:
                with f.when(op.eq(code)):
                    result = _lanes(f, code, x, y, limits[0], limits[1], vector)
                    f.emit(f"store {vector} {result.text}, ptr {to.text}, align 4")
                    f.emit(f"br label %{done}")
                    f.start(f.label())
            f.emit(f"br label %{done}")
            f.start(done)
        _count(f, machine, "alu_counter", _number(f, word, layout))
        f.ret(0)


def _lanes(f: Function, code: AluOp, x: Value, y: Value, zero: Value, most: Value, vector: str) -> Value:
    """Emit one ALU operation `x op y` on rows of accumulators, of LLVM type `vector`. `zero` and `most` are rows of 0
    and 31: shifts by more than 31 shift by 31."""
    name = f"v{vector.split()[0][1:]}i32"

    def bounded(amount: Value) -> Value:
        positive = f.call(vector, f"llvm.smax.{name}", amount, zero)
        return f.call(vector, f"llvm.smin.{name}", positive, most)

    match code:
        case AluOp.MIN:
            return f.call(vector, f"llvm.smin.{name}", x, y)
        case AluOp.MAX:
            return f.call(vector, f"llvm.smax.{name}", x, y)
        case AluOp.ADD:
            return f.let(vector, f"add {vector} {x.text}, {y.text}")
        case AluOp.MUL:
            return f.let(vector, f"mul {vector} {x.text}, {y.text}")
        case AluOp.SHR:
            opposite = f.let(vector, f"sub {vector} {zero.text}, {y.text}")
            right = f.let(vector, f"ashr {vector} {x.text}, {bounded(y).text}")
            # One of the two amounts is 0, so that the other shift is the whole.
            return f.let(vector, f"shl {vector} {right.text}, {bounded(opposite).text}")


def _execute(m: Module, config: Config) -> None:
    with m.function("tw_vta_execute", I64, [("w", PTR), ("m", PTR)]) as (f, (word, machine)):
        head = fields(Opcode.LOAD)
        opcode, memory = _get(f, word, head, "opcode"), _get(f, word, head, "memory")
        for code, name in ((Opcode.GEMM, "gemm"), (Opcode.ALU, "alu")):
            with f.when(opcode.eq(code)):
                f.ret(f.call(I64, f"tw_vta_{name}", word, machine))
        with f.when(opcode.eq(Opcode.FINISH)):
            f.ret(0)
        wanted = {k: Opcode.STORE if k is Memory.OUT else Opcode.LOAD for k in Memory}
        for kind, code in wanted.items():
            with f.when(opcode.eq(code)), f.when(memory.eq(kind)):
                f.ret(f.call(I64, f"tw_vta_{kind.name.lower()}", word, machine))
        f.ret(_UNKNOWN)


def _queue(m: Module) -> None:
    """Define a function: the queue of an instruction, 0 load, 1 compute, 2 store."""
    with m.function("tw_vta_queue", I64, [("w", PTR)], local=True) as (f, (word,)):
        head = fields(Opcode.LOAD)
        opcode, memory = _get(f, word, head, "opcode"), _get(f, word, head, "memory")
        with f.when(opcode.eq(Opcode.STORE)):
            f.ret(2)
        with f.when(opcode.ne(Opcode.LOAD)):
            f.ret(1)
        # INP and WGT are 1 and 2.
        f.ret((memory - 1).below(2).cast(I64).eq(0).cast(I64))


def _ready(m: Module) -> None:
    """Define a function that takes the tokens which an instruction pops: 0 if they were there, -1 if not yet, or a
    fault's code."""
    head = fields(Opcode.LOAD)

    def counts(f: Function, queue: Value, of: tuple[int, int, int]) -> Value:
        first = f.let(I64, f"select i1 {queue.eq(0).text}, i64 {of[0]}, i64 {of[1]}")
        return f.let(I64, f"select i1 {queue.eq(2).text}, i64 {of[2]}, i64 {first.text}")

    params = [("w", PTR), ("queue", I64), ("tokens", PTR)]
    with m.function("tw_vta_pop", I64, params, local=True) as (f, (word, queue, tokens)):
        prev, following = _get(f, word, head, "pop_prev"), _get(f, word, head, "pop_next")
        pushed_prev, pushed_next = _get(f, word, head, "push_prev"), _get(f, word, head, "push_next")
        with f.when(queue.eq(0)), f.when((prev | pushed_prev).ne(0)):
            f.ret(_FLAG)
        with f.when(queue.eq(2)), f.when((following | pushed_next).ne(0)):
            f.ret(_FLAG)
        # The queue that has no such side reads the count of another, by 0.
        left = tokens + counts(f, queue, (L2C, L2C, C2S))
        right = tokens + counts(f, queue, (C2L, S2C, S2C))
        with f.when(left[0] < prev):
            f.ret(-1)
        with f.when(right[0] < following):
            f.ret(-1)
        left[0] -= prev
        right[0] -= following
        f.ret(0)
    with m.function("tw_vta_push", I64, params, local=True) as (f, (word, queue, tokens)):
        left = tokens + counts(f, queue, (C2L, C2L, S2C))
        right = tokens + counts(f, queue, (L2C, C2S, C2S))
        left[0] += _get(f, word, head, "push_prev")
        right[0] += _get(f, word, head, "push_next")
        f.ret(0)


def _run(m: Module) -> None:
    params = [("words", PTR), ("count", I64), ("m", PTR), ("first", I64)]
    with m.function("tw_vta_run", I64, params) as (f, (words, count, machine, first)):
        places = f.space(24)
        for k in range(3):
            places[8 * k] = 0
        tokens = _part(f, machine, "tokens")
        queue, rested = f.var(I64, first), f.var(I64, 0)
        with f.loop() as rounds:
            rounds.leave_if(rested.get() >= 3)
            place = places + queue.get() * 8
            with f.loop() as loop:
                # The next instruction of this queue.
                with f.loop() as search:
                    search.leave_if(place[0] >= count)
                    here = words + place[0] * 16
                    search.leave_if(f.call(I64, "tw_vta_queue", here).eq(queue.get()))
                    place[0] += 1
                loop.leave_if(place[0] >= count)
                number = place[0]
                word = words + number * 16
                popped = f.call(I64, "tw_vta_pop", word, queue.get(), tokens)
                with f.when(popped > 0):
                    f.ret(popped | (number << 8))
                loop.leave_if(popped < 0)
                status = f.call(I64, "tw_vta_execute", word, machine)
                with f.when(status.ne(0)):
                    f.ret(status | (number << 8))
                f.call(I64, "tw_vta_push", word, queue.get(), tokens)
                place[0] = number + 1
                rested.set(0)
            rested.add(1)
            queue.set((queue.get() + 1) % 3)
        for last in range(3):
            number = places[8 * last]
            with f.when(number < count):
                f.ret(f.value(_STUCK, I64) | (number << 8))
        f.ret(0)
