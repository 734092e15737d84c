"""Offsets of temporaries for new sizes: a plan is stored as an order of blocks, which is valid for all sizes.

A plan for some sizes (`arena.py`) says of any two blocks that live at the same time which of them stands below the
other. For any sizes, no blocks overlap if each begins after the ends of those below it:

    offset[b] = max(offset[a] + size[a] for a below b)

At the plan's own sizes this takes no more memory than the plan, and about as little at sizes that grow together. A few
plans, for small, likely and large sizes, are stored; a call uses the one that needs the least memory. This is some
hundred additions for the largest models, in native code (`define_places`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.native.assembler import I1, I64, PTR, Function, Module, Value, Variable
from tilewright.runtime.arena import ALIGNMENT, Block, Plan, conflicts_of, roots
from tilewright.runtime.layout import Struct
from tilewright.runtime.specs import MAX_BYTES, SymbolSpec, TempSpec

PLACES = Struct("blocks", "orders", "table")
"""`table`: for each temporary the index of its block and the factor of its size (1, or the number of threads); then,
for each order, its blocks: index, number of blocks directly below, and their indices."""


def places_table(temps: Sequence[TempSpec], threads: int, plans: Sequence[Plan]) -> list[int]:
    """The words of the native struct PLACES: for each plan of the temporaries, its blocks from bottom to top, each with
    the blocks directly below it. Blocks that each thread has count for `threads` threads."""
    whose = roots(temps)
    index = {root: k for k, root in enumerate(dict.fromkeys(whose))}
    words = [len(index), len(plans), *(index[r] for r in whose), *(threads if t.per_thread else 1 for t in temps)]
    below = _conflicts(temps, whose)
    for placed in plans:
        order = sorted(index, key=lambda root: (placed.offsets[root], root))
        for root, direct in _directly_below(order, below):
            words += [index[root], len(direct), *(index[r] for r in direct)]
    return words


def usual_dims(symbols: Sequence[SymbolSpec]) -> list[tuple[int, ...]]:
    """Values of the symbols at which memory is planned: median likely ones first, then the smallest and largest likely
    ones, small and large ones."""
    middling = [sorted(s.likely)[len(s.likely) // 2] if s.likely else MIDDLING for s in symbols]
    least, greatest = ([end(s.likely) if s.likely else MIDDLING for s in symbols] for end in (min, max))
    wanted = middling, least, greatest, [1] * len(symbols), [LARGE] * len(symbols)
    dims = [tuple(_legal(s, value) for s, value in zip(symbols, values, strict=True)) for values in wanted]
    return list(dict.fromkeys(dims))


MIDDLING, LARGE = 64, 512
"""Sizes for which memory is planned if the symbols state no likely ones."""


def _legal(symbol: SymbolSpec, value: int) -> int:
    """The smallest permitted value of a symbol that is at least `value`; if there is none, its largest."""
    up = -(-max(value, symbol.lo) // symbol.multiple) * symbol.multiple
    return min(up, symbol.hi // symbol.multiple * symbol.multiple)


def _conflicts(temps: Sequence[TempSpec], whose: Sequence[int]) -> dict[int, list[int]]:
    """For each block, named by its first temporary, the blocks whose lifetimes overlap its own; `whose` has each
    temporary's block."""
    blocks: dict[int, Block] = {}
    for t, root in zip(temps, whose, strict=True):
        block = blocks.setdefault(root, Block(t.first, t.last, 0))
        block.first, block.last = min(block.first, t.first), max(block.last, t.last)
    named = list(blocks)
    others = conflicts_of(list(blocks.values()))
    return {root: [named[k] for k in ks] for root, ks in zip(named, others, strict=True)}


def _directly_below(order: Sequence[int], conflicts: dict[int, list[int]]) -> list[tuple[int, list[int]]]:
    """(block, the conflicting blocks earlier in `order` on which it may rest), without those that lie below another one
    of these."""
    at = {root: k for k, root in enumerate(order)}
    under: dict[int, int] = {}  # as bits
    results = []
    for k, root in enumerate(order):
        seen, direct = 0, []
        for j in sorted((at[r] for r in conflicts[root] if at[r] < k), reverse=True):
            if not seen >> j & 1:
                direct.append(order[j])
                seen |= 1 << j | under[order[j]]
        under[root] = seen
        results.append((root, direct))
    return results


def define_places(m: Module) -> None:
    """Add `tw_place(places, temps, sizes, offsets)`: compute the temporaries' offsets from their bytes for one thread;
    returns the arena's size."""
    params = [("places", PTR), ("temps", I64), ("sizes", PTR), ("offsets", PTR)]
    with m.function("tw_place", I64, params) as (f, (places, temps, sizes, offsets)):
        blocks = places[PLACES.blocks]
        index = places + PLACES.table
        times = index + temps * 8
        selected, at = f.dynamic_space(blocks + 1), f.dynamic_space(blocks + 1)
        with f.each(blocks) as b:
            selected[b * 8] = 0
        with f.each(temps) as k:
            size = sizes[k * 8] * times[k * 8]
            whole = (size + (ALIGNMENT - 1)) & -ALIGNMENT
            place = selected + index[k * 8] * 8
            with f.when(whole > place[0]):
                place[0] = whole
        least, next_word = f.var(I64, -1), f.var(PTR, times + temps * 8)
        with f.each(places[PLACES.orders]):
            top = _pass(f, blocks, next_word, selected, at)
            better = f.var(I64, 0)
            with f.when(least.get() < 0):
                better.set(1)
            with f.when(top < least.get()):
                better.set(1)
            with f.when(better.get().ne(0)):
                least.set(top)
                with f.each(temps) as k:
                    offsets[k * 8] = at[index[k * 8] * 8]
        f.ret(least.get())


def _pass(f: Function, blocks: Value, next_word: Variable, selected: Value, at: Value) -> Value:
    """Emit code that places all blocks in one plan's order, each on top of the blocks below it, with sizes `selected`.
    Stores the offsets to `at`; returns the arena's size."""
    top = f.var(I64, 0)
    with f.each(blocks):
        head = next_word.get()
        block, count = head[0], head[8]
        offset = f.var(I64, 0)
        with f.each(count) as j:
            other = head[j * 8 + 16] * 8
            end = at[other] + selected[other]
            with f.when(end > offset.get()):
                offset.set(end)
        at[block * 8] = offset.get()
        end = offset.get() + selected[block * 8]
        with f.when(end > top.get()):
            top.set(end)
        next_word.set(head + (count * 8 + 16))
    return top.get()


def define_check(m: Module) -> None:
    """Add `tw_promised(promised, values, count)`: whether no value is negative or too large, and each equals its
    promised value (-1: any)."""
    with m.function("tw_promised", I1, [("promised", PTR), ("values", PTR), ("count", I64)], local=True) as (
        f,
        arguments,
    ):
        promised, values, count = arguments
        with f.each(count) as k:
            value, wanted = values[k * 8], promised[k * 8]
            # As unsigned, what is negative is too large.
            with f.when(value.below(MAX_BYTES + 1).eq(0)):
                f.ret(0, I1)
            with f.when(wanted >= 0), f.when(wanted.ne(value)):
                f.ret(0, I1)
        f.ret(1, I1)
