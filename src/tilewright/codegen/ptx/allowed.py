"""The functions that LLVM text for a GPU may call.

LLVM ends the process for a function that NVPTX has no instruction for: `llvm.exp.f32` prints "no libcall available" and
exits with 1, `llvm.sin.f32` aborts. So text is looked through before LLVM gets it, and an unknown function is an error
of ours.
"""

from __future__ import annotations

import re

from tilewright.support.errors import CompileError

_TYPED = r"(?:v\d+)?(?:f16|f32|f64|i1|i8|i16|i32|i64)"

_MATH = r"""fma fabs sqrt floor ceil trunc roundeven minimum maximum minnum maxnum copysign
    smin smax umin umax abs ctpop ctlz cttz bswap bitreverse fshl fshr"""

_PATTERNS = (
    rf"llvm\.(?:{'|'.join(_MATH.split())})\.{_TYPED}",
    rf"llvm\.vector\.reduce\.(?:add|mul|and|or|xor|smin|smax|umin|umax|fadd|fmul|fmin|fmax|fminimum|fmaximum)\.{_TYPED}",
    r"llvm\.masked\.(?:load|store)\.v\d+\w+\.p0",
    r"llvm\.masked\.(?:gather|scatter)\.v\d+\w+\.v\d+p0",
    r"llvm\.nvvm\.read\.ptx\.sreg\.(?:tid|ctaid)\.[xyz]",
    r"llvm\.nvvm\.barrier\.cta\.sync\.aligned\.all",
    r"llvm\.nvvm\.bar\.warp\.sync",
    r"llvm\.nvvm\.shfl\.sync\.bfly\.(?:i32|f32)",
    r"llvm\.nvvm\.mma\.m16n8k8\.row\.col\.tf32",
    r"llvm\.nvvm\.mma\.m16n8k16\.row\.col\.(?:f32\.f32|bf16)",
    r"llvm\.nvvm\.mma\.m16n8k32\.row\.col\.s8",
    r"llvm\.nvvm\.cp\.async\.(?:cg\.shared\.global\.16|ca\.shared\.global\.4|commit\.group|wait\.group)",
    r"llvm\.nvvm\.f2tf32\.rna",
    r"llvm\.nvvm\.ldmatrix\.sync\.aligned\.m8n8\.x[24](?:\.trans)?\.b16\.p3",
    r"llvm\.nvvm\.fence\.proxy\.async\.shared_cta",
)
ALLOWED = re.compile("|".join(f"(?:{p})" for p in _PATTERNS))
"""Names of functions, as a whole, for which NVPTX has instructions. Each arithmetic one on scalars and vectors of 2, 3,
4 and 8 elements was compiled in a process of its own (LLVM 22.1, sm_80 and sm_90, 29 November 2026), as some of them
are by tests/codegen/ptx/test_allowed.py."""

_CALLED = re.compile(r'(?:\bdeclare\b|\bcall\b|\binvoke\b)[^\n@]*@("(?:[^"\\]|\\.)*"|[A-Za-z_$.][\w$.]*)')
_DEFINED = re.compile(r'\bdefine\b[^\n@]*@("(?:[^"\\]|\\.)*"|[A-Za-z_$.][\w$.]*)')


def check_allowed(text: str, where: str) -> None:
    """Raise CompileError if the LLVM text calls functions that are not known to be safe on a GPU; the error lists these
    and names `where` they are called."""
    defined = set(_DEFINED.findall(text))
    called = {name for name in _CALLED.findall(text) if name not in defined}
    refused = sorted(name for name in called if not ALLOWED.fullmatch(name))
    if refused:
        raise CompileError(
            "a GPU has no instruction for what is called",
            where=where,
            expected="functions of codegen/ptx/allowed.py",
            got=", ".join(refused),
        )


__all__ = ["ALLOWED", "check_allowed"]
