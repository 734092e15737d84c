"""The cycle model, and its pictures."""

from pathlib import Path

import pytest

from tilewright.support.errors import CompileError
from tilewright.targets.vta.access import Queue
from tilewright.targets.vta.assembly import assemble
from tilewright.targets.vta.picture import png, text
from tilewright.targets.vta.timing import Timing, timeline

SERIAL = """load inp dram_base=300 y_size=1 x_size=100 x_stride=100 +next
gemm uop_end=1 iter_out=1 iter_in=1000 dst_in=1 -prev +prev
load inp dram_base=300 y_size=1 x_size=100 x_stride=100 -next +next
gemm uop_end=1 iter_out=1 iter_in=1000 dst_in=1 -prev
finish
"""
EARLY = SERIAL.replace(" +prev", "").replace(" -next", "")


def test_tokens_decide_what_overlaps() -> None:
    timing = Timing(port_bytes=8, latency=10, decode=1, fill=3)
    load, gemm = 1 + 10 + 200, 1 + 3 + 1000
    serial = timeline(assemble(SERIAL), timing=timing)
    assert [(s.begin, s.end) for s in serial.spans[:4]] == [
        (0, load), (load, load + gemm), (load + gemm, 2 * load + gemm), (2 * load + gemm, 2 * load + 2 * gemm)
    ]  # fmt: skip
    assert serial.cycles == 2 * load + 2 * gemm + 1
    assert timeline(assemble(EARLY), timing=timing).cycles == load + 2 * gemm + 1
    assert serial.gemms == 2000 and serial.share == pytest.approx(2000 / serial.cycles)
    assert serial.busy(Queue.LOAD) == pytest.approx(2 * load / serial.cycles)


def test_costs_of_instructions() -> None:
    timing = Timing(port_bytes=8, latency=10, decode=1, fill=3, alu_row=2)
    costs = [
        timing.cycles(i)
        for i in assemble("""load wgt y_size=2 x_size=3 x_stride=3
load acc8 y_size=2 x_size=3 x_stride=3
load inp y_size=1 x_size=1 y_pad_0=1 x_pad_1=1
store out y_size=4 x_size=1
alu add uop_end=2 iter_out=2 iter_in=2
alu add uop_end=2 iter_out=2 iter_in=2 use_imm
gemm uop_end=2 iter_out=2 iter_in=0
load inp
finish""")
    ]
    assert costs == [11 + 2 * 96, 11 + 2 * 6, 11 + 2 + 3, 11 + 4 * 2, 4 + 16, 4 + 8, 1, 1, 1]


def test_a_program_that_stops_has_no_time() -> None:
    with pytest.raises(CompileError, match="waits for ever"):
        timeline(assemble("finish -prev"))


def test_pictures(tmp_path: Path) -> None:
    program = assemble(SERIAL)
    shown = text(program, timeline(program), 40).splitlines()
    assert shown[0].startswith("load    |LLLL") and "GGGG" in shown[1] and "S" not in shown[2][8:]
    assert shown[3] == f"{timeline(program).cycles} cycles, 80% of the peak of the GEMM core"
    png(
        {"serial": (program, timeline(program)), "early": (assemble(EARLY), timeline(assemble(EARLY)))},
        tmp_path / "t.png",
    )
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
