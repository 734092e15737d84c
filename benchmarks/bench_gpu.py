"""All bars of GPUs by one script of at most eight minutes: `python -m benchmarks.bench_gpu`, on a machine with one.

Each part runs in a process of its own under a limit of its own, and results are written after each, so that a part that
fails, hangs or ends its process leaves the others theirs. Peers are PyTorch's where it is installed with CUDA.
`--only smoke,copy` runs some parts; `--out FOLDER` says where `gpu.json` and `gpu.md` go.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from benchmarks import policy_suite
from tilewright.compiler import compile_program
from tilewright.runtime.gpu.driver import driver
from tilewright.runtime.gpu.timing import copy_bandwidth, times
from tilewright.runtime.model import Model
from tilewright.support.classes import dataclass

TARGET = "nvidia-sm_90a"
TOTAL_SECONDS = 460.0
"""Seconds that all parts together may take."""
SHORTEST_SECONDS = 5.0
"""Seconds below which a part is not begun."""
Row = dict[str, Any]
"""A figure: "part", "case", "value", "unit", and where there are such "peer", "ratio", "bar" and "error"."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the script: what it measures, and its limit in seconds."""

    name: str
    run: Callable[[bool], list[Row]]
    seconds: float


def _model(source: Any, **options: Any) -> Model:
    return Model(compile_program(source, target=TARGET, **options))


def _row(part: str, case: str, value: float, unit: str, **more: Any) -> Row:
    return {"part": part, "case": case, "value": value, "unit": unit, **more}


def _off(got: Any, wanted: Any) -> float:
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def smoke(dry: bool) -> list[Row]:
    """Policies on the GPU against the same on the CPU."""
    rows = []
    for name in ("m64",) if dry else ("m64", "m256", "nat", "txl", "az"):
        source = getattr(policy_suite, name)()
        ours, cpu = _model(source), tw.compile(source)
        random = np.random.default_rng(0)
        for batch in (1, 33):
            inputs = [_random(random, i, batch) for i in cpu.inputs]
            got, wanted = (x if isinstance(x, tuple) else (x,) for x in (ours(*inputs), cpu(*inputs)))
            off = max(_off(a, b) for a, b in zip(got, wanted, strict=True))
            rows.append(_row("smoke", f"{name} batch {batch}", off, "relative norm", bar=5e-3, ok=off < 5e-3))
    return rows


def _random(random: np.random.Generator, spec: Any, batch: int) -> Any:
    shape = [batch if isinstance(d, str) else d for d in spec.shape]
    if spec.dtype.startswith(("i", "u")):
        return random.integers(0, 4, shape).astype(spec.dtype.replace("u", "uint").replace("i", "int", 1))
    return random.standard_normal(shape).astype(np.float32)


def launches(dry: bool) -> list[Row]:
    """The host's time of a launch and of a graph's, and of a whole call."""
    rows = []
    for name, batch in (("m64", 1), *(() if dry else (("nat", 1), ("az", 1)))):
        model = _model(getattr(policy_suite, name)())
        random = np.random.default_rng(0)
        t = times(model, *(_random(random, i, batch) for i in model.inputs), repeat=4 if dry else 200)
        rows += [
            _row("launch", f"{name}: a kernel by itself", t.launched * 1e6, "us", bar=8.0, ok=t.launched < 8e-6),
            _row("launch", f"{name}: its graph", t.submitted * 1e6, "us", bar=4.0, ok=t.submitted < 4e-6),
            _row("launch", f"{name}: its graph on the device", t.graph * 1e6, "us"),
            _row("launch", f"{name}: a call from NumPy and back", t.call * 1e6, "us"),
        ]
    return rows


def copy(dry: bool) -> list[Row]:
    """The driver's copy on the device, with which memory-bound kernels are compared."""
    model = _model(policy_suite.m64())
    device = model._engine.device
    assert device is not None
    rate = copy_bandwidth(device, 1 << 16 if dry else 1 << 29, 2 if dry else 20)
    return [_row("copy", device.name, rate / 1e9, "GB/s")]


def _op_graph(op: str, shape: Sequence[Any], inputs: int, attrs: dict[str, Any], t: str = "f32") -> Any:
    """A graph of one operator of the library on so many inputs of this shape, or of these shapes."""
    from tilewright import ops
    from tilewright.ir.dtype import dtype
    from tilewright.ir.expr import const
    from tilewright.ir.graph import GraphBuilder, TensorType

    b = GraphBuilder(op)
    each = [shape[k] if isinstance(shape[0], tuple) else shape for k in range(inputs)]
    types = [TensorType(dtype(t), tuple(const(int(d)) for d in s)) for s in each]
    values = [b.input(f"x{k}", type_) for k, type_ in enumerate(types)]
    return b.finish(tuple(ops.emit(b, op, *values, **attrs))), {}


MEMORY_BOUND: tuple[tuple[str, str, int, dict[str, Any], int], ...] = (
    ("add", "add", 2, {}, 3),
    ("tanh", "tanh", 1, {}, 2),
    ("softmax of rows", "softmax", 1, {"axis": -1}, 2),
    ("sums of rows", "reduce_sum", 1, {"axes": (1,), "keepdims": False}, 1),
    ("transposition", "transpose", 1, {"perm": (1, 0)}, 2),
)
"""Case, operator, inputs, attributes, and how often a tensor's bytes are moved."""


def memory(dry: bool) -> list[Row]:
    """Memory-bound kernels against the copy and against eager PyTorch."""
    shape = (16, 64) if dry else (16384, 4096)
    rate = copy(dry)[0]["value"] * 1e9
    rows = []
    for case, op, inputs, attrs, moved in MEMORY_BOUND[: 2 if dry else None]:
        model = _model(_op_graph(op, shape, inputs, attrs))
        x = [np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k in range(inputs)]
        seconds = times(model, *x, repeat=2 if dry else 20, rounds=2 if dry else 4).graph
        share = moved * x[0].nbytes / seconds / rate
        peer = None if dry else _torch_seconds(_torch_op(op, attrs), x)
        rows.append(
            _row(
                "memory", case, moved * x[0].nbytes / seconds / 1e9, "GB/s", ratio=share, bar=0.9, ok=share >= 0.9,
                peer=None if peer is None else peer / seconds,
            )
        )  # fmt: skip
    return rows


def _torch_op(op: str, attrs: dict[str, Any]) -> Callable[..., Any]:
    def call(*x: Any) -> Any:
        import torch

        return {
            "add": lambda: x[0] + x[-1],
            "tanh": lambda: torch.tanh(x[0]),
            "softmax": lambda: torch.softmax(x[0], -1),
            "reduce_sum": lambda: x[0].sum(1),
            "transpose": lambda: x[0].t().contiguous(),
        }[op]()

    return call


def _torch() -> Any:
    """PyTorch with CUDA; None where it is not."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as our products of f32 are
    return torch


def _torch_seconds(function: Callable[..., Any], arrays: Sequence[Any], repeat: int = 20) -> float | None:
    """Seconds of a function of tensors on the GPU, the least of some rounds; None without PyTorch."""
    torch = _torch()
    if torch is None:
        return None
    tensors = [x if hasattr(x, "is_cuda") else torch.from_numpy(x).cuda() for x in arrays]
    with torch.no_grad():
        for _ in range(3):
            function(*tensors)
        least = float("inf")
        for _ in range(4):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeat):
                function(*tensors)
            end.record()
            torch.cuda.synchronize()
            least = min(least, start.elapsed_time(end) / 1000 / repeat)
    return least


def products(dry: bool) -> list[Row]:
    """Products of matrices in bf16, f16 and TF32 against cuBLAS, through PyTorch, and a deep one of few rows."""
    import ml_dtypes

    torch, rows = _torch(), []
    for t, bar, m, size in DRY_PRODUCTS if dry else PRODUCTS:
        model = _model(_op_graph("matmul", ((m, size), (size, size)), 2, {}, t))
        kind = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[t]
        shapes = (m, size), (size, size)
        x = [np.random.default_rng(k).standard_normal(s, np.float32).astype(kind) for k, s in enumerate(shapes)]
        seconds = times(model, *x, repeat=2 if dry else 10, rounds=2 if dry else 4).graph
        peer, off = None, None
        if torch is not None and not dry:
            like = [torch.from_numpy(a.astype(np.float32)).cuda().to(getattr(torch, TORCH_TYPES[t])) for a in x]
            peer = _torch_seconds(torch.matmul, like, 10)
            off = _off(model(*x), torch.matmul(*(a.double() for a in like)).cpu().numpy())
        ratio = None if peer is None else peer / seconds
        ok = None if ratio is None or off is None else ratio >= bar and off < (2e-3 if t == "f32" else 1e-2)
        rate = 2 * m * size**2 / seconds / 1e12
        rows.append(_row("products", f"{t} {m} x {size}", rate, "TFLOP/s", peer=ratio, bar=bar, ok=ok, error=off))
    return rows


PRODUCTS = (
    ("bf16", 0.80, 4096, 4096),
    ("bf16", 0.80, 8192, 8192),
    ("f16", 0.80, 4096, 4096),
    ("f32", 0.75, 4096, 4096),
    ("f32", 0.75, 8192, 8192),
    ("bf16", 0.80, 16, 8192),
)
"""The type of the factors, the share of cuBLAS that is wanted, rows, and the size of the other factor."""
DRY_PRODUCTS = (("bf16", 0.80, 1024, 1024), ("f32", 0.75, 1024, 1024))
"""Products of four warps, small enough for tests."""
TORCH_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
"""PyTorch's names."""


def networks(dry: bool) -> list[Row]:
    """ResNet-50 and BERT against eager PyTorch in a CUDA graph, and Inductor."""
    torch = _torch()
    if torch is None:
        return [_row("networks", "PyTorch with CUDA is not there", 0.0, "not run")]
    from benchmarks import torch_text, torch_vision

    rows = []
    for name, make in (("ResNet-50", torch_vision.resnet50), ("BERT", torch_text.bert)):
        module, example = make()
        module = module.eval()
        for batch in (1, 32):
            x = tuple(e[:1].repeat(batch, *[1] * (e.dim() - 1)) for e in example)
            source = tw.compile(module, x, target=TARGET, dynamic=None)
            ours = times(source, *(e.numpy() for e in x), repeat=10, rounds=4)  # type: ignore[arg-type]
            cuda, on_gpu = module.cuda(), [e.cuda() for e in x]
            graph, place = torch.cuda.CUDAGraph(), None
            calls = _torch_seconds(cuda, on_gpu, 10)
            with torch.no_grad():
                with torch.cuda.graph(graph):
                    place = cuda(*on_gpu)
                eager = _torch_seconds(lambda graph=graph: graph.replay(), [], 10)
                off = _off(source(*(e.numpy() for e in x)), place.cpu().numpy())
            ratio = None if calls is None else calls / ours.graph
            rows.append(
                _row("networks", f"{name} batch {batch} against eager calls", ours.graph * 1e3, "ms", peer=ratio)
            )
            ratio = None if eager is None else eager / ours.graph
            more = {"peer": ratio, "bar": 1.2, "ok": ratio is not None and ratio >= 1.2, "error": off}
            rows.append(_row("networks", f"{name} batch {batch} against eager, graph", ours.graph * 1e3, "ms", **more))
            try:
                fast = torch.compile(cuda, mode="max-autotune-no-cudagraphs")
                inductor = _torch_seconds(fast, on_gpu, 10)
            except Exception as error:  # the peer's own
                rows.append(_row("networks", f"{name} batch {batch}: Inductor", 0.0, f"{error}"[:80]))
                continue
            ratio = None if inductor is None else inductor / ours.graph
            more = {"peer": ratio, "bar": 1.0, "ok": ratio is not None and ratio >= 1.0}
            rows.append(_row("networks", f"{name} batch {batch} against Inductor", ours.graph * 1e3, "ms", **more))
            module = module.cpu()
    return rows


def sanitizer(dry: bool) -> list[Row]:
    """compute-sanitizer's memcheck and racecheck over `smoke`."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return [_row("sanitizer", "compute-sanitizer is not there", 0.0, "not run")]
    rows = []
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "7", *_command("smoke", dry)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        rows.append(_row("sanitizer", check, done.returncode, "exit status", bar=0, ok=done.returncode == 0))
    return rows


PARTS = (
    Part("smoke", smoke, 80),
    Part("launches", launches, 40),
    Part("copy", copy, 20),
    Part("memory", memory, 60),
    Part("products", products, 80),
    Part("networks", networks, 150),
    Part("sanitizer", sanitizer, 120),
)


def _command(part: str, dry: bool) -> list[str]:
    return [sys.executable, "-m", "benchmarks.bench_gpu", "--part", part, *(["--dry"] if dry else [])]


def run_all(parts: Sequence[Part], out: Path, command: Callable[[str], list[str]], total: float) -> list[Row]:
    """Run parts in processes of their own, and write what there is after each."""
    rows: list[Row] = []
    end = time.monotonic() + total
    for part in parts:
        limit, start = min(part.seconds, end - time.monotonic()), time.monotonic()
        if limit < SHORTEST_SECONDS:
            rows.append(_row(part.name, "no time was left", 0.0, "not run", ok=False))
            continue
        try:
            done = subprocess.run(command(part.name), capture_output=True, text=True, timeout=limit, check=False)
            text, why = done.stdout, f"exit status {done.returncode}: {done.stderr.strip()[-300:]}"
            failed = done.returncode != 0
        except subprocess.TimeoutExpired as error:
            text = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            why, failed = f"longer than {limit:.0f} s", True
        rows += [json.loads(line[4:]) for line in text.splitlines() if line.startswith("ROW ")]
        if failed:
            rows.append(_row(part.name, why, 0.0, "failed", ok=False))
        print(f"{part.name}: {time.monotonic() - start:.0f} s{', ' + why if failed else ''}", flush=True)
        write(rows, out)
    return rows


def write(rows: Sequence[Row], out: Path) -> None:
    """`gpu.json` and `gpu.md` in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.json").write_text(json.dumps(list(rows), indent=1))
    lines = ["| part | case | value | of the copy | of the peer | bar | met | error |", "|---" * 8 + "|"]
    for r in rows:
        cells = [f"{r[k]:.3g}" if r.get(k) is not None else "" for k in ("ratio", "peer", "bar")]
        met = "" if r.get("ok") is None else "yes" if r["ok"] else "no"
        error = "" if r.get("error") is None else f"{r['error']:.1e}"
        case = str(r["case"]).replace("|", "/").replace("\n", " ")
        lines.append(f"| {r['part']} | {case} | {r['value']:.4g} {r['unit']} | {' | '.join(cells)} | {met} | {error} |")
    (out / "gpu.md").write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", help="run one part in this process and print its rows")
    parser.add_argument("--only", default="", help="some parts, with commas between")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, for tests")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    if options.part:
        part = next(p for p in PARTS if p.name == options.part)
        for row in part.run(options.dry):
            print("ROW " + json.dumps(row), flush=True)
        return
    driver()  # says at once where there is none
    chosen = [p for p in PARTS if not options.only or p.name in options.only.split(",")]
    rows = run_all(chosen, options.out, lambda name: _command(name, options.dry), TOTAL_SECONDS)
    print((options.out / "gpu.md").read_text())
    sys.exit(0 if all(r.get("ok") is not False for r in rows) else 1)


if __name__ == "__main__":
    main()
