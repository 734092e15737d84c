"""VTA as schedules see it: its memories as scopes, and the product of its GEMM core as an intrinsic.

s[sums].set_scope(ACC); inputs = s[sums].cache_read(X, INP); s[sums].tensorize(j, GEMM)
"""

from __future__ import annotations

from tilewright import te
from tilewright.targets.vta.config import DEFAULT, Memory

INP = te.scope("vta_inp", 1 << DEFAULT.log_inp_bytes)
WGT = te.scope("vta_wgt", 1 << DEFAULT.log_wgt_bytes)
ACC = te.scope("vta_acc", 1 << DEFAULT.log_acc_bytes)

MEMORIES: dict[str, Memory] = {INP: Memory.INP, WGT: Memory.WGT, ACC: Memory.ACC}
"""The memory of VTA in which buffers of each scope lie."""

LANES = {Memory.INP: (DEFAULT.block,), Memory.WGT: (DEFAULT.block, DEFAULT.block), Memory.ACC: (DEFAULT.block,)}
"""The inner dimensions of a memory's buffers, which make a row."""

GEMM = "vta_gemm"
"""`acc[j] += sum over k of a[k] * w[j, k]`: one operation of the GEMM core."""


def _register() -> None:
    n = DEFAULT.block
    a, w = te.placeholder((n,), "int8", name="a"), te.placeholder((n, n), "int8", name="w")
    k = te.reduce_axis((0, n), name="k")
    product = lambda j: te.sum(te.cast(a[k], "int32") * te.cast(w[j, k], "int32"), axis=k)  # noqa: E731
    te.intrinsic(GEMM, te.compute((n,), product, name="acc"), [a, w])


_register()
