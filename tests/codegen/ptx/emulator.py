"""Kernels' LLVM text, run here: an emulator of a GPU's blocks for tests.

The text that NVPTX would compile is compiled for this machine. Each thread of a block is a fiber (`swapcontext` of
the C library), which stops where it waits for others: at a barrier, or where a warp computes together. What warps
compute together, NumPy does. So what is tested is the text itself: addresses, shared memory, barriers, fragments.

* Memory that a block shares is filled with 0xFF before the block begins: NaN.
* Bytes of `cp.async` arrive when they are waited for, not before.
* So do tiles that the tensor memory accelerator copies; the barrier that counts them must expect as many bytes.
* Threads run in any order that is asked for between two barriers: results that differ show a race.
* Threads of a warp that stop at different places, or a barrier that not all threads reach, are errors.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from tilewright.codegen.ptx.launcher import TYPES
from tilewright.codegen.ptx.module import Launch, Map, Module
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.rewrite import substitute

Array = np.ndarray[Any, Any]

MAX_THREADS = 1024
SHARED = 232448
STACK = 128 << 10
WORDS = 136
"""Words of 32 bits that a thread gives to what its warp computes, and gets."""
DONE, BARRIER, SHUFFLE, ASYNC, COMMIT, WAIT, WARP, MATRICES = range(8)
INIT, EXPECT, ARRIVE, ARRIVED, TILE = range(20, 25)
TILE_FUNCTIONS = {"init": INIT, "expect": EXPECT, "arrive": ARRIVE, "wait": ARRIVED}
"""The operations of `codegen/ptx/tensor_maps.py` on barriers of bytes, beside copies of tiles."""
WIDE = 100
"""The first kind of products of four warps."""
MMA = {
    "m16n8k8.row.col.tf32": 10,
    "m16n8k16.row.col.f32.f32": 11,
    "m16n8k16.row.col.bf16": 12,
    "m16n8k32.row.col.s8": 13,
}

RUNTIME = f"""
@fibers = global [{MAX_THREADS} x [1024 x i8]] zeroinitializer, align 64
@main_context = global [1024 x i8] zeroinitializer, align 64
@current = global i64 0
@kinds = global [{MAX_THREADS} x i32] zeroinitializer
@words = global [{MAX_THREADS} x [{WORDS} x i64]] zeroinitializer, align 64
@ids = global [{MAX_THREADS} x [6 x i32]] zeroinitializer
@arguments = global [64 x i64] zeroinitializer
declare i32 @swapcontext(ptr, ptr)
declare i32 @getcontext(ptr)
declare void @makecontext(ptr, ptr, i32, ...)
define i32 @stop(i32 %kind) {{
  %k = load i64, ptr @current
  %where = getelementptr [{MAX_THREADS} x i32], ptr @kinds, i64 0, i64 %k
  store i32 %kind, ptr %where
  %own = getelementptr [{MAX_THREADS} x [1024 x i8]], ptr @fibers, i64 0, i64 %k
  %r = call i32 @swapcontext(ptr %own, ptr @main_context)
  ret i32 %r
}}
define void @resume(i64 %k) {{
  store i64 %k, ptr @current
  %own = getelementptr [{MAX_THREADS} x [1024 x i8]], ptr @fibers, i64 0, i64 %k
  %r = call i32 @swapcontext(ptr @main_context, ptr %own)
  ret void
}}
define void @prepare(i64 %k, ptr %stack, i64 %size, ptr %start) {{
  %own = getelementptr [{MAX_THREADS} x [1024 x i8]], ptr @fibers, i64 0, i64 %k
  %r = call i32 @getcontext(ptr %own)
  %link = getelementptr i8, ptr %own, i64 8
  store ptr @main_context, ptr %link
  %sp = getelementptr i8, ptr %own, i64 16
  store ptr %stack, ptr %sp
  %sz = getelementptr i8, ptr %own, i64 32
  store i64 %size, ptr %sz
  call void (ptr, ptr, i32, ...) @makecontext(ptr %own, ptr %start, i32 0)
  ret void
}}
define ptr @word(i64 %n) {{
  %k = load i64, ptr @current
  %p = getelementptr [{MAX_THREADS} x [{WORDS} x i64]], ptr @words, i64 0, i64 %k, i64 %n
  ret ptr %p
}}
define i32 @id(i64 %n) {{
  %k = load i64, ptr @current
  %p = getelementptr [{MAX_THREADS} x [6 x i32]], ptr @ids, i64 0, i64 %k, i64 %n
  %v = load i32, ptr %p
  ret i32 %v
}}
"""


def _put(n: int, type_: str, operand: str) -> list[str]:
    return [f"  %w{n} = call ptr @word(i64 {n})", f"  store {type_} {operand}, ptr %w{n}"]


def _got(result: str, element: str, count: int) -> list[str]:
    """The return of a structure of a thread's first words."""
    body, last = [], "poison"
    for k in range(count):
        body += [
            f"  %q{k} = call ptr @word(i64 {k})",
            f"  %v{k} = load {element}, ptr %q{k}",
            f"  %s{k} = insertvalue {result} {last}, {element} %v{k}, {k}",
        ]
        last = f"%s{k}"
    return [*body, f"  ret {result} {last}"]


def _wide_definition(kind: int, wide: WideProduct) -> str:
    """The function in place of one that is text for the assembler."""
    element = "i32" if wide.dtype == "i8" else "float"
    result = "{ " + ", ".join([element] * wide.count) + " }"
    operands = [*(f"{element} %c{k}" for k in range(wide.count)), "i64 %a", "i64 %b"]
    body = [line for k, x in enumerate(operands) for line in _put(k, *x.split())]
    body += [f"  %r = call i32 @stop(i32 {kind})", *_got(result, element, wide.count)]
    return "\n".join([f"define {result} @{wide.name}({', '.join(operands)}) {{", *body, "}"])


def _definition(name: str, declaration: str) -> str:
    """The function in place of one of NVPTX's functions."""
    result, arguments = re.match(r"declare (.+?) @[^(]*\((.*?)\)", declaration).groups()  # type: ignore[union-attr]
    types = _split(arguments)
    parameters = ", ".join(f"{t} %a{k}" for k, t in enumerate(types))
    head = f"define {result} @{name.replace('llvm.nvvm', 'tw_nvvm')}({parameters}) {{"
    short = name.removeprefix("llvm.nvvm.").removesuffix(".p3")
    if short.startswith("read.ptx.sreg"):
        index = {"tid": 0, "ctaid": 3}[short.split(".")[3]] + "xyz".index(short[-1])
        body = [f"  %v = call i32 @id(i64 {index})", "  ret i32 %v"]
    elif short.startswith(("barrier", "bar.warp")):
        kind = BARRIER if short.startswith("barrier") else WARP
        body = [f"  %r = call i32 @stop(i32 {kind})", "  ret void"]
    elif short.startswith("shfl"):
        body = [*_put(0, types[1], "%a1"), *_put(1, "i32", "%a2"), f"  %r = call i32 @stop(i32 {SHUFFLE})"]
        body += [f"  %v = load {result}, ptr %w0", f"  ret {result} %v"]
    elif short.startswith("mma."):
        kind = MMA[short.removeprefix("mma.")]
        body = [line for k, t in enumerate(types) for line in _put(k, t, f"%a{k}")]
        body.append(f"  %r = call i32 @stop(i32 {kind})")
        body += _got(result, _split(result[1:-1])[0], 4)
    elif short.startswith("ldmatrix"):
        count = int(short.split(".x")[1][0])
        body = [*_put(0, "ptr", "%a0"), *_put(1, "i64", str(count)), *_put(2, "i64", str(int("trans" in short)))]
        body += [f"  %r = call i32 @stop(i32 {MATRICES})", *_got(result, "i32", count)]
    elif short == "fence.proxy.async.shared_cta":
        body = ["  ret void"]
    elif short.startswith("cp.async.c"):
        if short.endswith("group"):
            return "\n".join([head, f"  %r = call i32 @stop(i32 {COMMIT})", "  ret void", "}"])
        body = [*_put(0, types[0], "%a0"), *_put(1, types[1], "%a1"), *_put(2, "i64", short.rsplit(".", 1)[1])]
        body += [f"  %r = call i32 @stop(i32 {ASYNC})", "  ret void"]
    elif short.startswith("cp.async.wait"):
        body = [*_put(0, "i32", "%a0" if types else "0"), f"  %r = call i32 @stop(i32 {WAIT})", "  ret void"]
    elif short == "f2tf32.rna":
        body = [
            "  %b = bitcast float %a0 to i32",
            "  %h = add i32 %b, 4096",
            "  %v = and i32 %h, -8192",
            "  ret i32 %v",
        ]
    elif short == "ex2.approx.ftz.f32":
        body = ["  %v = call float @llvm.exp2.f32(float %a0)", "  ret float %v"]
    else:
        raise NotImplementedError(name)
    return "\n".join([head, *body, "}"])


def _split(text: str) -> list[str]:
    """The parts of a list of types."""
    parts, depth, last = [], 0, ""
    for c in text:
        depth += (c in "<({[") - (c in ">)}]")
        if c == "," and not depth:
            parts.append(last.strip())
            last = ""
        else:
            last += c
    return [*parts, last.strip()] if last.strip() else parts


def _hosted(module: Module) -> str:
    """The text for this machine."""
    text = re.sub(r'target triple = ".*"', "", module.text).replace("define ptx_kernel", "define")
    text = re.sub(r' "nvvm\.[^"]*"="[^"]*"', "", text)
    tiles = dict.fromkeys(re.findall(r"^define internal void @(tw\.tile\.\w+)\((.*?)\)", text, flags=re.M))
    text = re.sub(r"^define internal [^\n]*@tw\.(wgmma|tile).*?^}$", "", text, flags=re.M | re.S)
    text = re.sub(r'ptr byval\(\[128 x i8\]\) align 64 "nvvm.grid_constant"', "ptr", text)
    text = text.replace("external addrspace(3) global [0 x i8]", f"global [{SHARED} x i8] zeroinitializer")
    text = text.replace("internal addrspace(3) global", "global").replace(" undef, align", " zeroinitializer, align")
    text = re.sub(
        r"addrspacecast ptr addrspace\(\d\) (.*?) to ptr\b(?! addrspace)", r"getelementptr i8, ptr \1, i64 0", text
    )
    text = re.sub(r"addrspacecast ptr (%[\w.]+) to ptr addrspace\(\d\)", r"getelementptr i8, ptr \1, i64 0", text)
    text = re.sub(r" addrspace\(\d\)", "", text)
    declared = dict(
        re.findall(r"^(declare .*@(?:llvm\.nvvm\.[\w.]+)\(.*)$", text, re.M)
        and [
            (re.search(r"@(llvm\.nvvm\.[\w.]+)", d)[1], d)
            for d in re.findall(r"^declare .*@llvm\.nvvm\..*$", text, re.M)  # type: ignore[index]
        ]
    )
    text = re.sub(r"^declare .*@llvm\.nvvm\..*$\n?", "", text, flags=re.M).replace("@llvm.nvvm.", "@tw_nvvm.")
    text = text.replace("@tw_nvvm.", "@tw_nvvm.")
    extra = ["declare float @llvm.exp2.f32(float)"] if "llvm.nvvm.ex2.approx.ftz.f32" in declared else []
    definitions = [_definition(name, d) for name, d in declared.items()]
    starts = [_start(launch) for launch in module.launches]
    products = [_wide_definition(WIDE + k, wide) for k, wide in enumerate(wide_products(module.text))]
    copies = [_tile_definition(name, _split(operands)) for name, operands in tiles]
    return "\n".join([text, RUNTIME, *definitions, *products, *copies, *starts, *extra])


def _tile_definition(name: str, operands: list[str]) -> str:
    """The function in place of one that copies tiles, or waits for them."""
    short = name.rsplit(".", 1)[1]
    body = [line for k, x in enumerate(operands) for line in _put(k, *x.split())]
    if short.startswith("copy"):
        body += _put(RANK_WORD, "i64", short.removeprefix("copy"))
    kind = TILE if short.startswith("copy") else TILE_FUNCTIONS[short]
    body += [f"  %r = call i32 @stop(i32 {kind})", "  ret void"]
    return "\n".join([f"define void @{name}({', '.join(operands)}) {{", *body, "}"])


def encode_map(address: int, kind: int, sizes: Sequence[int], steps: Sequence[int], box: Sequence[int]) -> bytes:
    """The 128 bytes of a tensor map in a way of our own, as the driver's is not documented. `kind`: of
    CUtensorMapDataType; `steps`: bytes from an element to the next one in all dimensions but the first."""
    words = [MAGIC << 32 | kind << 8 | len(sizes), address, *sizes, *steps, *box]
    return np.array(words + [0] * (16 - len(words)), np.int64).tobytes()


MAGIC, RANK_WORD = 0x7E4502, 15
KIND_BYTES = {0: 1, 6: 2, 7: 4, 9: 2}
"""Bytes of an element by CUtensorMapDataType."""


class WideProduct:
    """A product of four warps, by the instructions in its text: type, columns, which factors lie across, and the bytes
    by which the descriptors of each instruction are moved."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        steps = re.findall(
            r"add\.u64 a, \$\d+, (\d+); add\.u64 b, \$\d+, (\d+); "
            r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.\w+\.(\w+)\.\w+ \{(.*?)\}, a, b, (.*?);",
            text,
        )
        self.columns, self.depth = int(steps[0][2]), int(steps[0][3])
        self.dtype = {"tf32": "f32", "s8": "i8"}.get(steps[0][4], steps[0][4])
        self.count = len(steps[0][5].split(","))
        flags = [x.strip() for x in steps[0][6].split(",")]
        self.across = tuple(int(x) for x in flags[3:]) if len(flags) == 5 else (0, 0)
        self.moves = [(int(a) * 16, int(b) * 16) for a, b, *_ in steps]
        assert "wgmma.fence" in text and text.index("commit_group") < text.index("wait_group.sync.aligned 0")


def wide_products(text: str) -> list[WideProduct]:
    return [
        WideProduct(m[1], m[0])
        for m in re.finditer(r"^define internal [^\n]*@(tw\.wgmma[\w.]+)\(.*?^}$", text, flags=re.M | re.S)
    ]


def _start(launch: Launch) -> str:
    lines = [f"define void @start_{launch.kernel}() {{"]
    operands = []
    first_map = len(launch.buffers) + len(launch.symbols)
    for k in range(first_map + len(launch.maps)):
        type_ = "i64" if len(launch.buffers) <= k < first_map else "ptr"
        lines += [
            f"  %p{k} = getelementptr [64 x i64], ptr @arguments, i64 0, i64 {k}",
            f"  %v{k} = load {type_}, ptr %p{k}",
        ]
        operands.append(f"{type_} %v{k}")
    return "\n".join(
        [
            *lines,
            f"  call void @{launch.kernel}({', '.join(operands)})",
            f"  %r = call i32 @stop(i32 {DONE})",
            "  ret void",
            "}",
        ]
    )


@dataclass
class _Bytes:
    """A barrier of bytes: phases that are complete, and of the one that is not, who arrived, bytes that are expected,
    and copies by their places, tensor maps and coordinates."""

    phase: int = 0
    arrived: int = 0
    expected: int = 0
    tiles: list[tuple[int, int, list[int]]] = field(default_factory=list)


class Emulator:
    """The kernels of a module, ready to run."""

    def __init__(self, module: Module) -> None:
        self.module = module
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        text = _hosted(module)
        parsed = llvm.parse_assembly(text, llvm.create_context())
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()  # f16 without library calls
        machine = llvm.Target.from_default_triple().create_target_machine(cpu, features, opt=1, jit=True)
        parsed.triple, parsed.data_layout = machine.triple, str(machine.target_data)
        parsed.verify()
        self.engine = llvm.create_mcjit_compiler(parsed, machine)
        self.engine.finalize_object()
        self.resume = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.engine.get_function_address("resume"))
        signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self.prepare = signature(self.engine.get_function_address("prepare"))
        self.kinds = self._global("kinds", np.int32, MAX_THREADS)
        self.words = self._global("words", np.int64, MAX_THREADS * WORDS).reshape(MAX_THREADS, WORDS)
        self.ids = self._global("ids", np.int32, MAX_THREADS * 6).reshape(MAX_THREADS, 6)
        self.arguments = self._global("arguments", np.int64, 64)
        self.stacks = np.empty((max(n.threads for n in module.launches), STACK), np.uint8)
        self.groups: list[list[list[tuple[int, int, int]]]] = []
        self.wide = wide_products(module.text)
        self.shared = np.empty(0, np.uint8)
        self.bytes: dict[int, _Bytes] = {}

    def _global(self, name: str, dtype: Any, count: int) -> Array:
        size = count * np.dtype(dtype).itemsize
        raw = (ctypes.c_uint8 * size).from_address(self.engine.get_global_value_address(name))
        return np.frombuffer(raw, dtype)

    def run(
        self, arrays: Sequence[Array], symbols: Mapping[Var, int], order: Callable[[int], Sequence[int]] = range
    ) -> None:
        """Launch all kernels on arrays, in order of the function's parameters; what is written is written in place.

        Args:
            order: of `n` warps, or of a warp's threads, the order in which they run until they stop.
        """
        values: dict[Var, Expr] = {v: const(n) for v, n in symbols.items()}
        for launch in self.module.launches:
            grid = [as_int(substitute(e, values)) for e in launch.grid]
            assert all(n is not None for n in grid), launch.grid
            numbers = list(symbols.values())
            words = [*(arrays[k].ctypes.data for k in launch.buffers), *(numbers[k] for k in launch.symbols)]
            maps = [ctypes.create_string_buffer(self._map(m, arrays[m.buffer], values)) for m in launch.maps]
            words += [ctypes.addressof(m) for m in maps]
            self.launch(launch, words, [n or 0 for n in grid], order)

    def _map(self, m: Map, array: Array, values: Mapping[Var, Expr]) -> bytes:
        sizes = [as_int(substitute(n, values)) or 0 for n in m.sizes][::-1]
        steps = [m.dtype.itemsize * int(np.prod(sizes[:k])) for k in range(1, len(sizes))]
        return encode_map(array.ctypes.data, TYPES[m.dtype.name], sizes, steps, m.box[::-1])

    def launch(
        self, launch: Launch, words: Sequence[int], grid: Sequence[int], order: Callable[[int], Sequence[int]] = range
    ) -> None:
        """Launch a kernel: `words` are its arguments, pointers as addresses of this process."""
        self.arguments[: len(words)] = words
        for z in range(grid[2]):
            for y in range(grid[1]):
                for x in range(grid[0]):
                    self._block(launch, (x, y, z), order)

    def _block(self, launch: Launch, where: tuple[int, int, int], order: Callable[[int], Sequence[int]]) -> None:
        start = self.engine.get_function_address(f"start_{launch.kernel}")
        threads = launch.threads
        if launch.stated or launch.shared:
            name = "tw_shared" if launch.shared else f"{launch.kernel}.shared"
            self.shared = self._global(name, np.uint8, launch.shared or launch.stated)
            self.shared[:] = 0xFF
        bx, by, _ = launch.block
        for k in range(threads):
            self.ids[k] = (k % bx, k // bx % by, k // (bx * by), *where)
            self.prepare(k, self.stacks[k].ctypes.data, STACK, start)
        self.groups = [[[]] for _ in range(threads)]
        self.bytes = {}
        warps = [list(range(first, min(first + 32, threads))) for first in range(0, threads, 32)]
        waiting = {BARRIER}
        while waiting in ({BARRIER}, {ARRIVED}):
            if waiting == {ARRIVED}:
                self._arrived(threads)
            kinds = [0] * len(warps)
            for w in order(len(warps)):
                kinds[w] = self._warp(warps[w], order)
            for first in range(0, len(warps), 4):
                four = slice(first, first + 4)
                while kinds[first] >= WIDE:
                    assert len(set(kinds[four])) == 1 and len(kinds[four]) == 4, "four warps do not multiply together"
                    lanes = [k for w in warps[four] for k in w]
                    self._multiply(self.wide[kinds[first] - WIDE], lanes)
                    for w in order(4):
                        kinds[first + w] = self._warp(warps[first + w], order)
            waiting = set(kinds)
            assert len(waiting) == 1, "not all threads come to a barrier"

    def _multiply(self, wide: WideProduct, lanes: list[int]) -> None:
        """The products of a step of 128 threads: factors by their descriptors (PTX ISA, "Matrix descriptor")."""
        words = self.words[lanes]
        described = np.unique(words[:, wide.count : wide.count + 2], axis=0)
        assert len(described) == 1, "threads have different descriptors"
        sums = (words[:, : wide.count] & 0xFFFFFFFF).astype(np.uint32)
        kind: Any = np.int32 if wide.dtype == "i8" else np.float32
        old = np.ascontiguousarray(sums).view(kind).astype(np.float64)
        total = np.zeros((64, wide.columns))
        lane = np.arange(128)
        row, column = lane // 32 * 16 + lane % 32 // 4, lane % 4 * 2
        places = [(row + r * 8, column + j * 8 + c) for j in range(wide.columns // 8) for r in (0, 1) for c in (0, 1)]
        for k, (rows, columns) in enumerate(places):
            total[rows, columns] = old[:, k]
        for moves in wide.moves:
            a, b = (
                self._factor(int(described[0, n]) + moves[n] // 16, lines, wide, bool(wide.across[n]))
                for n, lines in enumerate((64, wide.columns))
            )
            total += a @ b.T
        for k, (rows, columns) in enumerate(places):
            new = np.ascontiguousarray(total[rows, columns].astype(kind)).view(np.uint32)
            self.words[lanes, k] = new.astype(np.int64)

    def _factor(self, descriptor: int, lines: int, wide: WideProduct, across: bool) -> Array:
        """A factor of an instruction by its descriptor, lines by depth."""
        start, leading, stride = ((descriptor >> shift & 0x3FFF) * 16 for shift in (0, 16, 32))
        mode = descriptor >> 46 & 0x3FFFF
        assert mode in (0, 1 << 16), "another swizzle"
        t: Any = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}[wide.dtype]
        size = np.dtype(t).itemsize
        line, k = np.meshgrid(np.arange(lines), np.arange(wide.depth), indexing="ij")
        each = 16 // size
        if mode:
            assert not across
            at = line // 8 * stride + line % 8 * 128 + k * size
        elif across:
            at = line // 8 * stride + k // 8 * leading + k % 8 * 16 + line % 8 * size
        else:
            at = line // 8 * stride + line % 8 * 16 + k // each * leading + k % each * size
        first = (start - self.shared.ctypes.data) % (1 << 18)
        at = at + first
        if mode:  # bits 4 to 6 of an address are swizzled by bits 7 to 9
            at = at ^ (at >> 3 & 0x70)
        assert int(at.max()) + size <= self.shared.size, "outside of shared memory"
        data = self.shared[at[..., None] + np.arange(size)]
        if wide.dtype == "f32":
            return (data.view(np.uint32)[..., 0] & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        return np.ascontiguousarray(data).view(t)[..., 0].astype(np.float64)

    def _matrices(self, lanes: list[int]) -> None:
        """Core matrices by the addresses of their lines, eight lanes each (PTX ISA, "ldmatrix")."""
        count, across = (int(x) for x in self.words[lanes[0], 1:3])
        lines = [ctypes.string_at(int(self.words[k, 0]), 16) for k in lanes[: 8 * count]]
        data = np.frombuffer(b"".join(lines), np.uint16).reshape(count, 8, 8)
        if across:
            data = data.transpose(0, 2, 1)
        pairs = np.ascontiguousarray(data).view(np.uint32).reshape(count, 32)
        self.words[lanes, :count] = pairs.T

    def _warp(self, lanes: list[int], order: Callable[[int], Sequence[int]]) -> int:
        """Run a warp until it waits for the block, or is done."""
        while True:
            for k in order(len(lanes)):
                self._thread(lanes[k])
            kinds = set(self.kinds[lanes].tolist())
            assert len(kinds) == 1, f"threads of a warp stop at different places: {kinds}"
            (kind,) = kinds
            if kind in (BARRIER, DONE, ARRIVED) or kind >= WIDE:
                if kind == DONE:
                    assert not any(b.tiles for b in self.bytes.values()), "tiles that nobody waited for"
                    assert not any(self.groups[k][0] for k in lanes), "bytes that nobody waited for"
                return int(kind)
            if kind == SHUFFLE:
                own = self.words[lanes, 0].copy()
                self.words[lanes, 0] = own[np.arange(len(lanes)) ^ (self.words[lanes, 1] & 31)]
            elif kind == MATRICES:
                self._matrices(lanes)
            elif kind in MMA.values():
                assert len(lanes) == 32
                self.words[lanes, :4] = _product(int(kind), self.words[lanes])

    def _place(self, k: int, word: int) -> int:
        """An address in shared memory, of 32 bits, as a place there."""
        return int(self.words[k, word] - self.shared.ctypes.data) & 0xFFFFFFFF

    def _arrived(self, threads: int) -> None:
        """All threads wait for a barrier of bytes: they come now, at the latest, and must be as many as expected."""
        places = {(self._place(k, 0), int(self.words[k, 1] & 1)) for k in range(threads)}
        assert len(places) == 1, "threads wait for different bytes"
        ((place, parity),) = places
        b = self.bytes[place]
        if b.phase & 1 != parity:
            return
        assert b.arrived == 1, "no thread arrived for the bytes that are waited for"
        assert sum(self._deliver(*tile) for tile in b.tiles) == b.expected, "other bytes came than were expected"
        self.bytes[place] = _Bytes(b.phase + 1)

    def _deliver(self, place: int, tensor_map: int, at: Sequence[int]) -> int:
        """Copy a tile (PTX ISA, "Tensors", "Swizzling modes"); gives its bytes."""
        words = np.frombuffer(ctypes.string_at(tensor_map, 128), np.int64).tolist()
        kind, rank = words[0] >> 8 & 0xFF, words[0] & 0xFF
        assert words[0] >> 32 == MAGIC and rank == len(at) and place % 1024 == 0
        sizes, steps, box = words[2 : 2 + rank], words[2 + rank : 1 + 2 * rank], words[1 + 2 * rank : 1 + 3 * rank]
        size = KIND_BYTES[kind]
        assert box[0] * size == 128 and all(s % 16 == 0 for s in steps) and words[1] % 16 == 0
        for line, outer in enumerate(np.ndindex(*box[:0:-1])):
            where = [a + o for a, o in zip(at[1:], outer[::-1], strict=True)]
            data = bytearray(128)
            if all(0 <= w < n for w, n in zip(where, sizes[1:], strict=True)) and 0 <= at[0] < sizes[0]:
                start = words[1] + at[0] * size + sum(w * s for w, s in zip(where, steps, strict=True))
                count = min(box[0], sizes[0] - at[0]) * size
                data[:count] = ctypes.string_at(start, count)
            for group in range(8):
                to = place + line * 128 + (group ^ line % 8) * 16
                self.shared[to : to + 16] = np.frombuffer(bytes(data[group * 16 : group * 16 + 16]), np.uint8)
        return int(np.prod(box)) * size

    def _thread(self, k: int) -> None:
        while True:
            self.resume(k)
            match self.kinds[k]:
                case kind if kind == ASYNC:
                    self.groups[k][-1].append(tuple(self.words[k, :3].tolist()))
                case kind if kind == INIT:
                    self.bytes[self._place(k, 0)] = _Bytes()
                case kind if kind == EXPECT:
                    self.bytes[self._place(k, 0)].expected += int(self.words[k, 1] & 0xFFFFFFFF)
                case kind if kind == ARRIVE:
                    self.bytes[self._place(k, 0)].arrived += 1
                case kind if kind == TILE:
                    rank = int(self.words[k, RANK_WORD])
                    at = [int(x) for x in self.words[k, 3 : 3 + rank].astype(np.int32)]
                    self.bytes[self._place(k, 1)].tiles.append((self._place(k, 0), int(self.words[k, 2]), at))
                case kind if kind == COMMIT:
                    self.groups[k].append([])
                case kind if kind == WAIT:
                    left = int(self.words[k, 0] & 0xFFFFFFFF)
                    while len(self.groups[k]) - 1 > left:
                        for to, source, size in self.groups[k].pop(0):
                            ctypes.memmove(to, source, size)
                case _:
                    return


def _product(kind: int, words: Array) -> Array:
    """The four results of each of 32 lanes of a product of their fragments (PTX ISA, "Matrix fragments")."""
    lanes = np.arange(32)
    group, member = lanes // 4, lanes % 4
    low = words.astype(np.int64) & 0xFFFFFFFF
    bits = low.astype(np.uint32)
    if kind == MMA["m16n8k8.row.col.tf32"]:
        values = (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        a, b = np.zeros((16, 8)), np.zeros((8, 8))
        for r in range(4):
            a[group + 8 * (r % 2), member + 4 * (r // 2)] = values[:, r]
        for r in range(2):
            b[member + 4 * r, group] = values[:, 4 + r]
        sums = bits[:, 6:10].copy().view(np.float32).astype(np.float64)
    else:
        eight = kind == MMA["m16n8k32.row.col.s8"]
        t: Any = np.int8 if eight else np.float16 if kind == MMA["m16n8k16.row.col.f32.f32"] else ml_dtypes.bfloat16
        each = 4 if eight else 2
        depth = 8 * each
        parts = np.ascontiguousarray(bits[:, :6]).view(t).reshape(32, 6, each).astype(np.float64)
        a, b = np.zeros((16, depth)), np.zeros((depth, 8))
        for r in range(4):
            for e in range(each):
                a[group + 8 * (r % 2), member * each + e + depth // 2 * (r // 2)] = parts[:, r, e]
        for r in range(2):
            for e in range(each):
                b[member * each + e + depth // 2 * r, group] = parts[:, 4 + r, e]
        sums = bits[:, 6:10].copy().view(np.int32 if eight else np.float32).astype(np.float64)
    c = np.zeros((16, 8))
    for r in range(4):
        c[group + 8 * (r // 2), member * 2 + r % 2] = sums[:, r]
    c += a @ b
    out = np.stack([c[group + 8 * (r // 2), member * 2 + r % 2] for r in range(4)], axis=1)
    if kind == MMA["m16n8k32.row.col.s8"]:
        return out.astype(np.int64)
    return np.ascontiguousarray(out.astype(np.float32)).view(np.uint32).astype(np.int64)


def run_both_ways(module: Module, arrays: Sequence[Array], symbols: Mapping[Var, int]) -> list[Array]:
    """The arrays after all launches; threads in ascending order and in descending order must give the same."""
    emulator = Emulator(module)
    results = []
    for order in (range, lambda n: range(n - 1, -1, -1)):
        own = [a.copy() for a in arrays]
        emulator.run(own, symbols, order)
        results.append(own)
    for up, down in zip(*results, strict=True):
        np.testing.assert_array_equal(up, down, err_msg="results depend on the order of threads")
    return results[0]
