"""A decoder of GPT-2's shape as ONNX, with caches that come in and go out as exporters write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).resolve().parent.parent / "build" / "models"


def decoder(layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257) -> onnx.ModelProto:
    """Inputs ids [batch, n] and past_k_0, past_v_0 ... [batch, heads, past, width / heads]; outputs logits and the
    caches with the new rows after them. Layer norms first, a GELU (tanh form) between two products, causal."""
    return _Builder(layers, width, heads, vocabulary).build()


def saved(layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257) -> Path:
    """The model's file, written once."""
    path = FOLDER / f"decoder-{layers}x{width}.v1.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(decoder(layers, width, heads, vocabulary), path)
    return path


class _Builder:
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int) -> None:
        self.layers, self.width, self.heads, self.vocabulary = layers, width, heads, vocabulary
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray[Any, Any]] = {}
        self.rng = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        out = out or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def number(self, value: Any, kind: Any = np.int64) -> str:
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.array(value, kind)
        return name

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = self.rng.standard_normal(shape).astype(np.float32) * 0.02
        return name

    def norm(self, x: str, name: str) -> str:
        self.weights[f"{name}.weight"] = np.ones(self.width, np.float32)
        self.weights[f"{name}.bias"] = np.zeros(self.width, np.float32)
        return self.add("LayerNormalization", x, f"{name}.weight", f"{name}.bias", axis=-1, epsilon=1e-5)

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.add(
            "Add", self.add("MatMul", x, self.weight(name, rows, columns)), self.weight(f"{name}.bias", columns)
        )

    def build(self) -> onnx.ModelProto:
        one, zero, two, three = (self.number([k]) for k in (1, 0, 2, 3))
        past = self.add("Slice", self.add("Shape", "past_k_0"), two, three)
        first = self.add("Squeeze", past, zero)
        new = self.add("Slice", self.add("Shape", "ids"), one, two)
        end = self.add("Squeeze", self.add("Add", past, new), zero)
        step, start = self.number(1), self.number(0)
        at, keys = self.add("Range", first, end, step), self.add("Range", start, end, step)
        seen = self.add("LessOrEqual", self.add("Unsqueeze", keys, zero), self.add("Unsqueeze", at, one))
        mask = self.add("Where", seen, self.number(0, np.float32), self.number(np.finfo(np.float32).min, np.float32))
        tokens = self.add("Gather", self.weight("wte", self.vocabulary, self.width), "ids")
        x = self.add("Add", tokens, self.add("Gather", self.weight("wpe", 1024, self.width), at))
        for layer in range(self.layers):
            x = self.layer(x, mask, layer)
        logits = self.add(
            "MatMul", self.norm(x, "ln_f"), self.weight("head", self.width, self.vocabulary), out="logits"
        )
        depth, kind = self.width // self.heads, TensorProto.FLOAT
        caches = [f"{c}_{k}" for k in range(self.layers) for c in "kv"]
        inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "n"])]
        outputs = [helper.make_tensor_value_info(logits, kind, ["batch", "n", self.vocabulary])]
        for name, group, rows in (("past", inputs, "past"), ("present", outputs, "all")):
            shape = ["batch", self.heads, rows, depth]
            group += [helper.make_tensor_value_info(f"{name}_{c}", kind, shape) for c in caches]
        initializers = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    def layer(self, x: str, mask: str, k: int) -> str:
        width, depth = self.width, self.width // self.heads
        shape, flat = self.number([0, 0, self.heads, depth]), self.number([0, 0, width])
        projected = self.linear(self.norm(x, f"ln_1_{k}"), f"qkv_{k}", width, 3 * width)
        parts = [f"q_{k}", f"new_k_{k}", f"new_v_{k}"]
        self.nodes.append(helper.make_node("Split", [projected], parts, axis=2, num_outputs=3))
        q, new_k, new_v = (self.add("Transpose", self.add("Reshape", p, shape), perm=[0, 2, 1, 3]) for p in parts)
        keys = self.add("Concat", f"past_k_{k}", new_k, out=f"present_k_{k}", axis=2)
        values = self.add("Concat", f"past_v_{k}", new_v, out=f"present_v_{k}", axis=2)
        scores = self.add("MatMul", q, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = self.add("Mul", scores, self.number(depth**-0.5, np.float32))
        y = self.add("MatMul", self.add("Softmax", self.add("Add", scaled, mask), axis=-1), values)
        y = self.add("Reshape", self.add("Transpose", y, perm=[0, 2, 1, 3]), flat)
        x = self.add("Add", x, self.linear(y, f"out_{k}", width, width))
        h = self.linear(self.norm(x, f"ln_2_{k}"), f"up_{k}", width, 4 * width)
        cube = self.add("Mul", self.add("Mul", self.add("Mul", h, h), h), self.number(0.044715, np.float32))
        inner = self.add("Mul", self.add("Add", h, cube), self.number((2 / np.pi) ** 0.5, np.float32))
        gate = self.add("Add", self.add("Tanh", inner), self.number(1, np.float32))
        gelu = self.add("Mul", self.add("Mul", h, gate), self.number(0.5, np.float32))
        return self.add("Add", x, self.linear(gelu, f"down_{k}", 4 * width, width))
