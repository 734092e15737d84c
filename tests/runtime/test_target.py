"""The machines whose code runs here: platforms by their triples, and features that are missing."""

from __future__ import annotations

import pytest

from tilewright.runtime import target as runtime_target
from tilewright.runtime.specs import TargetSpec
from tilewright.support.errors import ArtifactError


@pytest.mark.parametrize(
    ("triple", "platform"),
    [
        ("x86_64-unknown-linux-gnu", ("x86_64", "linux")),
        ("aarch64-linux-android", ("aarch64", "linux")),
        ("arm64-apple-darwin23", ("arm64", "darwin23")),
        ("x86_64-pc-none", ("x86_64", "unknown")),
    ],
)
def test_platforms(triple: str, platform: tuple[str, str]) -> None:
    assert runtime_target._platform(triple) == platform


@pytest.mark.parametrize(
    ("count", "listed"), [(1, "f0"), (8, "f0, f1, f2, f3, f4, f5, f6, f7"), (9, "f0, f1, f2, f3, f4, f5, f6, f7, ...")]
)
def test_missing_features_are_listed(count: int, listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them."""
    names = [f"f{k}" for k in range(count)]
    monkeypatch.setattr(runtime_target, "missing_features", lambda features: names)
    spec = TargetSpec(runtime_target.host_triple(), "some-cpu", tuple(names))
    with pytest.raises(ArtifactError, match="this CPU lacks features") as caught:
        runtime_target.check_target(spec, "file")
    assert f"lacks features: {listed}" in str(caught.value)
    assert ("..." in str(caught.value)) == (count > 8)
