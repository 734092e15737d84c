"""Flags: typed values, clear errors, one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.support import flags
from tilewright.support.errors import FlagError


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in flags.table():
        monkeypatch.delenv(flag.name, raising=False)
        flag()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert flags.CACHE_DIR() == Path("/x/tilewright")
    assert flags.DEBUG() == 0


@pytest.mark.parametrize(("text", "value"), [("4096", 4096), ("512M", 512 << 20), ("2g", 2 << 30), ("1 GiB", 1 << 30)])
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, value: int) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_SIZE", text)
    assert flags.CACHE_SIZE() == value


def test_names_of_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DUMP", " fold scales,, merge loops ")
    assert flags.DUMP() == ("fold scales", "merge loops")


@pytest.mark.parametrize(
    ("name", "text"),
    [("DEBUG", "6"), ("DEBUG", "-1"), ("DEBUG", "high"), ("THREADS", "0"), ("CACHE_SIZE", "lots"), ("CACHE", "maybe")],
)
def test_bad_values_name_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(f"TILEWRIGHT_{name}", text)
    with pytest.raises(FlagError, match=f"TILEWRIGHT_{name}.*expected.*got '{text}'"):
        getattr(flags, name)()


def test_every_flag_is_in_the_table() -> None:
    declared = {value.name for value in vars(flags).values() if isinstance(value, flags.Flag)}
    assert declared == {flag.name for flag in flags.table()}
    assert all(name in flags.markdown() for name in declared)
