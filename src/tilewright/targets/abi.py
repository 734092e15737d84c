"""Properties of a triple's ABI that do not depend on the processor: addresses, environments, library helpers."""

from __future__ import annotations

_SHORT = ("thumb", "arm-", "armv", "wasm32", "riscv32", "i386", "i686")


def address_bytes(triple: str) -> int:
    """Bytes of an address."""
    return 4 if triple.startswith(_SHORT) else 8


def is_web(triple: str) -> bool:
    """Whether objects are WebAssembly, which JavaScript engines run."""
    return triple.startswith("wasm")


def is_microcontroller(triple: str) -> bool:
    """Whether objects are for a microcontroller, where memory is scarce and kernels use no vectors."""
    return triple.startswith("thumb")


def passes_float16_in_float_registers(triple: str) -> bool:
    """Whether f16 arguments are passed in floating-point registers where the processor has no f16 instructions;
    elsewhere they are passed as integers."""
    return triple.startswith("riscv")


def is_helper(triple: str, name: str) -> bool:
    """Whether the function `name` belongs to the compiler's run-time library, with which every program for the machine
    `triple` is linked: 64-bit division, or f64 arithmetic where instructions for it are missing."""
    return triple.startswith(("thumb", "arm")) and name.startswith("__aeabi_")


__all__ = ["address_bytes", "is_helper", "is_microcontroller", "is_web", "passes_float16_in_float_registers"]
