"""Products of f32 by pieces of bf16 against products of f32: `python -m benchmarks.bench_split`, on a machine with AMX.

    python -m benchmarks.bench_split [--threads 1] [--only 128x768x768]       30 products, each way in turns
    python -m benchmarks.bench_split --model bert                             a model, as it is and without pieces
    python -m benchmarks.bench_split --training "resnet18 64x64@32"           a step of training, likewise
    python -m benchmarks.bench_split --attention                              attention, each way in turns
    python -m benchmarks.bench_split --errors                                 on any machine, by the operators in NumPy

Each way is forced as a decision; `chosen` is what the estimate takes under "auto". Ratios are medians of pairs, above 1
where pieces are faster. Errors are of the largest output, against double precision.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from benchmarks.models import example_inputs, load
from tilewright import ops
from tilewright.ir.dtype import bf16, f32
from tilewright.ir.expr import const
from tilewright.ir.graph import Graph, GraphBuilder, TensorType
from tilewright.ops.lowered.split import TERMS, count_of
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.targets.target import Target

SHAPES = [
    *((m, k, n) for m in (64, 128, 512) for k, n in ((768, 768), (768, 3072), (3072, 768), (1024, 1024))),
    *((m, 256, 256) for m in (64, 256, 1024, 4096)),
    *((m, 4096, 1024) for m in (64, 256)),
    *((size, size, size) for size in (64, 128, 256, 512, 1024, 2048)),
    (32, 768, 768),
    (16, 768, 3072),
    (256, 64, 4096),
    (4096, 512, 64),
    (197, 768, 2304),
    (384, 768, 768),
]
SPLIT = {f"x{terms}": f"split terms={terms}," for terms in TERMS}
DEPTHS = (64, 256, 768, 3072)


def product(rows: int, depth: int, columns: int) -> Graph:
    b = GraphBuilder("product")
    x = b.input("x", TensorType(f32, (const(rows), const(depth))))
    w = b.param("w", TensorType(f32, (const(depth), const(columns))))
    return b.finish((ops.emit1(b, "matmul", x, w),))


PIECES = ("split", "split_matrices", "split_gathered", "attention_tiles")
"""The algorithms by pieces."""


def without_pieces(compile: Callable[[], object]) -> dict[str, str]:
    """The settings that take for each decision which has products of pieces the best of the other ways."""
    with deciding() as record:
        compile()
    split = [d for d in record.decisions if not set(PIECES).isdisjoint(d.space.kinds)]
    return {d.key.name: next(s.label for s in d.space if s.kind not in PIECES) for d in split}


def forced(graph: Graph, **options: Any) -> tuple[dict[str, Mapping[str, str]], str]:
    """The settings of each way of a product, and which way the estimate takes."""
    weights = {p.name: np.zeros([d.value for d in p.shape], np.float32) for p in graph.params}
    with deciding() as record:
        tw.compile((graph, weights), **options)
    algorithms = [d for d in record.decisions if d.key.kind == "algorithm"]
    if not algorithms:
        return {"f32": {}}, "f32"
    (decision,) = algorithms
    ways = {"f32": "packed", **SPLIT}
    labels = {w: next((s for s in decision.space.labels if s.startswith(p)), None) for w, p in ways.items()}
    selected = next(w for w, label in labels.items() if label == decision.selected.label)
    return {w: {decision.key.name: label} for w, label in labels.items() if label}, selected


def turns(models: Mapping[str, Any], x: Sequence[np.ndarray], seconds: float) -> dict[str, list[float]]:
    """Times of calls, in turns, the first one's first."""
    results: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        model(*x)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(results["f32"]) < 5:
        for name, model in models.items():
            start = time.perf_counter()
            model(*x)
            results[name].append(time.perf_counter() - start)
    return results


def ratio(results: Mapping[str, list[float]], way: str) -> float:
    """How many times faster a way is than f32."""
    return float(np.median(np.array(results["f32"]) / np.array(results[way])))


def products(threads: int, only: str | None) -> None:
    rng, logs = np.random.default_rng(0), {way: list[float]() for way in SPLIT}
    print(f"{'rows x depth x columns':>24} {'f32':>8} {'x3':>8} {'x6':>8}  GFLOP/s   x3    x6  chosen")
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        if only is not None and only != name:
            continue
        rows, depth, columns = shape
        graph, models = product(*shape), {}
        w = (rng.standard_normal((depth, columns)) / np.sqrt(depth)).astype(np.float32)
        ways, selected = forced(graph, threads=threads)
        for way, settings in ways.items():
            with forcing(settings):
                models[way] = tw.compile((graph, {"w": w}), threads=threads)
        results = turns(models, [rng.standard_normal((rows, depth)).astype(np.float32)], 1.0)
        rates = {way: 2e-9 * rows * depth * columns / float(np.median(ts)) for way, ts in results.items()}
        ratios = {way: ratio(results, way) for way in SPLIT if way in results}
        for way, value in ratios.items():
            logs[way].append(np.log(value))
        cells = " ".join(f"{rates[w]:8.0f}" if w in rates else f"{'-':>8}" for w in ("f32", *SPLIT))
        more = " ".join(f"{ratios[w]:5.2f}" if w in ratios else f"{'-':>5}" for w in SPLIT)
        print(f"{name:>24} {cells}          {more}  {selected}")
    for way, values in logs.items():
        if values:
            print(f"{way}: {np.exp(np.mean(values)):.2f} times f32 in the geometric mean of {len(values)}")


HEADS = ((128, 12, 64), (197, 12, 64), (384, 12, 64), (1024, 16, 64))
"""Rows, which are keys too, heads and their depth of attention."""


def attention(threads: int) -> None:
    """Print times of attention as f32 has it and by registers of matrices, in turns."""
    for rows, heads, depth in HEADS:
        b = GraphBuilder("attention")
        shape = TensorType(f32, tuple(map(const, (1, rows, heads, depth))))
        inputs = [b.input(name, shape) for name in "qkv"]
        attrs = {"order": "ssss", "heads": heads, "groups": heads, "first": (0, 0, 0), "scale": depth**-0.5}
        attrs |= {"causal": False, "fill": 0.0, "guard": False}
        graph = b.finish((ops.emit1(b, "lowered.attention", *inputs, **attrs),))
        x = [np.random.default_rng(k).standard_normal((1, rows, heads, depth)).astype(np.float32) for k in range(3)]
        models: dict[str, Any] = {}
        for precision in ("fp32", "bf16"):
            options: dict[str, Any] = {"threads": threads, "precision": precision}
            with deciding() as record:
                tw.compile((graph, {}), **options)
            labels = {"f32": ""} if precision == "fp32" else {}
            keys = [d for d in record.decisions if d.key.kind == "algorithm"]
            for decision in keys:
                labels = {label: label for label in decision.space.labels if label != "packed"}
                labels |= {"f32": "packed"} if precision == "fp32" else {}
            for name, label in labels.items():
                with forcing({d.key.name: label for d in keys if label}):
                    models[name] = tw.compile((graph, {}), **options)
        results = turns(models, x, 1.0)
        cells = (
            f"{name} {1e6 * float(np.median(times)):.0f} us ({ratio(results, name):.2f})"
            for name, times in results.items()
        )
        print(f"{rows} rows, {heads} heads of {depth}: {', '.join(cells)}", flush=True)


def model(name: str, threads: int) -> None:
    """Print times of a model, by its file or by its name of `benchmarks/models.py`."""
    path = str(load(name))
    for fast in ("auto", "exact"):
        settings = without_pieces(partial(tw.compile, path, threads=threads, fast=fast))
        whole = tw.compile(path, threads=threads, fast=fast)
        with forcing(settings):
            models = {"f32": tw.compile(path, threads=threads, fast=fast), "pieces": whole}
        arrays = example_inputs(onnx.load(path))
        results = turns(models, [arrays[i.name] for i in whole.inputs], 5.0)
        times = ", ".join(f"{way} {1e3 * float(np.median(ts)):.2f} ms" for way, ts in results.items())
        print(f"{fast}: {times}; {ratio(results, 'pieces'):.2f} times as fast ({len(settings)} decisions have pieces)")


def training(case: str) -> None:
    """Print times of a step of training by its name of `benchmarks/peers/training.py`, on one thread, as it is and
    without pieces, in turns."""
    from benchmarks.peers.training import RATE, task_of

    def step() -> Any:
        module, loss, batch = task_of(case)
        return tw.compile_step(module, loss, tw.train.Adam(RATE), batch, clip=0.5)

    settings = without_pieces(step)
    whole = step()
    with forcing(settings):
        steps = {"f32": step(), "pieces": whole}
    results = turns(steps, [x.numpy() for x in task_of(case)[2]], 10.0)
    times = ", ".join(f"{way} {1e3 * float(np.median(ts)):.1f} ms" for way, ts in results.items())
    print(f"{case}: {times}; {ratio(results, 'pieces'):.2f} times as fast ({len(settings)} decisions have pieces)")


def errors(seeds: int) -> None:
    """Print the largest errors of products in f32 and by pieces, relative to the largest exact result. The operators'
    references compute them, which sum in f32."""
    print(f"{'depth':>6} {'values':>9} {'f32':>9} {'x3':>9} {'x6':>9}")
    for depth in DEPTHS:
        for values in ("normal", "positive"):
            worst = dict.fromkeys(("f32", *SPLIT), 0.0)
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((128, depth), (depth, 256)))
                if values == "positive":
                    x, w = np.abs(x), np.abs(w)
                exact = x.astype(np.float64) @ w
                results = {"f32": x @ w} | {f"x{terms}": by_pieces(x, w, terms) for terms in TERMS}
                for way, y in results.items():
                    worst[way] = max(worst[way], float(np.abs(y - exact).max() / np.abs(exact).max()))
            print(f"{depth:>6} {values:>9} " + " ".join(f"{worst[way]:9.1e}" for way in worst))


def by_pieces(x: np.ndarray, w: np.ndarray, terms: int) -> np.ndarray:
    """The product as the operators say it."""
    pieces, product = ops.get("lowered.pieces"), ops.get("lowered.matmul_pieces")
    first, second = (
        pieces.reference([v], ops.attributes("lowered.pieces", {"count": count_of(terms), "first": lead}))[0]
        for v, lead in ((x, False), (w, True))
    )
    attrs = {"width": 16, "group": 2, "panels": 1, "transpose": False}
    (panels,) = ops.get("lowered.pack_dot").reference([second], ops.attributes("lowered.pack_dot", attrs))
    how = ops.attributes("lowered.matmul_pieces", {"columns": w.shape[1], "rows": 16, "terms": terms})
    return np.asarray(product.reference([first, panels], how)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--model")
    parser.add_argument("--training")
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--any", action="store_true", help="run without AMX too, where all ways are the ordinary one")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    if options.errors:
        return errors(options.seeds)
    if not options.any and find_tile_dot(bf16, bf16, Target.host()) is None:
        raise SystemExit("this machine multiplies no matrices of bf16 (AMX): only --errors runs here")
    if options.attention:
        return attention(options.threads)
    if options.training:
        return training(options.training)
    if options.model:
        return model(options.model, options.threads)
    return products(options.threads, options.only)


if __name__ == "__main__":
    main()
