"""The tests of each room of the source: its own tests first, then those that show best whether it is right."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS: dict[str, tuple[str, ...]] = {
    "arith": ("tests/arith", "tests/schedule", "tests/functions/test_gradients.py"),
    "ir": ("tests/ir", "tests/laws/test_text.py", "tests/laws/test_key.py", "tests/te", "tests/schedule"),
    "schedule": ("tests/schedule", "tests/te"),
    "te": ("tests/te", "tests/schedule", "tests/ops", "tests/functions/test_gradients.py"),
    "ops": (
        "tests/ops",
        "tests/ops/gradients/test_gradient.py",
        "tests/ops/gradients/test_gradient_control.py",
        "tests/ops/gradients/test_gradient_linalg.py",
        "tests/functions/test_gradients.py",
        "tests/compiler/test_ragged.py",
        "tests/frontend/common/test_trees.py",
        "tests/plans/matmul/test_packing.py",
        "tests/plans/convolution/test_groups.py",
    ),
    "transform": (
        "tests/transform",
        "tests/codegen",
        "tests/train/test_recompute.py",
        "tests/frontend/onnx/test_control.py",
        "tests/transform/layout/test_conversions.py",
        "tests/compiler/test_state.py",
        "tests/compiler/test_ragged.py",
    ),
    "codegen": (
        "tests/codegen",
        "tests/schedule",
        "tests/builder/test_export.py",
        "tests/te/test_externs.py",
        "tests/frontend/onnx/test_control.py",
    ),
    "frontend": ("tests/frontend",),
    "plans": ("tests/plans",),
    "targets": ("tests/targets",),
    "runtime": (
        "tests/runtime",
        "tests/compiler/test_state.py",
        "tests/compiler/test_ragged.py",
        "tests/frontend/onnx/test_control.py",
        "tests/ops/test_extent.py",
    ),
    "native": ("tests/native", "tests/runtime"),
    "live": ("tests/live",),
}
"""By room: what its mutants must be noticed by. The first entry is the room's own."""

COMPUTED_ONCE = ("runtime", "native", "live")
"""Rooms that write native code once a process: only the first test that needs it runs the lines that write it, and all
tests rely on them."""


def sources(room: str) -> list[Path]:
    """The room's source files."""
    return sorted((ROOT / "src" / "tilewright" / room).rglob("*.py"))


def files_testing(room: str, *, own: bool = False) -> list[str]:
    """The test files of a room, its own first (or alone), as paths from the repository's root."""
    results: list[str] = []
    for entry in TESTS[room][: 1 if own else None]:
        path = ROOT / entry
        files = [path] if path.suffix else sorted(path.rglob("test_*.py"))
        results += [f.relative_to(ROOT).as_posix() for f in files]
    return results
