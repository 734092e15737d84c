"""A small linker for our own objects: x86-64 ELF images into executable memory, in milliseconds and without LLVM.

What Tilewright emits needs little of a linker: a few sections, functions and constants, and some dozen kinds of
relocation (System V ABI, AMD64 supplement, 4.4 "Relocation"; large code model: 3.5). An actor that links its program
here never loads LLVM's library, which would cost it some 50 ms and 50 MB. For anything else it raises `Unknown`, and
the caller uses LLVM's linker, which also reports errors of an image.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable, Mapping

HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")

_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _UNWIND = 1, 2, 4, 8, 9, 0x70000001
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_GLOBAL, _WEAK = 1, 2
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00

_R64, _PC32, _PLT32, _GOTPCREL, _PC64, _GOTOFF64, _GOTPC32 = 1, 2, 4, 9, 24, 25, 26
_GOT64, _GOTPCREL64, _GOTPC64, _PLTOFF64, _GOTPCRELX, _REX_GOTPCRELX = 27, 28, 29, 31, 41, 42
WORDS = {_R64, _PC64, _GOTOFF64, _GOT64, _GOTPCREL64, _GOTPC64, _PLTOFF64}
THROUGH_GOT = {_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX, _GOT64, _GOTPCREL64}
OF_GOT, FROM_GOT, WORD, IN_GOT = {_GOTPC64, _GOTPC32}, {_GOTOFF64, _PLTOFF64}, _R64, _GOT64
_KNOWN = WORDS | THROUGH_GOT | {_PC32, _PLT32, _GOTPC32}

_PAGE = mmap.PAGESIZE
_JUMP = bytes.fromhex("ff2500000000")  # jmp *0(%rip): to the address that follows
_STUB = 16
"""The size in bytes of a jump to a function that is too far for a call."""
_MAX_BYTES = 1 << 30
"""The largest size of one section in bytes."""
_READ, _READ_EXECUTE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_EXEC


class Unknown(Exception):
    """Raised for features that this linker lacks, and for malformed images."""


# Not dataclasses: making three of those takes longer than linking a program.


class Section:
    """A section that occupies memory: `at` is its offset in the linked memory, once placed."""

    __slots__ = ("align", "at", "data", "flags", "nbytes")

    def __init__(self, flags: int, data: bytes, nbytes: int, align: int) -> None:
        self.flags = flags
        self.data = data
        self.nbytes = nbytes
        self.align = align
        self.at = 0


class Symbol:
    """A symbol of an image: `section` is the index of the section that defines it, or one of ELF's reserved numbers."""

    __slots__ = ("binding", "name", "section", "value")

    def __init__(self, name: str, binding: int, section: int, value: int) -> None:
        self.name = name
        self.binding = binding
        self.section = section
        self.value = value


class Image:
    """A parsed ELF image. Relocations are tuples (section, offset, kind, symbol, addend)."""

    __slots__ = ("relocations", "sections", "symbols")

    def __init__(self) -> None:
        self.sections: dict[int, Section] = {}
        self.symbols: list[Symbol] = []
        self.relocations: list[tuple[int, int, int, int, int]] = []


class Loaded:
    """Linked code in memory, which lives as long as this object. `addresses` are those of the exported symbols."""

    def __init__(self, memory: mmap.mmap, addresses: dict[str, int]) -> None:
        self._memory = memory
        self.addresses = addresses


def load(images: Iterable[bytes], exports: Iterable[str], imports: Mapping[str, int]) -> Loaded:
    """Link images with each other, with `imports` and with the C library. Raises Unknown if this linker cannot do
    that."""
    try:
        return _Linker([parse(image) for image in images], imports).load(exports)
    except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
        raise Unknown(str(error)) from None


# -- reading -----------------------------------------------------------------------------------------------------------


def parse(data: bytes) -> Image:
    magic, bits, order, *_, kind, machine, _, _, _, start, _, _, _, _, size, count, _ = HEADER.unpack_from(data)
    if magic != b"\x7fELF" or (bits, order, kind, machine) != (2, 1, _RELOCATABLE, _X86_64) or size != SECTION.size:
        raise Unknown("not an x86-64 object")
    table = [SECTION.unpack_from(data, start + k * size) for k in range(count)]
    image = Image()
    for k, (_, type_, flags, _, offset, nbytes, *_, align, _) in enumerate(table):
        if not flags & _ALLOC or type_ == _UNWIND:
            continue
        odd = flags & _TLS or align > _PAGE or nbytes > _MAX_BYTES or (flags & _WRITE and flags & _EXECUTE)
        if type_ not in (_PROGBITS, _NOBITS) or odd:
            raise Unknown(f"a section of type {type_} with flags {flags}")
        content = b"" if type_ == _NOBITS else _slice(data, offset, nbytes)
        image.sections[k] = Section(flags, content, nbytes, max(align, 1))
    for type_, offset, nbytes, link in ((s[1], s[4], s[5], s[6]) for s in table):
        if type_ == _SYMTAB:
            _read_symbols(image, _slice(data, offset, nbytes), _slice(data, table[link][4], table[link][5]))
    for type_, offset, nbytes, target in ((s[1], s[4], s[5], s[7]) for s in table):
        if type_ == _REL and target in image.sections:
            raise Unknown("relocations without addends")
        if type_ == _RELA and target in image.sections:
            for at, kind, symbol, addend in _RELOCATION.iter_unpack(_slice(data, offset, nbytes)):
                if kind not in _KNOWN or not 0 <= at <= image.sections[target].nbytes - (8 if kind in WORDS else 4):
                    raise Unknown(f"a relocation of kind {kind}")
                image.relocations.append((target, at, kind, symbol, addend))
    return image


def _slice(data: bytes, offset: int, nbytes: int) -> bytes:
    result = data[offset : offset + nbytes]
    if len(result) != nbytes:
        raise Unknown("an image that was cut off")
    return result


def _read_symbols(image: Image, data: bytes, strings: bytes) -> None:
    for name, info, _, section, value, _ in _SYMBOL.iter_unpack(data):
        if section >= _RESERVED and section != _ABSOLUTE and info & 15 != 4:  # a file's name is absolute
            raise Unknown("a common symbol")
        text = strings[name : strings.index(b"\0", name)].decode()
        image.symbols.append(Symbol(text, info >> 4, section, value))


# -- linking -----------------------------------------------------------------------------------------------------------


class _Linker:
    """Links images into one block of memory: code and stubs, then constants and the table of addresses, then
    variables."""

    def __init__(self, images: list[Image], imports: Mapping[str, int]) -> None:
        self._images = images
        self._imports = imports
        self._stubs: dict[str, int] = {}
        self._table: dict[object, int] = {}
        self._defined: dict[str, tuple[Image, Symbol]] = {}
        for image in images:
            for s in image.symbols:
                if s.binding in (_GLOBAL, _WEAK) and s.section != _UNDEFINED:
                    self._define(image, s)
        self._ends = self._place()
        # Private: variables are each process's own, also after a fork.
        self._memory = mmap.mmap(-1, self._ends[-1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _define(self, image: Image, symbol: Symbol) -> None:
        known = self._defined.get(symbol.name)
        if known is not None and _WEAK not in (known[1].binding, symbol.binding):
            raise Unknown(f"{symbol.name} is defined twice")
        if known is None or known[1].binding == _WEAK:
            self._defined[symbol.name] = image, symbol

    def _place(self) -> tuple[int, int, int]:
        """Assign offsets to sections, stubs and table entries; returns the ends of code, constants and variables."""
        sections = [s for image in self._images for s in image.sections.values()]
        at = _place([s for s in sections if s.flags & _EXECUTE], 0)
        at = align_up(at, _STUB)
        for image, _, _, kind, symbol, _ in self._relocations():
            if kind in (_PLT32, _PLTOFF64) and self._owner(image, symbol) is None and symbol.name not in self._stubs:
                self._stubs[symbol.name] = at
                at += _STUB
        code = align_up(at, _PAGE)
        at = _place([s for s in sections if not s.flags & (_EXECUTE | _WRITE)], code)
        self._origin = at = align_up(at, 8)  # of the table
        for image, _, _, kind, symbol, _ in self._relocations():
            if kind in THROUGH_GOT:
                key = self._key(image, symbol)
                if key not in self._table:
                    self._table[key] = at
                    at += 8
        constants = align_up(at, _PAGE)
        variables = _place([s for s in sections if s.flags & _WRITE], constants)
        return code, constants, max(align_up(variables, _PAGE), _PAGE)

    def _relocations(self) -> Iterable[tuple[Image, Section, int, int, Symbol, int]]:
        for image in self._images:
            for section, offset, kind, symbol, addend in image.relocations:
                yield image, image.sections[section], offset, kind, image.symbols[symbol], addend

    def _owner(self, image: Image, symbol: Symbol) -> tuple[Image, Symbol] | None:
        """The image that defines `symbol`, to which `image` refers, and the symbol there; None if no image does."""
        if symbol.binding in (_GLOBAL, _WEAK):
            return self._defined.get(symbol.name)
        return image, symbol

    def _key(self, image: Image, symbol: Symbol) -> object:
        return symbol.name if symbol.binding in (_GLOBAL, _WEAK) else (id(image), id(symbol))

    def _address(self, image: Image, symbol: Symbol) -> int:
        owner = self._owner(image, symbol)
        if owner is not None:
            where, result = owner
            if result.section == _ABSOLUTE:
                return result.value
            if result.section not in where.sections:
                raise Unknown(f"{result.name} is in a section that takes no memory")
            return self._base + where.sections[result.section].at + result.value
        if symbol.name in self._imports:
            return self._imports[symbol.name]
        address = _in_process(symbol.name)
        if not address and symbol.binding != _WEAK:
            raise Unknown(f"{symbol.name} is nowhere")
        return address

    def load(self, exports: Iterable[str]) -> Loaded:
        missing = [name for name in exports if name not in self._defined]
        if missing:
            raise Unknown(f"{missing[0]} is not defined")
        self._fill()
        addresses = {name: self._address(*self._defined[name]) for name in exports}
        self._protect(0, self._ends[0], _READ_EXECUTE)
        self._protect(self._ends[0], self._ends[1], _READ)
        return Loaded(self._memory, addresses)

    def _fill(self) -> None:
        memory = self._memory
        for image in self._images:
            for s in image.sections.values():
                memory[s.at : s.at + len(s.data)] = s.data
        undefined = {s.name: s for i in self._images for s in i.symbols if s.section == _UNDEFINED}
        for name, at in self._stubs.items():
            target = self._address(self._images[0], undefined[name])
            memory[at : at + len(_JUMP) + 8] = _JUMP + target.to_bytes(8, "little")
        for image, section, offset, kind, symbol, addend in self._relocations():
            place = section.at + offset
            value = self._value(image, kind, symbol, addend, place)
            if kind in WORDS:
                struct.pack_into("<Q", memory, place, value & (1 << 64) - 1)
            else:
                struct.pack_into("<i", memory, place, value)

    def _value(self, image: Image, kind: int, symbol: Symbol, addend: int, place: int) -> int:
        origin, here = self._base + self._origin, self._base + place
        if kind in (_GOTPC64, _GOTPC32):
            return origin + addend - here
        if kind in THROUGH_GOT:
            entry = self._table[self._key(image, symbol)]
            struct.pack_into("<Q", self._memory, entry, self._address(image, symbol) & (1 << 64) - 1)
            return self._base + entry + addend - (origin if kind == _GOT64 else here)
        if kind in (_PLT32, _PLTOFF64) and symbol.name in self._stubs:
            target = self._base + self._stubs[symbol.name]
        else:
            target = self._address(image, symbol)
        if kind == _R64:
            return target + addend
        return target + addend - (origin if kind in (_GOTOFF64, _PLTOFF64) else here)

    def _protect(self, start: int, end: int, protection: int) -> None:
        if end > start and _libc().mprotect(
            ctypes.c_void_p(self._base + start), ctypes.c_size_t(end - start), protection
        ):
            raise Unknown("memory may not be made executable")


def _place(sections: list[Section], at: int) -> int:
    for s in sections:
        s.at = align_up(at, s.align)
        at = s.at + s.nbytes
    return at


def align_up(at: int, to: int) -> int:
    return -(-at // to) * to


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _in_process(name: str) -> int:
    """The address of a symbol of this process's libraries; 0 if there is none."""
    try:
        return ctypes.cast(getattr(_libc(), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0
