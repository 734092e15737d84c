"""An exported library, called on PyTorch's tensors without Tilewright (`make torch`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builder.exported import filtered
from tests.builder.test_export import linux

pytest.importorskip("torch", reason="PyTorch is not installed")

CLIENT = """
import ctypes, sys
import torch
lib = ctypes.CDLL(sys.argv[1])
lib.filtered_workspace.restype = ctypes.c_int64
x, alpha = torch.linspace(-2, 3, 37), torch.tensor(0.5)
y = torch.empty_like(x)
memory = torch.empty(lib.filtered_workspace(ctypes.c_int64(37)) + 64, dtype=torch.uint8)
at = memory.data_ptr() + -memory.data_ptr() % 64
lib.filtered(*(ctypes.c_void_p(t.data_ptr()) for t in (x, alpha, y)), ctypes.c_int64(37), ctypes.c_void_p(at))
c = x.abs().double() ** 2.5 * 0.5
torch.testing.assert_close(y.double(), c + c.flip(0), rtol=1e-5, atol=1e-6)
assert not [m for m in sys.modules if m.startswith("tilewright")]
print("fine")
"""


@linux
def test_tensors_of_pytorch(tmp_path: Path) -> None:
    library, _ = filtered(parallel=False).export(tmp_path / "filtered.so")
    done = subprocess.run([sys.executable, "-I", "-c", CLIENT, library], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
