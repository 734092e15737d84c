"""The host is described without raising, whatever /sys says; its ceilings are plausible."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.measure import peak, probes
from tilewright.support import machine


def test_describe() -> None:
    host = machine.describe()
    assert host.cpu
    assert host.triple
    assert 1 <= host.cores <= host.cpus
    assert 0 < host.usable <= host.cpus
    assert host.vector_lanes in (4, 8, 16)


def test_caches_as_the_kernel_tells_them(tmp_path: Path) -> None:
    for number, (level, kind, size, cpus, ways) in enumerate(
        [
            ("1", "Data", "48K", "0", "12"),
            ("2", "Unified", "2M", "0-1", "16"),
            ("3", "Unified", "96M", "0-3,8-11", ""),
            ("x", "?", "", "", ""),
        ]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        texts = {"level": level, "type": kind, "size": size, "shared_cpu_list": cpus, "ways_of_associativity": ways}
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
    result = machine.caches(tmp_path)
    assert [(c.name, c.bytes, c.shared_by, c.ways) for c in result] == [
        ("L1d", 48 << 10, 1, 12),
        ("L2", 2 << 20, 2, 16),
        ("L3", 96 << 20, 8, 0),
    ]
    assert machine.caches(tmp_path / "nothing") == ()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_probes_are_valid_for_any_width(lanes: int) -> None:
    import llvmlite.binding as llvm

    text = "\n".join([probes.fma_text(lanes, 12), probes.chain_text(), probes.read_text(lanes)])
    llvm.parse_assembly(text).verify()


def test_ceilings_are_plausible() -> None:
    ceilings = peak.measure(machine.describe())
    assert 1 < ceilings.peak_gflops_one < 1000
    assert ceilings.copy_gbs_one > 0.5
    assert 0.2 < ceilings.frequency_ghz < 10
    assert 0.2 < ceilings.fma_per_cycle < 8
    assert min(ceilings.l1_gbs, ceilings.l2_gbs, ceilings.l3_gbs, ceilings.memory_gbs, ceilings.memory_gbs_all) > 0.5
