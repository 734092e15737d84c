"""The peers that the benchmarks compare: a table of peers, and a module for each framework.

A peer's function sets the framework up in a process of its own and returns its call: it takes `model, threads, batch`
and returns a `Prepared` (see `tilewright.measure.paired`). To add one, write that function and name it in `PEERS`. Each
peer runs with the best settings known for it: shapes fixed at compile time, inputs and outputs in buffers made before
the call wherever the framework can.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework in one way of using it.

    Args:
        setup: "module:function" of the contender.
        needs: modules without which it cannot run.
        description: the settings, for the report.
    """

    setup: str
    needs: tuple[str, ...]
    description: str

    @property
    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def _peer(function: str, needs: str, description: str) -> Peer:
    return Peer(f"benchmarks.peers.{function}", tuple(needs.split()), description)


PEERS: dict[str, Peer] = {
    "tilewright": _peer("own:symbolic", "", "`model(*inputs, out=buffers)`, compiled with a symbolic batch"),
    "tilewright-fixed": _peer("own:fixed", "", "`model(*inputs, out=buffers)`, compiled for the batch that is timed"),
    "tilewright-call": _peer("own:call", "", "`model(*inputs)` with new outputs, compiled for the batch that is timed"),
    "tilewright-run": _peer("own:run", "", "`model.run(inputs)` by names with new outputs, symbolic batch"),
    "tilewright-bf16": _peer("own:bf16", "", 'as tilewright-fixed, `precision="bf16"`'),
    "tilewright-int8": _peer("own:int8", "", 'as tilewright-fixed, `precision="int8"`'),
    "tilewright-exact": _peer("own:exact", "", 'as tilewright-fixed, `fast="exact"`'),
    "tilewright-strassen": _peer("own:strassen", "", 'as tilewright-fixed, `fast="strassen"`'),
    "onnxruntime": _peer(
        "ort:bound",
        "onnxruntime",
        "IOBinding with inputs and outputs bound once, all optimizations, free dimensions fixed, sequential",
    ),
    "onnxruntime-run": _peer(
        "ort:run", "onnxruntime", "`session.run(None, inputs)`, all optimizations, free dimensions fixed, sequential"
    ),
    "openvino": _peer(
        "vino:latency",
        "openvino",
        "f32 inference precision, latency hint, 1 stream, N threads, fixed shapes, its own buffers filled once,"
        " `infer(share_outputs=True)`",
    ),
    "openvino-bf16": _peer("vino:latency_bf16", "openvino", "as openvino, bf16 inference precision"),
    "mnn": _peer(
        "mnn:fastest",
        "MNN _tools",
        "precision high (fp32), N threads, fixed shapes; session or module API, whichever is faster on the model",
    ),
    "ncnn": _peer(
        "tencent:extractor",
        "ncnn pnnx",
        "converted by pnnx (fp16=0), fp16 and bf16 storage off, Winograd and packing on, light mode; frames of bytes"
        " are given as floats, because ncnn has no cast",
    ),
    "inductor": _peer(
        "inductor:compiled",
        "torch",
        "torch.compile, freezing, max-autotune, g++, guards skipped, `torch.inference_mode()`",
    ),
    "torch": _peer("inductor:eager", "torch", "eager, under `torch.inference_mode()`"),
    "xla": _peer("xla:jitted", "jax", "XLA:CPU through `jax.jit`, weights as constants"),
    "tvm": _peer(
        "tvm:tuned",
        "tvm",
        "tuned by MetaSchedule (`make tune-tvm`), weights packed beforehand, arguments bound once (`save_function`)",
    ),
    "numpy": _peer("blas:dot", "numpy", "OpenBLAS through `numpy.matmul(a, b, out=c)`; matrix products alone"),
}

OWN = tuple(name for name in PEERS if name.startswith("tilewright"))
"""Variants of our own."""

EXACT = "tilewright-exact"
"""Ours without the algorithms that lose digits, which every table of ours shows beside the default."""

EXCLUDED = (*OWN, "openvino-bf16")
"""Never the best peer: our own variants, and what others compute in less than single precision."""


def describe(peers: list[str]) -> str:
    """A list item for each, for the report."""
    return "".join(f"- {peer}: {PEERS[peer].description}\n" for peer in peers)
