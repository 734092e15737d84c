"""How long a publish takes, all in: checks, packing, sealing; and per byte against copying memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from benchmarks.harness import markdown_table
from benchmarks.live.common import other_weights, program, store_folder, summary

BARS = {"m64": 0.2e-3, "hok1": 5e-3, "az6": 15e-3, "resnet50": 60e-3}
COPY_BAR = 2.0
LARGE = 6_000_000
"""Bytes from which on a policy counts as large."""


@dataclass(frozen=True, slots=True)
class PublishRow:
    """One policy: seconds of a publish and of copying as many bytes."""

    policy: str
    threads: int
    raw: int
    packed: int
    seconds: dict[str, float]
    copy: float  # of (raw + packed) / 2 bytes: as many are read and written in all
    ratio: float  # median of publish / copy, taken in turns
    checksum_delay: float  # until its checksum was taken, after the publish had returned
    finite: float  # of the same publish without looking for NaN
    unaligned: float  # of the same publish of arrays that begin anywhere, as NumPy's do

    def cells(self) -> list[object]:
        bar = BARS.get(self.policy)
        return [
            self.policy, self.threads, f"{self.raw / 1e6:.2f}", f"{self.packed / 1e6:.2f}",
            f"{self.seconds['p50'] * 1e3:.3f}", f"{self.seconds['p90'] * 1e3:.3f}", f"{bar * 1e3:g}" if bar else "-",
            f"{self.copy * 1e3:.3f}", f"{self.ratio:.2f}",
            f"{COPY_BAR:g}" if self.raw >= LARGE else "-", f"{self.checksum_delay * 1e3:.3f}",
            f"{self.finite * 1e3:.3f}", f"{self.unaligned * 1e3:.3f}",
        ]  # fmt: skip


def measure(policy: str, seconds: float, threads: int = 1) -> PublishRow:
    """Publishes of two sets of weights in turn, alternating with copies, for about this long."""
    model = tw.load(program(policy), threads=threads)
    sets = [other_weights(model, seed) for seed in range(2)]
    raw = sum(array.nbytes for array in sets[0].values())
    packed = sum(p.nbytes for p in model.manifest.packed)
    moved = (raw + packed) // 2
    # Several pairs, so that neither end of a copy is in a cache that a large publish would not find full.
    pairs = [(np.ones(moved, np.uint8), np.zeros(moved, np.uint8)) for _ in range(2)]
    anywhere = [{name: _shifted(array) for name, array in weights.items()} for weights in sets]
    times: list[list[float]] = []
    with store_folder(), tw.Publisher(policy, model) as publisher, tw.attach(policy) as actor:
        for k in range(8):
            publisher.publish(sets[k % 2])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 12:
            k = len(times) % 2
            marks = [time.perf_counter()]
            publisher.publish(sets[k])
            marks.append(time.perf_counter())
            publisher._sums.wait()  # the checksum, which is taken after a publish
            marks.append(time.perf_counter())
            np.copyto(pairs[k][1], pairs[k][0])
            marks.append(time.perf_counter())
            publisher.publish(sets[1 - k], finite=False)
            marks.append(time.perf_counter())
            publisher._sums.wait()
            marks.append(time.perf_counter())
            publisher.publish(anywhere[k])
            marks.append(time.perf_counter())
            times.append(list(np.diff(marks)))
            publisher._sums.wait()
        assert actor.version == publisher.version
    table = np.array(times)
    middle = np.median(table, axis=0)
    return PublishRow(
        policy, threads, raw, packed, summary(table[:, 0]), float(middle[2]),
        float(np.median(table[:, 0] / table[:, 2])), float(middle[1]), float(middle[3]), float(middle[5]),
    )  # fmt: skip


def _shifted(array: np.ndarray) -> np.ndarray:
    """A copy that is not aligned to 64 bytes."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 16
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def as_text(rows: list[PublishRow]) -> str:
    header = [
        "policy", "threads", "raw MB", "packed MB", "publish ms", "p90 ms", "bar ms", "copy ms", "publish / copy",
        "bar", "checksum behind ms", "unchecked ms", "unaligned ms",
    ]  # fmt: skip
    text = markdown_table(header, [row.cells() for row in rows])
    return text + (
        "\nPublish: names, shapes, types and finite values checked, packed into the slot, current. Behind it, in the"
        "\nbackground, the checksum is taken. Copy: NumPy's copy of (raw + packed) / 2 bytes, so that as many bytes are"
        "\nread and written in all. Weights are aligned as PyTorch aligns them. Unchecked: `finite=False`. Unaligned:"
        "\narrays that begin at any multiple of 16 bytes.\n"
    )
