"""The bars of the benchmarks: a table of what they must show, and which of them the measured rows reach.

`python -m benchmarks.bars` checks everything under `results/`; each report checks its own rows.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import stale
from benchmarks.harness import RESULTS, Comparison, console, markdown_table
from benchmarks.peers import EXACT, EXCLUDED


@dataclass(frozen=True, slots=True)
class Bar:
    """One requirement.

    Args:
        point: its number in the list of requirements.
        what: in words.
        cases: patterns of groups or labels, comma-separated.
        against: "best", "limit" (share of the machine's limit), peers of which the best counts ("mnn,ncnn"), or a
            quotient "a/b": how many times faster b is than a.
        statistic: "mean" (geometric), or "least" of the cases.
        bound: the value must not be below it.
    """

    point: int
    what: str
    cases: str
    against: str
    statistic: str
    bound: float


_STRIDE_1 = "conv3x3,conv3x3-batch8,conv3x3-vgg,conv3x3-unet"
"""Groups, for labels of strided layers and of others' begin alike."""
_CONV = "resnet50-layers,mobilenetv2-layers,yolo-layers,nat-layers,imp-layers"
_GEMM = "sgemm,bert-layers,gpt2-layers"
BARS = (
    Bar(1, "3x3 layers against ONNX Runtime", _STRIDE_1, "onnxruntime", "mean", 3.0),
    Bar(1, "3x3 layers against OpenVINO", _STRIDE_1, "openvino", "mean", 3.0),
    Bar(1, "3x3 layers against the better of MNN and ncnn", _STRIDE_1, "mnn,ncnn", "mean", 1.25),
    Bar(1, "3x3 layers, the slowest", _STRIDE_1, "best", "least", 1.0),
    Bar(2, "other convolutions of networks", _CONV, "best", "mean", 1.0),
    Bar(2, "other convolutions, the slowest", _CONV, "best", "least", 0.9),
    Bar(3, "products against OpenBLAS, ORT, oneDNN", _GEMM, "numpy,onnxruntime,openvino", "mean", 1.05),
    Bar(3, "1024x1024x1024, share of peak", "gemm-1024x1024x1024", "limit", "least", 0.93),
    Bar(3, "matrix times vector, share of bandwidth", "gemv", "limit", "least", 0.85),
    Bar(4, "AZ6 against ONNX Runtime", "az6", "onnxruntime", "least", 3.0),
    Bar(4, "AZ6 against MNN", "az6", "mnn", "least", 1.25),
    Bar(5, "ResNet-50 against ONNX Runtime", "resnet50", "onnxruntime", "least", 1.4),
    Bar(5, "ResNet-18 against ONNX Runtime", "resnet18", "onnxruntime", "least", 2.0),
    Bar(5, "VGG-16 against ONNX Runtime", "vgg16", "onnxruntime", "least", 2.7),
    Bar(5, "U-Net against ONNX Runtime", "unet", "onnxruntime", "least", 2.3),
    Bar(5, "these four against MNN and ncnn", "resnet50,resnet18,vgg16,unet", "mnn,ncnn", "least", 1.2),
    Bar(6, "IMP, batch 1 and 32", "imp,imp@32", "best", "least", 1.25),
    Bar(6, "NAT, bytes in", "nat", "best", "least", 1.05),
    Bar(6, "NAT, bytes in, batch 32", "nat@32", "best", "least", 1.12),
    Bar(7, "M64 against ONNX Runtime", "m64", "onnxruntime", "least", 4.0),
    Bar(7, "M64 against MNN, new outputs", "m64", "mnn/tilewright-call", "least", 1.6),
    Bar(7, "M64 against MNN, into buffers", "m64", "mnn", "least", 2.0),
    Bar(7, "M64, batch 64", "m64@64", "best", "least", 2.0),
    Bar(7, "M256 and HOK1", "m256,hok1", "best", "least", 1.35),
    Bar(7, "HOK1 against ONNX Runtime", "hok1", "onnxruntime", "least", 4.0),
    Bar(7, "HOK1 against PyTorch, eager", "hok1", "torch", "least", 15.0),
    Bar(7, "DZ, batch 1 to 64", "dz,dz@*", "best", "least", 1.2),
    Bar(8, "BERT and GPT-2", "bert,bert384,gpt2,gpt2-decode", "best", "least", 1.1),
    Bar(8, "bf16 against our fp32", "bert,bert384,gpt2", "own/tilewright-bf16", "mean", 1.7),
    Bar(9, "memory-bound blocks out of cache, share of bandwidth", "memory-out-of-cache", "limit", "least", 0.85),
    Bar(9, "memory-bound blocks against Inductor", "memory-*", "inductor", "mean", 1.1),
    Bar(9, "memory-bound blocks against Inductor, the slowest", "memory-*", "inductor", "least", 1.0),
    Bar(10, "two threads against one", "threads", "own/2 threads", "least", 1.85),
)  # fmt: skip


def value(c: Comparison, against: str, *, exact: bool = False) -> float | None:
    """The figure that a bar looks at in one case, where asked for of our exact variant; None if it was not measured."""
    speeds = {name: s.median for name, s in c.speedups.items()} | {c.own: 1.0, "own": 1.0}
    if c.own_seconds is None:
        return 0.0
    if exact:
        result = None if "/" in against or EXACT not in speeds else value(c, against)
        return result and result / speeds[EXACT]
    if against == "limit":
        return c.of_limit
    if "/" in against:
        slow, fast = against.split("/")
        return speeds[slow] / speeds[fast] if {slow, fast} <= speeds.keys() else None
    named = [name for name in c.speedups if name not in EXCLUDED] if against == "best" else against.split(",")
    return min((speeds[name] for name in named if name in speeds), default=None)


def _cases(bar: Bar, rows: Sequence[Comparison]) -> list[Comparison]:
    """The measured rows that a bar is about."""
    patterns = bar.cases.split(",")
    results = []
    for c in rows:
        # What two threads are compared with stands in that table alone, under the names of models.
        names = (c.group,) if c.group.startswith("threads") else (c.label, c.group)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names):
            results += [c] if value(c, bar.against) is not None else []
    return results


def evaluate(bar: Bar, rows: Sequence[Comparison]) -> list[str] | None:
    """The table's cells for a bar; None if no row tells."""
    match = _cases(bar, rows)
    if not match:
        return None
    values = [v for c in match if (v := value(c, bar.against)) is not None]
    exact = [v for c in match if (v := value(c, bar.against, exact=True)) is not None]
    result = _statistic(bar, values)
    label = match[values.index(result)].label if bar.statistic == "least" else ""
    below = sum(v < bar.bound for v in values)
    newest = stale.newest(rows)
    verdict = "pass" if result >= bar.bound else "**miss**"
    verdict += f" {stale.MARK}" if any(stale.is_stale(c, newest) for c in match) else ""
    count = f"{len(match)}" + (f", {below} below" if below else "")
    ours = [f"{result:.2f}", f"{_statistic(bar, exact):.2f}" if len(exact) == len(match) else ""]
    return [str(bar.point), bar.what, bar.statistic, f"{bar.bound:g}", *ours, verdict, count, label]


def _statistic(bar: Bar, values: Sequence[float]) -> float:
    if bar.statistic == "least":
        return min(values)
    return math.exp(sum(math.log(max(v, 1e-9)) for v in values) / len(values))


def markdown(rows: Sequence[Comparison]) -> str:
    """The table of the bars that `rows` tell about."""
    cells = [result for bar in BARS if (result := evaluate(bar, rows)) is not None]
    if not cells:
        return "None of the bars is about these cases.\n"
    note = f"\n{stale.MARK} {_MIXED}\n" if any(stale.MARK in row[_VERDICT] for row in cells) else ""
    return markdown_table(_HEADER, cells) + note


_EVALUATED = ("layers-1t", "models-1t", "threads")
"""Reports whose rows bars are about."""
_HEADER = ["point", "bar", "statistic", "at least", "measured", "exact", "verdict", "cases", "least at"]
_VERDICT = _HEADER.index("verdict")
_MIXED = "rests on rows of another commit than the newest, which the reports name."


def _choice() -> list[list[str]]:
    """Point 11, of what `bench_choice` has found: speed of the untuned choice as a share of the best's."""
    path = RESULTS / "choice.json"
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["rows"]
    shares = {row["layer"]: 1 / (1 + row["loss"]) for row in rows}
    mean = math.exp(sum(map(math.log, shares.values())) / len(shares))
    worst = min(shares, key=shares.__getitem__)
    below = sum(share < 1 / 1.1 for share in shares.values())
    count = f"{len(shares)}" + (f", {below} below" if below else "")
    verdict = "pass" if mean >= 1 / 1.1 else "**miss**"
    return [["11", "untuned against the best setting", "mean", "0.91", f"{mean:.2f}", "", verdict, count, worst]]


def main() -> int:
    rows: list[Comparison] = []
    for path in sorted(RESULTS.glob("*.json")):
        if path.stem in _EVALUATED:
            rows += [Comparison.from_json(row) for row in json.loads(path.read_text())["rows"]]
    cells = [
        evaluate(bar, rows)
        or [str(bar.point), bar.what, bar.statistic, f"{bar.bound:g}", "", "", "not measured", "", ""]
        for bar in BARS
    ]
    text = markdown_table(_HEADER, [*cells, *_choice()])
    text += "\nExact: what ours reaches without the algorithms that lose digits.\n"
    text += "\n" + stale.footnote(rows) if stale.footnote(rows) else ""
    console().print(text, markup=False)
    (RESULTS / "bars.md").write_text("# Bars\n\n`python -m benchmarks.bars`\n\n" + text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
