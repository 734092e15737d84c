"""A small linker for WebAssembly: LLVM's relocatable objects into one module, so that users need no wasm-ld.

    memory:   0 | stack, which grows down to 0 and traps there | constants of all objects | the caller's, from `heap`

The module has its own memory. It exports `memory`, the global `heap`, where the caller's memory may begin, and the
functions that are asked for; it imports what no object defines from "env". Position-independent objects reach their
data by a global `__memory_base`, which is 0 here, and by globals of "GOT.mem" that hold addresses. The conventions are
those of WebAssembly/tool-conventions, Linking.md.

A module for several threads imports its memory, which they share, as "memory" of "env". Each thread is an instance and
has a stack; it sets the exported global `stack` to the multiple of STACK where its own begins. Constants are copied by
the exported function `fill`, which one instance calls.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError

STACK = 1 << 20
"""The size of a thread's stack in bytes."""
PAGE = 1 << 16
"""The size of a page of memory in bytes."""
MAX_PAGES = 1 << 16
"""The largest number of pages of memory: as many as 32 bits can address."""
_MAGIC = b"\0asm\x01\0\0\0"
_TYPE, _IMPORT, _FUNCTION, _TABLE, _MEMORY, _GLOBAL, _EXPORT, _ELEMENT, _CODE, _DATA = 1, 2, 3, 4, 5, 6, 7, 9, 10, 11
_DATA_COUNT = 12
_FUNCTIONS, _TABLES, _MEMORIES, _GLOBALS = 0, 1, 2, 3
_KIND_FUNCTION, _KIND_DATA, _KIND_GLOBAL, _KIND_SECTION, _KIND_TABLE = 0, 1, 2, 3, 5
_WEAK, _LOCAL, _UNDEFINED, _NAMED = 1, 2, 0x10, 0x40
_I32, _FUNCREF, _SYMBOLS = 0x7F, 0x70, 8
_SEGMENTS = 5
_FUNCTION_LEB, _TABLE_SLEB, _TABLE_I32, _ADDRESS_LEB, _ADDRESS_SLEB, _ADDRESS_I32, _TYPE_LEB, _GLOBAL_LEB = range(8)
_ADDRESS_REL, _TABLE_REL, _GLOBAL_I32, _TABLE_NUMBER = 11, 12, 13, 20
_WITH_ADDEND = {_ADDRESS_LEB, _ADDRESS_SLEB, _ADDRESS_I32, 8, 9, _ADDRESS_REL}
_POINTERS = {"__stack_pointer", "__memory_base", "__table_base"}


class _Reader:
    """Reads numbers and names from a WebAssembly binary."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result
            if shift > 63:
                raise ValueError("a number without an end")

    def signed(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return result - (1 << shift) if byte & 64 else result
            if shift > 63:
                raise ValueError("a number without an end")

    def bytes(self) -> bytes:
        count = self.number()
        result = self.data[self.at : self.at + count]
        if len(result) != count:
            raise ValueError("an object that was cut off")
        self.at += count
        return result

    def text(self) -> str:
        return self.bytes().decode()

    @property
    def done(self) -> bool:
        return self.at >= len(self.data)


def number(value: int) -> bytes:
    """A number in the binary encoding LEB128."""
    out = bytearray()
    while True:
        byte, value = value & 127, value >> 7
        if not value:
            return bytes([*out, byte])
        out.append(byte | 128)


def _signed(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 127, value >> 7
        if (value == 0 and not byte & 64) or (value == -1 and byte & 64):
            return bytes([*out, byte])
        out.append(byte | 128)


def _text(name: str) -> bytes:
    data = name.encode()
    return number(len(data)) + data


def _vector(entries: Sequence[bytes]) -> bytes:
    return number(len(entries)) + b"".join(entries)


@dataclass(frozen=True, slots=True)
class _Symbol:
    """A symbol: `index` is that of its function, global or data segment, `value` the offset of data in its segment."""

    kind: int
    flags: int
    name: str
    index: int = 0
    value: int = 0

    @property
    def is_defined(self) -> bool:
        return not self.flags & _UNDEFINED


@dataclass(slots=True)
class _Object:
    """A parsed object. Imports are (module, name), for functions with the type; `code` are bodies without their
    lengths, `relocations` are (offset in the section's content, kind, index, addend)."""

    name: str
    types: list[bytes] = field(default_factory=list)
    functions: list[tuple[str, str, int]] = field(default_factory=list)
    globals: list[tuple[str, str]] = field(default_factory=list)
    signatures: list[int] = field(default_factory=list)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    segments: list[tuple[int, bytes]] = field(default_factory=list)
    aligns: list[int] = field(default_factory=list)
    symbols: list[_Symbol] = field(default_factory=list)
    code: list[tuple[int, int, int, int]] = field(default_factory=list)
    data: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Linked:
    """A linked module, the functions that it imports from "env", and the address at which the caller's memory may
    begin."""

    module: bytes
    needs: tuple[str, ...]
    heap: int


def link(
    objects: Mapping[str, bytes],
    exports: Collection[str],
    constants: Mapping[str, bytes] | None = None,
    *,
    threads: int = 1,
) -> Linked:
    """Link several objects into one module.

    Args:
        objects: relocatable objects of wasm32, by names for messages.
        exports: the functions that the module exports.
        constants: further symbols and their bytes, aligned to 64; their addresses are exported as globals.
        threads: how many stacks there are; with more than one the memory is imported and shared.

    Raises CompileError if an image is not an object, uses an unsupported feature, or if a function of `exports` is
    missing.
    """
    try:
        read = [_read(name, data) for name, data in objects.items()]
        return _Linker(read, list(exports), constants or {}, threads, end=threads * STACK).link()
    except (IndexError, ValueError, struct.error, KeyError) as error:
        raise CompileError("the WebAssembly objects cannot be linked", got=str(error)) from None


def _read(name: str, data: bytes) -> _Object:
    if not data.startswith(_MAGIC):
        raise CompileError("not a WebAssembly object", where=name, got=repr(data[:8]))
    o, r = _Object(name), _Reader(data, len(_MAGIC))
    while not r.done:
        kind, content = r.byte(), r.bytes()
        s = _Reader(content)
        match kind:
            case 0:
                _custom(o, s)
            case 1:
                o.types = [_type(s) for _ in range(s.number())]
            case 2:
                for _ in range(s.number()):
                    _import(o, s)
            case 3:
                o.signatures = [s.number() for _ in range(s.number())]
            case 10:
                for _ in range(s.number()):
                    size = s.number()
                    o.bodies.append((s.at, content[s.at : s.at + size]))
                    s.at += size
            case 11:
                for _ in range(s.number()):
                    _segment(o, s)
            case 5 | 9 | 12:  # memory, the table of functions and the number of segments are ours to say
                pass
            case _:
                raise ValueError(f"a section of kind {kind} in {name}")
    return o


def _type(s: _Reader) -> bytes:
    start = s.at
    if s.byte() != 0x60:
        raise ValueError("a type that is no function's")
    s.bytes()
    s.bytes()
    return s.data[start : s.at]


def _import(o: _Object, s: _Reader) -> None:
    module, name, kind = s.text(), s.text(), s.byte()
    if kind == _FUNCTIONS:
        o.functions.append((module, name, s.number()))
    elif kind == _GLOBALS:
        s.byte()
        s.byte()
        o.globals.append((module, name))
    else:
        if kind == _TABLES:
            s.byte()
        for _ in range(1 + (s.byte() & 1)):
            s.number()


def _segment(o: _Object, s: _Reader) -> None:
    if s.number() != 0 or s.byte() != 0x41:
        raise ValueError("a segment of data that is not active at a constant")
    s.signed()
    s.byte()
    content = s.bytes()
    o.segments.append((s.at - len(content), content))


def _custom(o: _Object, s: _Reader) -> None:
    name = s.text()
    if name.startswith("reloc."):
        target = {"reloc.CODE": o.code, "reloc.DATA": o.data}.get(name)
        s.number()  # of the section, which the name says too
        for _ in range(s.number()):
            kind, at, index = s.byte(), s.number(), s.number()
            entry = (at, kind, index, s.signed() if kind in _WITH_ADDEND else 0)
            if target is not None:
                target.append(entry)
    elif name == "linking":
        if s.number() != 2:
            raise ValueError("another version of the conventions of linking")
        while not s.done:
            kind, part = s.byte(), _Reader(s.bytes())
            if kind == _SYMBOLS:
                o.symbols = [_symbol(o, part) for _ in range(part.number())]
            elif kind == _SEGMENTS:
                for _ in range(part.number()):
                    part.text()
                    o.aligns.append(part.number())
                    part.number()


def _symbol(o: _Object, s: _Reader) -> _Symbol:
    kind, flags = s.byte(), s.number()
    if kind == _KIND_DATA:
        name = s.text()
        if flags & _UNDEFINED:
            return _Symbol(kind, flags, name)
        segment, value = s.number(), s.number()
        s.number()
        return _Symbol(kind, flags, name, segment, value)
    index = s.number()
    if kind == _KIND_SECTION:
        return _Symbol(kind, flags, "", index)
    if not flags & _UNDEFINED or flags & _NAMED:
        return _Symbol(kind, flags, s.text(), index)
    imported: Sequence[tuple[str, ...]] = o.functions if kind == _KIND_FUNCTION else o.globals  # type: ignore[assignment]
    return _Symbol(kind, flags, "" if kind == _KIND_TABLE else imported[index][1], index)


@dataclass(slots=True)
class _Linker:
    objects: list[_Object]
    exports: list[str]
    constants: Mapping[str, bytes]
    threads: int
    types: dict[bytes, int] = field(default_factory=dict)
    imports: dict[str, int] = field(default_factory=dict)
    import_types: list[int] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    globals: dict[tuple[str, str], int] = field(default_factory=dict)
    initial: list[int] = field(default_factory=list)
    table: dict[int, int] = field(default_factory=dict)
    end: int = STACK

    def link(self) -> Linked:
        for o in self.objects:
            for t in o.types:
                self.types.setdefault(t, len(self.types))
        self.number_functions()
        self.place_data()
        self.make_globals()
        missing = [e for e in self.exports if e not in self.functions]
        if missing:
            raise CompileError("a function that is to be exported is not defined", where=missing[0])
        bodies = [self.body(k, at, body) for k, o in enumerate(self.objects) for at, body in o.bodies]
        segments = [self.segment(k, n) for k, o in enumerate(self.objects) for n in range(len(o.segments))]
        segments += [(self.addresses[name], data) for name, data in self.constants.items()]
        heap = -(-self.end // 64) * 64
        return Linked(self.module(bodies, segments, heap), tuple(self.imports), heap)

    # -- numbers and places ---------------------------------------------------------------------------------------

    def number_functions(self) -> None:
        defined: set[str] = set()
        for o in self.objects:
            for s in o.symbols:
                if s.kind == _KIND_FUNCTION and s.is_defined and not s.flags & _LOCAL:
                    if s.name in defined and not s.flags & _WEAK:
                        raise CompileError("a function is defined twice", where=s.name)
                    defined.add(s.name)
        for o in self.objects:
            for module, name, kind in o.functions:
                if name not in defined and module == "env" and name not in self.imports:
                    self.imports[name] = len(self.imports)
                    self.import_types.append(self.types[o.types[kind]])
        at = len(self.imports)
        for o in self.objects:
            self.bases.append(at)
            for s in o.symbols:
                if s.kind == _KIND_FUNCTION and s.is_defined and not s.flags & _LOCAL:
                    self.functions[s.name] = at + s.index - len(o.functions)
            at += len(o.signatures)

    def place_data(self) -> None:
        for k, o in enumerate(self.objects):
            for n, (_, content) in enumerate(o.segments):
                align = 1 << (o.aligns[n] if n < len(o.aligns) else 0)
                self.places[k, n] = self.end = -(-self.end // align) * align
                self.end += len(content)
            for s in o.symbols:
                if s.kind == _KIND_DATA and s.is_defined and not s.flags & _LOCAL:
                    self.addresses[s.name] = self.places[k, s.index] + s.value
        for name, data in self.constants.items():
            self.addresses[name] = self.end = -(-self.end // 64) * 64
            self.end += len(data)

    def make_globals(self) -> None:
        """Make the globals: the stack pointer, the bases, and a constant for each address that code refers to."""
        self.globals["env", "__stack_pointer"] = 0
        self.initial.append(STACK)
        for k, o in enumerate(self.objects):
            for module, name in o.globals:
                if (module, name) in self.globals:
                    continue
                if module == "env" and name in _POINTERS:
                    value = 0
                elif module == "GOT.mem":
                    value = self.addresses[name]
                elif module == "GOT.func":
                    value = self.in_table(self.functions.get(name, self.imports.get(name, -1)))
                else:
                    raise ValueError(f"the global {name} of {module}, in {self.objects[k].name}")
                self.globals[module, name] = len(self.initial)
                self.initial.append(value)

    def in_table(self, function: int) -> int:
        """The index in the function table for function number `function`, whose address is taken."""
        if function < 0:
            raise ValueError("the address of a function that is nowhere")
        return self.table.setdefault(function, len(self.table) + 1)

    def function(self, which: int, s: _Symbol) -> int:
        o = self.objects[which]
        if s.is_defined:
            return self.bases[which] + s.index - len(o.functions)
        return self.functions[s.name] if s.name in self.functions else self.imports[s.name]

    def address(self, which: int, s: _Symbol) -> int:
        if s.is_defined:
            return self.places[which, s.index] + s.value
        return self.addresses[s.name]

    # -- contents -------------------------------------------------------------------------------------------------

    def value(self, which: int, kind: int, index: int, addend: int) -> int:
        o = self.objects[which]
        if kind == _TYPE_LEB:
            return self.types[o.types[index]]
        s = o.symbols[index]
        if kind in (_ADDRESS_LEB, _ADDRESS_SLEB, _ADDRESS_I32, _ADDRESS_REL):
            return self.address(which, s) + addend
        if kind == _FUNCTION_LEB:
            return self.function(which, s)
        if kind in (_TABLE_SLEB, _TABLE_I32, _TABLE_REL):
            return self.in_table(self.function(which, s))
        if kind == _TABLE_NUMBER:
            return 0
        if kind in (_GLOBAL_LEB, _GLOBAL_I32):
            if s.kind == _KIND_GLOBAL:
                return self.globals[o.globals[s.index]]
            # A symbol whose address a global of the table of addresses holds.
            room = "GOT.func" if s.kind == _KIND_FUNCTION else "GOT.mem"
            return self.globals[room, s.name]
        raise ValueError(f"a relocation of kind {kind} in {o.name}")

    def body(self, which: int, at: int, body: bytes) -> bytes:
        """The body of a function of object `which`, with its relocations applied and each number in its shortest form;
        `at` is its offset in the section of code."""
        out, last = bytearray(), 0
        for offset, kind, index, addend in self.objects[which].code:
            place = offset - at
            if not 0 <= place < len(body):
                continue
            value = self.value(which, kind, index, addend)
            out += body[last:place]
            if kind in (_TABLE_I32, _ADDRESS_I32, _GLOBAL_I32):
                out += struct.pack("<I", value)
                last = place + 4
            else:
                out += (
                    _signed(value) if kind in (_TABLE_SLEB, _ADDRESS_SLEB, _ADDRESS_REL, _TABLE_REL) else number(value)
                )
                last = place + 5
        out += body[last:]
        return number(len(out)) + out

    def segment(self, which: int, n: int) -> tuple[int, bytes]:
        at, content = self.objects[which].segments[n]
        data = bytearray(content)
        for offset, kind, index, addend in self.objects[which].data:
            if 0 <= offset - at < len(data):
                struct.pack_into("<I", data, offset - at, self.value(which, kind, index, addend))
        return self.places[which, n], bytes(data)

    def module(self, bodies: Sequence[bytes], segments: Sequence[tuple[int, bytes]], heap: int) -> bytes:
        shared = self.threads > 1
        signatures = [number(self.types[o.types[t]]) for o in self.objects for t in o.signatures]
        imports = [
            _text("env") + _text(name) + b"\0" + number(kind)
            for name, kind in zip(self.imports, self.import_types, strict=True)
        ]
        pages = number(-(-heap // PAGE))
        values = [(_I32, 1, self.initial[0]), *((_I32, 0, v) for v in self.initial[1:]), (_I32, 0, heap)]
        exports = [("memory", _MEMORIES, 0), ("heap", _GLOBALS, len(values) - 1)]
        exports += [(name, _FUNCTIONS, self.functions[name]) for name in self.exports]
        for name in self.constants:
            exports.append((name, _GLOBALS, len(values)))
            values.append((_I32, 0, self.addresses[name]))
        written = [(place, content) for place, content in segments if content.strip(b"\0")]
        if shared:
            imports.append(_text("env") + _text("memory") + bytes([_MEMORIES, 3]) + pages + number(MAX_PAGES))
            exports += [("stack", _GLOBALS, 0), ("fill", _FUNCTIONS, len(self.imports) + len(bodies))]
            signatures.append(number(self.types.setdefault(b"\x60\0\0", len(self.types))))
            bodies = [*bodies, _fill(written)]
        globals_ = [bytes([kind, changes, 0x41]) + _signed(value) + b"\x0b" for kind, changes, value in values]
        shown = [_text(name) + bytes([kind]) + number(index) for name, kind, index in exports]
        data = [
            (b"\1" if shared else b"\0\x41" + _signed(place) + b"\x0b") + number(len(content)) + content
            for place, content in written
        ]
        sections = [
            (_TYPE, _vector(list(self.types))),
            (_IMPORT, _vector(imports)),
            (_FUNCTION, _vector(signatures)),
            (_TABLE, _vector([bytes([_FUNCREF, 0]) + number(len(self.table) + 1)])),
            *([] if shared else [(_MEMORY, _vector([b"\0" + pages]))]),
            (_GLOBAL, _vector(globals_)),
            (_EXPORT, _vector(shown)),
        ]
        if self.table:
            places = b"\0\x41\x01\x0b" + _vector([number(f) for f in self.table])
            sections.append((_ELEMENT, _vector([places])))
        sections += [(_DATA_COUNT, number(len(data)))] if shared else []
        sections += [(_CODE, _vector(bodies)), (_DATA, _vector(data))]
        return _MAGIC + b"".join(bytes([kind]) + number(len(c)) + c for kind, c in sections)


def _fill(segments: Sequence[tuple[int, bytes]]) -> bytes:
    """The body of a function that copies the segments of data to their places."""
    code = b"\0"  # no variables
    for k, (place, content) in enumerate(segments):
        numbers = (place, 0, len(content))
        code += b"".join(b"\x41" + _signed(n) for n in numbers) + b"\xfc\x08" + number(k) + b"\0"
    code += b"\x0b"
    return number(len(code)) + code


__all__ = ["MAX_PAGES", "PAGE", "STACK", "Linked", "link"]
