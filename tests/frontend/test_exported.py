"""Files of PyTorch's exporters: `model.update` takes the module's dictionary of weights, and demands nothing that the
exporter invented. The models here are written as the exporters write them; `test_torch_exported.py` asks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.build import info, model, node
from tilewright.support.errors import WeightError

Array = np.ndarray[Any, Any]
F = np.float32
RNG = np.random.default_rng(4)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F)


def by_torch_export(nodes: list[tuple[onnx.NodeProto, str]], names: list[str], **given: Any) -> onnx.ModelProto:
    """A model with the module's names, and with each node the operation that it comes of."""
    for n, origin in nodes:
        entry = n.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.fx_node", f"%y : call_function[target=torch.ops.aten.{origin}"
    m = model([n for n, _ in nodes], **given)
    m.producer_name = "pytorch"
    signature = m.graph.metadata_props.add()
    signature.key = "pkg.torch.export.ExportedProgram.graph_signature"
    lines = [f"p_{name.replace('.', '_')}: PARAMETER target='{name}'" for name in names]
    signature.value = "\n# inputs\n" + "\n".join(lines) + "\nx: USER_INPUT\n"
    return m


def linear_and_norms() -> onnx.ModelProto:
    nodes = [
        (node("MatMul", ["x", "val_0"], ["h"]), "linear.default](args = (%x, %p_fc_weight, %p_fc_bias)"),
        (node("Add", ["h", "fc.bias"], ["l"]), "linear.default](args = (%x, %p_fc_weight, %p_fc_bias)"),
        (node("LayerNormalization", ["l", "a.weight", "fc.bias"], ["m"]), "layer_norm.default](args = (%l, [4], "
         "%p_a_weight, %p_a_bias, 1e-05)"),
        (node("LayerNormalization", ["m", "a.weight", "fc.bias"], ["o"]), "layer_norm.default](args = (%m, [4], "
         "%p_b_weight, %p_b_bias, 1e-05)"),
        (node("Where", ["mask", "o", "scalar"], ["y"]), "where.self](args = (%b_mask, %o, %c_scalar)"),
    ]  # fmt: skip
    return by_torch_export(
        nodes,
        ["fc.weight", "fc.bias", "a.weight", "a.bias", "b.weight", "b.bias"],
        inputs=[info("x", ["n", 20, 3])],
        outputs=["y"],
        weights={
            "val_0": random(3, 4),
            "fc.bias": np.zeros(4, F),
            "a.weight": np.ones(4, F),
            "mask": RNG.random((20, 4)) < 0.5,
            "scalar": np.array(2.5, F),
        },
    )


def norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    result: Array = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    return result


def test_transposed_and_shared_weights_have_the_modules_names() -> None:
    m = linear_and_norms()
    compiled = tw.compile(m)
    new = {"fc.weight": random(4, 3)} | {k: random(4) for k in ("fc.bias", "a.weight", "a.bias", "b.weight", "b.bias")}
    assert set(compiled.weights) == set(new)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in m.graph.initializer}
    np.testing.assert_array_equal(compiled.weights["fc.weight"], held["val_0"].T)
    x = random(2, 20, 3)
    compiled.update(new)
    y = norm(x @ new["fc.weight"].T + new["fc.bias"], new["a.weight"], new["a.bias"])
    want = np.where(held["mask"], norm(y, new["b.weight"], new["b.bias"]), F(2.5))
    np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-5)


def test_a_weight_that_the_exporter_folded_away_is_refused() -> None:
    compiled = tw.compile(linear_and_norms())
    with pytest.raises(WeightError, match=r"gone.weight.*no such weight"):
        compiled.update({**compiled.weights, "gone.weight": random(4)})


def by_scopes(nodes: list[onnx.NodeProto], **given: Any) -> onnx.ModelProto:
    m = model(nodes, **given)
    m.producer_name = "pytorch"
    return m


def test_the_older_exporter() -> None:
    nodes = [
        node("Identity", ["norm.bias"], ["norm.running_mean"]),
        node("Identity", ["norm.weight"], ["norm.running_var"]),
        node("MatMul", ["x", "onnx::MatMul_12"], ["h"], name="/fc/MatMul"),
        node("Add", ["fc.bias", "h"], ["l"], name="/fc/Add"),
        node("BatchNormalization", ["l", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"], ["b"]),
        node("Add", ["b", "onnx::Add_40"], ["o"]),
        node("MatMul", ["o", "onnx::MatMul_41"], ["p"]),
        node("MatMul", ["p", "table"], ["y"]),
    ]
    table = random(6, 4)
    m = by_scopes(
        nodes,
        inputs=[info("x", ["n", 4, 3])],
        outputs=["y"],
        weights={
            "norm.weight": np.ones(4, F),
            "norm.bias": np.zeros(4, F),
            "onnx::MatMul_12": random(3, 4),
            "fc.bias": random(4),
            "onnx::Add_40": random(1, 4),
            "onnx::MatMul_41": table.T.copy(),
            "table": table,
        },
    )
    compiled = tw.compile(m)
    new = {f"norm.{k}": np.abs(random(4)) for k in ("weight", "bias", "running_mean", "running_var")}
    new |= {"fc.weight": random(4, 3), "fc.bias": random(4), "table": random(6, 4)}
    assert set(compiled.weights) == set(new)
    compiled.update({**new, "norm.num_batches_tracked": np.array(3)})
    x = random(2, 4, 3)
    y = x @ new["fc.weight"].T + new["fc.bias"]
    column = {k.removeprefix("norm."): v[:, None] for k, v in new.items() if k.startswith("norm.")}
    y = (y - column["running_mean"]) / np.sqrt(column["running_var"] + 1e-5) * column["weight"] + column["bias"]
    y = (y + onnx.numpy_helper.to_array(m.graph.initializer[4])) @ new["table"].T @ new["table"]
    np.testing.assert_allclose(compiled(x), y, rtol=1e-3, atol=1e-4)


def test_large_tied_weights_stay_one() -> None:
    weight = random(600, 600)
    nodes = [
        node("Identity", ["a.weight"], ["b.weight"]),
        node("MatMul", ["x", "a.weight"], ["h"]),
        node("MatMul", ["h", "b.weight"], ["y"]),
    ]
    m = by_scopes(nodes, inputs=[info("x", ["n", 600])], outputs=["y"], weights={"a.weight": weight})
    compiled = tw.compile(m)
    assert set(compiled.weights) == {"a.weight"}
    compiled.update({"a.weight": 2 * weight, "b.weight": 2 * weight})
    with pytest.raises(WeightError, match="was one tensor"):
        compiled.update({"a.weight": weight, "b.weight": 3 * weight})


@pytest.mark.parametrize("code", [TensorProto.INT64, TensorProto.BOOL])
def test_large_tables_of_integers_are_no_weights(code: int) -> None:
    """Of any producer: an update leaves them out, and the file's stay."""
    table = RNG.integers(0, 2, (10, 8)).astype(bool if code == TensorProto.BOOL else np.int64)
    nodes = [node("Cast", ["ge"], ["t"], to=1), node("MatMul", ["x", "t"], ["h"]), node("Mul", ["h", "w"], ["y"])]
    compiled = tw.compile(model(nodes, [info("x", ["n", 10])], ["y"], {"ge": table, "w": random(8)}))
    new, x = random(8), random(3, 10)
    compiled.update({"w": new})
    np.testing.assert_allclose(compiled(x), x @ table.astype(F) * new, rtol=1e-5, atol=1e-5)
