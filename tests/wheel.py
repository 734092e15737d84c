"""`python -m tests.wheel` (`make wheel`): the wheel as it is published, in build/wheel, and its size against the bar.

pip builds it. Its modules are then written in fewer bytes (`tests/dense.py`), and Zopfli deflates all members once
more, with more effort than zlib: any installer reads them as before. `pip install .` needs none of this.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.dense import dense

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "wheel"
MAX_BYTES = 3_000_000
"""Bytes of the wheel at most."""
LOCAL, CENTRAL, END = "<4s5H3L2H", "<4s6H3L5H2L", "<4s4H2LH"
"""Records of an archive (PKWARE's APPNOTE, 4.3)."""
DEFLATED, VERSION, UNIX = zipfile.ZIP_DEFLATED, 20, 3

Deflate = Callable[[bytes], bytes]
"""A function that gives bytes as a raw stream of deflate."""


def by_zopfli(data: bytes) -> bytes:
    import zopfli.zlib  # which `make wheel` installs

    return bytes(zopfli.zlib.compress(data, numiterations=150))[2:-4]  # without zlib's head and checksum


def contents(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """An archive's members by name: modules in fewer bytes, and the wheel's record of that."""
    members = {}
    for name in archive.namelist():
        content = archive.read(name)
        members[name] = dense(content.decode()).encode() if name.endswith(".py") else content
    for name in members:
        if name.endswith(".dist-info/RECORD"):
            members[name] = recorded(members[name].decode(), members).encode()
    return members


def recorded(record: str, members: Mapping[str, bytes]) -> str:
    """A wheel's record, with the digests and sizes of these members (PEP 427, "The .dist-info directory")."""
    lines = io.StringIO(newline="")
    write = csv.writer(lines, lineterminator="\n").writerow
    for name, digest, _ in csv.reader(io.StringIO(record)):
        if digest:
            code = base64.urlsafe_b64encode(hashlib.sha256(members[name]).digest()).decode().rstrip("=")
            write((name, f"sha256={code}", len(members[name])))
        else:
            write((name, "", ""))
    return lines.getvalue()


def pack(source: Path, to: Path, deflate: Deflate) -> None:
    """Write a wheel's members to another one in their order, modules in fewer bytes, all deflated by `deflate`."""
    entries = []
    with zipfile.ZipFile(source) as archive, to.open("wb") as out:
        members = contents(archive)
        for info in archive.infolist():
            content, name = members[info.filename], info.filename.encode()
            data, (year, month, day, hour, minute, second) = deflate(content), info.date_time
            date, clock = (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2
            common = (VERSION, 0, DEFLATED, clock, date, zlib.crc32(content), len(data), len(content), len(name), 0)
            version = UNIX << 8 | VERSION
            place = out.tell()
            entries.append(struct.pack(CENTRAL, b"PK\1\2", version, *common, 0, 0, 0, info.external_attr, place) + name)
            out.write(struct.pack(LOCAL, b"PK\3\4", *common) + name + data)
        directory, place = b"".join(entries), out.tell()
        out.write(directory + struct.pack(END, b"PK\5\6", 0, 0, len(entries), len(entries), len(directory), place, 0))


def main() -> int:
    built = FOLDER / "built"
    for stale in (built, ROOT / "build" / "lib"):  # where setuptools would find modules that are no more
        shutil.rmtree(stale, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(ROOT)], check=True
    )
    (source,) = built.glob("tilewright-*.whl")
    result = FOLDER / source.name
    pack(source, result, by_zopfli)
    size = result.stat().st_size
    print(f"{result.relative_to(ROOT)}: {size:,} bytes, {source.stat().st_size:,} by zlib; at most {MAX_BYTES:,}")
    return int(size > MAX_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
