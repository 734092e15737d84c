"""Processes of all kinds on one store: forked, spawned, many, stopped; threads of one; Python does not track our
files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.live.store.lab import (
    BACK,
    CALLS,
    DEPTH,
    ONES,
    ROOT,
    TORN,
    VERSION,
    Board,
    Nursery,
    is_whole,
    telling_weights,
    wait_until,
)
from tilewright.live import store as weights

NAME = "telling"


@pytest.fixture
def publisher(store: Path, telling: tuple[Path, Path]) -> Iterator[tw.Publisher]:
    with tw.Publisher(NAME, tw.load(telling[0])) as result:
        yield result


def publish(publisher: tw.Publisher, count: int = 1) -> int:
    for _ in range(count):
        version = publisher.version + 1
        publisher.publish(telling_weights(version), version=version)
    return publisher.version


def in_child(work: Callable[[], bool]) -> bool:
    """Run in a forked child; whether it gave True. A child that hangs is killed after a while."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


# -- fork and spawn ----------------------------------------------------------------------------------------------------


def test_fork_after_import(publisher: tw.Publisher) -> None:
    version = publish(publisher)

    def work() -> bool:
        with tw.attach(NAME) as actor:
            y, seen = actor.versioned(ONES)
            return seen == version and is_whole(y, version)

    assert in_child(work)


def test_fork_after_attach(publisher: tw.Publisher) -> None:
    """The child's actor is its own: it follows the versions, its death frees nothing of the parent's."""
    publish(publisher)
    with tw.attach(NAME) as actor:
        actor(ONES)
        ready, go = multiprocessing.Pipe(), multiprocessing.Pipe()

        def work() -> bool:
            y, seen = actor.versioned(ONES)
            good = is_whole(y, seen)
            ready[0].send(seen)
            go[1].recv()
            for _ in range(50):
                y, seen = actor.versioned(ONES)
                good &= is_whole(y, seen)
            return good and seen >= 12

        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(in_child(work)))
        thread.start()
        assert ready[1].poll(20)
        publish(publisher, 12)
        go[0].send(None)
        thread.join()
        assert results == [True]
        for _ in range(20):
            version = publish(publisher)
            y, seen = actor.versioned(ONES)
            assert seen == version
            assert is_whole(y, seen)


def test_fork_where_no_place_is_left(publisher: tw.Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's actor is detached: a call on the parent's place would be unsafe once the parent has gone."""
    version = publish(publisher)
    with tw.attach(NAME) as actor:
        monkeypatch.setattr("tilewright.live.store.epoch.MAX_READERS", 1)

        def work() -> bool:
            with pytest.raises(tw.Error, match="detached"):
                actor(ONES)
            return True

        assert in_child(work)
        assert is_whole(actor(ONES), version)


def test_child_killed_in_a_call_after_fork(publisher: tw.Publisher) -> None:
    """A forked child that dies holds no slot for ever, and it did not give up its parent's claim."""
    publish(publisher)
    with tw.attach(NAME) as actor:
        actor(ONES)
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                while True:
                    actor(ONES)
            time.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            version = publish(publisher, 5)
            y, seen = actor.versioned(ONES)
            assert seen == version
            assert is_whole(y, seen)
    assert weights.info(NAME).version == version


def test_fork_of_a_publisher(publisher: tw.Publisher) -> None:
    """A forked child does not end the parent's reign, whether it leaves quietly or publishes: that it may not."""
    publish(publisher)

    def work() -> bool:
        try:
            publisher.publish(telling_weights(publisher.version + 1))
        except tw.Error as error:
            return "fork" in str(error) or "process" in str(error)
        return False

    assert in_child(work)
    assert in_child(lambda: publisher.close() is None)
    with pytest.raises(tw.Error, match=r"publish"):
        tw.Publisher(NAME, publisher.program)
    version = publish(publisher, 8)
    with tw.attach(NAME) as actor:
        assert actor.version == version


SPAWNED = """
import sys, numpy as np, tilewright as tw
actor = tw.attach("telling")
y, version = actor.versioned(np.ones((1, 256), np.float32))
compilers = [m for m in sys.modules if m.startswith("tilewright.") and m.split(".")[1] in
             ("compiler", "kernels", "codegen", "transform", "plans", "ops", "frontend", "schedule", "te", "arith")]
print(version, float(y.min()), float(y.max()), compilers, [m for m in ("onnx", "torch", "typer", "rich", "tvm_ffi")
                                                           if m in sys.modules])
"""


def test_fresh_process_needs_no_compiler(publisher: tw.Publisher) -> None:
    version = publish(publisher, 3)
    result = subprocess.run(
        [sys.executable, "-c", SPAWNED],
        capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    # initial, 1, 2, 3: the value of version v is v + 1
    answer = float(DEPTH * (version % 4093 + 1))
    assert result.stdout.split(maxsplit=3) == [str(version), str(answer), str(answer), "[] []\n"]


def _spawned(name: str, results: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    with tw.attach(name) as actor:
        y, version = actor.versioned(ONES)
        results.put((version, is_whole(y, version)))


def test_multiprocessing_spawn(publisher: tw.Publisher) -> None:
    """The resource tracker of a child that ends does not take the segments with it (cpython 82300)."""
    version = publish(publisher, 2)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_spawned, args=(NAME, results))
    child.start()
    assert results.get(timeout=60) == (version, True)
    child.join(30)
    assert child.exitcode == 0
    version = publish(publisher, 3)
    with tw.attach(NAME) as actor:
        assert is_whole(actor(ONES), version)


def test_the_resource_tracker_is_not_asked(publisher: tw.Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import resource_tracker

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"registered {arguments}")

    monkeypatch.setattr(resource_tracker, "register", refuse)
    publish(publisher, 5)
    with tw.attach(NAME) as actor:
        assert is_whole(actor(ONES), actor.version)
    with tw.Publisher("another", publisher.program):
        pass


# -- many --------------------------------------------------------------------------------------------------------------


def test_64_readers(publisher: tw.Publisher, store: Path, tmp_path: Path) -> None:
    publish(publisher)
    with Nursery(store) as nursery:
        board = Board(tmp_path / "board", 64)
        place = [str(board.path), board.rows]
        pids = [nursery.start("read", board=place, row=row, name=NAME, calls=20, pause=0.001) for row in range(64)]
        assert wait_until(lambda: bool((board.words[:, CALLS] > 0).all()), 60)
        version = publish(publisher, 20)
        assert all(nursery.wait(pid, 60) for pid in pids)
        failures = Path(f"{board.path}.failures")
        assert not failures.exists(), failures.read_text()
        assert (board.words[:, CALLS] == 20).all()
        assert not board.words[:, [TORN, BACK]].any()
        assert board.words[:, VERSION].max() <= version
    # All gone: their entries are free again.
    with tw.attach(NAME) as actor:
        assert is_whole(actor(ONES), version)


def test_actors_that_close_give_their_place_back(publisher: tw.Publisher) -> None:
    version = publish(publisher)
    for _ in range(1500 if os.environ.get("TILEWRIGHT_FUZZ") else 60):
        with tw.attach(NAME) as actor:
            assert actor.version == version
    assert is_whole(tw.attach(NAME)(ONES), version)


def test_several_actors_in_one_process(publisher: tw.Publisher) -> None:
    actors = [tw.attach(NAME) for _ in range(20)]
    for _ in range(5):
        version = publish(publisher)
        for actor in actors:
            y, seen = actor.versioned(ONES)
            assert seen == version
            assert is_whole(y, seen)
    for actor in actors:
        actor.close()


@pytest.fixture
def hurry() -> Iterator[None]:
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def in_threads(count: int, work: Callable[[Callable[[], bool]], None], meanwhile: Callable[[], object]) -> None:
    """Run `work(going)` in threads for as long as `meanwhile()` takes."""
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(lambda: not stop.is_set(),)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_threads_while_versions_change(publisher: tw.Publisher, hurry: None) -> None:
    """Threads share an actor; outputs are whole, go forward, and carry the version that made them."""
    publish(publisher)
    wrong = []
    with tw.attach(NAME) as actor:

        def work(going: Callable[[], bool]) -> None:
            last = 0
            while going():
                y, version = actor.versioned(ONES)
                if version < last or not is_whole(y, version):
                    wrong.append((last, version, y.min(), y.max()))
                last = version

        in_threads(4, work, lambda: publish(publisher, 150))
    assert not wrong


def test_threads_while_structures_change(store: Path, telling: tuple[Path, Path], hurry: None) -> None:
    """The old structure's memory stays for the calls that are in it; each thread's next call is in the new one."""
    models = [tw.load(path) for path in telling]
    several = np.ones((64, DEPTH), np.float32)
    wrong: list[object] = []
    with tw.Publisher(NAME, models[0]):
        actor = tw.attach(NAME)

    def work(going: Callable[[], bool]) -> None:
        while going():
            y, version = actor.versioned(several)
            if not is_whole(y, version):
                wrong.append((version, y.shape, y.min(), y.max()))

    def meanwhile() -> None:
        for number in range(1, 200 if os.environ.get("TILEWRIGHT_FUZZ") else 12):
            model = models[number % 2]
            with tw.Publisher(NAME, model) as publisher:
                for _ in range(3):
                    version = publisher.version + 1
                    publisher.publish(telling_weights(version, model.params[0].shape[1]), version=version)
            if number % 4 == 0:
                gc.collect()

    in_threads(4, work, meanwhile)
    assert not wrong
    assert actor(ONES).shape == (1, models[1].params[0].shape[1])
    actor.close()


def test_closing_while_threads_call(publisher: tw.Publisher, hurry: None) -> None:
    """A call that is under way when the actor is closed ends well; later ones are refused."""
    publish(publisher)
    several = np.ones((256, DEPTH), np.float32)
    wrong: list[object] = []
    for _ in range(5):
        actor = tw.attach(NAME)
        refused = []

        def work(going: Callable[[], bool], actor: tw.Actor = actor, refused: list[str] = refused) -> None:
            while going():
                try:
                    y, version = actor.versioned(several)
                except tw.Error as error:
                    refused.append(str(error))
                    return
                if not is_whole(y, version):
                    wrong.append((version, y.min(), y.max()))

        def meanwhile(actor: tw.Actor = actor, refused: list[str] = refused) -> None:
            time.sleep(0.01)
            actor.close()
            publish(publisher, 12)
            assert wait_until(lambda: len(refused) == 3)

        in_threads(3, work, meanwhile)
        assert all("detached" in text or "closed" in text for text in refused)
    assert not wrong


# -- stopped -----------------------------------------------------------------------------------------------------------


def test_stopped_inside_a_call(publisher: tw.Publisher, store: Path, tmp_path: Path) -> None:
    """Readers that are stopped anywhere, inside calls mostly, hold up no publisher, and go on unharmed."""
    publish(publisher)
    with Nursery(store) as nursery:
        board = Board(tmp_path / "board", 2)
        place = [str(board.path), board.rows]
        pids = [nursery.start("read", board=place, row=row, name=NAME) for row in range(2)]
        assert wait_until(lambda: bool((board.words[:, CALLS] > 0).all()))
        for _ in range(3):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            version = publish(publisher, 100)
            assert time.monotonic() - start < 20
            with tw.attach(NAME) as actor:
                assert is_whole(actor(ONES), version)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            wanted = [version, version]
            assert wait_until(lambda wanted=wanted: board.words[:, VERSION].tolist() == wanted)  # type: ignore[misc]
        failures = Path(f"{board.path}.failures")
        assert not failures.exists(), failures.read_text()
        assert not board.words[:, [TORN, BACK]].any()


def test_arrays_that_were_passed_out_stay(publisher: tw.Publisher) -> None:
    """Outputs are the caller's: later versions do not write into them."""
    publish(publisher)
    with tw.attach(NAME) as actor:
        retained = [(actor.version, actor(ONES)) for _ in range(5) if publish(publisher)]
        publish(publisher, 10)
        for version, y in retained:
            assert is_whole(np.asarray(y), version)
