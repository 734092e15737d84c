"""Models with `target="vta-1x16x16"`: layers go to VTA, the host has the rest, and the numbers are NumPy's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.vta.resnet import Network, resnet18
from tilewright.codegen.vta import machine  # its scopes are known to all tests
from tilewright.support.errors import TargetError
from tilewright.targets.target import Target

TARGET = "vta-1x16x16"
assert machine.MEMORIES


def layers(model: tw.Model) -> list[str]:
    return re.findall(r'= lowered.vta\(.*layer = "(\w+)"', str(model.show("graph")))


@pytest.mark.parametrize("style", ["qdq", "qop"])
def test_a_small_network(style: str, tmp_path: Path) -> None:
    """A convolution, one of stride 2, a depthwise one, a sum and a pool; also from its file."""
    image = np.random.default_rng(3).integers(-128, 128, (1, 3, 16, 16)).astype(np.float32)
    net = Network(image, style)
    x = net.pool(net.conv("x_q", 24, 3))
    y = net.conv(net.conv(x, 24, 3, groups=24), 40, 1, 2, relu=False)
    last = net.sum(y, net.conv(x, 40, 3, 2, relu=False))
    proto = net.model(last, 5, image)
    model = tw.compile(proto, target=TARGET)
    assert sorted(layers(model)) == ["addition", *["convolution"] * 4, "maxpool"]
    results = model.run({"x": image})
    assert np.array_equal(np.asarray(results["features"])[0], net.values[last])
    host = tw.compile(proto)  # words64 are rounded otherwise there
    assert np.abs(np.asarray(host.run({"x": image})["features"]).astype(int) - results["features"]).max() <= 4
    mean = net.values[last].reshape(40, -1).astype(np.float64).mean(1)
    matrix = next(w for w in net.weights if w.name == "matrix")
    wanted = mean @ np.frombuffer(matrix.raw_data, np.float32).reshape(40, 5)
    assert np.allclose(results["y"], wanted, rtol=1e-4, atol=1e-3)
    model.save(tmp_path / "m.tw")
    reloaded = tw.load(tmp_path / "m.tw")
    assert np.array_equal(reloaded.run({"x": image})["features"], results["features"])


def test_what_vta_cannot_shift_stays_on_the_host() -> None:
    image = np.random.default_rng(3).integers(-128, 128, (1, 16, 6, 6)).astype(np.float32)
    net = Network(image)
    last = net.conv("x_q", 16, 3)
    proto = net.model(last, 2, image)
    for w in proto.graph.initializer:
        if w.name.startswith("scale") and w.name != "scale0":
            w.raw_data = np.float32(0.013).tobytes()
    model = tw.compile(proto, target=TARGET)
    assert layers(model) == []
    assert np.array_equal(model.run({"x": image})["features"], tw.compile(proto).run({"x": image})["features"])


def test_the_target_is_the_host_with_a_device() -> None:
    target = Target.parse(TARGET)
    assert target.accelerator == TARGET and target.cpu == Target.host().cpu
    assert target.fingerprint != Target.host().fingerprint
    with pytest.raises(TargetError, match=TARGET):
        Target.parse("vta-9")


def test_a_small_resnet() -> None:
    proto, image, wanted = resnet18(32, 16)
    model = tw.compile(proto, target=TARGET)
    assert len(layers(model)) == 29
    assert np.array_equal(np.asarray(model.run({"x": image})["features"])[0], wanted)
