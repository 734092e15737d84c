"""The broker on the command line."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

from .conftest import Cli

pytestmark = pytest.mark.usefixtures("root")


def test_help_teaches(cli: Cli) -> None:
    code, page, _ = cli("broker", "--help")
    assert code == 0
    assert "tilewright broker policy" in page


@pytest.mark.parametrize("arguments", [[], ["p", "--max-batch", "0"], ["p", "--lanes", "x"]], ids=" ".join)
def test_wrong_usage_is_2(cli: Cli, arguments: list[str]) -> None:
    assert cli("broker", *arguments)[0] == 2


def test_agents_are_answered(cli: Cli, layer: Path) -> None:
    model = tw.compile(layer)
    (spec,) = model.inputs
    x = np.random.default_rng(1).random([3 if isinstance(d, str) else d for d in spec.shape], np.float32)
    answers: list[bool] = []

    def agent() -> None:
        with tw.BrokerClient("layer", timeout=30.0) as agent:
            answers.append(np.allclose(agent(x), model(x), atol=1e-5))

    with tw.Publisher("layer", model):
        thread = threading.Thread(target=agent)
        thread.start()
        code, page, _ = cli("broker", "layer", "--seconds", "1.5", "--json")
        thread.join()
    assert code == 0
    assert answers == [True]
    lines = [json.loads(line) for line in page.splitlines()]
    assert lines[0]["serving"] == "layer"
    assert lines[-1]["requests"] == 1


def test_what_is_wrong_is_said(cli: Cli, layer: Path) -> None:
    code, _, errors = cli("broker", "policy")
    assert code == 1
    assert "there is no such store" in errors
    with tw.Publisher("layer", tw.compile(layer)), tw.Broker("layer"):
        code, _, errors = cli("broker", "layer", "--agents", "4")
    assert code == 1
    assert "a broker of this name already" in errors
