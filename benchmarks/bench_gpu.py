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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from benchmarks import policy_suite
from tilewright.compiler import compile_program
from tilewright.plans.gpu import products as gpu_products
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
    run: Callable[[bool], Iterator[Row]]
    seconds: float


def _model(source: Any, **options: Any) -> Model:
    return Model(compile_program(source, target=TARGET, **options))


def _row(part: str, case: str, value: float, unit: str, **more: Any) -> Row:
    return {"part": part, "case": case, "value": value, "unit": unit, **more}


def _off(got: Any, wanted: Any) -> float:
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def smoke(dry: bool) -> Iterator[Row]:
    """Policies on the GPU against the same on the CPU."""
    for name in ("m64",) if dry else ("m64", "m256", "nat", "txl", "az"):
        source = getattr(policy_suite, name)()
        ours, cpu = _model(source), tw.compile(source)
        random = np.random.default_rng(0)
        for batch in (1, 33):
            inputs = [_random(random, i, batch) for i in cpu.inputs]
            got, wanted = (x if isinstance(x, tuple) else (x,) for x in (ours(*inputs), cpu(*inputs)))
            off = max(_off(a, b) for a, b in zip(got, wanted, strict=True))
            yield _row("smoke", f"{name} batch {batch}", off, "relative norm", bar=5e-3, ok=off < 5e-3)


def _random(random: np.random.Generator, spec: Any, batch: int) -> Any:
    shape = [batch if isinstance(d, str) else d for d in spec.shape]
    if spec.dtype.startswith(("i", "u")):
        return random.integers(0, 4, shape).astype(spec.dtype.replace("u", "uint").replace("i", "int", 1))
    return random.standard_normal(shape).astype(np.float32)


def kinds(dry: bool) -> Iterator[Row]:
    """Kernels of each kind against NumPy, the simplest ones first: where one ends the context, the rows before it say
    how many the device took."""
    for kind in KINDS:
        yield from _or_failure("kinds", " ".join(map(str, kind)), _product_of(*kind))
    for t in ("f32", "f16"):
        yield from _or_failure("kinds", f"{t} convolution", _convolution_of(t))
    for t, causal, length in (("f32", False, 96), ("f16", True, 130), ("bf16", True, 96)):
        yield from _or_failure("kinds", f"{t} attention", _attention_of(t, causal, length))


def _product_of(name: str, t: str, transposed: bool, together: int) -> Iterator[Row]:
    random, (m, n, k), kind = np.random.default_rng(0), (70, 128, 192), _KINDS[t]
    x, w = (random.standard_normal(s).astype(kind) for s in ((m, k), (n, k) if transposed else (k, n)))
    with _tiles(together):
        model = _model(_op_graph("matmul", (x.shape, w.shape), 2, {"transpose_b": transposed}, t))
    a, b = x.astype(np.float64), w.astype(np.float64)
    off = _off(model(x, w), a @ (b.T if transposed else b))
    yield _row("kinds", f"{t} {name}", off, "relative norm", bar=1e-2, ok=off < 1e-2)


def _convolution_of(t: str) -> Iterator[Row]:
    """A window of nine pixels, whose maps are computed with channels innermost."""
    random, kind = np.random.default_rng(0), _KINDS[t]
    x, w = (random.standard_normal(s).astype(kind) for s in ((3, 64, 9, 9), (40, 64, 3, 3)))
    geometry = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    model = _model(_op_graph("conv", (x.shape, w.shape), 2, geometry, t))
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (1, 1), (1, 1)])
    wanted = sum(
        np.einsum("nchw,fc->nfhw", padded[:, :, i : i + 9 : 2, j : j + 9 : 2], w[:, :, i, j].astype(np.float64))
        for i in range(3)
        for j in range(3)
    )
    off = _off(model(x, w), wanted)
    yield _row("kinds", f"{t} convolution", off, "relative norm", bar=1e-2, ok=off < 1e-2)


def _attention_of(t: str, causal: bool, length: int) -> Iterator[Row]:
    q, k, v = (np.random.default_rng(s).standard_normal((1, length, 2, 64)).astype(_KINDS[t]) for s in range(3))
    off = _off(_model(_attention_graph(1, length, 2, 64, t, causal))(q, k, v), _attended(q, k, v, causal))
    yield _row("kinds", f"{t} attention of {length}", off, "relative norm", bar=1e-2, ok=off < 1e-2)


KINDS = (
    ("by warps", "f32", False, 0),
    ("by warps", "f16", False, 0),
    ("by warps", "bf16", True, 0),
    ("by four warps, core matrices", "bf16", True, 1),
    ("by four warps, factors that lie across", "bf16", False, 1),
    ("by four warps, whole tiles", "bf16", True, 2),
    ("by four warps, whole tiles", "f32", True, 2),
)
"""Products by their instruction, type, whether the second factor is transposed, and how warps work together."""
_KINDS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@contextmanager
def _tiles(together: int) -> Iterator[None]:
    """Products of one kind alone: by single warps (0), by four from core matrices (1), from whole tiles (2)."""
    before = gpu_products.TILES, gpu_products.WIDE_TILES, gpu_products.by_tiles
    if together:
        gpu_products.TILES = ()
    else:
        gpu_products.WIDE_TILES = ()
    if together == 1:
        gpu_products.by_tiles = lambda *_: False
    try:
        yield
    finally:
        gpu_products.TILES, gpu_products.WIDE_TILES, gpu_products.by_tiles = before


def _attention_graph(batch: int, length: int, heads: int, depth: int, t: str, causal: bool) -> Any:
    """Attention over [batch, length, heads, depth]."""
    from tilewright import ops
    from tilewright.ir.dtype import dtype
    from tilewright.ir.expr import const
    from tilewright.ir.graph import GraphBuilder, TensorType

    b = GraphBuilder("attention")
    shape = TensorType(dtype(t), tuple(map(const, (batch, length, heads, depth))))
    attrs = {"order": "ssss", "heads": heads, "groups": heads, "first": (0, 0, 0), "scale": depth**-0.5, "fill": 0.0}
    inputs = [b.input(name, shape) for name in "qkv"]
    return b.finish(ops.emit(b, "lowered.attention", *inputs, causal=causal, guard=False, **attrs))


def _attended(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention by NumPy, in f64."""
    q, k, v = (a.astype(np.float64).transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf) if causal else scores
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


def attention(dry: bool) -> Iterator[Row]:
    """Attention against PyTorch's `scaled_dot_product_attention`."""
    torch = _torch()
    for t, batch, length, heads, depth, causal in DRY_ATTENTION if dry else ATTENTION:
        model = _model(_attention_graph(batch, length, heads, depth, t, causal))
        x = [
            np.random.default_rng(s).standard_normal((batch, length, heads, depth), np.float32).astype(_KINDS[t])
            for s in range(3)
        ]
        seconds, peer = times(model, *x, repeat=2 if dry else 10, rounds=2 if dry else 4).graph, None
        if torch is not None and not dry:
            kind = getattr(torch, TORCH_TYPES[t])
            like = [torch.from_numpy(a.astype(np.float32)).cuda().to(kind).transpose(1, 2) for a in x]
            attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=causal)
            peer = _torch_seconds(attend, like, 10)
        work = 4 * batch * heads * length**2 * depth / (2 if causal else 1)
        case = f"{t} {batch} x {length} x {heads} x {depth}{', causal' if causal else ''}"
        ratio = None if peer is None else peer / seconds
        yield _row("attention", case, work / seconds / 1e12, "TFLOP/s", peer=ratio)


ATTENTION = (
    ("f16", 4, 2048, 16, 64, True),
    ("bf16", 4, 2048, 16, 128, True),
    ("bf16", 32, 384, 12, 64, False),
    ("f32", 4, 1024, 12, 64, False),
)
"""Type, batch, length, heads, depth, and whether it is causal."""
DRY_ATTENTION = (("f16", 1, 64, 1, 32, True),)


def launches(dry: bool) -> Iterator[Row]:
    """The host's time of a launch and of a graph's, and of a whole call."""
    for name, batch in (("m64", 1), *(() if dry else (("nat", 1), ("az", 1)))):
        model = _model(getattr(policy_suite, name)())
        random = np.random.default_rng(0)
        t = times(model, *(_random(random, i, batch) for i in model.inputs), repeat=4 if dry else 200)
        yield from [
            _row("launch", f"{name}: a kernel by itself", t.launched * 1e6, "us", bar=8.0, ok=t.launched < 8e-6),
            _row("launch", f"{name}: its graph", t.submitted * 1e6, "us", bar=4.0, ok=t.submitted < 4e-6),
            _row("launch", f"{name}: its graph on the device", t.graph * 1e6, "us"),
            _row("launch", f"{name}: a call from NumPy and back", t.call * 1e6, "us"),
        ]


def copy(dry: bool) -> Iterator[Row]:
    """The driver's copy on the device, with which memory-bound kernels are compared."""
    model = _model(policy_suite.m64())
    device = model._engine.device
    assert device is not None
    rate = copy_bandwidth(device, 1 << 16 if dry else 1 << 29, 2 if dry else 20)
    yield _row("copy", device.name, rate / 1e9, "GB/s")


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


def memory(dry: bool) -> Iterator[Row]:
    """Memory-bound kernels against the copy and against eager PyTorch."""
    shape = (16, 64) if dry else (16384, 4096)
    rate = next(copy(dry))["value"] * 1e9
    for case, op, inputs, attrs, moved in MEMORY_BOUND[: 2 if dry else None]:
        model = _model(_op_graph(op, shape, inputs, attrs))
        x = [np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k in range(inputs)]
        seconds = times(model, *x, repeat=2 if dry else 20, rounds=2 if dry else 4).graph
        share = moved * x[0].nbytes / seconds / rate
        peer = None if dry else _torch_seconds(_torch_op(op, attrs), x)
        more = {"ratio": share, "bar": 0.9, "ok": share >= 0.9, "peer": None if peer is None else peer / seconds}
        yield _row("memory", case, moved * x[0].nbytes / seconds / 1e9, "GB/s", **more)


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


def products(dry: bool) -> Iterator[Row]:
    """Products of matrices in bf16, f16 and TF32 against cuBLAS, through PyTorch, and a deep one of few rows."""
    torch = _torch()
    for t, bar, m, size in DRY_PRODUCTS if dry else PRODUCTS:
        model = _model(_op_graph("matmul", ((m, size), (size, size)), 2, {}, t))
        kind = _KINDS[t]
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
        yield _row("products", f"{t} {m} x {size}", rate, "TFLOP/s", peer=ratio, bar=bar, ok=ok, error=off)


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


def networks(dry: bool) -> Iterator[Row]:
    """ResNet-50 and BERT against eager PyTorch in a CUDA graph, and Inductor."""
    torch = _torch()
    if torch is None:
        yield _row("networks", "PyTorch with CUDA is not there", 0.0, "not run")
        return
    from benchmarks import torch_text, torch_vision

    for name, make in (("ResNet-50", torch_vision.resnet50), ("BERT", torch_text.bert)):
        for batch in (1, 32):
            case = f"{name} batch {batch}"
            yield from _or_failure("networks", case, _network(case, make, batch))


def _or_failure(part: str, case: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Rows, and one that says so if they end with an error."""
    try:
        yield from rows
    except Exception as error:  # the others of the part go on
        yield _row(part, f"{case}: {type(error).__name__}: {error}"[:200], 0.0, "failed", ok=False)


def _network(case: str, make: Callable[[], Any], batch: int) -> Iterator[Row]:
    torch = _torch()
    module, example = make()
    module = module.eval()
    x = tuple(e[:1].repeat(batch, *[1] * (e.dim() - 1)) for e in example)
    source = tw.compile(module, x, target=TARGET, dynamic=None)
    ours = times(source, *(e.numpy() for e in x), repeat=10, rounds=4)  # type: ignore[arg-type]
    yield _row("networks", case, ours.graph * 1e3, "ms")
    cuda, on_gpu = module.cuda(), [e.cuda() for e in x]
    graph = torch.cuda.CUDAGraph()
    calls = _torch_seconds(cuda, on_gpu, 10)
    ratio = None if calls is None else calls / ours.graph
    yield _row("networks", f"{case} against eager calls", ours.graph * 1e3, "ms", peer=ratio)
    with torch.no_grad():
        with torch.cuda.graph(graph):
            place = cuda(*on_gpu)
        eager = _torch_seconds(graph.replay, [], 10)
        off = _off(source(*(e.numpy() for e in x)), place.cpu().numpy())
    ratio = None if eager is None else eager / ours.graph
    more = {"peer": ratio, "bar": 1.2, "ok": ratio is not None and ratio >= 1.2, "error": off}
    yield _row("networks", f"{case} against eager, graph", ours.graph * 1e3, "ms", **more)
    inductor = _torch_seconds(torch.compile(cuda, mode="max-autotune-no-cudagraphs"), on_gpu, 10)
    ratio = None if inductor is None else inductor / ours.graph
    more = {"peer": ratio, "bar": 1.0, "ok": ratio is not None and ratio >= 1.0}
    yield _row("networks", f"{case} against Inductor", ours.graph * 1e3, "ms", **more)


def sanitizer(dry: bool) -> Iterator[Row]:
    """compute-sanitizer's memcheck and racecheck over `kinds`."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        yield _row("sanitizer", "compute-sanitizer is not there", 0.0, "not run")
        return
    for check in ("memcheck", "racecheck"):
        command = [tool, "--tool", check, "--error-exitcode", "7", *_command("kinds", dry)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        yield _row("sanitizer", check, done.returncode, "exit status", bar=0, ok=done.returncode == 0)


PARTS = (
    Part("kinds", kinds, 60),
    Part("smoke", smoke, 70),
    Part("launches", launches, 40),
    Part("copy", copy, 20),
    Part("memory", memory, 60),
    Part("products", products, 70),
    Part("attention", attention, 40),
    Part("networks", networks, 140),
    Part("sanitizer", sanitizer, 90),
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
