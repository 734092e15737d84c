"""Relocatable ELF objects joined into one, as `ld -r` does, for every processor whose bytes go little end first.

    [a.o, b.o, ...] --join--> one object whose symbols are its own, but for those that are exported

Sections stay as they are, each with its own alignment and relocations: only the final linker interprets relocations, so
nothing here depends on the processor. Symbols that one object defines and another one needs become one symbol; all that
is not exported becomes local, so that two programs in one executable do not meet. System V ABI, chapter 4.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import field

from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

_RELOCATABLE, _CURRENT = 1, 1
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS, _REL = 1, 2, 3, 4, 8, 9
_ALLOC, _INFO_LINK, _LINK_ORDER = 2, 0x40, 0x80
_LOCAL, _GLOBAL = 0, 1
_ARM, _ARM_UNWIND = 40, 0x70000001
_OBJECT, _FILE = 1, 4
_RESERVED, _ABSOLUTE = 0xFF00, 0xFFF1
_STACK_NOTE = ".note.GNU-stack"
_RETAINED_ONCE = (_STACK_NOTE, ".riscv.attributes", ".ARM.attributes")
"""Sections that describe a whole object: only that of the first object is kept."""


@dataclass(frozen=True, slots=True)
class _Format:
    """The layout of the tables of one ELF class (32 or 64 bits)."""

    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    rela: struct.Struct
    rel: struct.Struct
    kind_bits: int
    align: int


_FORMATS = {
    1: _Format(
        struct.Struct("<4s5B7xHHIIIIIHHHHHH"), struct.Struct("<10I"), struct.Struct("<IIIBBH"),
        struct.Struct("<IIi"), struct.Struct("<II"), 8, 4,
    ),
    2: _Format(
        struct.Struct("<4s5B7xHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"),
        struct.Struct("<QQq"), struct.Struct("<QQ"), 32, 8,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def binding(self) -> int:
        return self.info >> 4


@dataclass(slots=True)
class _Section:
    """A section of the result. `link` and `target` are indices of sections of the result."""

    name: str
    kind: int
    flags: int
    data: bytes
    nbytes: int
    align: int
    entry: int = 0
    link: int = 0
    info: int = 0


@dataclass(slots=True)
class _Object:
    """A parsed ELF object: fields of its header, its sections and its symbols."""

    name: str
    data: bytes
    bits: int
    machine: int
    flags: int
    sections: list[tuple[int, ...]]
    names: bytes
    symbols: list[_Symbol]

    def section_name(self, k: int) -> str:
        return _string(self.names, self.sections[k][0])

    def content(self, k: int) -> bytes:
        _, kind, _, _, offset, nbytes, *_ = self.sections[k]
        return b"" if kind == _NOBITS else _part(self.data, offset, nbytes)


@dataclass(frozen=True, slots=True)
class Joined:
    """The joined object, and the names of the symbols that it still needs from outside."""

    image: bytes
    needs: tuple[str, ...]


def join(
    objects: Mapping[str, bytes], exports: Collection[str], constants: Mapping[str, bytes] | None = None
) -> Joined:
    """Join several relocatable objects into one.

    Args:
        objects: little-endian ELF objects for one processor, by names for messages.
        exports: symbols that stay global; all others become local.
        constants: further symbols and their bytes, which become read-only sections aligned to 64.

    Raises CompileError if an image is not an ELF object, if they do not fit each other, or if a symbol is missing or
    defined twice.
    """
    try:
        return _Joiner([_read(name, data) for name, data in objects.items()], set(exports), constants or {}).join()
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError("the object code cannot be joined", got=str(error)) from None


def _read(name: str, data: bytes) -> _Object:
    if data[:4] != b"\x7fELF" or data[4] not in _FORMATS or data[5] != 1:
        raise CompileError("not a little-endian ELF object", where=name, got=repr(data[:6]))
    form = _FORMATS[data[4]]
    *_, kind, machine, _, _, _, start, flags, _, _, _, _, count, names = form.header.unpack_from(data)
    if kind != _RELOCATABLE:
        raise CompileError("not a relocatable object", where=name)
    sections = [form.section.unpack_from(data, start + k * form.section.size) for k in range(count)]
    strings = _part(data, sections[names][4], sections[names][5])
    result = _Object(name, data, data[4], machine, flags, sections, strings, [])
    for _, section_kind, _, _, offset, nbytes, link, *_ in sections:
        if section_kind == _SYMTAB:
            texts = _part(data, sections[link][4], sections[link][5])
            result.symbols += [
                _symbol(entry, texts, form) for entry in form.symbol.iter_unpack(_part(data, offset, nbytes))
            ]
    return result


def _symbol(entry: tuple[int, ...], texts: bytes, form: _Format) -> _Symbol:
    if form.align == 8:
        name, info, other, section, value, size = entry
    else:
        name, value, size, info, other, section = entry
    return _Symbol(_string(texts, name), info, other, section, value, size)


def _part(data: bytes, offset: int, nbytes: int) -> bytes:
    result = data[offset : offset + nbytes]
    if len(result) != nbytes:
        raise ValueError("an image that was cut off")
    return result


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


@dataclass(slots=True)
class _Joiner:
    """Joins objects. `numbers` maps each object's sections to those of the result, `locals` and `globals` are the
    symbols of the result in order, `indices` maps each object's symbols to them."""

    objects: list[_Object]
    exports: set[str]
    constants: Mapping[str, bytes]
    sections: list[_Section] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    symbols: list[_Symbol] = field(default_factory=list)
    defined: dict[str, int] = field(default_factory=dict)
    indices: dict[tuple[int, int], int] = field(default_factory=dict)

    def join(self) -> Joined:
        self.check()
        for k in range(len(self.objects)):
            self.take_sections(k)
        for name, data in self.constants.items():
            self.sections.append(_Section(f".rodata.{name}", _PROGBITS, _ALLOC, data, len(data), 64))
        self.take_symbols()
        missing = sorted(self.exports - self.defined.keys())
        if missing:
            raise CompileError("a symbol that is to be exported is not defined", where=missing[0])
        tables = self.relocations()
        needs = tuple(s.name for s in self.symbols if s.section == 0 and s.name)
        return Joined(self.write(tables), needs)

    def check(self) -> None:
        """Raise CompileError if objects are for different processors, or too many."""
        if sum(len(o.sections) for o in self.objects) >= _RESERVED:
            raise CompileError("too many sections for one object", expected=f"less than {_RESERVED}")
        kinds = {(o.bits, o.machine, o.flags) for o in self.objects}
        if len(kinds) != 1:
            raise CompileError("objects of different processors cannot be joined", got=str(sorted(kinds)))

    @property
    def form(self) -> _Format:
        return _FORMATS[self.objects[0].bits]

    def take_sections(self, which: int) -> None:
        """Add the sections of object number `which` that take memory. Code is named after its function, so that linkers
        can leave out unused functions and disassemblers know them."""
        o = self.objects[which]
        functions = {s.section: s.name for s in reversed(o.symbols) if s.binding != _LOCAL}
        for k, (_, kind, flags, _, _, nbytes, link, info, align, entry) in enumerate(o.sections):
            name = o.section_name(k)
            name = f"{name}.{functions[k]}" if name == ".text" and k in functions else name
            # Unknown kinds below the processor's are LLVM's own (address significance), which nothing needs.
            known = kind in (_PROGBITS, _NOBITS) or kind >= 0x70000000
            if (o.machine, kind) == (_ARM, _ARM_UNWIND):
                continue  # tables of unwinding, in a microcontroller's flash: nothing here throws
            if not known or (not flags & _ALLOC and name not in _RETAINED_ONCE):
                continue
            if name in _RETAINED_ONCE and any(s.name == name for s in self.sections):
                continue
            self.numbers[which, k] = len(self.sections) + 1
            # The link of an order is put right when all sections of the object have their numbers.
            self.sections.append(_Section(name, kind, flags, o.content(k), nbytes, align, entry, link, info))
        for k, number in [(k, n) for (w, k), n in self.numbers.items() if w == which]:
            section = self.sections[number - 1]
            ordered = o.sections[k][2] & _LINK_ORDER
            section.link, section.info = self.numbers.get((which, section.link), 0) if ordered else 0, 0

    def take_symbols(self) -> None:
        """Collect the symbols of the result in the order that the format requires: symbols that were local, then
        symbols that become local, then the ones exported or needed from outside."""
        self.symbols.append(_Symbol("", 0, 0, 0, 0, 0))
        globals_: list[tuple[int, int, _Symbol]] = []
        for which, o in enumerate(self.objects):
            for k, s in enumerate(o.symbols):
                if k == 0 or s.info & 15 == _FILE:
                    self.indices[which, k] = 0
                elif s.binding == _LOCAL:
                    self.indices[which, k] = self.add(which, s, s.info)
                else:
                    globals_.append((which, k, s))
        definitions = [(w, k, s) for w, k, s in globals_ if s.section]
        for w, k, s in sorted(definitions, key=lambda d: d[2].name in self.exports):
            if s.name in self.defined:
                raise CompileError("a symbol is defined twice", where=s.name)
            binding = _GLOBAL if s.name in self.exports else _LOCAL
            if binding == _GLOBAL and not any(x.binding == _GLOBAL for x in self.symbols):
                self.take_constants(_LOCAL)
            self.defined[s.name] = self.indices[w, k] = self.add(w, s, binding << 4 | s.info & 15)
        self.take_constants(_GLOBAL)
        for w, k, s in globals_:
            if not s.section:
                if s.name not in self.defined:
                    self.defined[s.name] = self.add(w, s, s.info)
                self.indices[w, k] = self.defined[s.name]

    def take_constants(self, binding: int) -> None:
        """Add symbols of the constants that have this binding, unless they are already there."""
        for name, data in self.constants.items():
            if (name in self.exports) == (binding == _GLOBAL) and name not in self.defined:
                number = 1 + next(k for k, s in enumerate(self.sections) if s.name == f".rodata.{name}")
                self.defined[name] = len(self.symbols)
                self.symbols.append(_Symbol(name, binding << 4 | _OBJECT, 0, number, 0, len(data)))

    def add(self, which: int, s: _Symbol, info: int) -> int:
        section = s.section
        if 0 < section < _RESERVED:
            section = self.numbers.get((which, section), _ABSOLUTE)
        self.symbols.append(_Symbol(s.name, info, s.other, section, s.value, s.size))
        return len(self.symbols) - 1

    def relocations(self) -> list[_Section]:
        """The sections of relocations of the result, with its own numbers of symbols."""
        form, tables = self.form, []
        mask = (1 << form.kind_bits) - 1
        for which, o in enumerate(self.objects):
            for k, (_, kind, flags, *_, target, align, entry) in enumerate(o.sections):
                number = self.numbers.get((which, target))
                if kind not in (_RELA, _REL) or number is None:
                    continue
                table, content = form.rela if kind == _RELA else form.rel, bytearray()
                for at, info, *addend in table.iter_unpack(o.content(k)):
                    symbol = self.indices[which, info >> form.kind_bits]
                    content += table.pack(at, symbol << form.kind_bits | info & mask, *addend)
                result = _Section(
                    o.section_name(k), kind, flags | _INFO_LINK, bytes(content), len(content), align, entry
                )
                result.info = number
                tables.append(result)
        return tables

    def write(self, tables: list[_Section]) -> bytes:
        form = self.form
        strings, offsets = bytearray(b"\0"), dict[str, int]()
        names = [s.name for s in (*self.sections, *tables)] + [".symtab", ".strtab"]
        for name in (*names, *(s.name for s in self.symbols)):
            if name not in offsets:
                offsets[name] = len(strings) if name else 0
                strings += name.encode() + b"\0" if name else b""
        symtab = bytearray()
        for s in self.symbols:
            place = (s.info, s.other, s.section)
            fields = (*place, s.value, s.size) if form.align == 8 else (s.value, s.size, *place)
            symtab += form.symbol.pack(offsets[s.name], *fields)
        first_global = next((k for k, s in enumerate(self.symbols) if s.binding), len(self.symbols))
        symbols_at = 1 + len(self.sections) + len(tables)
        for t in tables:
            t.link = symbols_at
        last = [
            _Section(".symtab", _SYMTAB, 0, bytes(symtab), len(symtab), form.align, form.symbol.size),
            _Section(".strtab", _STRTAB, 0, bytes(strings), len(strings), 1),
        ]
        last[0].link, last[0].info = symbols_at + 1, first_global
        return self.image([*self.sections, *tables, *last], offsets)

    def image(self, sections: list[_Section], offsets: Mapping[str, int]) -> bytes:
        form, o = self.form, self.objects[0]
        data = bytearray(form.header.size)
        headers = bytearray(form.section.size)
        for s in sections:
            data += bytes(-len(data) % max(s.align, 1))
            place = (offsets[s.name], s.kind, s.flags, 0, len(data), s.nbytes)
            headers += form.section.pack(*place, s.link, s.info, s.align, s.entry)
            data += s.data
        data += bytes(-len(data) % form.align)
        start = len(data)
        sizes = (form.header.size, 0, 0, form.section.size, len(sections) + 1, len(sections))
        ident = (b"\x7fELF", o.bits, 1, _CURRENT, o.data[7], o.data[8])
        form.header.pack_into(data, 0, *ident, _RELOCATABLE, o.machine, _CURRENT, 0, 0, start, o.flags, *sizes)
        return bytes(data + headers)
