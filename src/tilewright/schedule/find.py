"""Loops and blocks by pattern: `for k in _`, `for i* in 64`, `for _ in _ vectorized`, `block C`.

A name or an extent matches itself, `_` anything, and `*` in a name any letters. Results are in program order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from tilewright.ir.loops import Block, For, IterKind, PrimFunc, Stmt
from tilewright.schedule.state import block_path, blocks_in, depends_on, loops_on, outside_blocks, refuse

_LOOP = re.compile(r"for (\S+) in (.+?)(?: (serial|parallel|vectorized|unrolled|thread))?")
_BLOCK = re.compile(r"block (\S+)")


def find_all(
    func: PrimFunc, pattern: str, block: str | None = None, role: IterKind | None = None
) -> tuple[tuple[str, ...], bool]:
    """The names of the loops or blocks that match, and whether they are loops.

    Args:
        func: where to look.
        pattern: "for NAME in EXTENT", with a kind of loop after it or not, or "block NAME"; `_` matches anything, and
            `*` any letters of a name.
        block: only loops around this block.
        role: only loops that drive a "spatial" or a "reduce" iterator of the block, or of any.
    """
    pattern = " ".join(pattern.split())
    if match := _BLOCK.fullmatch(pattern):
        return tuple(b.name for b in blocks_in(func.body) if _is(b.name, match[1])), False
    match = _LOOP.fullmatch(pattern)
    if match is None:
        raise refuse(func, f"{pattern!r} is no pattern", expected='"for NAME in EXTENT" or "block NAME", _ for any')
    name, extent, kind = match.groups()
    loops = loops_on(block_path(func, block)) if block is not None else tuple(_loops(func.body))
    return (
        tuple(
            x.var.name
            for x in loops
            if _is(x.var.name, name)
            and extent.removeprefix("0..") in ("_", str(x.extent))
            and kind in (None, x.kind)
            and (role is None or _plays(func, x, block, role))
        ),
        True,
    )


def _is(name: str, wanted: str) -> bool:
    return wanted == "_" or fnmatchcase(name, wanted)


def _loops(stmt: Stmt) -> Iterator[For]:
    return (s for s in outside_blocks(stmt) if isinstance(s, For))


def _plays(func: PrimFunc, loop: For, block: str | None, role: IterKind) -> bool:
    inside: Iterator[Block] = (b for b in blocks_in(loop.body) if block in (None, b.name))
    return any(it.kind == role and depends_on(it.binding, loop.var) for b in inside for it in b.iters)
