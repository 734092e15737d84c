"""A program does not pay for a library that it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {"torch", "gymnasium", "stable_baselines3", "ray", "torchrl", "tensordict"}


def loaded(statement: str) -> set[str]:
    """The libraries, and Tilewright's packages, that a fresh process has after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})\n"
    code += "print(*{'.'.join(m.split('.')[:2]) for m in sys.modules if m.startswith('tilewright.')})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_tilewright_alone_imports_none() -> None:
    result = loaded("import tilewright as tw; tw.attach; tw.Publisher")
    assert not result & LIBRARIES and "tilewright.rl" not in result


def test_an_actor_needs_numpy_alone() -> None:
    result = loaded("import tilewright as tw; tw.attach; from tilewright.rl import sampling")
    assert not result & LIBRARIES and "tilewright.compiler" not in result


@pytest.mark.parametrize(
    ("module", "library", "others"),
    [
        ("sb3", "stable_baselines3", {"ray", "torchrl", "tensordict"}),
        ("rllib", "ray.rllib", {"stable_baselines3", "torchrl", "tensordict"}),
        ("torchrl", "torchrl", {"stable_baselines3", "ray"}),
    ],
)
def test_each_drop_in_needs_its_own_library_alone(module: str, library: str, others: set[str]) -> None:
    pytest.importorskip(library, reason="the libraries are an extra: `make rl` runs this")
    # What a library itself imports where others are installed is its own affair.
    own = loaded(f"import {library}, torch")
    result = loaded(f"import tilewright.rl.{module}")
    assert not (result - own) & others
    assert "tilewright.compiler" not in result
