"""Where a store stands: names, rights, room; files that are damaged, cut, foreign or of another version."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.live.store.lab import ONES, ROOT, is_whole, telling_weights
from tests.runtime.programs import affine
from tilewright.live import store as weights
from tilewright.live.store.epoch import Epoch
from tilewright.live.store.inventory import describe_epoch
from tilewright.live.store.segment import IDLE
from tilewright.runtime import artifact
from tilewright.runtime.model import Model
from tilewright.runtime.weights.control import ABI_VERSION, HEAD, NONE, READER, SLOTS
from tilewright.support.errors import ArtifactError, StoreError

NAME = "telling"
X = np.zeros(4, np.float32)


def numbers(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full((2, 3), value, np.float32), "scale": np.array([value], np.float32)}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "../up", "a\0b", "x" * 300, "a\nb", " ", "-rf"])
def test_names_that_cannot_be(store: Path, name: str) -> None:
    """Impossible names are refused everywhere, with the name in the message, and nothing is made."""
    for action in (
        lambda: tw.Publisher(name, Model(affine())),
        lambda: tw.attach(name),
        lambda: weights.info(name),
    ):
        with pytest.raises(tw.Error) as caught:
            action()
        assert "name" in str(caught.value) or "store" in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("name", ["policy", "a.b-c_d", "policy@2", "x" * 60, "7"])
def test_names_that_can_be(store: Path, name: str) -> None:
    with tw.Publisher(name, Model(affine())) as publisher:
        publisher.publish(numbers(4))
        with tw.attach(name) as actor:
            assert actor(X)[1][0] == 4
            assert actor.name
    assert [candidate.name for candidate in weights.stores()] == [name]


def test_nothing_there(store: Path) -> None:
    with pytest.raises(tw.Error) as caught:
        tw.attach("nobody")
    assert "nobody" in str(caught.value)
    assert weights.stores() == []
    assert not list(store.iterdir()), "looking makes nothing"


# -- rights ------------------------------------------------------------------------------------------------------------


def test_only_the_owner_may_look(store: Path, telling: tuple[Path, Path]) -> None:
    umask = os.umask(0)
    try:
        with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
            publisher.publish(telling_weights(1))
    finally:
        os.umask(umask)
    for path in [store / NAME, *(store / NAME).rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = 0o700 if path.is_dir() else 0o400 if path.name == "program.tw" else 0o600
        assert path.is_symlink() or mode == wanted, path


AS_UNOWNED = """
import os, sys, numpy as np
from tilewright.runtime.native import native
import tilewright as tw
tw.attach, tw.Publisher, native()
os.setgid(65534); os.setuid(65534)
for action in (lambda: tw.attach("telling"), lambda: tw.Publisher("telling", model)):
    try:
        model = None
        action()
    except tw.Error as error:
        print(str(error).replace(chr(10), " "))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_another_user_is_refused(store: Path, telling: tuple[Path, Path]) -> None:
    store.chmod(0o755)
    with tw.Publisher(NAME, tw.load(telling[0])):
        result = run_python(AS_UNOWNED.replace("model = None", "model = None"))
    lines = result.stdout.splitlines()
    assert len(lines) >= 1, result.stderr
    assert "ermission" in lines[0], lines
    assert "telling" in lines[0]


def run_python(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **changes}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
        timeout=120,
    )


def test_a_folder_that_others_may_write_is_refused_or_created_safe(store: Path) -> None:
    """A store in a folder that another user made must not be trusted blindly: its program is native code."""
    if os.getuid() != 0:
        pytest.skip("making another user's folder needs root")
    folder = store / NAME
    folder.mkdir(mode=0o777)
    os.chown(folder, 65534, 65534)
    with pytest.raises(tw.Error, match=r"owner|belongs|permission"):
        tw.Publisher(NAME, Model(affine()))
    with pytest.raises(tw.Error):
        tw.attach(NAME)


# -- room --------------------------------------------------------------------------------------------------------------


def test_full_before_the_first_version(
    store: Path, telling: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room for the slots: an error, not a SIGBUS; nothing is left; with room it works."""
    model = tw.load(telling[0])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(tw.Error) as caught:
            tw.Publisher(NAME, model)
        assert "no room" in str(caught.value)
        with pytest.raises(tw.Error):
            tw.attach(NAME)
    weights.sweep()
    assert sum(p.stat().st_blocks for p in store.rglob("*") if p.is_file()) == 0
    with tw.Publisher(NAME, model) as publisher:
        publisher.publish(telling_weights(5), version=5)
        assert is_whole(tw.attach(NAME)(ONES), 5)


def test_no_room_for_the_lock(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the publisher's number fits it is an error, and the lock goes with it."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="No space left"):
            tw.Publisher(NAME, Model(affine()))
    tw.Publisher(NAME, Model(affine())).close()


@pytest.mark.parametrize("step", ["symlink", "rename", "replace"])
def test_a_structure_that_cannot_be_installed(
    store: Path, telling: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever fails at the end: the older structure stays, nothing of the new one does, and later it works."""
    function = getattr(os, step)

    def full(source: object, target: object) -> None:
        if Path(str(target)).name in (".new-link", "current", "00000002"):
            raise OSError(errno.ENOSPC, "No space left on device")
        function(source, target)

    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(7), 7)
    before = sorted(os.listdir(store / NAME))
    with tw.attach(NAME) as actor:
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(StoreError, match="No space left"):
                tw.Publisher(NAME, tw.load(telling[1]))
        assert sorted(os.listdir(store / NAME)) == before
        assert is_whole(actor(ONES), 7)
        with tw.Publisher(NAME, tw.load(telling[1])) as publisher:
            publisher.publish(telling_weights(9, 512), 9)
            assert actor(ONES).shape == (1, 512)
        assert len(os.listdir(store / NAME)) == len(before)


def slots_in_memory(store: Path) -> int:
    """How many slots of the telling model have memory."""
    return (store / NAME / "current" / "segments").stat().st_blocks * 512 // (1 << 20)


@pytest.mark.parametrize("heir", [False, True])
def test_slots_of_a_stall_give_their_memory_back(store: Path, telling: tuple[Path, Path], heir: bool) -> None:
    """Calls that do not end make the publisher use more slots; when they have ended two are enough again. A slot that
    is being read stays as it is, however long."""
    model = tw.load(telling[0])
    publisher = tw.Publisher(NAME, model)
    with tw.attach(NAME) as actor:
        control = actor._epoch.control
        pins = control.words[(control.reader_address(0) - control.address + READER.pins) // 8 :]
        held = []
        for version in range(1, 5):
            publisher.publish(telling_weights(version), version)
            held.append(control.current)
            pins[held[-1]] = 1
        contents = [actor._epoch.segments.view(slot).copy() for slot in held]
        for version in range(5, 7 + 2 * IDLE):
            publisher.publish(telling_weights(version), version)
        for slot, content in zip(held, contents, strict=True):
            assert np.array_equal(actor._epoch.segments.view(slot), content)
        assert slots_in_memory(store) == 6
        pins[:8] = 0
        if heir:
            publisher.close()
            publisher = tw.Publisher(NAME, model)
        for version in range(100, 102 + IDLE):
            publisher.publish(telling_weights(version), version)
            assert is_whole(actor(ONES), version)
        assert slots_in_memory(store) == 2
        assert weights.info(NAME, verify=True).problem is None
        for version in range(200, 204):  # and they serve again
            pins[control.current] = 1
            publisher.publish(telling_weights(version), version)
            assert is_whole(actor(ONES), version)
    publisher.close()


LIMITED = """
import resource, sys, numpy as np, tilewright as tw
model = tw.load(sys.argv[1] if len(sys.argv) > 1 else {path!r})
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    tw.Publisher("telling", model)
except tw.Error as error:
    print("refused:", str(error).replace(chr(10), " "))
"""


def test_files_may_not_grow(store: Path, telling: tuple[Path, Path]) -> None:
    """A limit on the size of files (RLIMIT_FSIZE) met in a process of its own."""
    result = run_python(LIMITED.format(path=str(telling[0])))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("refused:"), result.stdout + result.stderr
    with pytest.raises(tw.Error):
        tw.attach(NAME)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A tmpfs of 1.5 MB, for as long as the test lasts."""
    folder = tmp_path / "small"
    folder.mkdir()
    created = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1536k,mode=700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if created.returncode != 0:
        pytest.skip(f"may not mount a tmpfs: {created.stderr.strip()}")
    return folder


def test_full_tmpfs(small: Path, telling: tuple[Path, Path]) -> None:
    """A file system that has really no room for a second version of 1 MB: the first one stays as it is."""
    code = f"""
import numpy as np, tilewright as tw
from tests.live.store.lab import *
model = tw.load({str(telling[0])!r})
try:
    with tw.Publisher("telling", model, directory={str(small)!r}) as publisher:
        for version in range(publisher.version + 1, 9):
            publisher.publish(telling_weights(version), version=version)
        print("fits")
except tw.Error as error:
    print("refused:", str(error).replace(chr(10), " "))
actor = tw.attach("telling", directory={str(small)!r})
y, version = actor.versioned(ONES)
print("stays:", version, is_whole(y, version))
"""
    try:
        result = run_python(code)
        assert result.returncode == 0, (result.returncode, result.stderr)
        assert result.stdout.startswith("refused:"), result.stdout
        assert "no room" in result.stdout
        assert result.stdout.endswith("stays: 0 True\n"), result.stdout
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


# -- foreign -----------------------------------------------------------------------------------------------------------


def program_of(store: Path) -> Path:
    return next((store / NAME).rglob("program.tw"))


def replace(path: Path, data: bytes) -> None:
    """Put something else in the place of a file that may not be written to."""
    path.unlink()
    path.write_bytes(data)


def sign(store: Path) -> None:
    """Let the control page speak of the program that is there."""
    digest = hashlib.blake2b(program_of(store).read_bytes(), digest_size=16).digest()
    with open(program_of(store).parent / "control", "r+b") as file:
        file.seek(HEAD.program0)
        file.write(digest)


def rewrite_manifest(path: Path, change: Callable[[dict], None]) -> None:
    """Change the manifest of a .tw file and sign it anew."""
    from tilewright.runtime import artifact
    from tilewright.runtime.manifest import Manifest
    from tilewright.runtime.program import Program

    program, version = artifact.read(path)
    data = json.loads(program.manifest.to_json())
    change(data)
    manifest = Manifest.from_json(json.dumps(data))
    retained = {name: np.array(array) for name, array in program.weights.items()}
    path.unlink()
    artifact.write(path, Program(manifest, program.objects, retained, {}), version)


def test_another_cpu(store: Path, telling: tuple[Path, Path], tmp_path: Path) -> None:
    """A program for a CPU with other features is refused by name, by publishers and by actors."""
    path = tmp_path / "foreign.tw"
    shutil.copy(telling[0], path)

    def change(data: dict) -> None:
        data["target"]["features"] = [*data["target"].get("features", []), "xop"]

    rewrite_manifest(path, change)
    with pytest.raises(tw.Error, match="xop"):
        tw.Publisher(NAME, tw.load(path))
    with tw.Publisher(NAME, tw.load(telling[0])):
        pass
    # A whole store of such a machine, as a copied folder or a migrated container would have it.
    replace(program_of(store), path.read_bytes())
    sign(store)
    with pytest.raises(tw.Error, match=r"telling(.|\n)*xop"):
        tw.attach(NAME)
    assert "xop" in str(weights.info(NAME)) or weights.info(NAME).version == 0


def test_another_abi(store: Path, telling: tuple[Path, Path]) -> None:
    """A store that another version of Tilewright made is refused by name; a publisher begins anew."""
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(7), version=7)
    with open(program_of(store).parent / "control", "r+b") as file:
        file.seek(HEAD.abi)
        file.write((ABI_VERSION + 1).to_bytes(8, "little"))
    with pytest.raises(tw.Error, match=r"telling(.|\n)*another version(.|\n)*ABI"):
        tw.attach(NAME)
    assert "another version" in str(weights.info(NAME).problem)
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(8), version=8)
        assert is_whole(tw.attach(NAME)(ONES), 8)


def test_another_structure_in_place_of_the_program(store: Path, telling: tuple[Path, Path]) -> None:
    """A program.tw that is sound but not the one that the control page speaks of."""
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(1))
    other = store.parent / f"{store.name}-other"
    with tw.Publisher(NAME, tw.load(telling[1]), directory=other):
        pass
    theirs = next(other.rglob("program.tw")).read_bytes()
    shutil.rmtree(other)
    replace(program_of(store), theirs)
    with pytest.raises(tw.Error):
        tw.attach(NAME)


@pytest.mark.parametrize(
    "garbage", [b"", b"garbage", bytes(4096), os.urandom(100_000), b"TWMODEL\x1a" + bytes(5000)], ids=len
)
def test_garbage_in_the_program(store: Path, telling: tuple[Path, Path], garbage: bytes) -> None:
    with tw.Publisher(NAME, tw.load(telling[0])):
        pass
    replace(program_of(store), garbage)
    with pytest.raises(tw.Error):
        tw.attach(NAME)
    # A publisher makes it good again, or says what is wrong.
    try:
        with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
            publisher.publish(telling_weights(900), version=900)
    except tw.Error:
        return
    with tw.attach(NAME) as actor:
        assert is_whole(actor(ONES), 900)


DAMAGED = """
import faulthandler, os, sys, random, shutil
from pathlib import Path
import numpy as np, tilewright as tw
from tests.live.store.lab import *
from tilewright.live import store as weights
faulthandler.enable()
folder, file, seed, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
original = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
path = next(p for p in original if p.name == file)
source = random.Random(seed)
wrong = refused = 0
for number in range(count):
    data = bytearray(original[path])
    for _ in range(source.choice([1, 1, 1, 8])):
        limit = min(len(data), source.choice([64, 512, 4096, len(data)]))
        at = source.randrange(limit)
        data[at] = source.choice([0, 1, 127, 255, data[at] ^ (1 << source.randrange(8)), source.randrange(256)])
    with open(path, "r+b") as out:
        out.write(data)
    sys.stderr.write(f"{number} {at}\\n"); sys.stderr.flush()
    try:
        with tw.attach("telling") as actor:
            y, version = actor.versioned(ONES)
            if not (y == y.flat[0]).all():
                wrong += 1
        weights.info("telling")
        weights.stores()
    except tw.Error as error:
        assert "telling" in str(error), str(error)
        refused += 1
    for p, content in original.items():
        with open(p, "r+b") as out:
            out.write(content)
            out.truncate(len(content))
print(wrong, refused)
"""


@pytest.mark.parametrize("file", ["control"])
def test_any_byte_of_the_control_page(store: Path, telling: tuple[Path, Path], file: str) -> None:
    """Changed bytes: the right answer or a clear error, never a crash or an endless wait. In a process of its own."""
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(3), version=3)
    count = 20_000 if os.environ.get("TILEWRIGHT_FUZZ") else 60
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    result = subprocess.run(
        [sys.executable, "-c", DAMAGED, str(store / NAME), file, "1", str(count)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=60 + count // 8,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    wrong, refused = map(int, result.stdout.split())
    assert wrong == 0, "outputs of something else than one version"
    assert refused < count


def test_a_program_that_cannot_be_read_is_damaged_or_gone(
    store: Path, telling: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its folder went away meanwhile, that is the reason."""
    with tw.Publisher(NAME, tw.load(telling[0])):
        path = (store / NAME / "current").resolve()

    def read(*_: object, **__: object) -> None:
        raise ArtifactError("not a .tw file")

    monkeypatch.setattr(artifact, "read", read)
    with pytest.raises(StoreError, match="its program cannot be used"):
        Epoch.open(path)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(FileNotFoundError):
        Epoch.open(path)


def test_an_epoch_without_a_version_is_described(store: Path, telling: tuple[Path, Path]) -> None:
    with tw.Publisher(NAME, tw.load(telling[0])):
        epoch = Epoch.open((store / NAME / "current").resolve(), writable=True)
        assert describe_epoch(epoch)["slots"][epoch.control.current] == {"state": "current", "version": 0}
        assert None not in [describe_epoch(epoch)[name] for name in ("age", "wall", "seconds")]
        epoch.control.flip(NONE)
        result = describe_epoch(epoch)
        epoch.close()
    assert [result[name] for name in ("age", "wall", "seconds")] == [None] * 3
    assert sorted(s["state"] for s in result["slots"]) == ["free"] * (SLOTS - 1) + ["sealed"]


def test_cut_files(store: Path, telling: tuple[Path, Path]) -> None:
    """Every file of a store, one at a time, cut: an error that names the store, or the right answer; never SIGBUS."""
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(3), version=3)
    code = f"""
import shutil, os
from pathlib import Path
import tilewright as tw
from tests.live.store.lab import *
folder = Path({str(store / NAME)!r})
copy = folder.parent / "copy"
for path, part in [(p, part) for p in sorted(folder.rglob("*")) if p.is_file() for part in (0.0, 0.3, 0.99)]:
    data = path.read_bytes()
    os.truncate(path, int(len(data) * part))
    try:
        with tw.attach("telling") as actor:
            y, version = actor.versioned(ONES)
            print(f"{{path.name}}*{{part}}", "right" if version == 3 and is_whole(y, 3) else "WRONG")
    except tw.Error as error:
        print(f"{{path.name}}*{{part}}", "refused" if "telling" in str(error) else f"unclear {{error}}")
    path.write_bytes(data)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr[-3000:]
    answers = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert set(answers.values()) <= {"right", "refused"}, answers
    assert "program.tw*0.3" in answers


def test_missing_files(store: Path, telling: tuple[Path, Path]) -> None:
    with tw.Publisher(NAME, tw.load(telling[0])) as publisher:
        publisher.publish(telling_weights(3), version=3)
    files = [p for p in (store / NAME).rglob("*") if p.is_file()]
    for path in files:
        data = path.read_bytes()
        path.unlink()
        try:
            with tw.attach(NAME) as actor:
                assert is_whole(actor(ONES), 3)
        except tw.Error as error:
            assert NAME in str(error)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(handle, data)
        os.close(handle)
    with tw.attach(NAME) as actor:
        assert is_whole(actor(ONES), 3)


def test_the_folder_vanishes_under_an_actor(store: Path, telling: tuple[Path, Path]) -> None:
    """Mapped memory outlives its name: calls go on with the last version; a new publisher makes a new store."""
    publisher = tw.Publisher(NAME, tw.load(telling[0]))
    version = publisher.publish(telling_weights(1), version=1)
    actor = tw.attach(NAME)
    shutil.rmtree(store / NAME)
    assert is_whole(actor(ONES), version)
    try:
        publisher.publish(telling_weights(2), version=2)
    except tw.Error as error:
        assert NAME in str(error)
    assert is_whole(actor(ONES), actor.version)
    publisher.close()
    with tw.Publisher(NAME, tw.load(telling[0])) as reloaded:
        reloaded.publish(telling_weights(7), version=7)
        with tw.attach(NAME) as fresh:
            assert is_whole(fresh(ONES), 7)
    actor.close()


def test_several_random_files(store: Path) -> None:
    """Things that are no stores lie in the folder; nothing touches them."""
    source = random.Random(1)
    (store / "file").write_bytes(b"hello")
    (store / "empty").mkdir()
    (store / "other").mkdir()
    (store / "other" / "lock").write_bytes(bytes(source.randrange(256) for _ in range(500)))
    (store / "full").mkdir()
    (store / "full" / "lock").touch()
    (store / "full" / "thesis.txt").write_text("years of work")
    (store / "link").symlink_to("/etc")
    with tw.Publisher("policy", Model(affine())) as publisher:
        publisher.publish(numbers(2))
        assert "policy" in [s.name for s in weights.stores()]
        weights.sweep()
        assert tw.attach("policy")(X)[1][0] == 2
    assert (store / "file").exists()
    assert (store / "link").is_symlink()
    assert (store / "full" / "thesis.txt").exists()
    for name in ("file", "empty", "other", "link"):
        with pytest.raises(tw.Error):
            tw.attach(name)


def test_one_reader_beyond_the_limit(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that finds no place is told so, and leaves nothing open."""
    monkeypatch.setattr("tilewright.live.store.epoch.MAX_READERS", 1)
    with tw.Publisher("policy", Model(affine())), tw.attach("policy"):
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(StoreError, match="readers are attached"):
                tw.attach("policy")
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("file", ["program.tw", "control", "segments"])
def test_files_that_are_none(store: Path, file: str) -> None:
    """A folder or a link in a file's place is an error that names the store."""
    with tw.Publisher("policy", Model(affine())):
        path = (store / "policy" / "current").resolve() / file
        content = path.read_bytes()
        path.unlink()
        for make in (path.mkdir, lambda: path.symlink_to("/dev/zero")):
            make()
            with pytest.raises(StoreError, match="policy"):
                tw.attach("policy")
            assert weights.info("policy").problem
            path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(content)
        tw.attach("policy").close()


def test_limits_of_descriptors(store: Path) -> None:
    """Out of descriptors is an error, and nothing of the failed attempt stays open."""
    with tw.Publisher("policy", Model(affine())):
        tw.attach("policy").close()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for room in range(1, 6):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
            try:
                tw.attach("policy").close()
            except (tw.Error, OSError):
                pass
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before
