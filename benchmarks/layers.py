"""Single layers: the tables in `suites/` read, named, and built as small ONNX models.

A convolution that keeps its shape is built as a chain of four equal layers with weights of their own, and its time is
a fourth of the chain's: frameworks that work in a blocked layout convert at the edges of a model, which inside a real
network happens once and would be charged to every layer. All frameworks get the same chain; other layers stand alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.onnx_builder import Builder
from benchmarks.work import Work, count

SUITES = Path(__file__).resolve().parent / "suites"
CHAIN = 4
PREFIX = "layer-"


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution with bias and ReLU."""

    batch: int
    c_in: int
    c_out: int
    size: int
    kernel: int
    stride: int
    pad: int
    groups: int
    dilation: int
    kind: str

    @property
    def rank(self) -> int:
        return 1 if self.kind == "conv1d" else 2

    @property
    def out_size(self) -> int:
        if self.kind == "transposed":
            return (self.size - 1) * self.stride - 2 * self.pad + self.kernel
        return (self.size + 2 * self.pad - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def repeat(self) -> int:
        return CHAIN if (self.c_in, self.size) == (self.c_out, self.out_size) else 1

    @property
    def name(self) -> str:
        kernel = "x".join([str(self.kernel)] * self.rank)
        if self.groups == 1:
            kind = self.kind if self.kind == "transposed" else "conv"
        else:
            kind = "depthwise" if self.groups == self.c_in else "grouped"
        extra = f"-g{self.groups}" if kind == "grouped" else ""
        extra += (f"-s{self.stride}" if self.stride > 1 else "") + (f"-d{self.dilation}" if self.dilation > 1 else "")
        batch = f"-b{self.batch}" if self.batch > 1 else ""
        return f"{kind}{kernel}-{self.c_in}-{self.c_out}-{self.size}{extra}{batch}"

    def build(self) -> onnx.ModelProto:
        b = Builder(self.name, seed=self.c_in)
        x = b.input("x", [self.batch, self.c_in, *[self.size] * self.rank])
        for i in range(self.repeat):
            x = b.relu(self._layer(b, x, f"conv{i}"))
        b.output(x, "y", [self.batch, self.c_out, *[self.out_size] * self.rank])
        return b.build()

    def _layer(self, b: Builder, x: str, name: str) -> str:
        per_group = self.c_in // self.groups
        shape = (self.c_out, per_group) if self.kind != "transposed" else (self.c_in, self.c_out // self.groups)
        deviation = (2.0 / (per_group * self.kernel**self.rank)) ** 0.5
        weight = b.weight(f"{name}.weight", b.normal((*shape, *[self.kernel] * self.rank), deviation))
        bias = b.weight(f"{name}.bias", b.normal((self.c_out,), 0.1))
        return b.op(
            "ConvTranspose" if self.kind == "transposed" else "Conv",
            [x, weight, bias],
            dilations=[self.dilation] * self.rank,
            group=self.groups,
            kernel_shape=[self.kernel] * self.rank,
            pads=[self.pad] * 2 * self.rank,
            strides=[self.stride] * self.rank,
        )


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product without epilogue."""

    batch: int
    m: int
    k: int
    n: int
    kind: str
    repeat: int = 1

    @property
    def name(self) -> str:
        count = f"{self.batch}x" if self.batch > 1 else ""
        kind = "gemv" if self.m == 1 else {"weight": "gemm"}.get(self.kind, "matmul")
        return f"{kind}-{count}{self.m}x{self.k}x{self.n}"

    def build(self) -> onnx.ModelProto:
        b = Builder(self.name, seed=self.k)
        outer = [self.batch] if self.kind == "batched" else []
        x = b.input("a", [*outer, self.m, self.k])
        if self.kind == "weight":
            other = b.weight("b", b.normal((self.k, self.n), 1 / self.k**0.5))
        else:
            other = b.input("b", [*outer, self.k, self.n])
        b.output(b.op("MatMul", [x, other]), "c", [*outer, self.m, self.n])
        return b.build()


@dataclass(frozen=True, slots=True)
class Block:
    """A memory-bound block (and attention, which stands between)."""

    rows: int
    columns: int
    kind: str
    repeat: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind.replace('_', '-')}-{self.rows}x{self.columns}"

    def build(self) -> onnx.ModelProto:
        b = Builder(self.name, seed=self.columns)
        if self.kind == "attention":
            return self._attention(b)
        shape = [self.rows, self.columns]
        y = getattr(self, f"_{self.kind}")(b, b.input("x", shape))
        b.output(y, "y", shape)
        return b.build()

    def _softmax(self, b: Builder, x: str) -> str:
        return b.op("Softmax", [x], axis=-1)

    def _layer_norm(self, b: Builder, x: str) -> str:
        return b.layer_norm(x, "norm", self.columns)

    def _rms_norm(self, b: Builder, x: str) -> str:
        """An RMS norm as PyTorch exports Llama's."""
        scale = b.weight("norm.weight", b.normal((self.columns,), 0.1) + 1)
        axes = b.constant(np.array([-1], np.int64))
        mean = b.op("ReduceMean", [b.op("Mul", [x, x]), axes], keepdims=1)
        deviation = b.op("Sqrt", [b.op("Add", [mean, b.constant(np.float32(1e-6))])])
        return b.op("Mul", [b.op("Div", [x, deviation]), scale])

    def _gelu(self, b: Builder, x: str) -> str:
        """A GELU as exporters write it, which every peer recognises."""
        erf = b.op("Erf", [b.op("Div", [x, b.constant(np.float32(2**0.5))])])
        y = b.op("Mul", [x, b.op("Add", [erf, b.constant(np.float32(1))])])
        return b.op("Mul", [y, b.constant(np.float32(0.5))])

    def _residual_norm(self, b: Builder, x: str) -> str:
        return self._layer_norm(b, b.op("Add", [x, b.input("residual", [self.rows, self.columns])]))

    def _bias_silu(self, b: Builder, x: str) -> str:
        x = b.op("Add", [x, b.weight("bias", b.normal((self.columns,), 0.1))])
        return b.op("Mul", [x, b.op("Sigmoid", [x])])

    def _attention(self, b: Builder) -> onnx.ModelProto:
        """softmax(q k^T / 8) v for heads of 64, as exporters write it."""
        heads = self.columns // 64
        shape = [1, heads, self.rows, 64]
        q, k, v = (b.input(name, shape) for name in "qkv")
        scores = b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 1, 3, 2])])
        scores = b.op("Softmax", [b.op("Div", [scores, b.constant(np.float32(8))])], axis=-1)
        b.output(b.op("MatMul", [scores, v]), "y", shape)
        return b.build()


Shape = Conv | Gemm | Block

_OTHERS = (Conv(1, 64, 64, 28, 9, 1, 4, 1, 1, "conv"), Conv(1, 128, 128, 28, 3, 1, 1, 4, 1, "conv"))
OTHERS: dict[str, Shape] = {shape.name: shape for shape in _OTHERS}
"""Layers that no table times, by name, for code of kinds that those of the tables lack: Fourier's transform, groups
that fill blocks."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A line of a table."""

    suite: str
    group: str
    shape: Shape

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def model(self) -> str:
        """The name by which `models.load` knows it."""
        return PREFIX + self.name

    def work(self, proto: onnx.ModelProto) -> Work:
        """The work of one layer, also where several are chained in `proto`."""
        work, repeat = count(proto), self.shape.repeat
        if repeat == 1:
            return work
        weights = (work.read - work.written) // repeat  # what goes in is as large as what comes out
        return Work(work.flops // repeat, weights + work.written, work.written)


def lines(suite: str) -> Iterator[tuple[str, list[str]]]:
    """(group, words) of each line of a table in `suites/`."""
    group = ""
    for line in (SUITES / f"{suite}.txt").read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            group = text.strip("[]")
        elif text:
            yield group, text.split()


@functools.cache
def read() -> dict[str, Layer]:
    """All layers by name, in the order of the tables; a shape listed twice belongs to its first group."""
    result: dict[str, Layer] = {}
    for suite, kind in (("conv", Conv), ("gemm", Gemm), ("memory", Block)):
        for group, words in lines(suite):
            numbers = [int(word) if word.isdigit() else word for word in words]
            layer = Layer(suite, group, kind(*numbers))  # type: ignore[arg-type]
            result.setdefault(layer.name, layer)
    return result
