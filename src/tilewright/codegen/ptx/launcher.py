"""The host's half of a GPU's kernel: a function that is called as a CPU's kernel is, and launches.

    void tw_x(ptr buffer0, ..., i64 symbol0, ..., i64 tid, i64 nthreads, ptr context)

Its object has the PTX as a constant, so that a program is one set of objects as on a CPU. Pointers are the device's.
The barrier's place has the device's context, whose first word is the address of the function that launches, and whose
second one that of what encodes tensor maps. The first loads the module into the process's context at the first call,
and counts what fails.
"""

from __future__ import annotations

from tilewright.codegen.llvm.expr import evaluate
from tilewright.codegen.llvm.state import State
from tilewright.codegen.llvm.values import Value
from tilewright.codegen.ptx.module import Launch, Map, Module
from tilewright.codegen.ptx.tensor_maps import MAP_BYTES
from tilewright.ir.dtype import i64
from tilewright.ir.loops import PrimFunc
from tilewright.native.text import identifier
from tilewright.targets.target import Target


def launcher_text(func: PrimFunc, module: Module, ptx: str, host: Target) -> str:
    """The LLVM text of a flat function's host half, for the machine `host`, which loads the device's code `ptx` and
    launches the kernels of `module`."""
    s = State(host, frozenset(), evaluate)
    out = s.out
    buffers = [f"%b{k}" for k in range(len(func.params))]
    symbols = [f"%s{k}" for k in range(len(func.symbols))]
    for v, operand in zip(func.symbols, symbols, strict=True):
        s.env[v] = Value(i64, (operand,))
    for k, operand in enumerate((*buffers, *symbols)):
        type_ = "ptr" if k < len(buffers) else "i64"
        out.entry += [f"  %w{k} = alloca {type_}, align 8", f"  store {type_} {operand}, ptr %w{k}, align 8"]
    most = max(len(n.buffers) + len(n.symbols) + len(n.maps) for n in module.launches)
    out.entry += [f"  %arguments = alloca [{max(1, most)} x ptr], align 8", "  %sizes = alloca [7 x i64], align 8"]
    entry = out.inst("load ptr, ptr %context, align 8")
    for k, launch in enumerate(module.launches):
        _launch(s, func, launch, k, entry)
    parameters = [f"ptr {b}" for b in buffers] + [f"i64 {x}" for x in symbols]
    parameters += ["i64 %tid", "i64 %nthreads", "ptr %context"]
    return "\n".join(
        [
            f'target triple = "{host.triple}"',
            "",
            _constant("@ptx", ptx),
            *(_constant(f"@name{k}", launch.kernel) for k, launch in enumerate(module.launches)),
            "@module = internal global ptr null, align 8",
            *(f"@function{k} = internal global ptr null, align 8" for k in range(len(module.launches))),
            "",
            f"define void {identifier(func.name, '@')}({', '.join(parameters)}) nounwind {{",
            "entry:",
            *out.entry,
            *out.lines,
            "  ret void",
            "}",
            "",
            *(out.declarations[k] for k in sorted(out.declarations)),
            "",
        ]
    )


def _launch(s: State, func: PrimFunc, launch: Launch, number: int, entry: str) -> None:
    out = s.out
    for k, word in enumerate([*launch.buffers, *(len(func.params) + n for n in launch.symbols)]):
        place = out.inst(f"getelementptr inbounds ptr, ptr %arguments, i64 {k}")
        out.effect(f"store ptr %w{word}, ptr {place}, align 8")
    for k, tensor_map in enumerate(launch.maps):
        place = out.inst(
            f"getelementptr inbounds ptr, ptr %arguments, i64 {len(launch.buffers) + len(launch.symbols) + k}"
        )
        out.effect(f"store ptr {_encoded(s, tensor_map, f'{number}.{k}')}, ptr {place}, align 8")
    sizes = [*(s.scalar(e) for e in launch.grid), *map(str, launch.block), str(launch.shared)]
    for k, size in enumerate(sizes):
        place = out.inst(f"getelementptr inbounds i64, ptr %sizes, i64 {k}")
        out.effect(f"store i64 {size}, ptr {place}, align 8")
    out.effect(
        f"call void {entry}(ptr %context, ptr @ptx, ptr @module, ptr @name{number}, ptr @function{number},"
        " ptr %sizes, ptr %arguments)"
    )


def _encoded(s: State, tensor_map: Map, name: str) -> str:
    """Emit the encoding of a tensor map at launch, under the name `name`; returns its address. The context's second
    function has the driver encode it from an array of words: type, rank, bytes of an element, and sizes and box from
    the last dimension on."""
    out, rank = s.out, len(tensor_map.sizes)
    out.entry += [
        f"  %map{name} = alloca [{MAP_BYTES} x i8], align 64",
        f"  %about{name} = alloca [{3 + 2 * MAX_RANK} x i64], align 8",
    ]
    words = [TYPES[tensor_map.dtype.name], rank, tensor_map.dtype.itemsize]
    sizes = [s.scalar(e) for e in reversed(tensor_map.sizes)]
    pad = ["1"] * (MAX_RANK - rank)
    for k, word in enumerate((*map(str, words), *sizes, *pad, *map(str, reversed(tensor_map.box)), *pad)):
        place = out.inst(f"getelementptr inbounds i64, ptr %about{name}, i64 {k}")
        out.effect(f"store i64 {word}, ptr {place}, align 8")
    place = out.inst("getelementptr inbounds ptr, ptr %context, i64 1")
    encode = out.inst(f"load ptr, ptr {place}, align 8")
    out.effect(f"call void {encode}(ptr %context, ptr %map{name}, ptr %about{name}, ptr %b{tensor_map.buffer})")
    return f"%map{name}"


MAX_RANK = 5
"""The largest number of dimensions of an array with a tensor map."""
TYPES = {"i8": 0, "f16": 6, "f32": 7, "bf16": 9}
"""The number of each type in CUtensorMapDataType; bytes are copied as unsigned ones."""


def _constant(name: str, text: str) -> str:
    """An LLVM constant that holds `text` with a zero byte at its end."""
    data = text.encode() + b"\0"
    shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
    return f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{shown}", align 8'


__all__ = ["launcher_text"]
