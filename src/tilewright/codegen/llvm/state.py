"""The emitter's knowledge at a point of the program: names in scope, the vectorized loop, the mask, values made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

from tilewright.codegen.llvm.cast import cast_rounded
from tilewright.codegen.llvm.ops import Ops
from tilewright.codegen.llvm.polynomial import Atoms, Converter, Key, Poly
from tilewright.codegen.llvm.values import Lanes, Value, is_literal, literal, register_type, splat_literal
from tilewright.codegen.llvm.vector import can_vectorize, native_lanes
from tilewright.ir.c_functions import PREFIX, is_foreign, linked_name
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var
from tilewright.ir.loops import For, Stmt
from tilewright.ir.scalar_ops import TYPED_BY_ARGUMENTS
from tilewright.native.text import Writer
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a buffer is: its address, its known alignment, and `elements`, the size of an allocation of this function
    (0 for a parameter). An allocation in a vectorized loop has `copies`, one a lane, interleaved so that lanes are
    contiguous."""

    operand: str
    align: int
    copies: int = 1
    elements: int = 0


@dataclass(slots=True)
class Tiles:
    """The contents of the registers that hold matrices. The `sums` of `buffer` are in the first ones. `loaded` lists
    what was loaded into the others in basic block `block`, the most recently used last: the register's number, address
    and stride, and which factor of a product it is (0: rows)."""

    buffer: str
    sums: int
    loaded: list[tuple[int, tuple[str, str], int]] = field(default_factory=list)
    block: str = ""


ValueKey = Expr | tuple[Expr, int]
"""An expression, with the number of the lanes it was computed for if it differs between them."""

Facts = tuple[ValueKey, frozenset[str], frozenset[Expr]]
"""(key under which an expression's value is cached, buffers that it reads and the function writes, its variables)."""


@dataclass(slots=True)
class Places:
    """Addresses that are valid in a region of code, by the numbers that `State.number` assigns to polynomials (with the
    constants of unrolled loops put in).

    `loads` are loaded values, by buffer, address and type. `bases` are addresses that were computed before a loop for
    its accesses, by pointer and element type, each with its offset. `shuffles` are those of tiles that are transposed
    here, by their vectors and the elements taken.
    """

    loads: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    offsets: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    bases: dict[tuple[str, str], list[tuple[Poly, str]]] = field(default_factory=dict)
    splats: dict[tuple[str, int, DType], str] = field(default_factory=dict)
    shuffles: dict[tuple[str, str, tuple[int, ...]], str] = field(default_factory=dict)


@dataclass(slots=True)
class Scope:
    """Cached values of expressions that are valid in a region of code, where the current block dominates.

    `open` scopes (an iteration of an unrolled loop, the lanes of a vector loop) are no region of their own: values of
    expressions without the iteration's variable `var` are also valid in the enclosing scope. `loaded` has the values
    that were read from memory, by the buffers that they were read from.
    """

    open: bool = False
    var: Var | None = None
    values: dict[ValueKey, Value] = field(default_factory=dict)
    loaded: dict[frozenset[str], dict[ValueKey, Value]] = field(default_factory=dict)


class State:
    """The emitter's state while it walks a function."""

    def __init__(self, target: Target, written: frozenset[str], evaluate: Callable[[State, Expr], Value]) -> None:
        self.target = target
        self.written = written
        self.out = Writer()
        self.ops = Ops(self.out, target)
        self.atoms = Atoms()
        self.constants: dict[Var, int] = {}
        self.converter = Converter(self.atoms, self.constants)
        self.env: dict[Var, Value] = {}
        self.depth: dict[Var, int] = {}
        self.counters: set[Var] = set()
        self.symbolic = False
        self.enclosing: list[For] = []
        self.chained: Stmt | None = None  # what is otherwise done in a chain of tests, of which this is the next one
        self.pointers: dict[str, Pointer] = {}
        self.tiles: Tiles | None = None
        self.lanes: Lanes | None = None
        self.mask: Value | None = None
        self.on: tuple[bool, ...] | None = None
        self.streaming = False
        self.streamed = False
        self.scopes: list[Scope] = [Scope()]
        self.places: list[Places] = [Places()]
        self._evaluate = evaluate
        self._varies: dict[Expr, bool] = {}
        self._varies_in: list[dict[Expr, bool]] = []
        self._facts_alone: dict[Expr, Facts] = {}
        self._facts = self._facts_alone
        self._facts_in: list[dict[Expr, Facts]] = []
        self._lanes: dict[Lanes, int] = {}
        self._lane_number = 0
        self._numbers: dict[Key | tuple[str, str, Key], int] = {}
        self._constants: dict[Const, Value] = {}
        self._variables: dict[Expr, frozenset[Expr]] = {}
        self.certain_loads: dict[Expr, dict[Expr, None]] = {}
        self.proved: dict[tuple[Expr, Var], bool] = {}
        self._reads: dict[Expr, bool] = {}
        self.seldom: dict[Expr, bool] = {}
        self._mutables: dict[Expr, frozenset[str]] = {}
        # By identity: comparing loops by value would walk them. The loop is kept so that its identity stays its own.
        self._vectorizable: dict[int, tuple[For, bool]] = {}
        self._native: dict[int, tuple[For, int]] = {}

    def evaluate(self, e: Expr) -> Value:
        return self._evaluate(self, e)

    def scalar(self, e: Expr) -> str:
        """The operand of an expression that is the same for all lanes."""
        return self.evaluate(e).scalar

    # scopes

    @contextmanager
    def scope(self, repeated: Var | None = None) -> Iterator[None]:
        """Context of code that does not dominate the code after it: cached values computed inside are dropped at the
        end. The body of a loop that runs at least once does dominate: only values that mention its variable,
        `repeated`, are dropped."""
        self.enter(repeated)
        try:
            yield
        finally:
            self.leave()

    def enter(self, repeated: Var | None = None) -> None:
        self.scopes.append(Scope(repeated is not None, repeated))
        self.places.append(Places())

    def leave(self) -> None:
        self.scopes.pop()
        self.places.pop()

    @contextmanager
    def some_lanes(self) -> Iterator[None]:
        """Context of code for some lanes that is not in a branch: values computed inside are dropped at the end,
        addresses stay."""
        self.scopes.append(Scope())
        try:
            yield
        finally:
            self.scopes.pop()

    @contextmanager
    def binding(self, var: Var, value: int) -> Iterator[None]:
        """Context of an iteration of an unrolled loop, whose variable `var` has the constant `value`; cached values
        that depend on it are dropped at the end."""
        outer = self.converter
        self.constants[var] = value
        self.counters.add(var)
        self.converter = Converter(self.atoms, self.constants, outer, frozenset((var,)))
        self.scopes.append(Scope(True, var))
        try:
            yield
        finally:
            self.scopes.pop()
            self.constants.pop(var, None)
            self.converter = outer

    @contextmanager
    def vectorized(self, lanes: Lanes) -> Iterator[None]:
        self.lanes = lanes
        self.counters.add(lanes.var)
        number = self._lane_number = self._lanes.setdefault(lanes, len(self._lanes))
        if number == len(self._varies_in):
            self._varies_in.append({})
            self._facts_in.append({})
        self._varies, self._facts = self._varies_in[number], self._facts_in[number]
        self.scopes.append(Scope(True))
        try:
            yield
        finally:
            self.scopes.pop()
            self.lanes = None
            self._facts = self._facts_alone

    @contextmanager
    def masked(self, mask: Value | None, on: tuple[bool, ...] | None = None) -> Iterator[None]:
        """Context of code that has no effect in lanes where `mask` is false. `on` says of each lane whether it is on,
        if that is known."""
        outer, self.mask, self.on = (self.mask, self.on), mask, on
        try:
            yield
        finally:
            self.mask, self.on = outer

    def forget_loads(self, buffer: Buffer | None = None) -> None:
        """Forget loaded values of this buffer, which may have changed, or of all memory."""
        if self.tiles is not None:
            self.tiles.loaded.clear()
        changed = self.written if buffer is None else {buffer.name}
        for scope in self.scopes:
            if scope.loaded:
                for names in [names for names in scope.loaded if not changed.isdisjoint(names)]:
                    del scope.loaded[names]
        for places in self.places:
            if places.loads:
                for name in changed & places.loads.keys():
                    del places.loads[name]

    def known(self, e: Expr) -> Value | None:
        key, read, _ = self._facts.get(e) or self._facts_of(e)
        for scope in reversed(self.scopes):
            values = scope.loaded.get(read) if read else scope.values
            if values and (entry := values.get(key)) is not None:
                return entry
        return None

    def remember(self, e: Expr, value: Value) -> Value:
        """Cache the value of `e` in the outermost scope where it is valid, and return it."""
        key, read, free = self._facts.get(e) or self._facts_of(e)
        k, scopes = len(self.scopes) - 1, self.scopes
        while k and scopes[k].open and scopes[k].var not in free:
            k -= 1
        scope = scopes[k]
        (scope.loaded.setdefault(read, {}) if read else scope.values)[key] = value
        return value

    def _facts_of(self, e: Expr) -> Facts:
        key: ValueKey = (e, self._lane_number) if self.varies(e) else e
        results = self._facts[e] = (key, self._mutable(e), self._free(e))
        return results

    def remember_store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Value) -> None:
        """Remember that `value` has just been stored to `buffer` at `indices`, for later loads of this element."""
        if not any(buffer.name in self._mutable(i) for i in indices):
            self.remember(Load(buffer, indices), value)

    def remember_streamed(self, buffer: Buffer, stored: Sequence[tuple[str, str, str]]) -> None:
        """Cache (address, type, value) of each streaming store `stored`: a load would read it from memory, past the
        caches."""
        for where, type_, value in stored:
            self.places[-1].loads.setdefault(buffer.name, {})[where, type_] = value

    def load(self, buffer: Buffer, where: str, type_: str, align: int) -> str:
        """The value of `type_` at the address `where`, which is loaded again only after a store that may change it."""
        return self.read_once(buffer, where, type_, lambda: self.out.inst(f"load {type_}, ptr {where}, align {align}"))

    def read_once(self, buffer: Buffer, where: str, type_: str, read: Callable[[], str]) -> str:
        """The value of `type_` at the address `where`: cached if no store may have changed it since, else the result of
        `read`."""
        name, key = buffer.name, (where, type_)
        for places in reversed(self.places):
            values = places.loads.get(name)
            if values and (entry := values.get(key)) is not None:
                return entry
        raw = self.places[-1].loads.setdefault(name, {})[key] = read()
        return raw

    def number(self, name: Key | tuple[str, str, Key]) -> int:
        """A number that identifies a polynomial or an address. Tuples do not cache their hash, and those of polynomials
        are long."""
        return self._numbers.setdefault(name, len(self._numbers))

    def constant(self, e: Const) -> Value:
        """The value of a literal."""
        entry = self._constants.get(e)
        if entry is None:
            entry = self._constants[e] = Value(e.dtype, (literal(e.value, e.dtype),))
        return entry

    def _free(self, e: Expr) -> frozenset[Expr]:
        """The variables in `e`, cached."""
        entry = self._variables.get(e)
        if entry is None:
            own = frozenset((e,)) if isinstance(e, Var) else frozenset()
            entry = self._variables[e] = own.union(*[self._free(c) for c in e.operands])
        return entry

    def _mutable(self, e: Expr) -> frozenset[str]:
        """The buffers that `e` reads and this function writes, cached."""
        entry = self._mutables.get(e)
        if entry is None:
            own = frozenset((e.buffer.name,)) & self.written if isinstance(e, Load) else frozenset[str]()
            entry = self._mutables[e] = own.union(*[self._mutable(c) for c in e.operands])
        return entry

    def reads(self, e: Expr) -> bool:
        """Whether `e` reads memory, or calls a foreign function, which may be called only for elements that are
        computed."""
        entry = self._reads.get(e)
        if entry is None:
            own = isinstance(e, Load) or is_foreign_call(e)
            entry = self._reads[e] = own or any(self.reads(c) for c in e.operands)
        return entry

    def stable(self, p: Poly) -> bool:
        """Whether no store of the function can change the value of a polynomial."""
        return not any(self._mutable(self.atoms.exprs[n]) for monomial in p for n in monomial)

    # lanes

    def varies(self, e: Expr) -> bool:
        """Whether `e` may differ between lanes."""
        if self.lanes is None:
            return False
        entry = self._varies.get(e)
        if entry is None:
            entry = self._varies[e] = self._compute_varies(e)
        return entry

    def _compute_varies(self, e: Expr) -> bool:
        assert self.lanes is not None
        match e:
            case Const():
                return False
            case Var():
                value = self.env.get(e)
                return e is self.lanes.var or (value is not None and value.vector)
            case Load(buffer, indices):
                return self.pointer(buffer).copies > 1 or any(self.varies(i) for i in indices)
        is_there = False
        for c in e.operands:  # a generator would take C's stack for each level
            is_there = is_there or self.varies(c)
        return is_there

    def can_vectorize(self, loop: For) -> bool:
        """Whether the lanes of `loop` may run side by side (`vector.can_vectorize`), cached, since an unrolled loop
        repeats it."""
        known = self._vectorizable.get(id(loop))
        if known is None:
            known = self._vectorizable[id(loop)] = (loop, can_vectorize(loop))
        return known[1]

    def native_lanes(self, loop: For) -> int:
        """The lanes of a vector register for `loop` (`vector.native_lanes`), cached."""
        known = self._native.get(id(loop))
        if known is None:
            known = self._native[id(loop)] = (loop, native_lanes(self.target, loop))
        return known[1]

    def pointer(self, buffer: Buffer) -> Pointer:
        entry = self.pointers.get(buffer.name)
        if entry is None:
            raise CompileError("buffer is neither a parameter nor allocated", where=f"buffer {buffer.name!r}")
        return entry

    def parts(self, value: Value) -> tuple[str, ...]:
        """The value as one operand for each vector of the lanes; a scalar is broadcast."""
        assert self.lanes is not None
        if value.vector:
            return value.parts
        return tuple(self.splat(value.parts[0], value.dtype, w) for w in self.lanes.widths)

    def splat(self, operand: str, t: DType, width: int) -> str:
        element = register_type(t)
        if is_literal(operand):
            return splat_literal(operand, element)
        for places in reversed(self.places):
            entry = places.splats.get((operand, width, t))
            if entry is not None:
                return entry
        ty = f"<{width} x {element}>"
        first = self.out.inst(f"insertelement {ty} poison, {element} {operand}, i64 0")
        result = self.out.inst(f"shufflevector {ty} {first}, {ty} poison, <{width} x i32> zeroinitializer")
        self.places[-1].splats[operand, width, t] = result
        return result

    def elementwise(self, name: str, args: list[Value], result: DType) -> Value:
        """The value of the operator `name` on values, lane by lane."""
        if name not in TYPED_BY_ARGUMENTS and name.startswith(PREFIX):
            return self._extern(linked_name(name), args, result)
        t = args[0].dtype
        if not any(a.vector for a in args):
            return Value(result, (self.ops.apply(name, t, [a.parts[0] for a in args], 0, result),))
        assert self.lanes is not None
        columns = [self.parts(a) for a in args]
        parts = tuple(
            self.ops.apply(name, t, [c[k] for c in columns], width, result) for k, width in enumerate(self.lanes.widths)
        )
        return Value(result, parts, True)

    def _extern(self, symbol: str, args: list[Value], result: DType) -> Value:
        """The value of a call of the C function `symbol` for each lane."""
        types = [a.dtype for a in args]
        if not any(a.vector for a in args):
            return Value(result, (self.ops.extern(symbol, types, [a.parts[0] for a in args], 0, result),))
        assert self.lanes is not None
        columns = [self.parts(a) for a in args]
        parts = (
            self.ops.extern(symbol, types, [c[k] for c in columns], width, result)
            for k, width in enumerate(self.lanes.widths)
        )
        return Value(result, tuple(parts), True)

    def cast_rounded(self, a: Value, offset: Value, bounds: tuple[Value, Value], to: DType) -> Value:
        """The value of cast(round(a) + offset) to type `to`, lane by lane; the offset and the bounds to which `a` is
        clamped are scalars."""
        triple = self.target.triple
        if not a.vector or self.lanes is None:
            ends = bounds[0].scalar, bounds[1].scalar
            return Value(to, (cast_rounded(self.out, a.scalar, offset.scalar, ends, a.dtype, to, 0, triple),))
        columns = zip(a.parts, self.parts(offset), *map(self.parts, bounds), self.lanes.widths, strict=True)
        parts = (cast_rounded(self.out, x, n, (lo, hi), a.dtype, to, width, triple) for x, n, lo, hi, width in columns)
        return Value(to, tuple(parts), True)


def is_foreign_call(e: Expr) -> bool:
    """Whether an expression calls a C function that is not in the C library."""
    return isinstance(e, Op) and e.name not in TYPED_BY_ARGUMENTS and is_foreign(e.name)
