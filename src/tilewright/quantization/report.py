"""The results of a quantisation: a table by layer, the model's metric and time before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.quantization.bound import Loss
from tilewright.support.classes import dataclass
from tilewright.support.errors import UnsupportedError

if TYPE_CHECKING:
    from tilewright.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One layer that could be quantised.

    layer     its output's name
    op        "conv", "matmul" or "recurrence"
    type      of its products: "int8", "bf16", "fp16" or "fp32", or of its weights: "int8w", "int4w"
    error     what fewer bits change by themselves: root mean square of the difference by that of the output, on the
              samples that calibrated; of weights alone by that of the weights; or None
    seconds   of a call, (of the f32 model, of this one); None where a kernel computes more than this layer
    reason    why it stayed in f32; empty if it did not
    """

    layer: str
    op: str
    type: str
    error: float | None
    reason: str = ""
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Mix:
    """A choice of layers to quantise that was tried: their number, the metric, seconds of a call, and the bound of the
    loss on other calls."""

    layers: int
    metric: float
    seconds: float
    upper: float


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `tw.quantize`.

    precision   what was asked for
    chosen      what the model is: "int8", "bf16", "fp16", "int8w", "int4w" or "fp32"
    reason      why it is not what was asked for, or why "auto" chose it
    method      how ranges of activations were chosen
    samples     how many there were
    metric      (of the f32 model, of this one); higher is better
    seconds     of a call on the first sample, (of the f32 model, of this one): medians of calls in turns
    mixes       the choices of layers that were tried, in order
    warnings    what the samples do not tell: a single one, inputs that never change
    counted     the activations that the output "outside_range" counts, in its order
    loss        what the metric has lost, and what other calls lose at most (`quantization/bound.py`)
    folds       parts of the samples that were left out of calibration in turn: each sample's share of an int8 model's
                metric is by the others' numbers; 0: none was left out
    """

    precision: str
    chosen: str
    reason: str
    method: str
    samples: int
    layers: tuple[LayerRow, ...]
    metric: tuple[float, float]
    seconds: tuple[float, float]
    mixes: tuple[Mix, ...]
    graph: Graph
    weights: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    loss: Loss = Loss(0.0, 0.0)
    folds: int = 0

    @property
    def drop(self) -> float:
        """The loss of the metric as measured."""
        return self.metric[0] - self.metric[1]

    @property
    def drop_at_most(self) -> float:
        """The bound of the loss over all calls (`quantization/bound.py`)."""
        return self.loss.upper

    @property
    def speedup(self) -> float:
        """The speedup over the f32 model."""
        return self.seconds[0] / self.seconds[1] if self.seconds[1] > 0 else 1.0

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "operator", "type", "error", "us fp32", "us now", "why fp32")]
        rows += [_cells(row) for row in self.layers]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        count = sum(r.type != "fp32" for r in self.layers)
        lines.append(f"{self.chosen}: {count} of {len(self.layers)} layers, {self.samples} samples, {self.method}")
        lines.append(f"metric {self.metric[0]:.6g} -> {self.metric[1]:.6g}, {self.speedup:.2f} times as fast as fp32")
        lines.append(f"{self.loss}{f', each by the others (in {self.folds} folds)' if self.folds else ''}")
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join([*lines, self.reason] if self.reason else lines)

    def as_dict(self) -> dict[str, Any]:
        """The report as data that JSON can hold."""
        return {
            "precision": self.precision,
            "chosen": self.chosen,
            "reason": self.reason,
            "method": self.method,
            "samples": self.samples,
            "drop": self.drop,
            "drop_at_most": self.drop_at_most,
            "folds": self.folds,
            "warnings": list(self.warnings),
            "counted": list(self.counted),
            "metric": list(self.metric),
            "seconds": list(self.seconds),
            "layers": [{name: getattr(r, name) for name in LayerRow.__dataclass_fields__} for r in self.layers],
            "mixes": [{name: getattr(m, name) for name in Mix.__dataclass_fields__} for m in self.mixes],
        }

    def onnx(self) -> bytes:
        """The model as an ONNX file with QuantizeLinear and DequantizeLinear, which any runtime reads.

        Raises UnsupportedError for an operator that ONNX cannot express.
        """
        from tilewright.codegen.onnx import onnx_model
        from tilewright.quantization.qdq import folded

        if self.chosen not in ("int8", "fp32"):
            raise UnsupportedError("a QDQ file holds integers", expected="int8 or fp32", got=self.chosen)
        graph, weights = folded(self.graph, self.weights)
        data: bytes = onnx_model(graph, weights).SerializeToString()
        return data


def _cells(row: LayerRow) -> tuple[str, ...]:
    error = "-" if row.error is None else f"{row.error:.2e}"
    times = ("-", "-") if row.seconds is None else tuple(f"{s * 1e6:.1f}" for s in row.seconds)
    return (row.layer, row.op, row.type, error, *times, row.reason)
