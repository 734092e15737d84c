"""Records on a web server: an exported archive at an https address, mirrored on this machine and refreshed now and
then.

The archive fetched last is used while the server is down or reports no change. A new archive replaces the old one
completely: records that it lacks are no longer used.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from tilewright.records.archive import GZIP, take_in
from tilewright.records.store import Store
from tilewright.runtime.schema import SchemaError, decode
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import RecordError, RecordWarning
from tilewright.support.files import write_whole

FRESH = 3600
"""Seconds after a request during which the server is not asked again."""
WAIT_SECONDS = 5.0
"""Seconds that a compile waits for an answer."""
MAX_ARCHIVE_BYTES = 1 << 31
"""Archives larger than this many bytes are not fetched."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class State:
    """The state of the copy of a web address's records: the folder of the records, the server's tag of this version,
    when the server was asked last."""

    folder: str = ""
    etag: str = ""
    modified: str = ""
    asked: int = 0


def is_address(text: str) -> bool:
    """Whether a text that names a place of records is a web address."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def mirror(address: str) -> Store:
    """The records of an address as a store on this machine, empty (with a warning) if they could never be fetched.
    Raises RecordError for an address that is not https (http is allowed for this machine only)."""
    check(address)
    place = flags.CACHE_DIR() / "records-remote" / blake2b(address.encode(), digest_size=16).hexdigest()
    state = _state(place)
    if abs(time.time() - state.asked) > FRESH or not (place / (state.folder or "-")).is_dir():
        try:
            state = _fetched(address, place, state)
        except (OSError, HTTPException, RecordError) as error:
            folder = "what was fetched before is used" if state.folder else "there are none"
            what = str(error).replace("\n", " ")
            warnings.warn(f"{address}: cannot fetch tuning records, {folder}: {what}", RecordWarning, stacklevel=4)
        _keep(place, State(state.folder, state.etag, state.modified, int(time.time())))
    return Store(place / (state.folder or "none"))


def check(address: str) -> None:
    """Raise RecordError for an address that is neither https nor http on this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if not host or (parts.scheme != "https" and not (parts.scheme == "http" and host in _LOCAL)):
        raise RecordError("no address of tuning records", where=address, expected="https://...", got=parts.scheme)


def download(address: str, file: IO[bytes], headers: dict[str, str] | None = None) -> State | None:
    """Fetch the archive at `address` into `file`, with the HTTP `headers` that say which state of it is known. Returns
    the new state; None if the server says that the archive is unchanged. Raises RecordError if it is too large."""
    request = urllib.request.Request(address, headers={"User-Agent": "tilewright", **(headers or {})})
    try:
        with only_safe().open(request, timeout=WAIT_SECONDS) as answer:
            for _ in range(MAX_ARCHIVE_BYTES >> 20):
                if not (block := answer.read(1 << 20)):
                    return State("", answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", ""))
                file.write(block)
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return None
        raise
    raise RecordError("the archive is too large", where=address, expected=f"at most {MAX_ARCHIVE_BYTES} bytes")


def only_safe() -> urllib.request.OpenerDirector:
    """An opener of web addresses that follows redirections only to addresses which `check` accepts."""
    return urllib.request.build_opener(_Checked)


class _Checked(urllib.request.HTTPRedirectHandler):
    """Follows redirections only to addresses which `check` accepts."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str, place: Path, state: State) -> State:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {"If-None-Match": state.etag, "If-Modified-Since": state.modified}
    known = (place / (state.folder or "-")).is_dir()
    with tempfile.NamedTemporaryFile(dir=place, prefix=".tmp-") as file:
        got = download(address, file, {k: v for k, v in names.items() if v and known})
        if got is None:
            return state
        file.flush()
        file.seek(0)
        if file.read(2) != GZIP:
            raise RecordError("no archive of tuning records", where=address)
        folder = Path(tempfile.mkdtemp(dir=place, prefix="v"))
        try:
            done = take_in(Path(file.name), Store(folder))
        except RecordError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    if done.damaged:
        warnings.warn(f"{address}: {done}", RecordWarning, stacklevel=5)
    fresh = State(folder.name, got.etag[:200], got.modified[:200], int(time.time()))
    _keep(place, fresh)
    if state.folder:
        shutil.rmtree(place / state.folder, ignore_errors=True)
    return fresh


def _state(place: Path) -> State:
    with contextlib.suppress(OSError, ValueError, SchemaError, RecursionError):
        state = decode(State, json.loads((place / "state.json").read_bytes()), "state")
        if re.fullmatch(r"v\w+|", state.folder) and state.etag.isprintable() and state.modified.isprintable():
            return state
    return State()


def _keep(place: Path, state: State) -> None:
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(place / "state.json", json.dumps(asdict(state)).encode())


__all__ = ["check", "download", "is_address", "mirror", "only_safe"]
