"""VTA's instructions as text, one a line, which parses back to the same instruction.

    load inp sram_base=4 dram_base=256 y_size=2 x_size=8 x_stride=8 y_pad_0=1 +next
    gemm uop_bgn=0 uop_end=3 iter_out=2 iter_in=4 dst_in=1 src_in=1 -prev +prev
    alu shr uop_bgn=0 uop_end=1 iter_out=1 iter_in=8 dst_in=1 src_in=1 use_imm imm=8 +next

Fields that are 0 are left out; `-prev` pops a token of the queue before, `+next` pushes one to the queue after.
"""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import Any

from tilewright.support.errors import ParseError
from tilewright.targets.vta.config import Memory
from tilewright.targets.vta.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Store, Tokens

_KINDS: dict[str, type] = {"load": Load, "store": Store, "gemm": Gemm, "alu": Alu, "finish": Finish}
_FLAGS = ("reset", "use_imm")
_SIGNS = {"-prev": "pop_prev", "-next": "pop_next", "+prev": "push_prev", "+next": "push_next"}
_LONGEST = 1 << 10
"""The most characters of a line that are parsed."""


def assemble(text: str) -> list[Instruction]:
    """Parse instructions from text with # comments. Raises ParseError, which names the line."""
    results = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0][:_LONGEST].split()
        if words:
            results.append(_parsed(words, f"line {number}"))
    return results


def disassemble(program: list[Instruction] | tuple[Instruction, ...]) -> str:
    """The text of a program, a line each."""
    return "".join(line(i) + "\n" for i in program)


def line(instruction: Instruction) -> str:
    """The text of one instruction."""
    words = [type(instruction).__name__.lower()]
    for f in dataclass_fields(instruction):
        value = getattr(instruction, f.name)
        if isinstance(value, Memory | AluOp):
            words.append(value.name.lower())
        elif f.name in _FLAGS and value:
            words.append(f.name)
        elif isinstance(value, int) and value:
            words.append(f"{f.name}={value}")
    words += [sign for sign, name in _SIGNS.items() if getattr(instruction.tokens, name)]
    return " ".join(words)


def _parsed(words: list[str], where: str) -> Instruction:
    if words[0] not in _KINDS:
        raise ParseError("there is no such instruction", where=where, expected=", ".join(_KINDS), got=repr(words[0]))
    kind = _KINDS[words[0]]
    names = [f.name for f in dataclass_fields(kind)]
    values: dict[str, Any] = {}
    tokens: dict[str, bool] = {}
    rest = words[1:]
    for name, choices in (("memory", Memory), ("op", AluOp)):
        if name in names:
            word = rest.pop(0) if rest else ""
            if word.upper() not in choices.__members__:
                expected = ", ".join(choices.__members__).lower()
                raise ParseError(f"there is no such {name}", where=where, expected=expected, got=repr(word))
            values[name] = choices[word.upper()]
    for word in rest:
        name, equals, number = word.partition("=")
        if word in _SIGNS:
            tokens[_SIGNS[word]] = True
        elif name in values:
            raise ParseError("a field stands twice", where=where, got=repr(name))
        elif word in _FLAGS and word in names:
            values[word] = True
        elif equals and name in names and name not in _FLAGS and name != "tokens" and _is_number(number):
            values[name] = int(number)
        else:
            raise ParseError("no field of this instruction", where=where, expected=", ".join(names), got=repr(word))
    result: Instruction = kind(**values, tokens=Tokens(**tokens))
    return result


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 10
