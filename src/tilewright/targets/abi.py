"""The ABI of a triple's objects, whatever the processor: addresses, who runs them, helpers."""

from __future__ import annotations

_SHORT = ("thumb", "arm-", "armv", "wasm32", "riscv32", "i386", "i686")


def address_bytes(triple: str) -> int:
    """Bytes of an address."""
    return 4 if triple.startswith(_SHORT) else 8


def is_web(triple: str) -> bool:
    """Whether objects are WebAssembly's, which engines of JavaScript run."""
    return triple.startswith("wasm")


def is_microcontroller(triple: str) -> bool:
    """Whether objects are a microcontroller's: memory is scarce, and no kernel has vectors."""
    return triple.startswith("thumb")


def passes_float16_in_float_registers(triple: str) -> bool:
    """Whether f16 is passed in registers of floats where there are no instructions for it; elsewhere as an integer."""
    return triple.startswith("riscv")


def is_helper(triple: str, name: str) -> bool:
    """Whether a function is one of the compiler's own library, which every program of such a machine is linked with:
    division of 64 bits, arithmetic in double without instructions for it."""
    return triple.startswith(("thumb", "arm")) and name.startswith("__aeabi_")


__all__ = ["address_bytes", "is_helper", "is_microcontroller", "is_web", "passes_float16_in_float_registers"]
