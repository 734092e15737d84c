"""Collective operations between processes, against NumPy on all of their arrays."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.collective import kills
from tests.collective.ranks import in_threads, run_ranks
from tilewright.collective.group import Group, join
from tilewright.collective.reductions import DTYPES, OPERATIONS
from tilewright.collective.segment import WINDOW, path_of, window_of

CASES = 25
NUMBERS = ["f32", "f64", "f16", "i8", "u8", "i16", "i32", "i64"]


def values(seed: int, rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An array of a rank: all ranks can compute all of them."""
    rng = np.random.default_rng([seed, rank])
    kind = DTYPES[dtype]
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)


def every_operation(group: Group) -> int:
    """Random sizes, types and operations; returns how many calls agreed with NumPy."""
    rng = np.random.default_rng(7)
    ranks = range(group.ranks)
    for seed in range(CASES):
        size = int(rng.choice([0, 1, 2, 3, 17, 1000, 20_011, window_of(group.ranks) // 4 + 5, WINDOW]))
        dtype = str(rng.choice(NUMBERS))
        operation = str(rng.choice([name for name in OPERATIONS if not (name[0] == "b" and dtype[0] == "f")]))
        root = int(rng.integers(group.ranks))
        if operation == "avg" and dtype[0] != "f":
            operation = "sum"
        every = [values(seed, r, (size,), dtype) for r in ranks]
        wide = [one.astype(np.float32) if dtype == "f16" else one for one in every]
        want = wide[0]
        for one in wide[1:]:
            want = OPERATIONS[operation](want, one)
        want = (want / want.dtype.type(group.ranks) if operation == "avg" else want).astype(every[0].dtype)
        own = every[group.rank]
        np.testing.assert_array_equal(group.all_reduce(own.copy(), operation), want)
        reduced = group.reduce(own.copy(), root, operation)
        np.testing.assert_array_equal(reduced, want if group.rank == root else own)
        np.testing.assert_array_equal(group.broadcast(own.copy(), root), every[root])
        np.testing.assert_array_equal(group.all_gather(own), np.stack(every))
        gathered = group.gather(own, root)
        assert (gathered is None) == (group.rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, np.stack(every))
        rows = [values(seed, r, (group.ranks, 3, size // 50), dtype) for r in ranks]
        part = group.scatter(np.empty_like(rows[0][0]), rows[root] if group.rank == root else None, root)
        np.testing.assert_array_equal(part, rows[root][group.rank])
        total = group.reduce_scatter(rows[group.rank], operation="max")
        np.testing.assert_array_equal(total, np.max(rows, 0)[group.rank])
        sizes = np.random.default_rng(seed).integers(0, 300_000 if seed < 4 else 40, (group.ranks, group.ranks))
        parts = [values(seed, group.rank * 10 + r, (sizes[group.rank, r],), dtype) for r in ranks]
        outs = [np.empty(sizes[r, group.rank], DTYPES[dtype]) for r in ranks]
        group.all_to_all(parts, outs)
        for r, out in zip(ranks, outs, strict=True):
            np.testing.assert_array_equal(out, values(seed, r * 10 + group.rank, out.shape, dtype))
    group.barrier()
    return seed + 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_operations_agree_with_numpy(ranks: int, tmp_path: Path) -> None:
    assert run_ranks(ranks, tmp_path, every_operation) == [CASES] * ranks
    assert not list((tmp_path / "groups").iterdir())


def test_narrow_numbers_are_summed_in_f32_and_rounded_once(tmp_path: Path) -> None:
    def body(group: Group) -> tuple[Any, Any]:
        f32 = np.array([1.0, 2049.0, 3.4e38, np.nan, np.inf], np.float32) * (1 if group.rank else 0.001)
        bf16 = (f32.view(np.uint32) >> 16).astype(np.uint16)
        f16 = np.array([2048, 1, 1], np.float16)[[group.rank]]
        return group.all_reduce(bf16.copy(), dtype="bf16"), group.all_reduce(f16.copy())

    for bf16, f16 in in_threads(3, tmp_path, body):

        def truncated(x: Any) -> Any:
            return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)

        numbers = np.array([1.0, 2049.0, 3.4e38, np.nan, np.inf], np.float32)
        small = numbers * np.float32(0.001)
        with np.errstate(over="ignore"):
            total = truncated(small) + truncated(numbers) + truncated(numbers)
        got = (bf16.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(got, total, rtol=2.0**-8)
        assert f16[0] == 2050  # 2048 + 1 alone is 2048 in f16


def test_sums_have_equal_bits_on_each_rank(tmp_path: Path) -> None:
    def body(group: Group) -> list[bytes]:
        sizes = (5, 30_000, 200_000)
        return [group.all_reduce(values(3, group.rank, (n,), "f32")).tobytes() for n in sizes]

    results = in_threads(3, tmp_path, body)
    assert results[0] == results[1] == results[2]
    wanted = values(3, 0, (200_000,), "f32") + values(3, 1, (200_000,), "f32") + values(3, 2, (200_000,), "f32")
    assert results[0][2] == wanted.tobytes()  # in the order of the ranks


def test_small_reductions_at_addresses_are_those_of_arrays(tmp_path: Path) -> None:
    def body(group: Group) -> list[Any]:
        results: list[Any] = []
        for dtype, operation, size in (
            ("f32", "sum", 1000),
            ("f16", "avg", 7),
            ("f32", "sum", 1000),
            ("f64", "sum", 5),
        ):
            x = values(9, group.rank, (size,), dtype)
            assert group.all_reduce_at(x.ctypes.data, size, dtype, operation) == (dtype != "f64")
            results.append(x if dtype != "f64" else group.all_reduce(x, operation))
        large = np.ones(1 << 20, np.float32)
        assert not group.all_reduce_at(large.ctypes.data, large.size, "f32", "sum") and (large == 1).all()
        with pytest.raises(tw.errors.CollectiveError, match="ranks call different things"):
            group.all_reduce_at(large.ctypes.data, 3 + group.rank, "f32", "sum")
        assert (group.all_reduce(large[:3]) == 3).all()  # and the group goes on
        return results

    results = in_threads(3, tmp_path, body)
    f32 = sum(values(9, r, (1000,), "f32") for r in range(3))
    f16 = (sum(values(9, r, (7,), "f16").astype(np.float32) for r in range(3)) / np.float32(3)).astype(np.float16)
    for first, mean, second, other in results:
        assert first.tobytes() == second.tobytes()
        np.testing.assert_allclose(first, f32, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(mean, f16)
        np.testing.assert_allclose(other, sum(values(9, r, (5,), "f64") for r in range(3)))


def test_bytes_shown_are_the_bound(tmp_path: Path) -> None:
    def body(group: Group) -> int:
        before = group.bytes_shown
        group.all_reduce(np.zeros(300_000, np.float32))
        return group.bytes_shown - before

    assert in_threads(2, tmp_path, body) == [1_200_000] * 2
    for shown in in_threads(3, tmp_path, body):  # its data, and the slice that it reduced
        assert abs(shown - 1_200_000 * 4 / 3) <= 16


def test_messages_keep_their_order_and_tags(tmp_path: Path) -> None:
    def body(group: Group) -> list[float]:
        other, results = 1 - group.rank, []
        if group.rank == 0:
            for tag in (5, 6, 5):
                group.send(np.full(3, tag + len(results), np.float64), other, tag)
                results.append(0.0)
            group.send(np.arange(100_001, dtype=np.float64), other)
            return []
        x, big = np.empty(3), np.empty(100_001)
        for tag in (6, 5, 5):
            group.receive(x, other, tag)
            results.append(float(x[0]))
        assert group.first_message([0]) == 0
        group.receive(big, other)
        np.testing.assert_array_equal(big, np.arange(100_001))
        return results

    assert in_threads(2, tmp_path, body)[1] == [7.0, 5.0, 7.0]


def test_other_calls_are_an_error_on_each_rank(tmp_path: Path) -> None:
    def body(group: Group) -> list[str]:
        texts = []
        for wrong in (
            lambda: group.all_reduce(np.zeros(3 + group.rank, np.float32)),
            lambda: group.all_reduce(np.zeros(3, [np.float32, np.int32][group.rank])),
            lambda: group.all_reduce(np.zeros(3, np.float32), ["sum", "max"][group.rank]),
            lambda: group.broadcast(np.zeros(3, np.float32), group.rank),
            lambda: group.barrier() if group.rank else group.all_gather(np.zeros(300_000)),
        ):
            with pytest.raises(tw.errors.CollectiveError, match="ranks call different things") as error:
                wrong()
            texts.append(str(error.value))
        group.all_reduce(array := np.ones(3))  # and the group goes on
        assert array[0] == 2
        return texts

    for rank, texts in enumerate(in_threads(2, tmp_path, body)):
        assert "rank 0 calls all_reduce (sum) of 3 x f32; rank 1 calls all_reduce (sum) of 4 x f32" in texts[0]
        assert all(f"rank {rank} of 2" in text for text in texts)


def test_own_arguments_are_checked_before_anyone_waits(tmp_path: Path) -> None:
    with join("one", 0, 1, directory=tmp_path) as group:
        x = np.zeros((4, 4), np.float32)
        for wrong, what in (
            (lambda: group.all_reduce(x[:, 1:]), "C-contiguous"),
            (lambda: group.all_reduce(x, "median"), "no such reduction"),
            (lambda: group.all_reduce(x, "band"), "no meaning"),
            (lambda: group.all_reduce(x.astype(np.int32), "avg"), "fractions"),
            (lambda: group.all_reduce(np.zeros(3, object)), "not such an array"),
            (lambda: group.broadcast(x, 1), "no such rank"),
            (lambda: group.send(x, -1), "no such rank"),
            (lambda: group.scatter(x, x), "row for each rank"),
            (lambda: group.reduce_scatter(x), "row for each rank"),
            (lambda: group.all_to_all([x, x], [x]), "part for each rank"),
        ):
            with pytest.raises(tw.errors.CollectiveError, match=what):
                wrong()
    with pytest.raises(tw.errors.CollectiveError, match="closed"):
        group.barrier()
    for rank, ranks in ((2, 2), (-1, 2), (0, 0), (0, 65)):
        with pytest.raises(tw.errors.CollectiveError, match="no such rank"):
            join("one", rank, ranks, directory=tmp_path)


def die(group: Group, where: int) -> tuple[str, float]:
    """The last rank is killed in the middle; what the others are told, and after how long."""
    data = np.ones(300_000, np.float32)
    for _ in range(where):
        group.all_reduce(data)
    if group.rank == group.ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(tw.errors.CollectiveError) as error:
        while True:
            group.all_reduce(data)
    return str(error.value), time.monotonic() - begin


@pytest.mark.parametrize("where", [0, 3])
def test_a_rank_that_dies_is_named_by_all_others(where: int, tmp_path: Path) -> None:
    results = run_ranks(3, tmp_path, die, where)
    assert results[2] is None
    for text, seconds in results[:2]:
        assert "rank 2 has died or left" in text
        assert "all_reduce" in text and "call" in text and seconds < 20
    assert run_ranks(2, tmp_path, lambda group: group.all_reduce(np.ones(1))[0]) == [2, 2]  # a group of the same name


def test_ranks_killed_at_any_moment_leave_nothing(tmp_path: Path) -> None:
    for seed in range(5):
        kills.kill_one(seed, tmp_path)


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(tw.errors.CollectiveError, match=r"rank 1, 2 did not come within the timeout of 0.2 s"):
        join("lonely", 0, 3, timeout=0.2, directory=tmp_path)
    assert time.monotonic() - begin < 10
    with join("lonely", 0, 1, directory=tmp_path):  # its remains are taken over
        pass


def test_ranks_agree_on_their_number_and_are_there_once(tmp_path: Path) -> None:
    in_threads(2, tmp_path, Group.barrier)
    assert not path_of("test", tmp_path).exists()

    def alone() -> None:
        with pytest.raises(tw.errors.CollectiveError, match="did not come"):
            join("n", 0, 2, timeout=2, directory=tmp_path)

    other = Thread(target=alone)
    other.start()
    while not path_of("n", tmp_path).exists():
        time.sleep(0.01)
    time.sleep(0.2)
    with pytest.raises(tw.errors.CollectiveError, match="do not agree"):
        join("n", 1, 3, timeout=2, directory=tmp_path)
    with pytest.raises(tw.errors.CollectiveError, match="has this rank"):
        join("n", 0, 2, timeout=2, directory=tmp_path)
    other.join()
