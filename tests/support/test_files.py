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
