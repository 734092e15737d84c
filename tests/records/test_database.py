"""Stores compared, merged, exported, tidied and read from a server; indexes that are damaged or old."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plans.framework.test_decisions import model
from tests.records.samples import HASWELL, LABELS, POLICY, PROVENANCE, ZEN4, product, record, target_class
from tilewright.identity import code_version
from tilewright.plans import candidates
from tilewright.plans.framework.analysis import analyse
from tilewright.plans.framework.decision_key import key_of_function
from tilewright.plans.framework.space import Setting, Space
from tilewright.records import remote
from tilewright.records.archive import HEADER, export, take_in
from tilewright.records.check import checked
from tilewright.records.database import difference, everything, find, merge, remove, statistics, superfluous
from tilewright.records.index import Index, distance, form_of
from tilewright.records.lookup import index_of, lookup, nearest, seeds
from tilewright.records.places import stores
from tilewright.records.record import NONE, Provenance, Record
from tilewright.records.store import Store
from tilewright.support.errors import RecordError, RecordWarning
from tilewright.transform.graph.fuse import fuse
from tilewright.transform.lower import lower_group

ZEN = target_class(ZEN4)
POOL = [record(rows, target=target) for rows in range(1, 7) for target in (ZEN4, HASWELL)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def filled(folder: Path, records: list[Record]) -> Store:
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder)
    for r in records:
        store.put(r, durable=False)
    return store


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*.json"))}


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, len(POOL) - 1), max_size=6), min_size=2, max_size=3), st.randoms())
def test_a_merge_is_the_union_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, sets: list[list[int]], rng: random.Random
) -> None:
    root = tmp_path_factory.mktemp("merge")
    folders = [filled(root / f"s{k}", [POOL[i] for i in chosen]).folder for k, chosen in enumerate(sets)]
    archive = root / "last.twr"
    export(everything(Store(folders[-1])), archive)
    sources = [*folders[:-1], archive]
    once, often = root / "once", root / "often"
    (root / "empty").mkdir()
    merge([*sources, root / "empty"], Store(once))
    repeated = [*sources, *sources]
    rng.shuffle(repeated)
    for source in repeated:
        merge([source], Store(often))
    assert content(once) == content(often)
    assert set(content(once)) == {
        Store(once).path(POOL[i].digest, POOL[i].target).relative_to(once).as_posix() for s in sets for i in s
    }


def test_archives_of_equal_sets_are_equal(tmp_path: Path) -> None:
    a, b = filled(tmp_path / "a", POOL), filled(tmp_path / "b", POOL[::-1])
    assert export(everything(a), tmp_path / "a.twr") == export(everything(b), tmp_path / "b.twr") == len(POOL)
    assert (tmp_path / "a.twr").read_bytes() == (tmp_path / "b.twr").read_bytes()
    done = take_in(tmp_path / "a.twr", Store(tmp_path / "c"))
    assert (done.new, done.known, done.damaged) == (len(POOL), 0, [])
    assert content(tmp_path / "c") == content(a.folder)
    assert str(take_in(tmp_path / "a.twr", Store(tmp_path / "c"))) == f"0 new, {len(POOL)} known"


def test_an_import_mends_what_is_damaged_and_tells_new_from_known(tmp_path: Path) -> None:
    """The files are listed once; a record that the archive has twice is known the second time."""
    source = filled(tmp_path / "a", POOL)
    export(everything(source), tmp_path / "a.twr")
    goal = filled(tmp_path / "b", POOL[:2])
    goal.path(POOL[0].digest, POOL[0].target).write_bytes(b"{}")
    done = take_in(tmp_path / "a.twr", goal)
    assert (done.new, done.known) == (len(POOL) - 1, 1)
    assert content(goal.folder) == content(source.folder)
    twice = tmp_path / "twice.twr"
    twice.write_bytes(gzip.compress(HEADER + POOL[0].to_bytes() * 2))
    done = take_in(twice, Store(tmp_path / "c"))
    assert (done.new, done.known) == (1, 1)


def test_damaged_archives_are_refused_and_damaged_lines_left_out(tmp_path: Path) -> None:
    good = POOL[0].to_bytes()
    lines = [
        good,
        good.replace(b"matmul", b"matmux", 1)[:-5] + b"\n",
        b"[" * 10000 + b"\n",
        b"x" * (3 << 20) + b"\n",
        POOL[1].to_bytes(),
    ]
    path = tmp_path / "a.twr"
    path.write_bytes(gzip.compress(HEADER + b"".join(lines)))
    done = take_in(path, Store(tmp_path / "s"))
    assert done.new == 2 and len(done.damaged) >= 3
    for raw, message in (
        (gzip.compress(b"tilewright records 2\n"), "no archive of tuning records.*newer version"),
        (gzip.compress(b"else"), "no archive of tuning records"),
        (path.read_bytes()[:-20], "the archive is damaged"),
        (b"\x1f\x8b" + bytes(40), "the archive is damaged"),
    ):
        path.write_bytes(raw)
        with pytest.raises(RecordError, match=f"(?s){message}"):
            take_in(path, Store(tmp_path / "t"))
    with pytest.raises(RecordError, match="cannot be read"):
        take_in(tmp_path / "none.twr", Store(tmp_path / "t"))
    single = tmp_path / "record.json"
    single.write_bytes(good)
    assert take_in(single, Store(tmp_path / "t")).new <= 1


def test_stores_are_compared(tmp_path: Path) -> None:
    other = record(2, setting=LABELS[1])
    a, b = filled(tmp_path / "a", [record(1), record(2)]), filled(tmp_path / "b", [record(1), other])
    result = difference(a, b)
    assert [n for n, _ in result.left] == [record(2).digest] and [n for n, _ in result.right] == [other.digest]
    assert [(x.setting, y.setting) for x, y in result.changed] == [(LABELS[2], LABELS[1])]
    assert [n for n, _ in find(a, record(1).digest[:8])] == [record(1).digest]
    assert [r for _, r in find(a, product(2).name)] == [record(2)]


def test_a_store_is_summed_up(tmp_path: Path) -> None:
    mine = replace(PROVENANCE, compiler=code_version())
    s = statistics(
        filled(
            tmp_path,
            [record(1), record(2, provenance=mine), record(3, setting=LABELS[0], gain=NONE), record(1, target=HASWELL)],
        )
    )
    assert (s.records, s.current, s.decisions, s.faster, s.candidates, s.failed) == (4, 1, 4, 3, 12, 0)
    assert s.gain == pytest.approx(1.04) and s.classes[ZEN] == 3 and s.kinds["algorithm"] == 4


def test_pruning_keeps_what_counts(tmp_path: Path) -> None:
    mine = replace(PROVENANCE, compiler=code_version())
    later = replace(mine, time=mine.time + 1)
    retained = [record(1, provenance=later), record(1, target=HASWELL), record(2)]
    store = filled(tmp_path, [*retained, record(1, provenance=mine)])
    damaged = store.path(store.put(record(9)), ZEN)
    damaged.write_bytes(b"{}")
    left = damaged.parent / ".tmp-old"
    left.write_bytes(b"")
    os.utime(left, (1, 1))
    (damaged.parent / ".tmp-young").write_bytes(b"")
    files = superfluous(store)
    assert {(f.path.name, f.why.split(":")[0]) for f in files} == {
        (f"{record(1, provenance=mine).digest}.json", "a later one replaces it"),
        (damaged.name, "damaged"),
        (".tmp-old", "left by a writer that died"),
    }
    assert not any(f.asks for f in files)
    assert remove(files) == 3
    assert {n for n, _ in everything(store)} == {r.digest for r in retained} and not superfluous(store)
    assert [f.asks for f in superfluous(store, others=True)] == [True, True]


def test_neighbours_are_seeds(tmp_path: Path) -> None:
    store = filled(tmp_path, [record(rows) for rows in (1, 9, 64)] + [record(8, target=HASWELL)])
    space = Space(tuple(map(Setting.parse, (*LABELS[:2], "winograd rows=2,tile=5"))))
    result = seeds([store], product(8), ZEN4, space)
    assert [(s.setting.label, s.target) for s in result] == [("winograd rows=2,tile=5", ZEN)]
    assert result[0].record == record(9).digest and 0.1 < result[0].distance < 0.2
    assert seeds([store], product(8, target=HASWELL), HASWELL, space)[0].distance == 0.0
    assert seeds([Store(tmp_path / "none")], product(8), ZEN4, space) == []
    assert nearest(Setting.parse("fourier tile=3"), space) is None
    assert form_of("a(f32[1, 20], -3)") == form_of("a(f32[8, 2], 1)")[:1] + ((1, 20, -3),)
    assert form_of("a(f32[1])")[0] != form_of("a(f64[1])")[0]
    assert distance((1, 4), (1, 9)) == 1.0


def age(store: Store) -> None:
    """Change the times of a store as if it was not written for a while."""
    for folder in store.folder.iterdir():
        os.utime(folder, (time.time() - 60,) * 2)


def test_an_index_follows_its_folder(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", POOL)
    index = Index(store, ZEN, tmp_path / "i")
    for _ in range(2):  # young and unchanged
        index.refresh()
        assert [r.digest for r in index.find(product(1).name)] == [POOL[0].digest]
        age(store)
    assert index.stamp and not Index(Store(tmp_path / "t"), ZEN).stamp
    new = record(1, provenance=replace(PROVENANCE, time=7))
    store.put(new)
    index.refresh()
    assert {r.digest for r in index.find(product(1).name)} == {POOL[0].digest, new.digest}
    store.remove(POOL[0].digest, ZEN)
    index.refresh()
    assert [r.digest for r in index.find(product(1).name)] == [new.digest]
    assert [r.digest for r in Index(store, ZEN, tmp_path / "i").find(product(1).name)] == [new.digest]
    assert not list((tmp_path / "i").glob(".tmp-*"))


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "foreign", "flip", "folder"])
def test_a_damaged_index_is_recreated(tmp_path: Path, damage: str) -> None:
    store = filled(tmp_path / "s", POOL)
    age(store)
    Index(store, ZEN, tmp_path / "i").refresh()
    (path,) = (tmp_path / "i").iterdir()
    raw = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(raw[: len(raw) // 2])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("not SQLite")
        case "foreign":
            path.unlink()
            with sqlite3.connect(path) as db:
                db.execute("CREATE TABLE record (digest TEXT)")
            db.close()
        case "flip":
            path.write_bytes(raw[:100] + bytes(b ^ 0xFF for b in raw[100:]))
        case "folder":
            path.unlink()
            path.mkdir()
    assert [r.digest for r in Index(store, ZEN, tmp_path / "i").find(product(1).name)] == [POOL[0].digest]


def test_an_index_needs_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    index = Index(filled(tmp_path / "s", POOL), ZEN, tmp_path / "file")
    assert [r.digest for r in index.find(product(2).name)] == [record(2).digest]


def test_a_lookup_asks_all_places_at_once(tmp_path: Path) -> None:
    a, b = filled(tmp_path / "a", [record(1)]), filled(tmp_path / "b", [record(1), record(2)])
    result = lookup([a, b, Store(tmp_path / "none")], ZEN4)
    assert result is not None and not result.stamp
    assert [[n for n, _ in result.find(product(k).name)] for k in (1, 2, 3)] == [
        [record(1).digest],
        [record(2).digest],
        [],
    ]
    age(a), age(b)
    assert lookup([a, b], ZEN4).stamp != lookup([b, a], ZEN4).stamp != ""  # type: ignore[union-attr]
    assert lookup([a], HASWELL) is None
    assert index_of(a, ZEN) is index_of(Store(tmp_path / "a"), ZEN)


def test_records_are_checked() -> None:
    assert checked(record(), ZEN4).state == "unknown"
    assert checked(record(), HASWELL).why == "about other machines"
    broken = replace(record(), workload="graph")
    assert checked(broken, ZEN4).state == "unusable"


def test_records_about_kernels_are_replayed() -> None:
    (group,) = fuse(model((1, 16, 16, 12, 3, 1, 1)))
    func = lower_group(group, "k").func
    labels = [c.label for c in candidates(analyse(func), ZEN4)]
    mine = replace(PROVENANCE, compiler=code_version())

    def verdict(setting: str, created: Provenance = mine) -> tuple[str, str]:
        gain = NONE if setting == labels[0] else record().gain
        values = {"untuned": labels[0], "policy": POLICY, "candidates": (), "gain": gain, "provenance": created}
        result = checked(Record.of(key_of_function(func, ZEN4), ZEN4, labels, setting=setting, **values), ZEN4)
        return result.state, result.why

    assert verdict(labels[0]) == ("used", "")
    assert verdict(labels[0], PROVENANCE) == ("unverified", "measured with another compiler")
    assert verdict("direct rows=999") == ("unusable", "not among the settings here")


def test_a_place_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_RECORDS", str(tmp_path / "none"))
    with pytest.warns(RecordWarning, match="no such folder of tuning records"):
        assert len(stores()) == 3


class Server(BaseHTTPRequestHandler):
    """Serves `body` with an ETag; counts what it is asked."""

    body = b""
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("If-None-Match", ""))
        tag = f'"{hash(self.body)}"'
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "http://example.org/records.twr")
            self.end_headers()
            return
        self.send_response(304 if self.headers.get("If-None-Match") == tag else 200)
        self.send_header("ETag", tag)
        self.end_headers()
        if self.headers.get("If-None-Match") != tag:
            self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Server]]]:
    handler = type("Handler", (Server,), {"asked": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=partial(http.serve_forever, 0.01), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}/records.twr", handler
    http.shutdown()
    http.server_close()
    thread.join()


def test_records_of_a_server(tmp_path: Path, server: tuple[str, type[Server]], monkeypatch: pytest.MonkeyPatch) -> None:
    address, handler = server
    for name, chosen in (("one", POOL[:3]), ("two", POOL[2:5])):
        export(((r.digest, r) for r in chosen), tmp_path / name)
    handler.body = (tmp_path / "one").read_bytes()
    monkeypatch.setenv("TILEWRIGHT_RECORDS", address)
    for _ in range(2):  # fetched once
        assert {n for n, _ in everything(stores()[1])} == {r.digest for r in POOL[:3]}
    assert handler.asked == [""]
    clock = itertools.count(time.time() + remote.FRESH + 9, 2 * remote.FRESH)
    monkeypatch.setattr(remote.time, "time", lambda: next(clock))
    assert len(list(everything(remote.mirror(address)))) == 3 and handler.asked[-1] != ""
    handler.body = (tmp_path / "two").read_bytes()
    assert {n for n, _ in everything(remote.mirror(address))} == {r.digest for r in POOL[2:5]}
    handler.body = b"<html>not found</html>"
    with pytest.warns(RecordWarning, match="what was fetched before is used"):
        assert len(list(everything(remote.mirror(address)))) == 3


def test_a_server_that_is_down_is_a_warning(server: tuple[str, type[Server]]) -> None:
    address, _ = server
    with pytest.warns(RecordWarning, match="cannot fetch tuning records, there are none"):
        assert list(everything(remote.mirror("http://127.0.0.1:9/records.twr"))) == []
    with warnings.catch_warnings():  # no call waits for it again soon
        warnings.simplefilter("ignore")
        remote.mirror("http://127.0.0.1:9/records.twr")
    with pytest.warns(RecordWarning, match="no address of tuning records"):
        remote.mirror(address.replace("records.twr", "away"))


@pytest.mark.parametrize(
    "address", ["http://example.org/r.twr", "ftp://x/y", "https://", "file:///etc/passwd", "https://[/x"]
)
def test_addresses_are_https(address: str) -> None:
    with pytest.raises(RecordError, match="no address of tuning records"):
        remote.mirror(address)
