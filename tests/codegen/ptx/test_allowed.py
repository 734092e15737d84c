"""Functions that LLVM text for a GPU may call: names that end the process are refused before LLVM sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.codegen.ptx.cases import H100
from tilewright.codegen.ptx.allowed import ALLOWED
from tilewright.codegen.ptx.device import ptx_of
from tilewright.support.errors import CompileError

CALL = """target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @f(ptr %x) {{
  %a = load {type}, ptr %x
  %b = call {type} @{name}({type} %a)
  store {type} %b, ptr %x
  ret void
}}
declare {type} @{name}({type})
"""

UNARY = [
    f"llvm.{name}.{suffix}"
    for name in ("fabs", "sqrt", "floor", "ceil", "trunc", "roundeven")
    for suffix in ("f32", "f64", "v4f32")
] + [f"llvm.{name}.{suffix}" for name in ("ctpop", "bswap") for suffix in ("i32", "i64")]
FATAL = ("llvm.exp.f32", "llvm.log2.f32", "llvm.sin.f32", "llvm.tanh.f32", "expf", "llvm.pow.f32")


def text(name: str) -> str:
    suffix = name.rsplit(".", 1)[-1]
    types = {"f32": "float", "f64": "double", "v4f32": "<4 x float>"}
    return CALL.format(name=name, type=types.get(suffix, suffix if suffix.startswith("i") else "float"))


@pytest.mark.parametrize("name", FATAL)
def test_what_would_end_the_process_is_an_error(name: str) -> None:
    with pytest.raises(CompileError, match=rf"no instruction.*{name.replace('.', '[.]')}"):
        ptx_of(text(name), H100)


def test_names_in_quotes_and_tails_are_seen() -> None:
    for line in ('%b = tail call float @"llvm.exp.f32"(float %a)', "%b = call contract float @llvm.exp.f32(float %a)"):
        with pytest.raises(CompileError, match=r"llvm[.]exp"):
            ptx_of(text("llvm.fabs.f32").replace("%b = call float @llvm.fabs.f32(float %a)", line), H100)


def test_what_is_allowed_compiles_and_why_the_list_is_needed() -> None:
    """In a process of its own, which LLVM ends. Once it does not, the list may go."""
    program = """
from tests.codegen.ptx.cases import H100
from tests.codegen.ptx.test_allowed import UNARY, text
from tilewright.codegen.llvm.optimize import assembly
from tilewright.codegen.ptx.device import ptx_of
for name in UNARY:
    assert ".entry f" in ptx_of(text(name), H100), name
print(len(UNARY), flush=True)
assembly(text("llvm.exp.f32"), H100)
print("not ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [str(len(UNARY))], done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert all(ALLOWED.fullmatch(name) for name in UNARY)
