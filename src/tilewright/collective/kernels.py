"""Native reductions: one pass over the parts of all ranks, in vectors, with the bits of `reductions.py`.

A function reduces `count` elements of `ranks` parts to one: `reduce(out, parts, ranks, count)`, where `parts` has their
addresses. `out` may be one of them. Each type and operation has LLVM text of its own, whose vectors are as wide as the
machine's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from textwrap import dedent

from tilewright.native.link import Library, compile_text, host_triple, missing_features
from tilewright.support.classes import dataclass

WIDTH = 32
"""Elements that one step of the main loop reduces."""
_X86 = ("avx2", "f16c")


@dataclass(frozen=True, slots=True)
class Kind:
    """The storage type of elements, and the type in which they are reduced, as LLVM's names."""

    stored: str
    computed: str
    bits: int

    @property
    def floats(self) -> bool:
        return self.computed in ("float", "double")


KINDS = {
    "f32": Kind("float", "float", 32),
    "f64": Kind("double", "double", 64),
    "f16": Kind("half", "float", 16),
    "bf16": Kind("i16", "float", 16),
    "i8": Kind("i8", "i8", 8),
    "u8": Kind("i8", "i8", 8),
    "i16": Kind("i16", "i16", 16),
    "i32": Kind("i32", "i32", 32),
    "i64": Kind("i64", "i64", 64),
}
"""The types that have native reductions."""
_FLOATS = {"sum": "fadd", "avg": "fadd", "prod": "fmul", "min": "ole", "max": "oge"}
_INTEGERS = {"sum": "add", "prod": "mul", "band": "and", "bor": "or", "bxor": "xor", "min": "le", "max": "ge"}


@cache
def is_native(dtype: str, operation: str) -> bool:
    """Whether there is a native reduction for this type and operation."""
    kind = KINDS.get(dtype)
    if kind is None or operation not in (_FLOATS if kind.floats else _INTEGERS):
        return False
    return dtype != "f16" or bool(_features()) or not _baseline_calls()


def _baseline_calls() -> bool:
    """Whether the architecture's baseline converts 16-bit floats by library calls."""
    return host_triple().startswith("x86_64")


def _features() -> tuple[str, ...]:
    """Features of this machine beyond its architecture's baseline, by LLVM's names."""
    return _X86 if _baseline_calls() and not missing_features(_X86) else ()


def reduction_text(dtype: str, operation: str, features: tuple[str, ...] = ()) -> str:
    """LLVM text of the function `tw_reduce`, which reduces arrays of `dtype` by `operation`; `features` are LLVM's
    names of those beyond the architecture's baseline."""
    loops = _loop(KINDS[dtype], dtype, operation, WIDTH, "0", "main")
    loops += _loop(KINDS[dtype], dtype, operation, 1, "%main.i", "tail")
    attributes = f' "target-features"="{",".join(f"+{f}" for f in features)}"' if features else ""
    return (
        f"define i64 @tw_reduce(ptr %out, ptr %parts, i64 %ranks, i64 %count) nounwind{attributes} {{\n"
        f"entry:\n  br label %main.head\n{loops}tail.end:\n  ret i64 0\n}}\n"
    )


def _loop(kind: Kind, dtype: str, operation: str, width: int, start: str, name: str) -> str:
    """LLVM text of a loop that reduces elements of type `dtype` by `operation`, from element `start` on in steps of
    `width`, with an inner loop over ranks; its labels begin with `name`."""
    following = "tail.head" if name == "main" else "tail.end"
    before = "entry" if name == "main" else "main.head"
    stored, computed = f"<{width} x {kind.stored}>", f"<{width} x {kind.computed}>"
    align = kind.bits // 8
    text = f"""
        {name}.head:
          %{name}.i = phi i64 [ {start}, %{before} ], [ %{name}.next, %{name}.done ]
          %{name}.next = add i64 %{name}.i, {width}
          %{name}.more = icmp sle i64 %{name}.next, %count
          br i1 %{name}.more, label %{name}.body, label %{following}
        {name}.body:
          %{name}.first = load ptr, ptr %parts, align 8
          %{name}.a0 = getelementptr {kind.stored}, ptr %{name}.first, i64 %{name}.i
          %{name}.s0 = load {stored}, ptr %{name}.a0, align {align}
        {_widened(kind, dtype, width, f"{name}.s0", f"{name}.v0")}
          br label %{name}.ranks
        {name}.ranks:
          %{name}.r = phi i64 [ 1, %{name}.body ], [ %{name}.r1, %{name}.add ]
          %{name}.acc = phi {computed} [ %{name}.v0, %{name}.body ], [ %{name}.sum, %{name}.add ]
          %{name}.left = icmp slt i64 %{name}.r, %ranks
          br i1 %{name}.left, label %{name}.add, label %{name}.done
        {name}.add:
          %{name}.p = getelementptr ptr, ptr %parts, i64 %{name}.r
          %{name}.part = load ptr, ptr %{name}.p, align 8
          %{name}.a1 = getelementptr {kind.stored}, ptr %{name}.part, i64 %{name}.i
          %{name}.s1 = load {stored}, ptr %{name}.a1, align {align}
        {_widened(kind, dtype, width, f"{name}.s1", f"{name}.v1")}
        {_combined(kind, dtype, operation, computed, name)}
          %{name}.r1 = add i64 %{name}.r, 1
          br label %{name}.ranks
        {name}.done:
        {_mean(kind, operation, width, name)}
        {_narrowed(kind, dtype, width, name)}
          %{name}.to = getelementptr {kind.stored}, ptr %out, i64 %{name}.i
          store {stored} %{name}.out, ptr %{name}.to, align {align}
          br label %{name}.head
    """
    lines = (line.strip() for line in dedent(text).splitlines())
    return "".join(f"{line}\n" if line.endswith(":") else f"  {line}\n" for line in lines if line)


def _splat(width: int, type_: str, value: str) -> str:
    return f"<{', '.join([f'{type_} {value}'] * width)}>"


def _widened(kind: Kind, dtype: str, width: int, value: str, to: str) -> str:
    """LLVM text that converts the `width` stored elements `value`, of type `dtype`, to the type in which they are
    reduced, under the name `to`."""
    stored, computed = f"<{width} x {kind.stored}>", f"<{width} x {kind.computed}>"
    if dtype == "f16":
        return f"%{to} = fpext {stored} %{value} to {computed}"
    if dtype == "bf16":
        wide = f"<{width} x i32>"
        return f"""%{to}.z = zext {stored} %{value} to {wide}
          %{to}.b = shl {wide} %{to}.z, {_splat(width, "i32", "16")}
          %{to} = bitcast {wide} %{to}.b to {computed}"""
    return f"%{to} = bitcast {stored} %{value} to {computed}"


def _combined(kind: Kind, dtype: str, operation: str, computed: str, name: str) -> str:
    """LLVM text that assigns `operation`, on elements of type `dtype`, of the accumulator `%NAME.acc` and the next
    rank's part `%NAME.v1` to `%NAME.sum`, all of LLVM type `computed`. Minimum and maximum propagate NaN, as NumPy
    does."""
    a, b, to = f"%{name}.acc", f"%{name}.v1", f"%{name}.sum"
    if operation not in ("min", "max"):
        word = (_FLOATS if kind.floats else _INTEGERS)[operation]
        return f"{to} = {word} {computed} {a}, {b}"
    bits = "<" + computed[1:].split(" ", 1)[0] + " x i1>"
    if kind.floats:
        return f"""%{name}.wins = fcmp {_FLOATS[operation]} {computed} {a}, {b}
          %{name}.nan = fcmp uno {computed} {a}, {a}
          %{name}.stays = or {bits} %{name}.wins, %{name}.nan
          {to} = select {bits} %{name}.stays, {computed} {a}, {computed} {b}"""
    sign = "u" if dtype[0] == "u" else "s"
    return f"""%{name}.stays = icmp {sign}{_INTEGERS[operation]} {computed} {a}, {b}
          {to} = select {bits} %{name}.stays, {computed} {a}, {computed} {b}"""


def _mean(kind: Kind, operation: str, width: int, name: str) -> str:
    """LLVM text that defines `<name>.red` from the accumulator `<name>.acc`, vectors of `width`: divided by the number
    of ranks if `operation` is "avg", else equal."""
    computed = f"<{width} x {kind.computed}>"
    if operation != "avg":
        return f"%{name}.red = bitcast {computed} %{name}.acc to {computed}"
    lanes = f"<{width} x i32> zeroinitializer"
    return f"""%{name}.n = sitofp i64 %ranks to {kind.computed}
          %{name}.n1 = insertelement {computed} poison, {kind.computed} %{name}.n, i64 0
          %{name}.ns = shufflevector {computed} %{name}.n1, {computed} poison, {lanes}
          %{name}.red = fdiv {computed} %{name}.acc, %{name}.ns"""


def _narrowed(kind: Kind, dtype: str, width: int, name: str) -> str:
    """LLVM text that converts `<name>.red`, a vector of `width`, to the storage type `dtype` as `<name>.out`, rounded
    to nearest, ties to even."""
    stored, computed = f"<{width} x {kind.stored}>", f"<{width} x {kind.computed}>"
    red = f"%{name}.red"
    if dtype == "f16":
        return f"%{name}.out = fptrunc {computed} {red} to {stored}"
    if dtype != "bf16":
        return f"%{name}.out = bitcast {computed} {red} to {stored}"
    wide, bits = f"<{width} x i32>", f"<{width} x i1>"
    return f"""%{name}.w = bitcast {computed} {red} to {wide}
          %{name}.high = lshr {wide} %{name}.w, {_splat(width, "i32", "16")}
          %{name}.odd = and {wide} %{name}.high, {_splat(width, "i32", "1")}
          %{name}.half = add {wide} %{name}.odd, {_splat(width, "i32", "32767")}
          %{name}.up = add {wide} %{name}.w, %{name}.half
          %{name}.cut = lshr {wide} %{name}.up, {_splat(width, "i32", "16")}
          %{name}.nan2 = fcmp uno {computed} {red}, {red}
          %{name}.sel = select {bits} %{name}.nan2, {wide} {_splat(width, "i32", "32704")}, {wide} %{name}.cut
          %{name}.out = trunc {wide} %{name}.sel to {stored}"""


@cache
def reduction_at(dtype: str, operation: str) -> int:
    """The address of the native reduction for a type and an operation, which must be `is_native`. It is never unloaded,
    as threads may run it while the interpreter ends."""
    library = Library({"reduce": compile_text(reduction_text(dtype, operation, _features()))}, ["tw_reduce"])
    library.keep_forever()
    return library["tw_reduce"]


@cache
def reduction(dtype: str, operation: str) -> Callable[[int, int, int, int], int]:
    """The compiled function of `reduction_at(dtype, operation)` for Python: its four arguments, addresses and counts,
    are integers. It releases the GIL."""
    word = ctypes.c_int64
    return ctypes.CFUNCTYPE(word, *[word] * 4)(reduction_at(dtype, operation))
