"""Records of a tuning service's channel: fetched whole for a class of machines, checked, and stored on this machine.

    https://farm.example#channel=stable&key=9f3c...        over HTTP
    postgresql://user@host/farm#channel=canary&key=9f3c... from the service's database
    farm.sqlite#channel=stable&key=9f3c...                 the same, on one machine

The key is the service's public key. A record is used only if it is valid, signed with that key, and about the requested
class of machines. One request a minute fetches all records of a class; the last answer is used while the service
reports no change or does not answer. Records that left the channel are no longer used.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path

from tilewright.records.index import Values, values
from tilewright.records.lookup import index_of
from tilewright.records.remote import MAX_ARCHIVE_BYTES, WAIT_SECONDS, State, check, only_safe
from tilewright.records.signed import MAX_LINE_BYTES, Signed, check_key, parse_line, verified
from tilewright.records.store import Store
from tilewright.runtime.schema import SchemaError, decode
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error, RecordError, RecordWarning
from tilewright.support.files import write_whole
from tilewright.support.sql import Database, is_postgres, shown

FRESH_SECONDS = 60.0
"""Seconds after a request during which compiles do not ask the service again."""
SWEEP_SECONDS = 600.0
LEVEL = 1
"""Level of gzip compression: an answer with a model's records takes half a millisecond, and twice that at the default
level."""
HEADER = b"tilewright signed records 1\n"
MAX_RECORDS = 1_000_000
CHANNELS = ("canary", "stable")


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a channel's address: the service's address, the channel, the public key."""

    place: str
    channel: str
    key: str


def parse_address(text: str) -> Address:
    """Parse a channel's address. Raises RecordError for a text that is not one, or an address that is not safe to
    ask."""
    place, _, fragment = text.partition("#")
    options = dict(urllib.parse.parse_qsl(fragment))
    channel, key = options.pop("channel", "stable"), options.pop("key", "")
    if options or channel not in CHANNELS:
        expected = f"#channel=NAME&key=HEX with a channel of {', '.join(CHANNELS)}"
        raise RecordError("no address of a channel", where=shown(place), expected=expected)
    if "://" in place and not is_postgres(place):
        check(place)
    return Address(place.rstrip("/"), channel, check_key(key, shown(place)))


class Channel(Store):
    """The records of a channel as a store on this machine, fetched when a class of machines is asked for.

    Args:
        address: as described for this module. Raises RecordError for any other text.
        token: an access token of the service, with the role "read"; TILEWRIGHT_FARM_TOKEN if None.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = parse_address(address)
        name = blake2b(repr(self.address).encode(), digest_size=16).hexdigest()
        super().__init__(flags.CACHE_DIR() / "records-channels" / name / "none")
        self._place = self.folder.parent
        self._token = os.environ.get("TILEWRIGHT_FARM_TOKEN", "") if token is None else token
        self._asked: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Channel {self.address.channel} of {shown(self.address.place)}>"

    def prepare(self, target: str) -> Store:
        """The store with the records of a class of machines, fetched first unless that was done in the last minute."""
        path = self._place / f"{blake2b(target.encode(), digest_size=16).hexdigest()}.json"
        state = _state(path)
        there = (self._place / (state.folder or "-")).is_dir()
        if not there or abs(time.time() - state.asked) > FRESH_SECONDS:
            if time.monotonic() - self._asked.get(target, -1e9) < FRESH_SECONDS and not there:
                return Store(self._place / "none")  # it was asked a moment ago, and there is nothing
            self._asked[target] = time.monotonic()
            try:
                state = self._fetched(target, state if there else State())
            except (OSError, HTTPException, Error) as error:
                had = "what was fetched before is used" if there else "there are none"
                what = str(error).replace("\n", " ")
                warnings.warn(f"{self!r}: cannot fetch tuning records, {had}: {what}", RecordWarning, stacklevel=6)
            state = State(state.folder, state.etag, "", int(time.time()))
            with contextlib.suppress(OSError):
                self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(path, json.dumps(asdict(state)).encode())
        return Store(self._place / (state.folder or "none"))

    def refresh(self) -> None:
        """Make the next compile ask the service, however recently it was asked."""
        self._asked.clear()
        for path in self._place.glob("*.json"):
            state = _state(path)
            write_whole(path, json.dumps(asdict(State(state.folder, state.etag, "", 0))).encode())

    def _fetched(self, target: str, state: State) -> State:
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = state.etag if (self._place / (state.folder or "-")).is_dir() else ""
        folder = Path(tempfile.mkdtemp(dir=self._place, prefix="v"))
        store, rows, refused = Store(folder), dict[str, Values](), list[str]()
        try:
            etag, lines = self._ask(target, known)
            if lines is None:
                shutil.rmtree(folder, ignore_errors=True)
                return state
            for count, signed in enumerate(lines):
                if count >= MAX_RECORDS:
                    raise RecordError("a channel has too many records", expected=MAX_RECORDS)
                try:
                    record = verified(signed, self.address.key, target)
                except RecordError as error:
                    refused.append(str(error).replace("\n", " "))
                    continue
                digest, _ = store.keep(signed.content, target, there=())
                rows[digest] = values(digest, record)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if rows:
            index_of(store, target).add(rows)
        if refused:
            what = f"{self!r}: {len(refused)} records are refused: {refused[0]}"
            warnings.warn(what, RecordWarning, stacklevel=7)
        self._sweep(folder.name)
        return State(folder.name, etag, "", int(time.time()))

    def _sweep(self, newest: str) -> None:
        """Remove stored versions other than `newest` to which no state file refers, except young ones, which compiles
        may still read."""
        named = {newest, *(_state(path).folder for path in self._place.glob("*.json"))}
        for path in self._place.glob("v*"):
            with contextlib.suppress(OSError):
                if path.name not in named and time.time() - path.stat().st_mtime > SWEEP_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)

    def _ask(self, target: str, known: str) -> tuple[str, Iterator[Signed] | None]:
        """(name of the channel's present version, its records) for a class of machines, from the service; the records
        are None if that version is `known`."""
        if "://" in self.address.place and not is_postgres(self.address.place):
            return self._over_http(target, known)
        database = Database(self.address.place)
        try:
            with database.reading() as t:
                row = t.row("SELECT number FROM stamp WHERE channel = ? AND target = ?", (self.address.channel, target))
                etag = str(row[0]) if row else "0"
                if etag == known:
                    return etag, None
                rows = t.rows(
                    "SELECT r.content, r.signature FROM channel c JOIN record r ON r.digest = c.digest"
                    " WHERE c.channel = ? AND c.target = ?",
                    (self.address.channel, target),
                )
        finally:
            database.close()
        return etag, (Signed(bytes(content), str(signature)) for content, signature in rows)

    def _over_http(self, target: str, known: str) -> tuple[str, Iterator[Signed] | None]:
        query = urllib.parse.urlencode({"target": target})
        url = f"{self.address.place}/v1/channels/{self.address.channel}?{query}"
        headers = {"User-Agent": "tilewright"} | ({"If-None-Match": f'"{known}"'} if known else {})
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            with only_safe().open(urllib.request.Request(url, headers=headers), timeout=WAIT_SECONDS) as answer:
                etag = str(answer.headers.get("ETag", "")).strip('"')[:200]
                body = answer.read(MAX_ARCHIVE_BYTES)
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return known, None
            raise
        return etag, unpacked(body)


def unpacked(body: bytes) -> Iterator[Signed]:
    """The signed records of an answer. Raises RecordError if it is malformed or truncated."""
    lines = _unzipped(body)
    if (first := next(lines, b"")) + b"\n" != HEADER:
        raise RecordError("no channel of tuning records", got=repr(first[:40]))
    yield from map(parse_line, lines)


def _unzipped(body: bytes) -> Iterator[bytes]:
    """The lines of a gzip file, decompressed block by block."""
    stream = zlib.decompressobj(31)
    rest, total = b"", 0
    try:
        while not stream.eof:
            data = stream.decompress(body, 1 << 20)
            body, total = stream.unconsumed_tail, total + len(data)
            if total > MAX_ARCHIVE_BYTES or (not data and not body and not stream.eof):
                raise RecordError("the answer of a channel is cut, or too long")
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise RecordError("a line of a channel is too long")
            yield from lines
    except zlib.error as error:
        raise RecordError(f"the answer of a channel is damaged: {error}") from None
    if rest:
        raise RecordError("the answer of a channel is cut")


def packed(lines: Iterator[Signed]) -> bytes:
    """An answer with these records in the form that `Channel` reads."""
    return gzip.compress(HEADER + b"".join(s.line() for s in lines), LEVEL, mtime=0)


def _state(path: Path) -> State:
    with contextlib.suppress(OSError, ValueError, SchemaError, RecursionError):
        state = decode(State, json.loads(path.read_bytes()), "state")
        if re.fullmatch(r"v\w+|", state.folder) and state.etag.isprintable():
            return state
    return State()


__all__ = ["CHANNELS", "Address", "Channel", "packed", "parse_address", "unpacked"]
