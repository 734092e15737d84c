"""Targets: this machine, machines by name, what distinguishes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.measure import calibration
from tilewright.support.errors import TargetError
from tilewright.support.machine import Cache, describe
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.host import native
from tilewright.targets.target import Target, known


def test_host_is_one_object_with_sane_sizes() -> None:
    here = Target.host()
    assert here is Target.host() is Target.parse("host")
    assert here.vector_bits in (128, 256, 512)
    assert here.l1 < here.l2 <= here.l3
    assert here.cores >= 1
    assert set(here.features).isdisjoint(here.missing)


def test_the_hosts_ways_are_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine's processor may be one that no table of caches has."""
    here = describe()
    data = {c.level: c for c in here.caches if c.kind != "Instruction"}
    sides = (Cache(1, "Data", 48 << 10, 1, ways=12), Cache(2, "Unified", 2 << 20, 1, ways=16))
    monkeypatch.setattr("tilewright.targets.host.describe", lambda: replace(here, caches=sides))
    other = native.__wrapped__().caches
    assert (other.l1, other.l1_ways, other.l2, other.l2_ways) == (48 << 10, 12, 2 << 20, 16)
    monkeypatch.setattr(
        "tilewright.targets.host.describe", lambda: replace(here, caches=tuple(replace(c, ways=0) for c in sides))
    )
    assert native.__wrapped__().caches.l1_ways > 0
    if all(level in data and data[level].ways for level in (1, 2)):
        caches = native().caches
        assert (caches.l1_ways, caches.l2_ways) == (data[1].ways, data[2].ways)


def test_ceilings_of_this_machine_are_located_whatever_is_known_of_ways() -> None:
    here = describe()
    blind = replace(here, caches=tuple(replace(c, ways=0) for c in here.caches))
    assert calibration.identity(here) == calibration.identity(blind)


@pytest.mark.parametrize("name", known())
def test_known_targets(name: str) -> None:
    target = Target.parse(name)
    assert target.lanes(4) == target.vector_bits // 32
    assert target.fingerprint != Target.parse("x86-64").fingerprint or name == "x86-64"
    assert all(set(dot.features) <= set(target.features) for dot in target.isa.dots)
    assert list(target.features) == sorted(target.features)


def test_levels_widen_vectors() -> None:
    widths = [Target.parse(f"x86-64{level}").vector_bits for level in ("", "-v2", "-v3", "-v4")]
    assert widths == [128, 128, 256, 512]
    assert Target.parse("x86-64-v4").has("avx512f")
    assert "+avx2" in Target.parse("x86-64-v3").llvm_features


@pytest.mark.parametrize(
    "name,registers,fma,masked,tables,scales,extrema,streams,dots",
    [
        ("x86-64", 16, False, False, 0, False, False, True, []),
        ("x86-64-v3", 16, True, True, 0, False, False, True, ["i16 i8", "i16 i16"]),
        ("alderlake", 16, True, True, 0, False, False, True, ["u8 i8", "i16 i16", "i16 i8", "i16 i16"]),
        ("x86-64-v4", 32, True, True, 16, True, False, True, ["i16 i8", "i16 i16"] * 2),
        (
            "znver4",
            32,
            True,
            True,
            16,
            True,
            False,
            True,
            ["bf16 bf16", "u8 i8", *["i16 i16", "i16 i8"] * 2, "i16 i16"],
        ),
        ("neoverse-n1", 32, True, False, 0, False, True, False, ["i8 i8"]),
        ("rv64gcv", 32, True, False, 0, False, False, False, []),
        ("wasm32-simd128", 15, False, False, 0, False, True, False, []),
    ],
)
def test_what_instructions_offer(
    name: str,
    registers: int,
    fma: bool,
    masked: bool,
    tables: int,
    scales: bool,
    extrema: bool,
    streams: bool,
    dots: list[str],
) -> None:
    isa = Target.parse(name).isa
    assert (isa.registers, isa.fma, isa.masked_reads, isa.tables) == (registers, fma, masked, tables)
    assert (isa.scales, isa.extrema_keep_nan, isa.streams_stores) == (scales, extrema, streams)
    assert [f"{dot.a} {dot.b}" for dot in isa.dots] == dots


def test_what_is_known_of_kinds_of_cpu() -> None:
    """Zen 4 passes vectors of 512 bits in halves; Intel's servers have a slow last level."""
    zen4, server, level = (Target.parse(name) for name in ("znver4", "skylake-avx512", "x86-64-v3"))
    assert (zen4.fma_per_cycle, zen4.l1_bandwidth, zen4.streams) == (1.0, 64.0, 2)
    assert (server.fma_per_cycle, server.l1_bandwidth, server.l3_bandwidth, server.streams) == (2.0, 128.0, 9.5, 4)
    assert (level.fma_per_cycle, level.l1_bandwidth, level.l3_bandwidth) == (2.0, 64.0, 19.0)
    for target in map(Target.parse, known()):
        assert target.l1_bandwidth >= target.l2_bandwidth >= target.l3_bandwidth >= target.memory_bandwidth


def test_a_core_has_a_part_of_the_last_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine is told of the cache of a whole socket."""
    from tilewright.targets import host

    told = host.describe()
    for claimed, cores, l3 in ((300 << 20, 2, 128 << 20), (300 << 20, 60, 300 << 20), (32 << 20, 1, 32 << 20)):
        caches = tuple(replace(c, bytes=claimed) if c.level == 3 else c for c in told.caches)
        monkeypatch.setattr(host, "describe", lambda c=caches, n=cores: replace(told, caches=c, cores=n))
        assert host.native.__wrapped__().l3 == l3


def test_fingerprint_ignores_cores_and_frequency_alone() -> None:
    target = Target.parse("x86-64-v3")
    assert target.adjusted(cores=64).fingerprint == target.fingerprint
    assert target.adjusted(frequency=5.0).fingerprint == target.fingerprint
    other = [
        target.adjusted(l2_bandwidth=5.0),
        target.adjusted(l2=1),
        target.adjusted(threads=2),
        target.adjusted(line=128),
        target.adjusted(fma=False),
        target.adjusted(dots=()),
        replace(target, costs=target.costs.fitted(Origin("today"), fma_latency=5.0)),
    ]
    assert len({t.fingerprint for t in (target, *other)}) == len(other) + 1


def test_an_origin_is_no_part_of_what_code_depends_on() -> None:
    target = Target.parse("x86-64-v3")
    same = replace(target, costs=target.costs.fitted(Origin("today"), fma_latency=target.costs.arithmetic.fma_latency))
    assert same == target and same.fingerprint == target.fingerprint


def test_the_kind_is_what_records_are_shared_over() -> None:
    """Machines of a kind differ in the last level, in ceilings, cores and threads."""
    zen4 = Target.parse("znver4")
    assert zen4.adjusted(l3=1 << 30, memory_bandwidth=1.0, barrier=9.0, cores=64, threads=4).kind == zen4.kind
    masked = zen4.adjusted(features=(*zen4.features, "rdseed"), missing=("rdpru",))  # as hypervisors do
    assert masked.kind == zen4.kind
    cheaper = tuple(replace(dot, cost=0.5) for dot in zen4.isa.dots)
    assert zen4.isa.dots and zen4.adjusted(dots=cheaper).kind == zen4.kind
    others = [zen4.adjusted(l1=1), zen4.adjusted(l2=1), zen4.adjusted(registers=16), zen4.adjusted(dots=())]
    # WebAssembly's relaxed instructions are for the same engines on the same machines.
    assert Target.parse("wasm32-relaxed-simd").kind == Target.parse("wasm32-simd128").kind
    assert len({t.kind for t in (zen4, *others, *map(Target.parse, known()))}) == len(others) + len(known()) - 1


def test_adjusted_values_are_equal_to_others_created_so() -> None:
    target = Target.parse("znver4")
    wide = target.adjusted(l2=1 << 20, memory_bandwidth=5.0)
    assert (wide.caches.l2, wide.ceilings.memory_bandwidth, wide.l1) == (1 << 20, 5.0, target.l1)
    repeated = target.adjusted(memory_bandwidth=5.0, l2=1 << 20)
    assert repeated == wide != target and hash(repeated) == hash(wide)
    with pytest.raises(TargetError, match="l2_bandwidth"):
        target.adjusted(l2_bandwith=5.0)


def test_fitted_constants_are_named() -> None:
    costs = Costs().fitted(Origin("today", "mine"), scattered_line=1.5, box_side=128)
    assert (costs.traffic.scattered_line, costs.copies.box_side) == (1.5, 128)
    assert costs.traffic.collision == Costs().traffic.collision
    with pytest.raises(TargetError, match="scattered_line"):
        Costs().fitted(Origin("today"), scatered_line=1.0)


def test_the_environment_narrows_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    native = Target.on_host("host")
    for name in ("host", "native", ""):
        monkeypatch.setenv("TILEWRIGHT_TARGET", name)
        assert Target.host() is native
    for name in known():
        monkeypatch.setenv("TILEWRIGHT_TARGET", name)
        assert Target.host() is Target.parse("host") is Target.on_host(name)
        assert Target.host().features == Target.parse(name).features
    monkeypatch.setenv("TILEWRIGHT_TARGET", "pdp11")
    with pytest.raises(TargetError, match=r"environment variable TILEWRIGHT_TARGET.*expected host, .*x86-64-v3.*pdp11"):
        Target.host()


def test_unknown_target_is_an_error_that_lists_names() -> None:
    with pytest.raises(TargetError, match="x86-64-v3"):
        Target.parse("pdp11")
