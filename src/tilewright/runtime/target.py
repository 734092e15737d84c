"""Whether this machine can run a program's code."""

from __future__ import annotations

from tilewright.native.link import host_triple, missing_features
from tilewright.runtime.specs import TargetSpec
from tilewright.support.errors import ArtifactError


def check_target(target: TargetSpec, where: str) -> None:
    """Raise ArtifactError if the code is for another kind of machine, or needs features that this CPU lacks."""
    mine, theirs = _platform(host_triple()), _platform(target.triple)
    if mine != theirs:
        raise ArtifactError("the code is for another machine", where=where, expected="/".join(mine), got=target.triple)
    missing = missing_features(target.features)
    if missing:
        listed = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
        hint = "compile the model again on this machine"
        raise ArtifactError(f"this CPU lacks features: {listed}", where=where, got=f"code for {target.cpu}", hint=hint)


def is_gpu(target: TargetSpec) -> bool:
    """Whether a program's kernels are for a GPU, whose driver this machine may have."""
    return target.triple.startswith("nvptx64")


def _platform(triple: str) -> tuple[str, str]:
    """(architecture, system) of a triple like x86_64-unknown-linux-gnu."""
    parts = triple.split("-")
    return parts[0], next((p for p in parts[1:] if p.startswith(("linux", "darwin", "macosx", "windows"))), "unknown")
