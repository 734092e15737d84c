"""Building LLVM text: instructions into basic blocks, fresh names, declarations, loop metadata."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNROLL_COUNT = "llvm.loop.unroll.count"
"""The LLVM metadata that asks for a loop to be unrolled."""

_UNQUOTED = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*")

_UNUSABLE = re.compile(r"[^A-Za-z0-9_]")


def identifier(name: str, sigil: str) -> str:
    """The LLVM identifier for `name` with `sigil` "%" or "@", quoted if it must be."""
    if _UNQUOTED.fullmatch(name):
        return sigil + name
    escaped = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\{ord(c) & 255:02X}" for c in name
    )
    return f'{sigil}"{escaped}"'


class Writer:
    """The text of one module with one function, written front to back.

    `entry` collects the function's allocas, which stand at the start of its first block. `block` is the name of the
    block being written (phi nodes need it); a block ends with `br`, and `start` begins the next one.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.block = "entry"
        self.declarations: dict[str, str] = {}
        self.tables: dict[str, str] = {}
        self.tiles: dict[str, int] = {}
        self.metadata: list[str] = []
        self.ordinary_loops = 0
        self._count = 0

    def fresh(self, hint: str = "") -> str:
        """A new local name without sigil. Names from programs have no dot before their number, so none is taken."""
        self._count += 1
        return f"{_UNUSABLE.sub('_', hint)}.{self._count}" if hint else f".{self._count}"

    def inst(self, text: str, hint: str = "") -> str:
        """Write `%new = text` and return `%new`, a new name that begins with `hint`."""
        if hint:
            name = "%" + self.fresh(hint)
        else:
            self._count += 1
            name = f"%.{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def effect(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {text}")

    def reserve(self) -> int:
        """Reserve a line, to be filled in later with `fill`."""
        self.lines.append("")
        return len(self.lines) - 1

    def fill(self, line: int, text: str) -> None:
        self.lines[line] = f"  {text}"

    def start(self, block: str) -> None:
        self.lines.append(f"{block}:")
        self.block = block

    def jump(self, block: str) -> None:
        self.effect(f"br label %{block}")

    def branch(self, condition: str, then: str, orelse: str, suffix: str = "") -> None:
        self.effect(f"br i1 {condition}, label %{then}, label %{orelse}{suffix}")

    def alloca(self, type_: str, count: int, hint: str, align: int = 64) -> str:
        name = "%" + self.fresh(hint)
        self.entry.append(f"  {name} = alloca [{count} x {type_}], align {align}")
        return name

    def declare(self, name: str, result: str, arguments: Sequence[str], attributes: str = "") -> str:
        """Declare the external function `name` once in the module, by the LLVM types of its result and arguments and by
        `attributes`; returns `@name`."""
        symbol = identifier(name, "@")
        self.declarations.setdefault(
            name, f"declare {result} {symbol}({', '.join(arguments)}){' ' + attributes if attributes else ''}"
        )
        return symbol

    def table(self, element: str, entries: Sequence[str]) -> str:
        """Define a constant array of `entries` of LLVM type `element`, once for each content; returns `@name`."""
        content = f"[{len(entries)} x {element}] [{', '.join(f'{element} {entry}' for entry in entries)}]"
        return self.tables.setdefault(content, f"@table.{len(self.tables)}")

    def tile(self, body: str) -> str:
        """Define a function that moves a tile, with the text `body`, once for each text; returns `@name`. `tiles`
        counts how often each is requested."""
        self.tiles[body] = self.tiles.get(body, 0) + 1
        return f"@tile.{list(self.tiles).index(body)}"

    def intrinsic(self, name: str, result: str, arguments: Sequence[tuple[str, str]], flags: str = "") -> str:
        """Emit a call of the LLVM intrinsic or library function `name` with result type `result`; arguments are (type,
        operand), `flags` fast-math flags. Returns the result."""
        symbol = self.declare(name, result, [t for t, _ in arguments])
        operands = ", ".join(f"{t} {v}" for t, v in arguments)
        return self.inst(f"call {flags + ' ' if flags else ''}{result} {symbol}({operands})")

    def calls_of(self, function: str) -> int:
        """The number of calls of a function in the text so far."""
        symbol = f"{identifier(function, '@')}("
        return sum(symbol in line for line in self.lines)

    def nontemporal(self) -> str:
        """The suffix `, !nontemporal !N` of a store that bypasses the caches."""
        if "!{i32 1}" not in "".join(self.metadata):
            self.metadata.append(f"!{len(self.metadata)} = !{{i32 1}}")
        number = next(k for k, text in enumerate(self.metadata) if text.endswith("= !{i32 1}"))
        return f", !nontemporal !{number}"

    def loop_metadata(self, *, vectorize: bool, unroll: bool, copies: int = 0) -> str:
        """The suffix `, !llvm.loop !N` of a branch, which forbids LLVM to vectorize or unroll a loop (`vectorize`,
        `unroll` false), or asks it to unroll the loop `copies` times; "" if it says nothing."""
        facts = []
        if not vectorize:
            facts.append('!{!"llvm.loop.vectorize.enable", i1 false}')
        if copies:
            facts.append(f'!{{!"{UNROLL_COUNT}", i32 {copies}}}')
        elif not unroll:
            facts.append('!{!"llvm.loop.unroll.disable"}')
        self.ordinary_loops += vectorize
        if not facts:
            return ""
        first = len(self.metadata)
        self.metadata.append(f"!{first} = distinct !{{{', '.join([f'!{first}', *facts])}}}")
        return f", !llvm.loop !{first}"
