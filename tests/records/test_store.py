"""Stores of records: found again, shared by processes, damage left out with one warning."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.samples import HASWELL, PROVENANCE, ZEN4, product, record
from tilewright.plans.framework.decision_key import target_class
from tilewright.records.store import Store, class_name, folder_name
from tilewright.support.errors import RecordError, RecordWarning

ZEN = target_class(ZEN4)


def test_what_is_put_is_located(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    assert store.classes() == () and store.find(product(8).name, ZEN) == ()
    old = record(8)
    new = replace(old, provenance=replace(PROVENANCE, time=PROVENANCE.time + 1))
    digests = [store.put(r) for r in (old, new, record(9), record(8, target=HASWELL))]
    assert store.put(old) == digests[0]  # the same file
    assert store.find(product(8).name, ZEN) == (new, old)
    assert store.get(digests[2], ZEN) == record(9)
    assert store.get(digests[2], target_class(HASWELL)) is None
    assert set(store.classes()) == {ZEN, target_class(HASWELL)}
    assert {r.digest for r in store.records()} == set(digests)
    assert store.remove(digests[0], ZEN) and not store.remove(digests[0], ZEN)
    assert store.find(product(8).name, ZEN) == (new,)


@given(st.lists(st.from_regex(r"[A-Za-z0-9_.+=-]{1,9}", fullmatch=True), min_size=1, max_size=5))
def test_folders_stand_for_one_class(words: list[str]) -> None:
    name = " ".join(words)
    folder = folder_name(name)
    assert " " not in folder and "/" not in folder
    if not any(word.startswith("_") or word.endswith("_") for word in words):
        assert class_name(folder) == name


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "renamed", "elsewhere", "huge"])
def test_a_damaged_file_is_left_out_with_one_warning(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    good, bad = store.put(record(8)), store.put(record(9))
    path = store.path(bad, ZEN)
    raw = bytearray(path.read_bytes())
    match damage:
        case "cut":
            path.write_bytes(raw[:-3])
        case "flip":
            raw[raw.index(b"1.04") + 3] ^= 1
            path.write_bytes(raw)
        case "empty":
            path.write_bytes(b"")
        case "foreign":
            path.write_bytes(b"\x7fELF" * 100)
        case "renamed":
            path.write_bytes(store.path(good, ZEN).read_bytes())
        case "elsewhere":
            path.unlink()
            other = Store(tmp_path / "other")
            path.write_bytes(other.path(other.put(record(9, target=HASWELL)), target_class(HASWELL)).read_bytes())
            path = path.rename(store.path(record(9, target=HASWELL).digest, ZEN))
        case "huge":
            path.write_bytes(raw + b" " * (1 << 21))
    with pytest.warns(RecordWarning, match=f"{path.name}: the tuning record is left out"):
        assert list(store.records(ZEN)) == [record(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(store.records(ZEN)) == [record(8)]


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot keep a record"):
        Store(tmp_path / "file").put(record())


def test_merging_is_a_union(tmp_path: Path) -> None:
    """Copying files is merging: in any order, any number of times."""
    a, b = Store(tmp_path / "a"), Store(tmp_path / "b")
    for rows in range(4):
        a.put(record(rows + 1))
        b.put(record(rows + 3))
    for source, goal in (("a", "b"), ("b", "a"), ("a", "b")):
        shutil.copytree(tmp_path / source, tmp_path / goal, dirs_exist_ok=True)
    assert list(a.records()) == list(b.records()) and len(list(a.records())) == 6


def test_unfinished_files_are_not_records(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path(store.put(record()), ZEN)
    (path.parent / ".tmp-left").write_bytes(path.read_bytes())
    (path.parent / "notes.txt").write_text("")
    os.mkdir(path.parent / "folder")
    assert len(list(store.records())) == 1
    assert [p.name for p in store.leftovers()] == [".tmp-left"]
