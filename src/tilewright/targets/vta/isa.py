"""VTA's instructions: words of 128 bits, their fields, an encoder and a decoder.

Fields follow each other from bit 0 upwards. `pack` and `unpack` convert arrays of field values and of words, `encode`
and `decode` single instructions.
"""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from tilewright.support.classes import dataclass
from tilewright.support.errors import ParseError
from tilewright.targets.vta.config import DEFAULT, Config, Memory

Array = np.ndarray[Any, Any]
Fields = tuple[tuple[str, int], ...]
"""Names and widths in bits, from bit 0 upwards; a width below 0 is that of a signed field, the name "" of a gap."""

WORD = 16
"""Bytes of an instruction."""


class Opcode(IntEnum):
    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class AluOp(IntEnum):
    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


@dataclass(frozen=True, slots=True)
class Tokens:
    """The four flags by which instructions of different queues wait for each other."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True)
class Uop:
    """One micro-operation: the rows at which the loops of GEMM and ALU start."""

    dst: int = 0
    src: int = 0
    wgt: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """LOAD: rows of DRAM into a buffer, as a padded image of `y_size` lines; with `x_size` 0 it does nothing."""

    memory: Memory
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0
    tokens: Tokens = NO_TOKENS

    @property
    def rows(self) -> int:
        """The number of buffer rows that are written."""
        if not self.x_size:
            return 0
        return (self.x_pad_0 + self.x_size + self.x_pad_1) * (self.y_pad_0 + self.y_size + self.y_pad_1)


@dataclass(frozen=True, slots=True)
class Store:
    """STORE: the low bytes of accumulators to DRAM."""

    memory: Memory = Memory.OUT
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0
    tokens: Tokens = NO_TOKENS


@dataclass(frozen=True, slots=True)
class Gemm:
    """`acc[dst] += wgt[wgt] @ inp[src]` over two loops and a list of micro-operations, or `acc[dst] = 0`."""

    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 0
    iter_in: int = 0
    dst_out: int = 0
    dst_in: int = 0
    src_out: int = 0
    src_in: int = 0
    wgt_out: int = 0
    wgt_in: int = 0
    reset: bool = False
    tokens: Tokens = NO_TOKENS

    @property
    def operations(self) -> int:
        return self.iter_out * self.iter_in * max(0, self.uop_end - self.uop_bgn)


@dataclass(frozen=True, slots=True)
class Alu:
    """`acc[dst] = op(acc[dst], imm or acc[src])` over the same loops."""

    op: AluOp
    uop_bgn: int = 0
    uop_end: int = 0
    iter_out: int = 0
    iter_in: int = 0
    dst_out: int = 0
    dst_in: int = 0
    src_out: int = 0
    src_in: int = 0
    use_imm: bool = False
    imm: int = 0
    reset: bool = False
    tokens: Tokens = NO_TOKENS

    @property
    def operations(self) -> int:
        return self.iter_out * self.iter_in * max(0, self.uop_end - self.uop_bgn)


@dataclass(frozen=True, slots=True)
class Finish:
    """FINISH: the end of a program."""

    tokens: Tokens = field(default=NO_TOKENS)


Instruction = Load | Store | Gemm | Alu | Finish

_HEAD: Fields = (("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1))
TOKEN_NAMES = ("pop_prev", "pop_next", "push_prev", "push_next")


@cache
def fields(opcode: Opcode, config: Config = DEFAULT) -> Fields:
    """The fields of the word of an instruction `opcode`, (name, bits) from the lowest bit on; a gap fills the first
    half."""
    match opcode:
        case Opcode.LOAD | Opcode.STORE:
            low: Fields = (*_HEAD, ("memory", 3), ("sram_base", 16), ("dram_base", 32))
            high: Fields = (("y_size", 16), ("x_size", 16), ("x_stride", 16))
            high += (("y_pad_0", 4), ("y_pad_1", 4), ("x_pad_0", 4), ("x_pad_1", 4))
        case Opcode.GEMM | Opcode.ALU:
            uop, acc, inp, wgt = config.uop_bits, config.acc_bits, config.inp_bits, config.wgt_bits
            low = (*_HEAD, ("reset", 1), ("uop_bgn", uop), ("uop_end", uop + 1), ("iter_out", 14), ("iter_in", 14))
            high = (("dst_out", acc), ("dst_in", acc), ("src_out", inp), ("src_in", inp))
            if opcode is Opcode.GEMM:
                high += (("wgt_out", wgt), ("wgt_in", wgt))
            else:
                high += (("op", 3), ("use_imm", 1), ("imm", -16))
        case Opcode.FINISH:
            low, high = _HEAD, ()
    gap = 64 - sum(abs(bits) for _, bits in low)
    return (*low, ("", gap), *high)


def uop_fields(config: Config = DEFAULT) -> Fields:
    """The fields of a micro-operation's word of 32 bits."""
    return (("dst", config.acc_bits), ("src", config.inp_bits), ("wgt", config.wgt_bits))


def unpack(words: Array, layout: Fields) -> dict[str, Array]:
    """Field values (int64[n]) of words (uint8[n, 16] or uint8[n, 4]); gaps are ignored."""
    words64 = _words64(words)
    result: dict[str, Array] = {}
    at = 0
    for name, bits in layout:
        width = abs(bits)
        if name:
            value = (words64[:, at // 64] >> np.uint64(at % 64)) & np.uint64((1 << width) - 1)
            result[name] = value.astype(np.int64)
            if bits < 0:
                result[name] -= (result[name] >> (width - 1)) << width
        at += width
    return result


def pack(values: dict[str, Array], layout: Fields, size: int = WORD) -> Array:
    """Words (uint8[n, size]) from field values, with gaps 0. Raises ParseError for a value that its field cannot
    hold."""
    count = len(next(iter(values.values())))
    words64 = np.zeros((count, 2), np.uint64)
    at = 0
    for name, bits in layout:
        width = abs(bits)
        if name:
            source = np.asarray(values[name], np.int64)
            low, high = (-(1 << (width - 1)), 1 << (width - 1)) if bits < 0 else (0, 1 << width)
            wrong = (source < low) | (source >= high)
            if wrong.any():
                got = int(source[np.argmax(wrong)])
                raise ParseError("a value does not fit its field", where=name, expected=f"{low} to {high - 1}", got=got)
            words64[:, at // 64] |= (source.astype(np.uint64) & np.uint64((1 << width) - 1)) << np.uint64(at % 64)
        at += width
    return words64.astype("<u8").view(np.uint8).reshape(count, WORD)[:, :size].copy()


def _words64(words: Array) -> Array:
    """Words as uint64[n, 2]."""
    size = words.shape[1]
    if words.dtype != np.uint8 or words.ndim != 2 or size not in (4, WORD):
        raise ParseError("no words", expected="uint8[n, 16]", got=f"{words.dtype}{list(words.shape)}")
    padded = np.zeros((len(words), WORD), np.uint8)
    padded[:, :size] = words
    return padded.view("<u8").astype(np.uint64)


def opcodes(words: Array) -> Array:
    """The opcodes of words, int64[n]."""
    result: Array = (words[:, 0] & 7).astype(np.int64)
    return result


_OPCODES: dict[type, Opcode] = {
    Load: Opcode.LOAD, Store: Opcode.STORE, Gemm: Opcode.GEMM, Alu: Opcode.ALU, Finish: Opcode.FINISH
}  # fmt: skip
_CLASSES: dict[int, type] = {int(opcode): kind for kind, opcode in _OPCODES.items()}


def encode(program: list[Instruction] | tuple[Instruction, ...], config: Config = DEFAULT) -> Array:
    """The words of a program, uint8[n, 16]. Raises ParseError for a value that its field cannot hold."""
    words = np.zeros((len(program), WORD), np.uint8)
    for opcode in Opcode:
        places = [k for k, i in enumerate(program) if _OPCODES[type(i)] is opcode]
        if places:
            layout = fields(opcode, config)
            columns = {n: np.array([_field(program[k], n, opcode) for k in places]) for n, _ in layout if n}
            words[places] = pack(columns, layout)
    return words


def _field(instruction: Instruction, name: str, opcode: Opcode) -> int:
    if name == "opcode":
        return int(opcode)
    return int(getattr(instruction.tokens if name in TOKEN_NAMES else instruction, name))


def decode(words: Array, config: Config = DEFAULT) -> list[Instruction]:
    """The instructions of words, uint8[n, 16]. Raises ParseError, which names the word, for an unknown opcode, memory
    or operation of the ALU."""
    codes = opcodes(words)
    results: list[Instruction | None] = [None] * len(words)
    for code in np.unique(codes).tolist():
        places = np.flatnonzero(codes == code).tolist()
        if code not in _CLASSES:
            raise ParseError("there is no such opcode", where=f"instruction {places[0]}", expected="0 to 4", got=code)
        values = unpack(words[places], fields(Opcode(code), config))
        names = list(values)
        for k, row in zip(places, zip(*(values[n].tolist() for n in names), strict=True), strict=True):
            results[k] = _instruction(code, dict(zip(names, row, strict=True)), k)
    return [i for i in results if i is not None]


def _instruction(code: int, values: dict[str, int], place: int) -> Instruction:
    built: dict[str, Any] = {n: v for n, v in values.items() if n not in TOKEN_NAMES and n != "opcode"}
    built["tokens"] = Tokens(*(bool(values[n]) for n in TOKEN_NAMES))
    for name in ("reset", "use_imm"):
        if name in built:
            built[name] = bool(built[name])
    for name, kind in (("memory", Memory), ("op", AluOp)):
        if name in built:
            if built[name] not in kind.__members__.values():
                what, expected = f"there is no such {name}", f"0 to {len(kind) - 1}"
                raise ParseError(what, where=f"instruction {place}", expected=expected, got=built[name])
            built[name] = kind(built[name])
    result: Instruction = _CLASSES[code](**built)
    return result


def encode_uops(uops: list[Uop] | tuple[Uop, ...], config: Config = DEFAULT) -> Array:
    """Micro-operations as words, uint8[n, 4]."""
    columns = {n: np.array([getattr(u, n) for u in uops], np.int64) for n, _ in uop_fields(config)}
    return pack(columns, uop_fields(config), 4)


def decode_uops(words: Array, config: Config = DEFAULT) -> list[Uop]:
    """Micro-operations of words, uint8[n, 4]."""
    values = unpack(words, uop_fields(config))
    return [Uop(*row) for row in zip(*(values[n].tolist() for n in ("dst", "src", "wgt")), strict=True)]
