"""Damage to `.tw` files: bytes at random, and sections rewritten with digests that are right."""

from __future__ import annotations

import random
import struct

from tilewright.runtime import artifact

_HEADER, _ENTRY = artifact._HEADER, artifact._ENTRY


def damage(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces lost, doubled or zeroed, the end cut off: whatever disks and networks do."""
    changed = bytearray(data)
    at = rng.randrange(len(data))
    length = rng.choice((1, 8, 64, 4096))
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1 | 2:
            changed[at] ^= 1 << rng.randrange(8)
        case 3:
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        case 4:
            del changed[at : at + length]
        case _:
            changed[at:at] = changed[at : at + length]
    return bytes(changed)


def sections(data: bytes) -> list[tuple[str, bytes]]:
    """Name and content of each section."""
    count = _HEADER.unpack_from(data)[2]
    entries = [_ENTRY.unpack_from(data, _HEADER.size + k * _ENTRY.size) for k in range(count)]
    return [(name.rstrip(b"\0").decode(), data[offset : offset + nbytes]) for name, offset, nbytes, _ in entries]


def sealed(parts: list[tuple[str, bytes]], version: int = artifact.FORMAT_VERSION) -> bytes:
    """A file of these sections with digests that fit."""
    import hashlib

    offset = artifact._round(_HEADER.size + len(parts) * _ENTRY.size)
    table, body = b"", b""
    for name, content in parts:
        table += _ENTRY.pack(name.encode(), offset, len(content), artifact._digest(name, [content]))
        body += content + bytes(-len(content) % artifact.ALIGNMENT)
        offset = artifact._round(offset + len(content))
    head = _HEADER.pack(artifact.MAGIC, version, len(parts), offset, bytes(16))
    digest = hashlib.blake2b(head + table, digest_size=16).digest()
    start = _HEADER.pack(artifact.MAGIC, version, len(parts), offset, digest) + table
    return start + bytes(-len(start) % artifact.ALIGNMENT) + body


def resealed_damage(data: bytes, rng: random.Random) -> bytes:
    """Sections changed, lost, doubled or exchanged, and sealed again."""
    parts = sections(data)
    k = rng.randrange(len(parts))
    name, content = parts[k]
    match rng.randrange(6):
        case 0:
            parts.pop(k)
        case 1:
            parts.append(parts[k])
        case 2:
            parts[k] = (rng.choice(parts)[0], content)
        case 3:
            parts[k] = (name, content[: rng.randrange(len(content) + 1)])
        case 4:
            at = rng.randrange(max(1, len(content) - 8))
            strange = rng.choice(
                (b"-1", b"99999999999999999999", b'"x"', b"[" * 5000, b"null", b"1e999", b"\xff", b"0")
            )
            parts[k] = (name, content[:at] + strange + content[at + len(strange) :])
        case _:
            strange = struct.pack("<Q", rng.choice((0, 1, 7, len(content), 1 << 32, (1 << 63) - 1, (1 << 64) - 1)))
            parts[k] = (name, strange + content[8:])
    return sealed(parts)
