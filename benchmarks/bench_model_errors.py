"""Errors of whole models against double precision: `python -m benchmarks.bench_model_errors --models nat,az6,resnet18`.

    f32         sums of products in single precision (`fast="exact"` without pieces)
    fast        Winograd's and Strassen's methods where the estimate takes them (`fast="auto"` without pieces)
    x3, x6      every product, convolution and attention that may be made of so many terms is
    sums        as x6, with sums in double precision until a register is stored: what else the model rounds

AMX is emulated (`tests/codegen/llvm/amx_run.py`), so this runs on any machine with a C compiler; convolutions by pieces
need vectors of 16 numbers (AVX-512). The double is the same file with every number in f64. Errors are those of
the worst output: the largest one for several inputs, relative to its largest element for all of them (an output that is
one number may be as small as errors are for one input), and the root of the mean square, relative to the output's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import tilewright as tw
from benchmarks.harness import markdown_table
from benchmarks.models import example_inputs, load
from tests.codegen.llvm.amx_run import amx, exact_sums, products
from tilewright.plans.framework.decisions import deciding, forcing
from tilewright.targets.target import Target

MODELS = "nat,imp,az6,hok1,resnet18,light-shufflenet,bert-small"
SETTINGS = {"f32": ("exact", 0), "fast": ("auto", 0), "x3": ("auto", 3), "x6": ("exact", 6), "sums": ("exact", 6)}
"""By way: the setting of `fast`, and the terms of pieces."""


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every tensor of f32 in f64, but what operators want in f32 (scales of Resize)."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    single = {n.input[2] for n in graph.node if n.op_type == "Resize" and len(n.input) > 2}

    def wide(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in single:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))

    for tensor in graph.initializer:
        wide(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t") and not single.intersection(node.output):
                wide(attribute.t)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del graph.value_info[:]
    return result


def ways(model: onnx.ModelProto, target: Target, terms: int, **options: Any) -> dict[str, str]:
    """For each decision that has pieces the label of so many terms; of none the best without."""
    with deciding() as record:
        tw.compile(model, target=target, **options)
    result = {}
    for decision in record.decisions:
        pieces = [s for s in decision.space if s.kind.startswith("split") or s.kind == "attention_tiles"]
        if not pieces:
            continue
        of_terms = [s for s in pieces if terms in (dict(s.knobs).get("terms"), dict(s.knobs).get("outputs"))]
        chosen = of_terms or [s for s in decision.space if s not in pieces]
        result[decision.key.name] = chosen[0].label
    return result


def results_of(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, Any]], target: Target, way: str
) -> list[dict[str, Any]]:
    """The outputs for each input by one way; none if it has pieces and nothing of the model is made of them."""
    fast, terms = SETTINGS[way]
    with forcing(ways(model, target, terms, fast=fast)):
        compiled = tw.compile(model, target=target, fast=fast)
    before = products()
    with exact_sums() if way == "sums" else nullcontext():
        results = [outputs_of(compiled, one) for one in inputs]
    return [] if terms and products() == before else results


def outputs_of(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a compiled model, as arrays of their own."""
    return {name: np.array(value) for name, value in model.run(dict(inputs)).items()}


def errors(got: Sequence[Mapping[str, Any]], want: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The largest and the mean error of the worst output of floats; NaN of no outputs."""
    if not got:
        return float("nan"), float("nan")
    results = []
    for name in (n for n, value in want[0].items() if value.dtype.kind == "f"):
        exact = np.stack([one[name] for one in want])
        distance = np.stack([one[name] for one in got]) - exact
        largest = np.abs(distance).max() / np.abs(exact).max()
        results.append((float(largest), float(np.sqrt((distance**2).mean() / (exact**2).mean()))))
    return max(largest for largest, _ in results), max(mean for _, mean in results)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args(arguments)
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        target = amx(patch)
        for name in options.models.split(","):
            start, model = time.process_time(), onnx.load(load(name))
            inputs = [example_inputs(model, seed=seed) for seed in range(options.seeds)]
            double = tw.compile(doubled(model), fast="exact")
            wide = [{k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in x.items()} for x in inputs]
            want = [outputs_of(double, x) for x in wide]
            both = [errors(results_of(model, inputs, target, way), want) for way in SETTINGS]
            rows.append([name, *(f"{most:.1e}, {mean:.1e}".replace("nan", "-") for most, mean in both)])
            print("  ".join(rows[-1]), f"({time.process_time() - start:.0f} s of processor time)", flush=True)
    print(markdown_table(["model", *SETTINGS], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
