"""Remove stages of a loop function whose results are unused once constants are substituted.

    block total: total[vi] += A[vi, vk]                   block C: C[vi] = 1
    block zero: zero[] = 0                          ->
    block C: C[vi] = total[vi] * zero[] + 1

After the substitution, `x * 0` and `x % 1` of integers, or a comparison that holds for every number of the type, read
no buffer. A plan that expects a stage to read its producer would reject the function. A function in which every stage
still reads the buffers that it read before stays as it is.
"""

from __future__ import annotations

from tilewright.ir.expr import Const
from tilewright.ir.loops import Block, PrimFunc, Store
from tilewright.schedule.inline import compute_inline, unread
from tilewright.schedule.state import blocks_in, read_buffers, written_buffers


def fold_stages(func: PrimFunc) -> PrimFunc:
    """The function without stages that become unused once constant stages are substituted into their readers."""
    smaller = func
    while (constant := next((b for b in blocks_in(smaller.body) if _is_constant(smaller, b)), None)) is not None:
        smaller = compute_inline(smaller, constant.name)
    before = {b.name: b for b in blocks_in(func.body)}
    gone = {buffer for b in before.values() for buffer in written_buffers(b)} - {
        buffer for b in blocks_in(smaller.body) for buffer in written_buffers(b)
    }
    left = list(blocks_in(smaller.body))
    same = all({*read_buffers(before[b.name])} - gone == {*read_buffers(b)} for b in left)
    if same and not any(unread(smaller, b) for b in left):
        return func
    while (idle := next((b for b in blocks_in(smaller.body) if unread(smaller, b)), None)) is not None:
        smaller = compute_inline(smaller, idle.name)
    return smaller


def _is_constant(func: PrimFunc, block: Block) -> bool:
    """Whether a block stores a constant number in an intermediate buffer."""
    body = block.body
    return isinstance(body, Store) and isinstance(body.value, Const) and body.buffer in func.buffers and not block.init
