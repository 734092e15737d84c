"""Targets: this machine, machines by name, what distinguishes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.support.errors import TargetError
from tilewright.targets.target import Target, known


def test_host_is_one_object_with_sane_sizes() -> None:
    host = Target.host()
    assert host is Target.host() is Target.parse("host")
    assert host.vector_bits in (128, 256, 512)
    assert host.l1 < host.l2 <= host.l3
    assert host.cores >= 1
    assert set(host.features).isdisjoint(host.missing)


@pytest.mark.parametrize("name", known())
def test_known_targets(name: str) -> None:
    target = Target.parse(name)
    assert target.lanes(4) == target.vector_bits // 32
    assert target.fingerprint != Target.parse("x86-64").fingerprint or name == "x86-64"
    assert target.is_x86 == target.triple.startswith("x86_64")


def test_levels_widen_vectors() -> None:
    widths = [Target.parse(f"x86-64{level}").vector_bits for level in ("", "-v2", "-v3", "-v4")]
    assert widths == [128, 128, 256, 512]
    assert Target.parse("x86-64-v4").has("avx512f")
    assert "+avx2" in Target.parse("x86-64-v3").llvm_features


def test_fingerprint_ignores_cores_alone() -> None:
    target = Target.parse("x86-64-v3")
    assert replace(target, cores=64).fingerprint == target.fingerprint
    assert replace(target, frequency=5.0).fingerprint == target.fingerprint
    assert replace(target, l2_bandwidth=5.0).fingerprint != target.fingerprint
    assert replace(target, l2=1).fingerprint != target.fingerprint


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
