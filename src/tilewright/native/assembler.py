"""A few words of structured LLVM, so that native support code is written as one writes C.

    m = Module()
    with m.function("sum", I64, [("p", PTR), ("n", I64)]) as (f, p, n):
        total = f.var(I64, 0)
        with f.each(n) as i:
            total.add(p[i * 8])
        f.ret(total.get())

Variables live in `alloca`s, which LLVM turns into registers. `Value`s are single assignments; a Python int stands for a
constant of the type that the other operand has. `p[offset]` is memory of eight bytes, at an offset in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.native.text import Writer
from tilewright.support.classes import dataclass

VOID, I1, I8, I32, I64, PTR = "void", "i1", "i8", "i32", "i64", "ptr"


class Field(int):
    """An offset in bytes of a field of a struct, with the field's type."""

    type: str

    def __new__(cls, offset: int, type: str) -> Field:
        field = super().__new__(cls, offset)
        field.type = type
        return field


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A typed LLVM operand of the function `fn`; comparisons are signed."""

    fn: Function
    type: str
    text: str

    def _binary(self, op: str, other: Value | int, result: str | None = None) -> Value:
        return self.fn.let(result or self.type, f"{op} {self.type} {self.text}, {self.fn.operand(other, self.type)}")

    def __add__(self, other: Value | int) -> Value:
        if self.type == PTR:
            return self.fn.let(PTR, f"getelementptr i8, ptr {self.text}, i64 {self.fn.operand(other, I64)}")
        return self._binary("add", other)

    def __sub__(self, other: Value | int) -> Value:
        return self._binary("sub", other)

    def __rsub__(self, other: int) -> Value:
        return self.fn.value(other, self.type) - self

    def __mul__(self, other: Value | int) -> Value:
        return self._binary("mul", other)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._binary("udiv", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._binary("urem", other)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", other)

    def __invert__(self) -> Value:
        return self._binary("xor", -1)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("shl", other)

    def __rlshift__(self, other: int) -> Value:
        return self.fn.value(other, self.type) << self

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("lshr", other)

    def eq(self, other: Value | int) -> Value:
        return self._binary("icmp eq", other, I1)

    def ne(self, other: Value | int) -> Value:
        return self._binary("icmp ne", other, I1)

    def __lt__(self, other: Value | int) -> Value:
        return self._binary("icmp slt", other, I1)

    def __le__(self, other: Value | int) -> Value:
        return self._binary("icmp sle", other, I1)

    def __gt__(self, other: Value | int) -> Value:
        return self._binary("icmp sgt", other, I1)

    def __ge__(self, other: Value | int) -> Value:
        return self._binary("icmp sge", other, I1)

    def below(self, other: Value | int) -> Value:
        """Whether this value is less than another, both taken as unsigned."""
        return self._binary("icmp ult", other, I1)

    def cast(self, to: str) -> Value:
        """The value converted to LLVM's type `to`, between integers (zero-extended) and pointers."""
        if to == self.type:
            return self
        if PTR in (to, self.type):
            op = "inttoptr" if to == PTR else "ptrtoint"
        else:
            op = "zext" if int(to[1:]) > int(self.type[1:]) else "trunc"
        return self.fn.let(to, f"{op} {self.type} {self.text} to {to}")

    def __getitem__(self, offset: Value | int) -> Value:
        """Load from memory at `offset` bytes from this address: a value of the type of a `Field`, else an i64."""
        return self.fn.load(_type_at(offset), self, offset)

    def __setitem__(self, offset: Value | int, value: Value | int) -> None:
        stored = self.fn.value(value, _type_at(offset))
        if _size(stored.type) != 8:
            raise TypeError(f"{stored.text} is {stored.type}: memory by subscripts is of eight bytes, use `store`")
        self.fn.store(stored, self, offset)

    def signed(self, to: str) -> Value:
        """Convert to a wider integer by sign extension."""
        return self.fn.let(to, f"sext {self.type} {self.text} to {to}")


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A local variable of a function, in stack memory."""

    fn: Function
    type: str
    address: Value

    def get(self) -> Value:
        return self.fn.load(self.type, self.address)

    def set(self, value: Value | int) -> None:
        self.fn.store(self.fn.value(value, self.type), self.address)

    def add(self, value: Value | int) -> None:
        self.set(self.get() + value)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop under construction; `leave_if` jumps to its end."""

    fn: Function
    end: str

    def leave_if(self, condition: Value) -> None:
        stay = self.fn.label()
        self.fn.emit(f"br i1 {condition.text}, label %{self.end}, label %{stay}")
        self.fn.start(stay)

    def leave(self) -> None:
        self.fn.emit(f"br label %{self.end}")
        self.fn.start(self.fn.label())


class Function:
    """A function under construction."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._out = Writer()

    # -- plumbing ------------------------------------------------------------------------------------------------

    def emit(self, line: str) -> None:
        self._out.effect(line)

    def label(self) -> str:
        return self._out.fresh("l")

    def start(self, label: str) -> None:
        """Begin a basic block; code after a terminator is put into a block of its own, which LLVM drops."""
        self._out.start(label)

    def let(self, type: str, expression: str) -> Value:
        return Value(self, type, self._out.inst(expression))

    def operand(self, x: Value | int, type: str) -> str:
        if isinstance(x, Value):
            if x.type != type:
                raise TypeError(f"{x.text} is {x.type}, not {type}")
            return x.text
        return ("null" if x == 0 else f"inttoptr (i64 {x} to ptr)") if type == PTR else str(int(x))

    def value(self, x: Value | int, type: str) -> Value:
        return x if isinstance(x, Value) else Value(self, type, self.operand(x, type))

    def text(self, header: str) -> str:
        body = [f"define {header} {{", "entry:", *self._out.entry, *self._out.lines, "  unreachable", "}"]
        return "\n".join(body)

    # -- memory --------------------------------------------------------------------------------------------------

    def var(self, type: str, initial: Value | int | None = None) -> Variable:
        v = Variable(self, type, self.space(8, f"{type}"))
        if initial is not None:
            v.set(initial)
        return v

    def space(self, nbytes: int, type: str = "") -> Value:
        """Allocate `nbytes` of stack memory, aligned to 16 bytes; returns its address."""
        name = f"%{self._out.fresh('a')}"
        self._out.entry.append(f"  {name} = alloca {type or f'[{nbytes} x i8]'}, align 16")
        return Value(self, PTR, name)

    def dynamic_space(self, words: Value) -> Value:
        """Allocate stack memory of `words` i64, a number known at run time, until the function returns; returns its
        address."""
        return self.let(PTR, f"alloca i64, i64 {words.text}, align 16")

    def load(self, type: str, pointer: Value, offset: Value | int = 0, order: str = "") -> Value:
        at = pointer if isinstance(offset, int) and offset == 0 else pointer + offset
        if order:
            return self.let(type, f"load atomic {type}, ptr {at.text} {order}, align {_size(type)}")
        return self.let(type, f"load {type}, ptr {at.text}, align {_size(type)}")

    def store(self, value: Value, pointer: Value, offset: Value | int = 0, order: str = "") -> None:
        at = pointer if isinstance(offset, int) and offset == 0 else pointer + offset
        atomic = "atomic " if order else ""
        self.emit(f"store {atomic}{value.type} {value.text}, ptr {at.text} {order}, align {_size(value.type)}")

    def put(self, value: int, type: str, pointer: Value, offset: Value | int = 0, order: str = "") -> None:
        """Emit the store of a constant of LLVM type `type` at `pointer`, `offset` bytes further; atomic with `order`
        unless it is ""."""
        self.store(self.value(value, type), pointer, offset, order)

    def modify(self, op: str, pointer: Value, value: Value | int, type: str = I64) -> Value:
        """Emit LLVM's `atomicrmw` with operation `op` and `value` on memory at `pointer`, sequentially consistent;
        returns the previous value."""
        return self.let(type, f"atomicrmw {op} ptr {pointer.text}, {type} {self.operand(value, type)} seq_cst")

    def add_atomic(self, pointer: Value, value: Value | int, type: str = I64) -> Value:
        """Emit an atomic addition of `value` to memory at `pointer`, sequentially consistent; returns the previous
        value."""
        return self.modify("add", pointer, value, type)

    def swap_if(self, pointer: Value, expected: Value | int, wanted: Value | int, type: str = I64) -> Value:
        """Emit a compare-and-swap, sequentially consistent: the memory at `pointer` becomes `wanted` if it holds
        `expected`. Returns whether it did, an i1."""
        old, new = self.operand(expected, type), self.operand(wanted, type)
        pair = self.let("", f"cmpxchg ptr {pointer.text}, {type} {old}, {type} {new} seq_cst seq_cst")
        return self.let(I1, f"extractvalue {{ {type}, i1 }} {pair.text}, 1")

    def symbol(self, name: str) -> Value:
        """The address of a global or function."""
        return Value(self, PTR, f"@{name}")

    # -- control -------------------------------------------------------------------------------------------------

    def call(self, result: str, callee: str | Value, *args: Value | tuple[str, int]) -> Value:
        """Emit a call of the function `callee`, by name (declared on the way) or through a pointer, with `args`;
        returns its value, of LLVM's type `result`."""
        values = [a if isinstance(a, Value) else self.value(a[1], a[0]) for a in args]
        if isinstance(callee, str):
            self.module.declare(callee, result, [v.type for v in values])
        target = f"@{callee}" if isinstance(callee, str) else callee.text
        text = f"call {result} {target}({', '.join(f'{v.type} {v.text}' for v in values)})"
        if result == VOID:
            self.emit(text)
            return Value(self, VOID, "")
        return self.let(result, text)

    def ret(self, value: Value | int | None = None, type: str = I64) -> None:
        if value is None:
            self.emit("ret void")
        else:
            v = self.value(value, type)
            self.emit(f"ret {v.type} {v.text}")
        self.start(self.label())

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Within the context, emit code that runs only if `condition` holds."""
        then, end = self.label(), self.label()
        self.emit(f"br i1 {condition.text}, label %{then}, label %{end}")
        self.start(then)
        yield
        self.emit(f"br label %{end}")
        self.start(end)

    @contextmanager
    def loop(self) -> Iterator[Loop]:
        """Within the context, emit the body of a loop, which repeats until it leaves."""
        head, end = self.label(), self.label()
        self.emit(f"br label %{head}")
        self.start(head)
        yield Loop(self, end)
        self.emit(f"br label %{head}")
        self.start(end)

    @contextmanager
    def each(self, count: Value | int) -> Iterator[Value]:
        """Within the context, emit the body of a loop over i from 0 to `count`; yields i. The body may return from the
        function."""
        i = self.var(I64, 0)
        with self.loop() as loop:
            now = i.get()
            loop.leave_if(now >= count)
            yield now
            i.set(now + 1)

    def pause(self) -> None:
        """Emit the instruction that tells the core that this is a spin loop."""
        if self.module.pause is not None:
            intrinsic, arguments = self.module.pause
            self.call(VOID, intrinsic, *arguments)


class Module:
    """LLVM text under construction."""

    def __init__(self, triple: str = "") -> None:
        self.triple = triple
        arm = triple.startswith(("aarch64", "arm64"))
        x86 = triple.startswith(("x86_64", "i386", "i686"))
        self.is_web = triple.startswith("wasm")
        self.pause = ("llvm.aarch64.hint", ((I32, 1),)) if arm else ("llvm.x86.sse2.pause", ()) if x86 else None
        self._declared: dict[str, str] = {}
        self._defined: set[str] = set()
        self._parts: list[str] = []

    @contextmanager
    def function(
        self, name: str, result: str, params: Sequence[tuple[str, str]], *, local: bool = False
    ) -> Iterator[tuple[Function, list[Value]]]:
        """Within the context, define the function `name` with `params`, (name, LLVM type) each, and the result type
        `result`, seen from outside the module unless `local`; yields it and its parameters. Its code must end with a
        return."""
        f = Function(self)
        self._defined.add(name)
        yield f, [Value(f, type, f"%{p}") for p, type in params]
        signature = ", ".join(f"{type} %{p}" for p, type in params)
        self._parts.append(f.text(f"{'internal ' if local else ''}{result} @{name}({signature}) nounwind"))

    def declare(self, name: str, result: str, params: list[str]) -> None:
        self._declared.setdefault(name, f"declare {result} @{name}({', '.join(params)})")

    def external(self, name: str) -> None:
        """Declare a variable defined elsewhere."""
        self._declared[name] = f"@{name} = external global i8"

    def string(self, name: str, text: str) -> None:
        """Define the constant `name`, a zero-terminated string with the `text` of ASCII letters without quotes."""
        self._parts.append(f'@{name} = internal constant [{len(text) + 1} x i8] c"{text}\\00"')

    def constant(self, name: str, data: bytes) -> None:
        """Define a constant of these bytes, aligned to 16."""
        text = "\\" + data.hex("\\").upper() if data else ""
        self.raw(name, f'@{name} = internal constant [{len(data)} x i8] c"{text}", align 16')

    def variable(self, name: str, nbytes: int) -> None:
        """Define the global variable `name` of `nbytes` zero bytes, aligned to 128 bytes so that it shares no cache
        line."""
        self._parts.append(f"@{name} = global [{nbytes} x i8] zeroinitializer, align 128")

    def raw(self, name: str, text: str) -> None:
        """Add a definition as LLVM text, for what this class has no methods for (vectors)."""
        self._defined.add(name)
        self._parts.append(text)

    def text(self) -> str:
        declarations = [d for name, d in self._declared.items() if name not in self._defined]
        return "\n\n".join([*declarations, *self._parts]) + "\n"


def _type_at(offset: Value | int) -> str:
    return offset.type if isinstance(offset, Field) else I64


def _size(type: str) -> int:
    return {I1: 1, I8: 1, I32: 4, I64: 8, PTR: 8}[type]
