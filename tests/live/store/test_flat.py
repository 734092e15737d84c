"""Many publishes: memory, files and descriptors stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import tilewright as tw
from tests.runtime.programs import affine, affine_reference
from tilewright.runtime.model import Model

PUBLISHES = 100_000 if os.environ.get("TILEWRIGHT_FUZZ") else 2_000
X = np.linspace(-1, 1, 50, dtype=np.float32)


def weights_of(number: float) -> dict[str, np.ndarray]:
    return {"w": np.full((2, 3), number, np.float32), "scale": np.array([number], np.float32)}


def resident() -> int:
    """KiB of this process that are its own."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def usage(store: Path) -> tuple[int, int, int]:
    """Bytes and number of files of the stores, descriptors of this process."""
    sizes = [p.stat().st_blocks * 512 for p in store.rglob("*") if p.is_file()]
    return sum(sizes), len(sizes), len(os.listdir("/proc/self/fd"))


def test_publishes_leave_no_residue(store: Path) -> None:
    model = Model(affine())
    with tw.Publisher("affine", model) as publisher, tw.attach("affine") as actor:
        first = publisher.version

        def publish(count: int) -> None:
            for _ in range(count):
                version = publisher.version + 1
                assert publisher.publish(weights_of(version % 1000)) == version
                if version % 64 == 0:
                    (y, c), used = actor.versioned(X)
                    assert used == version
                    assert c[0] == version % 1000
                    np.testing.assert_allclose(
                        y, affine_reference(X, weights_of(version % 1000)["w"]), rtol=1e-5, atol=1e-4
                    )

        publish(300)
        files, memory = usage(store), resident()
        publish(PUBLISHES)
        after = usage(store)
        assert after[:2] == files[:2]
        assert after[2] - files[2] < 8, "descriptors"  # the process has others; a leak would be one a publish
        assert resident() - memory < 1024, "KiB grown"
        assert publisher.version == first + 300 + PUBLISHES


def test_structures_that_come_and_go_leave_no_residue(store: Path, telling: tuple[Path, Path]) -> None:
    """The second structure supersedes the first and so on; only the newest one stays."""
    models = [tw.load(path) for path in telling]
    actor, sizes, descriptors = None, [], []
    for number in range(12):
        with tw.Publisher("telling", models[number % 2]) as publisher:
            publisher.publish({"w": np.full(models[number % 2].params[0].shape, 3, np.float32)})
            actor = actor or tw.attach("telling")
            assert (actor(np.ones((1, 256), np.float32)) == 768).all()
            assert actor.version == publisher.version
        if number % 2:
            total, files, handles = usage(store)
            sizes.append((total, files))
            descriptors.append(handles)
    assert actor is not None
    actor.close()
    assert len(set(sizes[1:])) == 1, sizes
    assert descriptors[-1] <= descriptors[1], descriptors  # fewer: garbage of an earlier test went meanwhile
