"""The results of a compression: bytes, error and time, and a table by weight."""

from __future__ import annotations

from typing import Any

from tilewright.quantization.bound import Loss
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class WeightRow:
    """One weight: its elements, the share of them that are not 0, and its distinct values."""

    weight: str
    elements: int
    nonzero: float
    values: int


@dataclass(frozen=True, slots=True)
class Try:
    """A recipe that was tried: the bytes of its weights in a file, the metric, and seconds of a call."""

    recipe: str
    nbytes: int
    metric: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CompressionReport:
    """The result of `tw.compress`.

    recipe    what was done
    metric    (of the original, of this model); higher is better
    nbytes    of the weights in a file, (of the original as it is stored, of this model coded)
    seconds   of a call on the first sample, (of the original, of this model): medians of calls in turns
    tries     all recipes that were tried, in order
    loss      what the metric has lost, and what other calls lose at most (`quantization/bound.py`)
    held_out  the numbers, from 0, of the samples that did not train; the metric is of these alone
    """

    recipe: str
    reason: str
    weights: tuple[WeightRow, ...]
    metric: tuple[float, float]
    nbytes: tuple[int, int]
    seconds: tuple[float, float]
    tries: tuple[Try, ...]
    loss: Loss = Loss(0.0, 0.0)
    held_out: tuple[int, ...] = ()

    @property
    def drop(self) -> float:
        """By how much the metric of the compressed model is below that of the original."""
        return self.loss.drop

    @property
    def drop_at_most(self) -> float:
        """An upper bound on the loss of the metric over all calls."""
        return self.loss.upper

    @property
    def ratio(self) -> float:
        """The size of the original's weights divided by the compressed size."""
        return self.nbytes[0] / max(self.nbytes[1], 1)

    def __str__(self) -> str:
        rows = [("weight", "elements", "not zero", "values")]
        rows += [(r.weight, str(r.elements), f"{r.nonzero:.1%}", str(r.values)) for r in self.weights]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        before, after = self.nbytes
        lines.append(f"{self.recipe}: {before} -> {after} bytes of weights, {self.ratio:.1f} times smaller")
        lines.append(
            f"metric {self.metric[0]:.6g} -> {self.metric[1]:.6g}, {self.seconds[0] / max(self.seconds[1], 1e-12):.2f} "
            "times as fast"
        )
        lines.append(f"{self.loss}{f', {len(self.held_out)} held out of training' if self.held_out else ''}")
        return "\n".join([*lines, self.reason] if self.reason else lines)

    def as_dict(self) -> dict[str, Any]:
        """The report as data that JSON can hold."""
        return {
            "recipe": self.recipe,
            "reason": self.reason,
            "metric": list(self.metric),
            "drop": self.drop,
            "drop_at_most": self.drop_at_most,
            "held_out": list(self.held_out),
            "bytes": list(self.nbytes),
            "seconds": list(self.seconds),
            "weights": [{name: getattr(r, name) for name in WeightRow.__dataclass_fields__} for r in self.weights],
            "tries": [{name: getattr(t, name) for name in Try.__dataclass_fields__} for t in self.tries],
        }
