"""The object cache: what is damaged reads as absent, writers may race, the bound holds."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from tilewright.support.cache import ObjectCache
from tilewright.support.errors import CacheError

KEY = "0123456789abcdef"


def test_round_trip_and_miss(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    cache.put(KEY, b"newer")
    assert cache.get(KEY) == b"newer"
    assert cache.usage().entries == 1
    assert cache.clear().entries == 1
    assert cache.get(KEY) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "header", "foreign"])
def test_damaged_entries_are_ignored_and_replaced(tmp_path: Path, damage: str) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put(KEY, bytes(range(100)))
    path = next((tmp_path / "c").glob("*/*"))
    raw = bytearray(path.read_bytes())
    match damage:
        case "cut":
            raw = raw[:-1]
        case "flip":
            raw[-5] ^= 4
        case "empty":
            raw = bytearray()
        case "header":
            raw[10] ^= 1
        case "foreign":
            # an intact entry of another key, copied over this one
            cache.put("ff" + KEY, b"other")
            raw = bytearray((tmp_path / "c" / "ff" / ("ff" + KEY)).read_bytes())
    path.write_bytes(raw)
    assert cache.get(KEY) is None
    assert not path.exists()
    cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c", limit=10_000)
    now = time.time()
    for i in range(12):
        cache.put(f"key{i:02d}", bytes(1000))
        os.utime(cache._path(f"key{i:02d}"), (now - 100 + i, now - 100 + i))
    assert cache.get("key00") is not None  # makes it the newest
    cache.sweep()
    assert cache.usage().bytes <= 10_000
    assert cache.get("key00") is not None
    assert cache.get("key01") is None
    assert cache.get("key11") is not None


def test_too_large_is_not_retained(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c", limit=100)
    cache.put(KEY, bytes(1000))
    assert cache.get(KEY) is None


def test_leftovers_of_dead_writers_are_swept(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put(KEY, b"x")
    old = tmp_path / "c" / KEY[:2] / ".tmp-dead"
    young = tmp_path / "c" / KEY[:2] / ".tmp-alive"
    old.write_bytes(b"")
    young.write_bytes(b"")
    os.utime(old, (1, 1))
    cache.sweep()
    assert not old.exists()
    assert young.exists()
    assert cache.usage().entries == 1


@pytest.mark.parametrize("key", ["", "a", "../../etc", "a/b", "x" * 300, ".hidden"])
def test_keys_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(CacheError, match="not a key"):
        ObjectCache(tmp_path).put(key, b"")


def test_unusable_folder_is_a_miss(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = ObjectCache(tmp_path / "file" / "c")
    cache.put(KEY, b"x")
    assert cache.get(KEY) is None
    assert cache.usage().entries == 0


def test_folder_that_strangers_can_write_is_not_used(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put(KEY, b"x")
    (tmp_path / "c").chmod(0o777)
    assert cache.get(KEY) is None
    cache.put("ff" + KEY, b"x")
    (tmp_path / "c").chmod(0o700)
    assert cache.get("ff" + KEY) is None


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put(KEY, b"x")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    assert cache.get(KEY) is None


def _hammer(folder: Path, seed: int) -> int:
    cache = ObjectCache(folder, limit=40_000)
    bad = 0
    for i in range(150):
        key = f"key{(i * 7 + seed) % 20}"
        data = cache.get(key)
        bad += data is not None and data != key.encode() * 500
        cache.put(key, key.encode() * 500)
        if i % 10 == seed:
            cache.sweep()
    return bad


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.starmap(_hammer, [(tmp_path / "c", seed) for seed in range(4)]) == [0, 0, 0, 0]


def test_a_sweep_is_no_part_of_every_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep reads the whole folder, and each compilation makes a cache object of its own."""
    sweeps = []
    monkeypatch.setattr(ObjectCache, "sweep", lambda self: sweeps.append(self))
    for k in range(1200):
        ObjectCache(tmp_path).put(f"key{k}", b"data")
    assert 2 <= len(sweeps) <= 3
