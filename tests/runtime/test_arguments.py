"""Arguments against what a program declares, weights in memory, and what profiles and timelines make of numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.arena import Interval
from tilewright.runtime.arguments import bind_inputs, bind_outputs, describe_spec, separate
from tilewright.runtime.interop import as_numpy, describe, framework, in_kind_of
from tilewright.runtime.layout import Memory, aligned_bytes, aligned_copy
from tilewright.runtime.profile import KernelTime, Profile, _summary
from tilewright.runtime.report import Memory as MemoryReport
from tilewright.runtime.specs import InputSpec, OutputSpec, PackedSpec, ParamSpec, StepSpec, SymbolSpec
from tilewright.runtime.trace_events import Span, Timeline, live_bytes
from tilewright.runtime.weights.packed import (
    WeightSet,
    adopted,
    aligned_views,
    copy_aligned,
    free_numbers,
    is_readable,
    packed_nbytes,
    raw_nbytes,
    slot_nbytes,
    slot_offsets,
)
from tilewright.support.errors import CallError

F32 = np.float32
X, Y = InputSpec("x", "f32", ("n", 4)), InputSpec("y", "i32", ("n",))
RETAINED = InputSpec("kept", "f32", (2, 2), written=True)
N = SymbolSpec("n", 2, 8, 2)


def ones(*shape: int, dtype: Any = F32) -> Any:
    return np.ones(shape, dtype)


def errors(*args: Any, inputs: tuple[InputSpec, ...] = (X, Y)) -> list[str]:
    with pytest.raises(CallError) as caught:
        bind_inputs(inputs, [N] if X in inputs else [], args)
    return [e.headline() for e in caught.value.each()]


def test_what_fits_is_selected_as_it_is() -> None:
    x, y = ones(4, 4), ones(4, dtype=np.int32)
    bound = bind_inputs((X, Y), [N], (x, y))
    assert bound.arrays[0] is x and bound.arrays[1] is y and bound.dims == (4,)
    transposed = ones(4, 4).T[::-1]
    copied = bind_inputs((X, Y), [N], (transposed, y)).arrays[0]
    assert copied.flags.c_contiguous and not np.shares_memory(copied, transposed)
    for n in (2, 8):
        assert bind_inputs((X,), [N], (ones(n, 4),)).dims == (n,)
    retained = ones(2, 2)
    assert bind_inputs((RETAINED,), [], (retained,)).arrays[0] is retained


def test_all_that_does_not_fit_is_said() -> None:
    assert errors(ones(4, 4)) == ["wrong number of inputs: expected 2 (x: f32[n, 4], y: i32[n]), got 1"]
    assert errors(ones(4, 5), ones(4, dtype=np.int64)) == [
        "input 'x': wrong dimension 1: expected f32[n, 4], got f32[4, 5]",
        "input 'y': wrong element type: expected i32[n], got i64[4]",
    ]
    assert errors(ones(4, 4), ones(6, dtype=np.int32)) == [
        "input 'y': dimension 0 disagrees with input 'x': expected n = 4, got 6"
    ]
    assert errors(ones(4), 3) == [
        "input 'x': wrong rank: expected f32[n, 4], got f32[4]",
        "input 'y': not an array: expected a NumPy, PyTorch or JAX array, got int",
    ]
    for n in (0, 3, 10):
        assert errors(ones(n, 4), ones(n, dtype=np.int32)) == [
            f"input 'x': a dimension is out of range: expected n in 2..8, a multiple of 2, got {n}"
        ]
    with pytest.raises(CallError, match=r"a dimension is out of range: expected n in 1\.\.3, got 4"):
        bind_inputs((X,), [SymbolSpec("n", 1, 3)], (ones(4, 4),))
    swapped = ones(4, 4).astype(">f4")
    assert errors(swapped, ones(4, dtype=np.int32)) == [
        "input 'x': wrong element type: expected f32[n, 4], got >f4[4, 4]"
    ]


def test_hints_of_what_to_do() -> None:
    def hint(*args: Any) -> str | None:
        with pytest.raises(CallError) as caught:
            bind_inputs((X,), [N], args)
        return caught.value.hint

    assert hint(ones(4)) == "add the batch: x[None]" and hint(ones(3)) is None and hint(ones(1, 4, 4)) is None
    assert hint(ones(4, 4, dtype=np.float64)) == "convert it: x.astype(np.float32)"
    assert hint(ones(0, 4)) == 'if it may be empty: tw.compile(..., dims={"n": tw.dim(0, ...)})'
    assert hint(ones(3, 4)) is None


def test_what_is_written_to_is_the_callers_own_memory() -> None:
    frozen = ones(2, 2)
    frozen.flags.writeable = False
    odd = np.frombuffer(bytearray(17), np.uint8)[1:].view(F32).reshape(2, 2)
    for wrong in (frozen, ones(2, 2).T[:, ::-1], odd):
        assert errors(wrong, inputs=(RETAINED,)) == [
            "input 'kept': is written to, so it must be contiguous, aligned and writable"
        ]
    ordinary, shared = InputSpec("plain", "f32", (2,)), ones(2, 2)
    for inputs, args in (((RETAINED, ordinary), (shared, shared[0])), ((ordinary, RETAINED), (shared[0], shared))):
        assert errors(*args, inputs=inputs) == ["input 'kept': is written to and shares memory with 'plain'"]
    bind_inputs((ordinary, InputSpec("other", "f32", (2,))), [], (shared[0], shared[0]))


OUT = OutputSpec("y", "f32", ("n", 2)), OutputSpec("z", "i64", ("n",))
SHAPES = [(3, 2), (3,)]


def test_outputs_of_the_caller() -> None:
    y, z = ones(3, 2), ones(3, dtype=np.int64)
    theirs, ours = bind_outputs(OUT, SHAPES, (y, z))
    assert theirs[0] is y and ours[0] is y and theirs[1] is z and ours[1] is z
    assert bind_outputs(OUT[:1], SHAPES[:1], y)[0][0] is y
    wide = ones(3, 4)[:, ::2]
    theirs, ours = bind_outputs(OUT[:1], SHAPES[:1], [wide])
    assert theirs[0] is wide and ours[0].shape == (3, 2) and not np.shares_memory(ours[0], wide)
    frozen = ones(3, 2)
    frozen.flags.writeable = False
    block = np.zeros(12, np.int64)
    for out, messages in (
        ((y,), ["wrong number of outputs: expected 2 (y: f32[n, 2], z: i64[n]), got 1"]),
        ((ones(3, 3), z), ["output 'y': wrong shape: expected f32[3, 2], got f32[3, 3]"]),
        (
            (ones(3, 2, dtype=np.float64), ones(3)),
            [
                "output 'y': wrong element type: expected f32[3, 2], got f64[3, 2]",
                "output 'z': wrong element type: expected i64[3], got f32[3]",
            ],
        ),
        ((frozen, z), ["output 'y': is read-only"]),
        ((block[:3].view(F32).reshape(3, 2), block[2:5]), ["output 'z': shares memory with output 'y'"]),
    ):
        with pytest.raises(CallError) as caught:
            bind_outputs(OUT, SHAPES, out)
        assert [e.headline() for e in caught.value.each()] == messages
    bind_outputs(OUT, SHAPES, (block[:3].view(F32).reshape(3, 2), block[3:6]))


def test_inputs_in_the_memory_of_outputs_are_copied() -> None:
    a, b = ones(4), ones(4)
    separated = separate([a, b], [b[1:2], ones(2)])
    assert separated[0] is a and separated[1] is not b and (separated[1] == b).all()


def test_arrays_in_words() -> None:
    assert describe_spec(X) == "f32[n, 4]" and describe(ones(3, 17)) == "f32[3, 17]"
    assert describe(np.array(["a"])) == "<U1[1]" and describe(ones(2).astype(">f4")) == ">f4[2]"
    assert framework(ones(1)) == "numpy" and framework(3) == "builtins"
    assert as_numpy(F32(3), "x").shape == () and in_kind_of(3, a := ones(1)) is a

    class Elsewhere:
        def __dlpack__(self) -> None: ...

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(CallError, match=r"x: on the wrong device: expected cpu, got DLPack device \(2, 0\)"):
        as_numpy(Elsewhere(), "x")


PARAMS = (ParamSpec("a", "f32", (3, 5)), ParamSpec("c", "i8", (7,), fixed=True), ParamSpec("b", "f64", (8,)))
PACKED = (PackedSpec("a.packed", 100), PackedSpec("b", 64, "b"), PackedSpec("d", 1), PackedSpec("e", 128))
MANIFEST: Any = SimpleNamespace(params=PARAMS, packed=PACKED)


def test_memory_of_weights() -> None:
    """Each in cache lines of its own."""
    assert packed_nbytes(MANIFEST) == 128 + 64 + 128 and slot_nbytes(MANIFEST) == 128 + 64 + 64 + 128
    assert slot_offsets(MANIFEST) == [0, 128, 192, 256] and raw_nbytes(PARAMS) == 64 + 64 + 64
    assert free_numbers(MANIFEST) == {0: 0, 2: 1}
    raw = [np.arange(15, dtype=F32).reshape(3, 5), np.arange(7, dtype=np.int8), np.arange(8.0)]
    copies = copy_aligned(PARAMS, raw)
    for copy, array in zip(copies, raw, strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.ctypes.data % 64 == 0 and not copy.flags.writeable and copy.dtype == array.dtype
    retained = adopted(PARAMS, [copies[0], copies[1].copy()[::-1], copies[2]])
    assert retained[0] is copies[0] and retained[2] is copies[2] and retained[1].ctypes.data % 64 == 0
    np.testing.assert_array_equal(retained[1], raw[1][::-1])
    views = aligned_views(PARAMS, block := aligned_bytes(192))
    assert [v.ctypes.data - block.ctypes.data for v in views] == [0, 64, 128]
    packed = aligned_bytes(packed_nbytes(MANIFEST))
    weights = WeightSet(MANIFEST, copies, packed, 5)
    start = packed.ctypes.data
    assert weights.packed_addresses == [start, copies[2].ctypes.data, start + 128, start + 192]
    assert weights.raw_addresses == [c.ctypes.data for c in copies] and weights.version == 5
    assert is_readable(ones(2, 2)) and not is_readable(ones(2, 2).T[::-1])


def test_words_and_copies() -> None:
    memory = Memory(100)
    assert memory.words.size == 13 and memory.address % 64 == 0 and Memory(1).words.size == 8
    memory[8] = 5
    memory.write(16, [6, 7])
    assert memory.words[:4].tolist() == [0, 5, 6, 7] and memory[24] == 7
    copy = aligned_copy(ones(3, 5)[:, ::2])
    assert copy.shape == (3, 3) and copy.ctypes.data % 64 == 0 and not copy.flags.writeable and (copy == 1).all()


def spans() -> tuple[Span, ...]:
    return (
        Span("call", 0, 0, 1000, 9000),
        Span("kernel", 0, 0, 1000, 4000),
        Span("kernel", 1, 0, 1500, 4500),
        Span("wait", 1, 0, 3000, 4500),
        Span("kernel", 0, 1, 4000, 9000),
    )


def test_a_timeline() -> None:
    work = ((2, ("n",)),)
    steps = (StepSpec("first", (), label="conv", flops=work, traffic=((1, ("m",)),)), StepSpec("second", ()))
    line = Timeline(spans(), steps, (64, 32), {"n": 10}, 2, 0)
    assert line.waiting(0) == pytest.approx(1500 / 6000) and line.waiting(1) == 0.0 and line.waiting(7) == 0.0
    assert Timeline((Span("kernel", 0, 0, 0, 1), Span("wait", 0, 0, 0, 9)), steps, (0,), {}, 1, 0).waiting(0) == 1.0
    assert [s.begin for s in line.of("kernel")] == [1000, 1500, 4000] and line.spans[0].seconds == pytest.approx(8e-6)
    events = list(line.events())
    result = [(e["name"], e["tid"], e["ts"], e.get("dur")) for e in events if e["ph"] in "XC"]
    assert result == [
        ("call 0", 1000, 0.0, 8.0), ("conv", 0, 0.0, 3.0), ("memory (bytes)", 0, 0.0, None), ("conv", 1, 0.5, 3.0),
        ("wait", 1, 2.0, 1.5), ("second", 0, 3.0, 5.0), ("memory (bytes)", 0, 3.0, None),
    ]  # fmt: skip
    facts = [e["args"] for e in events if e["ph"] == "X"]
    first = {"step": 0, "kernel": "first"}
    assert facts == [{"n": 10}, first | {"flops": 20}, first | {"flops": 20}, first, {"step": 1, "kernel": "second"}]
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"temporaries": 64}, {"temporaries": 32}]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == [
        "tilewright",
        "caller's thread",
        "worker 1",
        "calls",
    ]


def test_bytes_in_use() -> None:
    """Blocks of one place count once, at each step the largest that is live."""
    blocks = [Interval(0, 2, 10), Interval(1, 3, 30, alias=0), Interval(2, 2, 5), Interval(4, 9, 7)]
    assert live_bytes(blocks, 6) == [10, 30, 35, 30, 7, 7] and live_bytes([], 2) == [0, 0]


def test_a_profile() -> None:
    steps = [
        StepSpec("a", (), label="conv", flops=((4000, ()),), traffic=((1, ("later",)),)),
        StepSpec("b", (), flops=((1, ("n",)),)),
    ]
    each = np.array([[1000, 10], [3000, 30], [2000, 20]])
    profile = _summary(steps, each, np.array([2, 1]), {"n": 40}, 3)
    assert profile.seconds == pytest.approx(2020e-9) and profile.threads == 3
    a, b = profile.kernels
    assert (a.seconds, a.share) == (pytest.approx(2e-6), pytest.approx(2000 / 2020)) and a.gbytes is None
    assert (a.gflops, b.gflops) == (pytest.approx(2 * 4000 / 2e-6 * 1e-9), pytest.approx(40 / 20e-9 * 1e-9))
    long = KernelTime("k", "x" * 61, 1.5e-6, 0.25, None, 2.0)
    text = str(Profile((long, KernelTime("m", "y" * 60, 4.5e-6, 0.75, 3.25, None)), 6e-6, {}, 1)).splitlines()
    assert text[0].split() == ["us", "share", "GFLOP/s", "GB/s", "kernel"]
    assert text[1].split() == ["x" * 57 + "...", "1.50", "25.0%", "-", "2.0", "k"]
    assert text[2].split() == ["y" * 60, "4.50", "75.0%", "3.2", "-", "m"] and text[3] == "a run: 6.00 us, 1 threads"
    assert len({len(line.rpartition(" ")[0]) for line in text[:3]}) == 1
    empty = _summary([], np.zeros((2, 0)), np.zeros(0), {}, 1)
    assert empty.kernels == () and empty.seconds == 0.0


def test_a_report_of_memory() -> None:
    report = MemoryReport({"n": 3}, 4, 3000, 1200, 1000, 50, 60, 1200, 9_000_000)
    assert report.ratio == 1.2 and MemoryReport({}, 0, 0, 0, 0, 0, 0, 0, 0).ratio == 1.0
    lines = str(report).splitlines()
    assert lines[0].split() == ["arena", "of", "a", "call", "(n", "=", "3)", "1,200", "B"]
    assert "arena / lower bound = 1.200" in lines[1] and lines[2].endswith("3,000 B  4 temporaries")
    assert lines[-1].endswith("9,000,000 B") and len({line.index(" B") for line in lines}) == 1
    assert str(MemoryReport({}, 0, 0, 0, 0, 0, 0, 0, 0)).splitlines()[0].split()[:4] == ["arena", "of", "a", "call"]
