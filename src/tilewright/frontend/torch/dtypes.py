"""PyTorch's element types and ours."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.ir import dtype as dtypes
from tilewright.ir.dtype import DType
from tilewright.support.errors import UnsupportedError

DTYPES: dict[torch.dtype, DType] = {
    torch.float32: dtypes.f32,
    torch.float64: dtypes.f64,
    torch.float16: dtypes.f16,
    torch.bfloat16: dtypes.bf16,
    torch.int8: dtypes.i8,
    torch.int16: dtypes.i16,
    torch.int32: dtypes.i32,
    torch.int64: dtypes.i64,
    torch.uint8: dtypes.u8,
    torch.uint16: dtypes.u16,
    torch.uint32: dtypes.u32,
    torch.uint64: dtypes.u64,
    torch.bool: dtypes.boolean,
    torch.float8_e4m3fn: dtypes.f8e4m3fn,
    torch.float8_e4m3fnuz: dtypes.f8e4m3fnuz,
    torch.float8_e5m2: dtypes.f8e5m2,
    torch.float8_e5m2fnuz: dtypes.f8e5m2fnuz,
}
TORCH: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in DTYPES.items()}


def element_type(t: torch.dtype) -> DType:
    """Tilewright's element type for PyTorch's `t`. Raises UnsupportedError if there is none."""
    entry = DTYPES.get(t)
    if entry is None:
        raise UnsupportedError(f"the element type {str(t).removeprefix('torch.')} is not supported")
    return entry


def promoted(*operands: tuple[DType, int] | bool | int | float) -> DType:
    """The type in which PyTorch computes with these operands: tensors as (type, rank), and numbers."""

    def example(operand: Any) -> Any:
        if not isinstance(operand, tuple):
            return operand
        return torch.empty((1,) * min(operand[1], 1), dtype=TORCH[operand[0]], device="meta")

    result = example(operands[0])
    for operand in operands[1:]:
        # A result of two operands stands for both: its rank is the larger one, its type theirs.
        other = example(operand)
        t = torch.result_type(result, other)
        rank = max(getattr(result, "ndim", 0), getattr(other, "ndim", 0))
        result = torch.empty((1,) * rank, dtype=t, device="meta")
    if not isinstance(result, torch.Tensor):
        result = torch.as_tensor(result)
    return element_type(result.dtype)
