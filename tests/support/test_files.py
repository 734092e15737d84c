"""Files that appear whole, in place of what was there."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tilewright.support.files import replacing


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"before"
    mask = os.umask(0o027)
    try:
        with replacing(path) as file:
            file.write(b"after")
    finally:
        os.umask(mask)
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """A device too: `-o /dev/null` by root put a file in its place."""
    pipe, seen = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as file:
        file.write(b"a model")
    reader.join()
    assert seen == [b"a model"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_open_file_is_written_to_by_its_number(tmp_path: Path) -> None:
    """`-o /dev/stdout > model.tw` by root put a file in the place of the link /dev/stdout."""
    target, link = tmp_path / "model", tmp_path / "stdout"
    with target.open("wb") as opened:
        link.symlink_to(f"/proc/self/fd/{opened.fileno()}")
        for path in (link, Path(f"/proc/self/fd/{opened.fileno()}")):
            with replacing(path) as file:
                file.write(b"a model")
            assert target.read_bytes() == b"a model"
            target.write_bytes(b"")
    assert link.is_symlink() and sorted(p.name for p in tmp_path.iterdir()) == ["model", "stdout"]
