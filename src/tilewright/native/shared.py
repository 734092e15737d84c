"""Shared objects without a system linker: an x86-64 ELF image as a library that any loader or linker of Linux takes.

    file = memory, page by page:  headers, names, symbols, constants | code, jumps | table of addresses, variables

References within the object are resolved here; those that only the loader can resolve (absolute addresses, and the C
library's functions) are listed in `.rela.dyn`. System V ABI, chapters 4 and 5, and its AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from tilewright.native import elf
from tilewright.native.elf import Image, Symbol, Unknown, align_up
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

_PAGE = 4096
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_PROGBITS, _STRTAB, _RELA, _HASH, _DYNAMIC_SECTION, _DYNSYM = 1, 3, 4, 5, 6, 11
_ADDRESS, _TABLE_ENTRY, _OWN_ADDRESS = 1, 6, 8
"""Kinds of relocations that the loader applies: R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_RELATIVE."""
_LIBRARIES = ("libm.so.6", "libc.so.6")
_JUMP = bytes.fromhex("ff25")  # jmp *offset(%rip)
_STUB = 16
_LIBRARY, _X86_64 = 3, 62
_HEADERS = align_up(64 + 5 * _PROGRAM_HEADER.size, 64)
"""The offset of the first byte after the file header and the headers of five segments."""
_CODE = 6
"""The index of the section of code."""


def shared_object(image: bytes, exports: Sequence[str], name: str) -> bytes:
    """Make a shared library from a relocatable image.

    Args:
        image: an x86-64 ELF object; what it does not define, the C library must have.
        exports: the symbols that the library exports.
        name: the library's name (DT_SONAME), by which programs linked with it look for it.

    Raises CompileError if the image is of another kind.
    """
    try:
        return _Linker(elf.parse(image), exports, name).link()
    except Unknown as error:
        raise CompileError(
            f"no shared object can be written: {error}",
            where=name,
            hint='export the ".o" and link it: cc -shared -o NAME.so NAME.o -lm',
        ) from None


@dataclass(slots=True)
class _Part:
    """A section of the library with its offset and its content."""

    name: str
    kind: int
    flags: int
    at: int
    data: bytearray
    link: str = ""
    entry: int = 0
    info: int = 0


@dataclass(slots=True)
class _Linker:
    """Lays out a shared library. `homes` maps sections of the image to the parts that contain them, `slots` symbols to
    their entries in the table of addresses, `stubs` functions from outside to the jumps to them; `left` lists the
    relocations for the loader: place, kind, symbol's number, addend."""

    image: Image
    exports: Sequence[str]
    name: str
    homes: dict[int, _Part] = field(default_factory=dict)
    slots: dict[Symbol, int] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)
    left: list[tuple[int, int, int, int]] = field(default_factory=list)
    origin: int = 0

    def link(self) -> bytes:
        defined = {s.name: s for s in self.image.symbols if s.section in self.image.sections and s.binding}
        missing = [e for e in self.exports if e not in defined]
        if missing:
            raise Unknown(f"{missing[0]} is not defined")
        imports = list(dict.fromkeys(s.name for s in self._wanted() if not s.section))
        names = [*imports, *self.exports]
        libraries = _LIBRARIES if imports else ()
        strings, offsets = _strings([*names, self.name, *libraries])
        hashes = _Part(".hash", _HASH, 2, _HEADERS, _hash_table(names), ".dynsym", 4)
        symbols = _Part(".dynsym", _DYNSYM, 2, _after(hashes), bytearray(24 * (len(names) + 1)), ".dynstr", 24, 1)
        text = _Part(".dynstr", _STRTAB, 2, _after(symbols), strings)
        rela = _Part(".rela.dyn", _RELA, 2, _after(text), bytearray(24 * self._count_left()), ".dynsym", 24)
        constants = self._gather(".rodata", _after(rela), 2)
        code = self._gather(".text", align_up(_after(constants), _PAGE), 6)
        self._place_stubs(code, imports)
        table = self._table(align_up(_after(code), _PAGE))
        variables = self._gather(".data", _after(table), 3)
        numbers = {n: k for k, n in enumerate(names, 1)}
        self._fill_table(numbers)
        self._jump(code)
        self._relocate(numbers)
        for k, name in enumerate(names, 1):
            result = defined.get(name)
            where = (0, 0) if result is None else (_CODE, self._address(result))
            struct.pack_into("<IBBHQQ", symbols.data, 24 * k, offsets[name], 0x12, 0, *where, 0)
        for k, entry in enumerate(self.left):
            struct.pack_into("<QIIq", rela.data, 24 * k, entry[0], *entry[1:])
        tags = [(1, offsets[n]) for n in libraries] + [(14, offsets[self.name])]
        tags += [(4, hashes.at), (5, text.at), (6, symbols.at), (10, len(strings)), (11, 24)]
        tags += [(7, rela.at), (8, 24 * len(self.left)), (9, 24), (0, 0)]
        content = bytearray(b"".join(_DYNAMIC.pack(*tag) for tag in tags))
        dynamic = _Part(".dynamic", _DYNAMIC_SECTION, 3, _after(variables), content, ".dynstr", 16)
        return _file([hashes, symbols, text, rela, constants, code, table, variables, dynamic])

    def _wanted(self) -> Iterator[Symbol]:
        """The symbols that relocations refer to, except the table of addresses itself."""
        for _, _, kind, number, _ in self.image.relocations:
            if kind not in elf.OF_GOT:
                yield self.image.symbols[number]

    def _slotted(self) -> list[Symbol]:
        """The symbols that need an entry in the table of addresses."""
        symbols = self.image.symbols
        results = (
            symbols[number]
            for _, _, kind, number, _ in self.image.relocations
            if kind in elf.THROUGH_GOT or (not symbols[number].section and kind not in elf.OF_GOT)
        )
        return list(dict.fromkeys(results))

    def _count_left(self) -> int:
        """The number of relocations left to the loader: words in sections, and entries of the table of addresses."""
        return sum(kind == elf.WORD for _, _, kind, _, _ in self.image.relocations) + len(self._slotted())

    def _gather(self, name: str, at: int, flags: int) -> _Part:
        """A new part called `name` from offset `at` on, which contains the sections with the access rights `flags`."""
        sections = {k: s for k, s in self.image.sections.items() if s.flags & 7 == flags}
        part = _Part(
            name, _PROGBITS, flags, align_up(at, max([16, *(s.align for s in sections.values())])), bytearray()
        )
        for k, s in sections.items():
            s.at = align_up(part.at + len(part.data), s.align)
            part.data += bytes(s.at - part.at - len(part.data)) + s.data + bytes(s.nbytes - len(s.data))
            self.homes[k] = part
        return part

    def _place_stubs(self, code: _Part, imports: Iterable[str]) -> None:
        """Append to `code`, for each of the external functions `imports`, a jump through the table of addresses."""
        code.data += bytes(-len(code.data) % _STUB)
        for name in imports:
            self.stubs[name] = code.at + len(code.data)
            code.data += _JUMP + bytes(_STUB - len(_JUMP))

    def _table(self, at: int) -> _Part:
        """The table of addresses, with an entry for each symbol that needs one."""
        self.origin = at
        self.slots = {symbol: at + 8 * k for k, symbol in enumerate(self._slotted())}
        return _Part(".got", _PROGBITS, 3, at, bytearray(8 * len(self.slots)))

    def _fill_table(self, numbers: Mapping[str, int]) -> None:
        for symbol, slot in self.slots.items():
            outside = not symbol.section
            entry = (_TABLE_ENTRY, numbers[symbol.name], 0) if outside else (_OWN_ADDRESS, 0, self._address(symbol))
            self.left.append((slot, *entry))

    def _jump(self, code: _Part) -> None:
        """Write into the jumps the distances to their entries in the table of addresses."""
        places = {s.name: slot for s, slot in self.slots.items() if not s.section}
        for name, at in self.stubs.items():
            struct.pack_into("<i", code.data, at - code.at + len(_JUMP), places[name] - at - len(_JUMP) - 4)

    def _relocate(self, numbers: Mapping[str, int]) -> None:
        """Apply the relocations between sections; absolute addresses are left to the loader."""
        for number, offset, kind, which, addend in self.image.relocations:
            part, symbol = self.homes[number], self.image.symbols[which]
            place = self.image.sections[number].at + offset
            if kind == elf.WORD:
                if not part.flags & 1:
                    raise Unknown("code or constants hold addresses")
                outside = not symbol.section
                entry = (
                    (_ADDRESS, numbers[symbol.name], addend)
                    if outside
                    else (_OWN_ADDRESS, 0, self._address(symbol) + addend)
                )
                self.left.append((place, *entry))
                continue
            form = "<q" if kind in elf.WORDS else "<i"
            struct.pack_into(form, part.data, place - part.at, self._value(kind, symbol, addend, place))

    def _value(self, kind: int, symbol: Symbol, addend: int, place: int) -> int:
        if kind in elf.OF_GOT:
            return self.origin + addend - place
        if kind in elf.THROUGH_GOT:
            return self.slots[symbol] + addend - (self.origin if kind == elf.IN_GOT else place)
        target = self._address(symbol) if symbol.section else self.stubs[symbol.name]
        return target + addend - (self.origin if kind in elf.FROM_GOT else place)

    def _address(self, symbol: Symbol) -> int:
        if symbol.section not in self.image.sections:
            raise Unknown(f"{symbol.name} is in a section that takes no memory")
        return self.image.sections[symbol.section].at + symbol.value


def _after(part: _Part) -> int:
    """The first multiple of 8 after the end of a part: the offset of the next one."""
    return align_up(part.at + len(part.data), 8)


def _strings(names: Iterable[str]) -> tuple[bytearray, dict[str, int]]:
    """(a string table with `names`, the offset of each name in it)."""
    data, offsets = bytearray(b"\0"), dict[str, int]()
    for name in names:
        offsets[name] = len(data)
        data += name.encode() + b"\0"
    return data, offsets


def _hash_table(names: Sequence[str]) -> bytearray:
    """The hash table by which the loader looks up symbols: a chain of symbols for each value of the hash (System V ABI,
    5 "Hash Table")."""
    buckets, chain = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for k, name in enumerate(names, 1):
        h = 0
        for byte in name.encode():
            h = (h << 4) + byte
            high = h & 0xF0000000
            h = (h ^ high >> 24) & ~high
        slot = h % len(buckets)
        chain[k], buckets[slot] = buckets[slot], k
    return bytearray(struct.pack(f"<{2 + len(buckets) + len(chain)}I", len(buckets), len(chain), *buckets, *chain))


def _file(parts: Sequence[_Part]) -> bytes:
    """The whole file: headers, the parts at their offsets, and the table of sections, which linkers read."""
    first_of = {name: next(p for p in parts if p.name == name) for name in (".rodata", ".text", ".got", ".dynamic")}
    constants, code, table, dynamic = first_of.values()
    end = dynamic.at + len(dynamic.data)
    segments = [
        (_LOAD, _READ, 0, constants.at + len(constants.data), _PAGE),
        (_LOAD, _READ | _EXECUTE, code.at, code.at + len(code.data), _PAGE),
        (_LOAD, _READ | _WRITE, table.at, end, _PAGE),
        (_DYNAMIC_SEGMENT, _READ | _WRITE, dynamic.at, end, 8),
        (_STACK, _READ | _WRITE, 0, 0, 16),
    ]
    names, offsets = _strings([*(p.name for p in parts), ".shstrtab"])
    sections_at = align_up(end + len(names), 8)
    data = bytearray(sections_at)
    counts = (64, 56, len(segments), elf.SECTION.size, len(parts) + 2, len(parts) + 1)
    elf.HEADER.pack_into(data, 0, b"\x7fELF", 2, 1, 1, 0, 0, _LIBRARY, _X86_64, 1, 0, 64, sections_at, 0, *counts)
    for k, (kind, flags, start, stop, align) in enumerate(segments):
        size = stop - start
        _PROGRAM_HEADER.pack_into(data, 64 + 56 * k, kind, flags, start, start, start, size, size, align)
    for part in parts:
        data[part.at : part.at + len(part.data)] = part.data
    data[end : end + len(names)] = names
    order = {p.name: k for k, p in enumerate(parts, 1)}
    data += bytes(elf.SECTION.size)
    for p in parts:
        link = order.get(p.link, 0)
        data += elf.SECTION.pack(offsets[p.name], p.kind, p.flags, p.at, p.at, len(p.data), link, p.info, 8, p.entry)
    data += elf.SECTION.pack(offsets[".shstrtab"], _STRTAB, 0, 0, end, len(names), 0, 0, 1, 0)
    return bytes(data)
