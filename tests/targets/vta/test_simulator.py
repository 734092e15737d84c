"""The functional simulator against a second one, against NumPy, and with programs that no machine can run."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.targets.vta.programs import BASE, product, random_program
from tests.targets.vta.reference import Reference
from tilewright.targets.vta import Config, Finish, Gemm, Load, Memory, Store, encode
from tilewright.targets.vta.__main__ import main
from tilewright.targets.vta.assembly import assemble
from tilewright.targets.vta.isa import Opcode, fields, pack, uop_fields
from tilewright.targets.vta.simulator import Machine, SimulationError
from tilewright.targets.vta.streams import Stream, differences, read, write


def recorded(seed: int, length: int = 40) -> tuple[Stream, Machine]:
    """A random program with what the second simulator leaves, and the first after running it in program order."""
    program, image = random_program(np.random.default_rng(seed), length)
    words, after = encode(program), image.copy()
    reference = Reference(after, BASE)
    reference.run(program)
    machine, mine = Machine(), image.copy()
    machine.step(words, range(len(words)), {BASE: mine})
    assert np.array_equal(mine, after)
    assert np.array_equal(machine.buffers[Memory.ACC][:, 0], reference.buffers[Memory.ACC])
    return Stream(f"random-{seed}", words, BASE, image, after, reference.counters), machine


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_equal_the_second_simulator(seed: int) -> None:
    stream, machine = recorded(seed)
    assert machine.counters == stream.counters


@pytest.mark.parametrize(("rows", "depth", "columns"), [(16, 16, 16), (1, 64, 32), (33, 48, 16), (20, 32, 64)])
def test_products_equal_numpy(rows: int, depth: int, columns: int) -> None:
    text, image, at, wanted = product(np.random.default_rng(rows), rows, depth, columns, 7)
    for first in range(3):
        memory = image.copy()
        machine = Machine()
        machine.run(encode(assemble(text)), {BASE: memory}, first)
        assert np.array_equal(memory[at : at + wanted.size].view(np.int8).reshape(wanted.shape), wanted)
        assert machine.counters["gemm_counter"] == rows * depth * columns // 256
        assert not machine.tokens.any()


def test_other_sizes_multiply_too() -> None:
    config = Config(log_batch=1, log_block=3, log_inp_bytes=12, log_wgt_bytes=13, log_acc_bytes=14)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (2, 8), np.int8), rng.integers(-128, 128, (8, 8), np.int8)
    machine = Machine(config)
    machine.buffers[Memory.INP][3], machine.buffers[Memory.WGT][5] = x, w
    machine.buffers[Memory.UOP][0] = 2 | 3 << config.acc_bits | 5 << config.acc_bits + config.inp_bits
    machine.run(encode([Gemm(0, 1, 1, 1)], config), {})
    assert np.array_equal(machine.buffers[Memory.ACC][2], x.astype(np.int32) @ w.T.astype(np.int32))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("load inp dram_base=300 sram_base=2047 y_size=1 x_size=2", "instruction 0: it reaches beyond"),
        ("finish\nload inp dram_base=1 y_size=1 x_size=1", "instruction 1: it reaches DRAM"),
        ("load inp dram_base=1 x_size=1", "instruction 0: it reaches DRAM"),
        ("load wgt dram_base=79 y_size=1 x_size=2", "instruction 0: it reaches DRAM"),
        ("store inp dram_base=300 y_size=1 x_size=1", "no such opcode, memory"),
        ("load out dram_base=300 y_size=1 x_size=1", "no such opcode, memory"),
        ("store out dram_base=300 y_size=1 x_size=1 x_pad_0=1", "paddings that a STORE has not"),
        ("load inp -prev", "a queue that there is not"),
        ("store out +next", "a queue that there is not"),
        ("gemm uop_bgn=8191 uop_end=8193 iter_in=1 iter_out=1", "it reaches beyond"),
        ("gemm uop_end=1 iter_in=2 iter_out=1 dst_in=2047 dst_out=1", None),
        ("gemm uop_end=1 iter_in=3 iter_out=1 dst_in=1024 dst_out=1", "it reaches beyond"),
        ("alu add uop_end=1 iter_in=3 iter_out=1 src_in=1024 use_imm", "it reaches beyond"),
        ("gemm reset uop_end=1 iter_in=3 iter_out=1 src_in=2000 wgt_in=1000", None),
        ("finish -prev", "instruction 0: the program waits for ever"),
        ("load inp -next\nfinish +prev -prev", "instruction 0: the program waits for ever"),
        ("load inp +next\nstore out +prev\nfinish -prev -next", None),
    ],
)
def test_what_cannot_be_run_is_named(text: str, wrong: str | None) -> None:
    machine = Machine()
    memory = np.zeros(4096 * 4, np.uint8)
    if wrong is None:
        machine.run(encode(assemble(text)), {BASE: memory})
        return
    with pytest.raises(SimulationError, match=wrong):
        machine.run(encode(assemble(text)), {BASE: memory})


def test_endless_work_is_refused() -> None:
    with pytest.raises(SimulationError, match="more operations"):
        Machine().run(encode([Gemm(0, 8192, 16383, 16383)] * 3), {})


def test_check_says_which_streams_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, image, at, wanted = product(np.random.default_rng(5), 16, 32, 16, 8)
    after = image.copy()
    after[at : at + wanted.size] = wanted.view(np.uint8).ravel()
    reference = Reference(image.copy(), BASE)
    reference.run(assemble(text))
    good = Stream("product", encode(assemble(text)), BASE, image, after, reference.counters)
    assert np.array_equal(reference.dram, after)
    write(tmp_path / "good.npz", [good])
    assert main(["check", str(tmp_path / "good.npz")]) == 0
    assert "1 streams, all equal" in capsys.readouterr().out
    (reloaded,) = read(tmp_path / "good.npz")
    assert differences(reloaded) == []
    wrong = after.copy()
    wrong[at + 3] ^= 1
    counters = {**good.counters, "alu_counter": 1}
    bad = Stream("bad", good.words, BASE, image, wrong, counters)
    write(tmp_path / "bad.npz", [good, bad])
    assert main(["check", str(tmp_path / "bad.npz"), str(tmp_path / "good.npz")]) == 1
    out = capsys.readouterr().out
    assert f"bad: memory differs in 1 bytes, first at address {BASE + at + 3}" in out
    assert "bad: counter alu_counter: expected 1, got 48" in out and "product:" not in out


def _npz(path: Path, **changed: Any) -> Path:
    text, image, _, _ = product(np.random.default_rng(5), 16, 16, 16, 8)
    write(path, [Stream("s", encode(assemble(text)), BASE, image, image, dict.fromkeys(Machine().counters, 0))])
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    arrays.update(changed)
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"dram": None}, "an array is missing"),
        ({"insn": np.zeros((3, 16), np.int8)}, "wrong type"),
        ({"insn": np.array([{}], object)}, "wrong type"),
        ({"insn_start": np.array([0, 5])}, "places of streams"),
        ({"insn_start": np.array([0, -5, 10])}, "places of streams"),
        ({"dram_base": np.zeros(7, np.uint32)}, "wrong shape"),
        ({"counter_names": np.array(["x"] * 7)}, "wrong counters"),
    ],
)
def test_bad_files_are_refused(changed: dict[str, Any], wrong: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["check", str(_npz(tmp_path / "f.npz", **changed))]) == 2
    assert wrong in capsys.readouterr().err


def test_damaged_files_are_refused(tmp_path: Path, capsys: Any) -> None:
    whole = _npz(tmp_path / "f.npz").read_bytes()
    rng = np.random.default_rng(0)
    assert main(["check", str(tmp_path / "none.npz")]) == 2
    for k in range(60):
        data = bytearray(whole[: int(rng.integers(0, len(whole)))] if k % 2 else whole)
        for at in rng.integers(0, max(1, len(data)), 8).tolist() if data else ():
            data[at] = int(rng.integers(0, 256))
        (tmp_path / "f.npz").write_bytes(bytes(data))
        assert main(["check", str(tmp_path / "f.npz")]) in (0, 1, 2)
    capsys.readouterr()
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        header = b"\x93NUMPY\x01\x00\x46\x00{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 16), }"
        archive.writestr("insn.npy", header + b" " * (0x46 + 10 - len(header)))
    assert main(["check", str(tmp_path / "f.npz")]) == 2
    assert "longer than the file" in capsys.readouterr().err


def test_check_encodes_and_decodes_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for kind, layout in (
        ("mem", fields(Opcode.LOAD)), ("gemm", fields(Opcode.GEMM)), ("alu", fields(Opcode.ALU)), ("uop", uop_fields()),
    ):  # fmt: skip
        widths = [bits for name, bits in layout if name]
        columns = [rng.integers(*((0, 1 << b) if b > 0 else (-(1 << -b - 1), 1 << -b - 1)), 50) for b in widths]
        arrays[f"{kind}_values"] = np.stack(columns, 1).astype(np.int64)
        named = dict(zip((name for name, _ in layout if name), columns, strict=True))
        arrays[f"{kind}_words"] = pack(named, layout, 4 if kind == "uop" else 16)
    path = str(tmp_path / "e.npz")
    np.savez(path, **arrays)
    assert main(["check", path]) == 0 and "200 words, all equal" in capsys.readouterr().out
    np.savez(path, **{**arrays, "gemm_values": arrays["gemm_values"] ^ (np.arange(50)[:, None] == 7)})
    assert main(["check", path]) == 1
    assert "gemm: 1 words are encoded otherwise, first number 7" in capsys.readouterr().out
    np.savez(path, **{**arrays, "alu_words": arrays["alu_words"][:, :8]})
    assert main(["check", path]) == 2 and "wrong shape" in capsys.readouterr().err


def test_padding_and_strides() -> None:
    image = np.arange(1 << 13, dtype=np.int64).astype(np.uint8)
    program = [
        Load(Memory.ACC8, 3, 260, 2, 3, 5, 1, 2, 1, 2),
        Load(Memory.ACC8, 200, 260, 0, 2, 0, 2, 1, 1, 1),
        Store(Memory.OUT, 3, 500, 5, 6, 6),
        Finish(),
    ]
    machine, memory = Machine(), image.copy()
    machine.buffers[Memory.ACC][:] = 77
    machine.step(encode(program), range(4), {BASE: memory})
    lines = image[260 * 16 - BASE :].view(np.int8)
    wanted = np.zeros((5, 6, 16), np.int8)
    for y in range(2):
        wanted[1 + y, 1:4] = lines[y * 80 : y * 80 + 48].reshape(3, 16)
    assert np.array_equal(memory[500 * 16 - BASE :][: 30 * 16].view(np.int8).reshape(5, 6, 16), wanted)
    acc = machine.buffers[Memory.ACC]
    assert not acc[200:212].any() and (acc[212:] == 77).all() and (acc[:3] == 77).all()
