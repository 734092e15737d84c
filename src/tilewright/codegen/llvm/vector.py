"""When the iterations of a vectorized loop may run side by side, how wide, and which stores are reductions.

Everything here reads the program only. A loop that is not recognised as safe becomes a scalar loop.
"""

from __future__ import annotations

from tilewright.codegen.llvm.ops import is_library
from tilewright.codegen.llvm.polynomial import Atoms, Converter, Poly, add, split_lane
from tilewright.ir.dtype import DType, bf16, boolean, f16, f32, i32, i64
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, as_int
from tilewright.ir.loops import Allocate, For, If, Intrinsic, Let, Seq, Stmt, Store
from tilewright.ir.rewrite import exprs_of, loads, variables, walk
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target

REDUCTIONS = ("add", "mul", "min", "max", "larger", "and", "or", "bitand", "bitor", "bitxor")


@dataclass(frozen=True, slots=True)
class Reduction:
    """A store that reduces: `buffer[indices] = op(buffer[indices], value)`."""

    op: str
    value: Expr


def match_reduction(store: Store) -> Reduction | None:
    """The reduction that a store performs, if it is one."""
    own = Load(store.buffer, store.indices)
    match store.value:
        case Op(op, (a, b)) if op in REDUCTIONS and (a is own) != (b is own):
            value: Expr = b if a is own else a
        case Op("fma", (a, b, c)) if c is own:
            op, value = "add", Op("mul", (a, b))
        case _:
            return None
    return None if any(x.buffer == store.buffer for x in loads(value)) else Reduction(op, value)


def native_lanes(target: Target, loop: For) -> int:
    """The number of lanes of a vector register for the widest element type that the loop's body works on, indices
    aside."""
    size = 1
    for stmt in walk(loop.body):
        if isinstance(stmt, Store):
            size = max(size, _compute_size(stmt.buffer.dtype))
        for e in exprs_of(stmt):
            for node in _usual(e):
                if isinstance(node, Op) and node.dtype is not i64 and node.dtype is not boolean:
                    size = max(size, _compute_size(node.dtype))
                elif isinstance(node, Load) and loop.var in variables(node):
                    size = max(size, _compute_size(node.buffer.dtype))
    return max(2, target.lanes(size))


def is_seldom(e: Expr, memo: dict[Expr, bool]) -> bool:
    """Whether an expression uses tables or library functions, which are computed lane by lane. As the last operand of a
    `select` it is computed in a branch, only if a lane needs it, and does not count for the width of the vectors."""
    entry = memo.get(e)
    if entry is None:
        own = isinstance(e, Op) and ((e.name == "lookup" and sixteenth(e) is None) or is_library(e.name))
        entry = memo[e] = own or any(is_seldom(c, memo) for c in e.children)
    return entry


def has_registers_for(target: Target) -> bool:
    """Whether the target has an instruction that looks up a table of sixteen f32 in one or two vector registers."""
    return max(target.isa.tables, target.isa.half_tables) >= 16


def sixteenth(e: Expr) -> Expr | None:
    """The i32 whose low four bits are the index, if `e` is a `lookup` in a table of sixteen f32; else None. AVX-512 has
    such a table in one register, AVX2 in two."""
    match e:
        case Op("lookup", (Op("cast", (Op("bitand", (x, Const(15))),)), *table)):
            return x if x.dtype is i32 and len(table) == 16 and e.dtype is f32 else None
    return None


def _usual(e: Expr) -> list[Expr]:
    """The distinct subexpressions of `e`, without those that are computed in a branch (`is_seldom`)."""
    seen: dict[Expr, None] = {}
    memo: dict[Expr, bool] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            children = node.children
            if isinstance(node, Op) and node.name == "select" and is_seldom(children[2], memo):
                children = children[:2]
            stack.extend(children)
    return list(seen)


def _compute_size(t: DType) -> int:
    return 4 if t in (f16, bf16) else t.itemsize


@dataclass(frozen=True, slots=True)
class _Access:
    buffer: Buffer
    indices: tuple[Expr, ...]
    is_store: bool
    statement: int


class Checker:
    """Decides whether the lanes of one vectorized loop are independent."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.atoms = Atoms()
        self.converter = Converter(self.atoms, {})
        self.lane = self.atoms.number(loop.var)
        self.varying: set[Var] = {loop.var}
        self.private: set[Buffer] = set()
        self.accesses: list[_Access] = []
        self.reductions: set[int] = set()
        self.has_loops = any(isinstance(s, For) for s in walk(loop.body))
        self._memo: dict[Expr, bool] = {}

    def run(self) -> bool:
        return self._statement(self.loop.body) and self._independent()

    def _varies(self, e: Expr) -> bool:
        entry = self._memo.get(e)
        if entry is None:
            own = e in self.varying if isinstance(e, Var) else isinstance(e, Load) and e.buffer in self.private
            entry = self._memo[e] = own or any(self._varies(c) for c in e.children)
        return entry

    def _statement(self, stmt: Stmt) -> bool:
        match stmt:
            case Seq(stmts):
                return all(self._statement(x) for x in stmts)
            case For():
                return stmt.kind != "vectorized" and not self._varies(stmt.extent) and self._inside(stmt, stmt.body)
            case Let(var, value, body):
                if self._varies(value):
                    self.varying.add(var)
                return self._inside(stmt, body)
            case If():
                return self._inside(stmt, *stmt.children)
            case Allocate(buffer, body):
                self.private.add(buffer)
                return all(as_int(n) is not None for n in buffer.shape) and self._statement(body)
            case Store():
                return self._store(stmt)
            case Intrinsic():
                return False
        return False

    def _inside(self, stmt: Stmt, *bodies: Stmt) -> bool:
        self._reads(stmt, len(self.accesses))
        return all(self._statement(body) for body in bodies)

    def _reads(self, stmt: Stmt, statement: int) -> None:
        for e in exprs_of(stmt):
            for node in loads(e):
                self.accesses.append(_Access(node.buffer, node.indices, False, statement))

    def _store(self, stmt: Store) -> bool:
        statement = len(self.accesses)
        self._reads(stmt, statement)
        self.accesses.append(_Access(stmt.buffer, stmt.indices, True, statement))
        if stmt.buffer in self.private or any(self._varies(i) for i in stmt.indices):
            return True
        if match_reduction(stmt) is not None and not stmt.buffer.dtype.name.endswith("16"):
            self.reductions.add(statement)
            return True
        return not self._varies(stmt.value) and all(x.buffer != stmt.buffer for x in loads(stmt.value))

    def _independent(self) -> bool:
        """Whether no lane writes an element that another lane reads or writes, reductions aside."""
        for store in self.accesses:
            if not store.is_store or store.buffer in self.private:
                continue
            for other in self.accesses:
                if other.buffer != store.buffer:
                    continue
                if store.statement in self.reductions:
                    # Only the reduction itself may touch what it reduces into.
                    if other.statement != store.statement:
                        return False
                elif not self._same_lane(store, other):
                    return False
        return True

    def _same_lane(self, a: _Access, b: _Access) -> bool:
        """Whether two accesses of a buffer, of which one is a store, concern one element only if they are in one lane,
        so that the order of lanes does not matter."""
        if not any(self._varies(i) for i in (*a.indices, *b.indices)):
            return a is b  # One location, the same values from every lane.
        if a is b and not self.has_loops and not any(x.buffer == a.buffer and x is not a for x in self.accesses):
            return True  # Written once and not read: the last lane wins, and lanes are stored in order.
        for i, j in zip(a.indices, b.indices, strict=True):
            if i is j and self._injective(self.converter.poly(i)):
                return True
        p = self.converter.offset(a.buffer, a.indices)
        q = self.converter.offset(b.buffer, b.indices)
        return not add(p, q, -1) and self._injective(p)

    def _injective(self, p: Poly) -> bool:
        """Whether different lanes give different values of `p`: it is a nonzero constant times the lane, plus terms
        that do not vary."""
        rest, coefficient = split_lane(p, self.lane)
        if coefficient is None or any(coefficient.keys()) or not coefficient:
            return False
        return not any(self._varies(self.atoms.exprs[n]) for monomial in rest for n in monomial)


def can_vectorize(loop: For) -> bool:
    """Whether the lanes of `loop` side by side compute the result of its iterations in order."""
    return Checker(loop).run()
