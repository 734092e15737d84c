"""Find and replace parts of a `PrimFunc` by name, as every schedule primitive does first and last.

A *path* is the tuple of statements from the function's body down to the one that was asked for. Replacing copies only
the path. Loops and statements inside a block's body belong to the block: primitives neither see nor move them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from tilewright.arith import simplify
from tilewright.ir.expr import Buffer, Const, Expr, Load, Op, Var, binary
from tilewright.ir.loops import TRUE, Block, For, Intrinsic, PrimFunc, Seq, Stmt, Store, keep_outside, seq
from tilewright.ir.rewrite import map_expr, own_loads, variables, walk, walk_expr, with_children
from tilewright.schedule.external import externals_in
from tilewright.support.errors import Error, ScheduleError

Path = tuple[Stmt, ...]


def refuse(func: PrimFunc, what: str, **details: object) -> ScheduleError:
    """The error for a refused primitive, which the caller raises; its message contains the reason and an outline of the
    loops."""
    return ScheduleError(what, loops=outline(func), **details)  # type: ignore[arg-type]


def refuse_external(func: PrimFunc, block: Block, what: str) -> None:
    """Raise ScheduleError if `block`, which a primitive would split or move, calls an external function."""
    result = externals_in(block)
    if result:
        why = f"block {block.name!r} is the call of {result[0].symbol!r}, which sees whole arrays"
        raise refuse(func, f"{what}: {why}", hint="it stays where it is; schedule what stands before and after it")


def refused(func: PrimFunc, what: str, error: Error) -> ScheduleError:
    """An error for a primitive that is refused because of another error."""
    return refuse(func, f"{what}: {error.what}", expected=error.expected, got=error.got, hint=error.hint)


def outline(func: PrimFunc) -> str:
    """The loops and blocks of a function without the blocks' bodies."""
    lines: list[str] = []

    def go(stmt: Stmt, depth: int) -> None:
        pad = "    " * depth
        match stmt:
            case For():
                kind = "" if stmt.kind == "serial" else f"  # {stmt.thread or stmt.kind}"
                lines.append(f"{pad}for {stmt.var.name} in 0..{stmt.extent}:{kind}")
                go(stmt.body, depth + 1)
            case Block():
                iters = ", ".join(
                    f"{'' if it.kind == 'spatial' else 'reduce '}{it.var.name} = {it.binding}" for it in stmt.iters
                )
                where = "" if stmt.predicate is TRUE else f" where {stmt.predicate}"
                lines.append(f"{pad}block {stmt.name}({iters}){where}")
            case Seq():
                for child in stmt.stmts:
                    go(child, depth)
            case _:
                lines.append(f"{pad}{type(stmt).__name__.lower()} ...")
                for child in stmt.children:
                    go(child, depth + 1)

    go(func.body, 0)
    return "\n".join(lines)


def find(root: Stmt, test: Callable[[Stmt], bool]) -> Path | None:
    """The path to the first statement that passes `test`, not looking inside blocks."""
    at = next((k for k, s in enumerate(outside_blocks(root)) if test(s)), None)
    return None if at is None else _path_to(root, at)


def _path_to(root: Stmt, at: int) -> Path:
    """The path to statement number `at` among those of `root` outside of blocks."""
    path = [root]
    while at:
        at -= 1
        for child in path[-1].children:
            size = 1 + len(_outside(child))
            if at < size:
                path.append(child)
                break
            at -= size
    return tuple(path)


def loop_path(func: PrimFunc, name: str) -> Path:
    """The path to the loop over variable `name`. Raises ScheduleError if there is none."""
    for k, s in enumerate(outside_blocks(func.body)):
        if type(s) is For and s.var.name == name:
            return _path_to(func.body, k)
    raise refuse(func, f"there is no loop {name!r}; loops: {', '.join(loop_names(func)) or 'none'}")


def block_path(func: PrimFunc, name: str) -> Path:
    """The path to the block `name`. Raises ScheduleError if there is none."""
    for k, s in enumerate(outside_blocks(func.body)):
        if type(s) is Block and s.name == name:
            return _path_to(func.body, k)
    raise refuse(func, f"there is no block {name!r}; blocks: {', '.join(b.name for b in blocks_in(func.body))}")


def last_loop(path: Path) -> For:
    """The loop that `path` leads to."""
    loop = path[-1]
    assert isinstance(loop, For)
    return loop


def last_block(path: Path) -> Block:
    """The block that `path` leads to."""
    block = path[-1]
    assert isinstance(block, Block)
    return block


def find_block(func: PrimFunc, name: str) -> Block:
    return last_block(block_path(func, name))


def loops_on(path: Iterable[Stmt]) -> tuple[For, ...]:
    """The loops on a path, outermost first."""
    return tuple(s for s in path if isinstance(s, For))


def own_loops(path: Path) -> tuple[For, ...]:
    """The innermost loops of a path that contain nothing but the block at its end."""
    own: list[For] = []
    for s in reversed(path[:-1]):
        if not isinstance(s, For):
            break
        own.append(s)
    return tuple(reversed(own))


def loop_names(func: PrimFunc) -> list[str]:
    return [s.var.name for s in outside_blocks(func.body) if isinstance(s, For)]


def loops_in(stmt: Stmt) -> tuple[For, ...]:
    """The loops in and below a statement, not looking inside blocks."""
    return tuple(s for s in outside_blocks(stmt) if isinstance(s, For))


def outside_blocks(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and all statements below it in program order; blocks are included, but not what is inside them."""
    return chain((stmt,), _outside(stmt))


def _outside(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements below `stmt` that are outside of blocks. They are cached, since a primitive changes few
    statements."""
    try:
        return stmt.known_outside
    except AttributeError:
        results: list[Stmt] = []
        for child in () if isinstance(stmt, Block) else stmt.children:
            results.append(child)
            results.extend(_outside(child))
        keep_outside(stmt, inside := tuple(results))
        return inside


def blocks_in(stmt: Stmt) -> Iterator[Block]:
    """The blocks in `stmt`, in program order."""
    return (s for s in outside_blocks(stmt) if isinstance(s, Block))


def replace_on(path: Path, new: Stmt | None) -> Stmt | None:
    """The root of `path` with its last statement replaced; removed when `new` is None, and empty loops with it."""
    for parent, child in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if new is not None:
            retained: tuple[Stmt, ...] = tuple(new if c is child else c for c in parent.children)
        else:
            retained = tuple(c for c in parent.children if c is not child)
        if len(retained) == len(parent.children):
            new = with_children(parent, retained)
        else:
            new = seq(retained) if isinstance(parent, Seq) and retained else None
    return new


def replace_at(func: PrimFunc, path: Path, new: Stmt | None) -> PrimFunc:
    """`func` with the last statement of `path` replaced by `new` (None removes it)."""
    body = replace_on(path, new)
    assert body is not None, "what is removed has readers, or is beside what it was moved to"
    return func.with_body(body)


def map_blocks(stmt: Stmt, f: Callable[[Block], Stmt]) -> Stmt:
    """`stmt` with every block replaced by `f(block)`."""
    if isinstance(stmt, Block):
        return f(stmt)
    if not stmt.children:
        return stmt
    return with_children(stmt, tuple(map_blocks(c, f) for c in stmt.children))


def rebind(stmt: Stmt, mapping: Mapping[Var, Expr], extents: Mapping[Var, Expr], condition: Expr = TRUE) -> Stmt:
    """Replace loop variables by the expressions in `mapping` in every binding and predicate below `stmt`, and add
    `condition` to the predicates.

    `extents` are those of the new loops around `stmt`; they help to simplify divisions.
    """
    memo: dict[Expr, Expr] = {}

    def express(e: Expr, enclosing: Mapping[Var, Expr]) -> Expr:
        new = map_expr(e, lambda n: mapping.get(n) if isinstance(n, Var) else None, memo)
        return simplify(new, enclosing) if new is not e and has_division(new) else new

    def go(s: Stmt, enclosing: Mapping[Var, Expr]) -> Stmt:
        if isinstance(s, For):
            extent = express(s.extent, enclosing)
            body = go(s.body, {**enclosing, s.var: extent})
            return replace(s, extent=extent, body=body)
        if isinstance(s, Block):
            iters = tuple(replace(it, binding=express(it.binding, enclosing)) for it in s.iters)
            predicate = conjunction(condition, express(s.predicate, enclosing))
            return replace(s, iters=iters, predicate=predicate)
        return with_children(s, tuple(go(c, enclosing) for c in s.children))

    return go(stmt, extents)


def has_division(e: Expr) -> bool:
    return any(isinstance(n, Op) and n.name in ("floordiv", "mod") for n in walk_expr(e))


def conjunction(a: Expr, b: Expr) -> Expr:
    """`a and b`, in which each conjunct occurs once."""
    parts = conjuncts(a)
    return conjoin((*parts, *(c for c in conjuncts(b) if c not in parts)))


def conjoin(parts: Iterable[Expr]) -> Expr:
    result: Expr = TRUE
    for part in parts:
        result = binary("and", result, part)
    return result


def conjuncts(e: Expr) -> tuple[Expr, ...]:
    """The conditions that `e` joins by "and"; none if it is true."""
    if isinstance(e, Op) and e.name == "and":
        return (*conjuncts(e.args[0]), *conjuncts(e.args[1]))
    return () if isinstance(e, Const) and e.value else (e,)


def depends_on(e: Expr, var: Var) -> bool:
    return not isinstance(e, Const) and var in variables(e)


def extents_of(loops: Iterable[For]) -> dict[Var, Expr]:
    return {loop.var: loop.extent for loop in loops}


def stores_in(stmt: Stmt) -> tuple[Store, ...]:
    return tuple(s for s in walk(stmt) if isinstance(s, Store))


def written_buffers(stmt: Stmt) -> tuple[Buffer, ...]:
    """The buffers written inside `stmt`, by first appearance."""
    result: dict[Buffer, None] = {}
    for s in walk(stmt):
        if isinstance(s, Store):
            result[s.buffer] = None
        elif isinstance(s, Intrinsic):
            result.update((r.buffer, None) for r in s.outputs)
    return tuple(result)


def loads_in(stmt: Stmt) -> tuple[Load, ...]:
    """The distinct loads inside `stmt`, by first appearance."""
    result: dict[Load, None] = {}
    for s in walk(stmt):
        result.update(dict.fromkeys(own_loads(s)))
    return tuple(result)


def intrinsics_in(stmt: Stmt) -> tuple[Intrinsic, ...]:
    return tuple(s for s in walk(stmt) if isinstance(s, Intrinsic))


def read_buffers(stmt: Stmt) -> tuple[Buffer, ...]:
    """The buffers read inside `stmt` (those it updates included), by first appearance."""
    result: dict[Buffer, None] = {load.buffer: None for load in loads_in(stmt)}
    for s in walk(stmt):
        if isinstance(s, Intrinsic):
            result.update((r.buffer, None) for r in s.inputs)
    return tuple(result)


def writers_of(func: PrimFunc, buffer: Buffer) -> tuple[Block, ...]:
    return tuple(b for b in blocks_in(func.body) if buffer in written_buffers(b))


def readers_of(func: PrimFunc, buffer: Buffer) -> tuple[Block, ...]:
    return tuple(b for b in blocks_in(func.body) if buffer in read_buffers(b))


def used_names_of(func: PrimFunc) -> set[str]:
    """The names of a function's buffers, symbols and variables; blocks have a name space of their own (see
    `block_names`)."""
    used_names = {b.name for b in func.params} | {b.name for b in func.buffers} | {v.name for v in func.symbols}
    for stmt in walk(func.body):
        match stmt:
            case Block():
                used_names.update(it.var.name for it in stmt.iters)
            case For():
                used_names.add(stmt.var.name)
            case _ if hasattr(stmt, "var"):
                used_names.add(stmt.var.name)
            case _ if hasattr(stmt, "buffer"):
                used_names.add(stmt.buffer.name)
    return used_names


def block_names(func: PrimFunc) -> set[str]:
    return {b.name for b in blocks_in(func.body)}


def nest(loops: Iterable[For], body: Stmt) -> Stmt:
    """`loops` (outermost first; their bodies are dropped) around `body`."""
    for loop in reversed(tuple(loops)):
        body = replace(loop, body=body)
    return body
