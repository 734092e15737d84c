"""ONNX Runtime's settings of allocators, which are accepted: a program's memory is planned when it is compiled."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.onnxruntime.devices import OrtMemoryInfo


class OrtArenaCfg:
    """Settings of an arena: four numbers in order, or any of them by name."""

    __slots__ = (
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "initial_growth_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "max_mem",
        "max_power_of_two_extend_bytes",
    )

    def __init__(
        self,
        max_mem: int | Mapping[str, int] = 0,
        arena_extend_strategy: int = -1,
        initial_chunk_size_bytes: int = -1,
        max_dead_bytes_per_chunk: int = -1,
    ) -> None:
        ordered = {
            "arena_extend_strategy": arena_extend_strategy,
            "initial_chunk_size_bytes": initial_chunk_size_bytes,
            "max_dead_bytes_per_chunk": max_dead_bytes_per_chunk,
        }
        arguments = max_mem if isinstance(max_mem, Mapping) else {"max_mem": max_mem, **ordered}
        for name in self.__slots__:
            setattr(self, name, 0 if name == "max_mem" else -1)
        for name, value in arguments.items():
            if name not in self.__slots__:
                raise ValueError(f"Invalid OrtArenaCfg option: {name}")
            setattr(self, name, int(value))


def create_and_register_allocator(info: OrtMemoryInfo, config: OrtArenaCfg | None = None) -> None:
    """Has no effect: sessions do not share allocators, and each call has the arena that its program needs."""


__all__ = ["OrtArenaCfg", "create_and_register_allocator"]
