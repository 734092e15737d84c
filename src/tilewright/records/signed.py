"""Signed records: Ed25519 signatures (RFC 8032, by `cryptography`, the extra `farm`) over a record's file.

A signature proves that the holder of the private key has released exactly these bytes. It covers `PURPOSE` followed by
the record's bytes, so that a signature made for another purpose is not valid for a record. One line of a file of signed
records is

    {"record": "<the content of the record's file>", "signature": "<128 hexadecimal digits>"}
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tilewright.records.record import MAX_BYTES, Record, from_bytes
from tilewright.support.classes import dataclass
from tilewright.support.errors import MissingPackageError, RecordError

PURPOSE = b"tilewright tuning record 1\n"
"""The prefix of the signed bytes, which states their purpose."""
KEY_DIGITS, SIGNATURE_DIGITS = 64, 128
MAX_LINE_BYTES = 2 * MAX_BYTES + 1024
"""The longest line of a file of signed records: in JSON, a record as text takes at most twice its bytes."""


class SigningKey:
    """A private key in a file that only its owner may read.

    Args:
        path: the key's file, 32 bytes in hexadecimal digits; it is created with a new key if it does not exist.

    Raises RecordError for a file that holds no key.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            raw = _ed25519().Ed25519PrivateKey.generate().private_bytes_raw()
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:  # another process was faster
                pass
            else:
                with os.fdopen(handle, "w") as file:
                    file.write(f"{raw.hex()}\n")
        try:
            self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
        except (ValueError, OSError) as error:
            raise RecordError(f"no private key: {error}", where=str(path)) from None

    @property
    def public(self) -> str:
        """The public key in hexadecimal digits, which clients name in the address of a channel."""
        return str(self._key.public_key().public_bytes_raw().hex())

    def sign(self, content: bytes) -> str:
        """The signature of a record's content in hexadecimal digits."""
        return str(self._key.sign(PURPOSE + content).hex())


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of a record's file with its signature."""

    content: bytes
    signature: str

    def line(self) -> bytes:
        """One line of a file of signed records."""
        said = {"record": self.content.decode("ascii"), "signature": self.signature}
        return json.dumps(said, separators=(",", ":")).encode("ascii") + b"\n"


def check_key(key: str, where: str) -> str:
    """The checked public key. Raises RecordError, which names `where`, if the text is not a public key."""
    if len(key) != KEY_DIGITS or not set(key) <= set("0123456789abcdef"):
        raise RecordError("no public key", where=where, expected=f"{KEY_DIGITS} hexadecimal digits", got=key[:80])
    return key


def verified(signed: Signed, key: str, target: str | None = None) -> Record:
    """The record, if the signature was made with the key and the record is valid. Raises RecordError otherwise.

    Args:
        target: the requested class of machines; a record about another one is refused.
    """
    if len(signed.content) > MAX_BYTES or len(signed.signature) != SIGNATURE_DIGITS:
        raise RecordError("no signed record", got=f"{len(signed.content)} bytes")
    try:
        public = _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signed.signature), PURPOSE + signed.content)
    except (ValueError, _invalid()):
        raise RecordError("the signature of a record is not that of the key", expected=f"key {key[:16]}...") from None
    record = from_bytes(signed.content)
    if target is not None and record.target != target:
        raise RecordError("about other machines", expected=target, got=record.target)
    return record


def parse_line(line: bytes) -> Signed:
    """Parse a line that `Signed.line` wrote. Raises RecordError on anything else; the signature is not verified yet."""
    if len(line) > MAX_LINE_BYTES:
        raise RecordError("no signed record", expected=f"at most {MAX_LINE_BYTES} bytes", got=len(line))
    try:
        said: Any = json.loads(line)
        match said:
            case {"record": str(record), "signature": str(signature)} if len(said) == 2:
                return Signed(record.encode("ascii"), signature)
    except (ValueError, RecursionError):
        pass
    raise RecordError("no signed record", got=repr(line[:60]))


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingPackageError("signed records need cryptography", hint="pip install 'tilewright[farm]'") from None
    return ed25519


def _invalid() -> type[Exception]:
    from cryptography.exceptions import InvalidSignature

    result: type[Exception] = InvalidSignature
    return result


__all__ = ["MAX_LINE_BYTES", "Signed", "SigningKey", "check_key", "parse_line", "verified"]
