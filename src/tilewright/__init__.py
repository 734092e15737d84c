"""Tilewright: an end-to-end compiler for neural networks. `import tilewright as tw`.

Names are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright import collective as collective
    from tilewright import engine as engine
    from tilewright import ort as ort
    from tilewright import te as te
    from tilewright.builder import build as build
    from tilewright.builder import plan as plan
    from tilewright.compiler import compile_program as compile_program
    from tilewright.compression.entry import compress as compress
    from tilewright.frontend.weights.entry import read_weights as read_weights
    from tilewright.frontend.weights.entry import with_weights as with_weights
    from tilewright.frontend.weights.patterns import with_patterns as with_patterns
    from tilewright.functions.comprehension import comprehension as comprehension
    from tilewright.ir.dim import dim as dim
    from tilewright.ir.graph import Graph as Graph
    from tilewright.live.broker.client import BrokerClient as BrokerClient
    from tilewright.live.broker.server import Broker as Broker
    from tilewright.live.store.actor import Actor as Actor
    from tilewright.live.store.actor import attach as attach
    from tilewright.live.store.publisher import Publisher as Publisher
    from tilewright.live.transport.ray_nodes import ray_weights as ray_weights
    from tilewright.live.transport.relay import relay as relay
    from tilewright.live.transport.serve import serve_weights as serve_weights
    from tilewright.onnxruntime.session import InferenceSession as Session  # noqa: F401
    from tilewright.ops.library import operators as operators
    from tilewright.parts.entry import compile as compile
    from tilewright.parts.entry import coverage as coverage
    from tilewright.quantization.entry import quantize as quantize
    from tilewright.records.collecting import collect as collect
    from tilewright.runtime.model import Model as Model
    from tilewright.runtime.model import load as load
    from tilewright.runtime.program import Program as Program
    from tilewright.runtime.ragged import ragged as ragged
    from tilewright.serve import client as client
    from tilewright.support import errors as errors
    from tilewright.support.errors import Error as Error
    from tilewright.train.differentiable import differentiable as differentiable
    from tilewright.train.entry import compile_step as compile_step
    from tilewright.train.gradient import gradient as gradient
    from tilewright.train.gradient import jvp as jvp
    from tilewright.tuning.entry import tune as tune

__version__ = "0.1.0"

# public name -> "module" (the module itself) or "module:attribute"
_PUBLIC = {
    "Actor": "tilewright.live.store.actor:Actor",
    "Broker": "tilewright.live.broker.server:Broker",
    "BrokerClient": "tilewright.live.broker.client:BrokerClient",
    "Error": "tilewright.support.errors:Error",
    "Graph": "tilewright.ir.graph:Graph",
    "Model": "tilewright.runtime.model:Model",
    "Program": "tilewright.runtime.program:Program",
    "Publisher": "tilewright.live.store.publisher:Publisher",
    "Session": "tilewright.onnxruntime.session:InferenceSession",
    "attach": "tilewright.live.store.actor:attach",
    "client": "tilewright.serve.client",
    "collect": "tilewright.records.collecting:collect",
    "collective": "tilewright.collective",
    "build": "tilewright.builder:build",
    "compile": "tilewright.parts.entry:compile",
    "comprehension": "tilewright.functions.comprehension:comprehension",
    "compress": "tilewright.compression.entry:compress",
    "coverage": "tilewright.parts.entry:coverage",
    "compile_program": "tilewright.compiler:compile_program",
    "compile_step": "tilewright.train.entry:compile_step",
    "differentiable": "tilewright.train.differentiable:differentiable",
    "dim": "tilewright.ir.dim:dim",
    "engine": "tilewright.engine",
    "errors": "tilewright.support.errors",
    "gradient": "tilewright.train.gradient:gradient",
    "jvp": "tilewright.train.gradient:jvp",
    "load": "tilewright.runtime.model:load",
    "operators": "tilewright.ops.library:operators",
    "ort": "tilewright.ort",
    "plan": "tilewright.builder:plan",
    "quantize": "tilewright.quantization.entry:quantize",
    "ragged": "tilewright.runtime.ragged:ragged",
    "ray_weights": "tilewright.live.transport.ray_nodes:ray_weights",
    "read_weights": "tilewright.frontend.weights.entry:read_weights",
    "relay": "tilewright.live.transport.relay:relay",
    "serve_weights": "tilewright.live.transport.serve:serve_weights",
    "te": "tilewright.te",
    "train": "tilewright.train",
    "tune": "tilewright.tuning.entry:tune",
    "with_patterns": "tilewright.frontend.weights.patterns:with_patterns",
    "with_weights": "tilewright.frontend.weights.entry:with_weights",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    where = _PUBLIC.get(name)
    if where is None:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    from tilewright.support.collection import importing

    module, _, attribute = where.partition(":")
    with importing():  # collections would walk over PyTorch's objects again and again: a quarter of the time
        value: Any = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
