"""The Kubernetes manifests hand to `tilewright serve` options that it takes; `make serve` checks their schemas."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from tilewright.cli.main import app
from tilewright.serve import config

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def test_the_runtimes_arguments() -> None:
    runtime = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    name, *arguments = container["args"]
    context = get_command(app).commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]
    assert str(context.params["folder"]) == "/mnt/models"
    ports = {p["containerPort"] for p in container["ports"]}
    assert context.params["http_port"] in ports and context.params["host"] == "0.0.0.0"
    assert container["readinessProbe"]["httpGet"]["port"] == context.params["http_port"]


def test_the_deployments_configuration(tmp_path: Path) -> None:
    resources = {r["kind"]: r for r in yaml.safe_load_all((FOLDER / "deployment.yaml").read_text())}
    path = tmp_path / "serve.toml"
    path.write_text(resources["ConfigMap"]["data"]["serve.toml"].replace("/models", str(tmp_path)))
    with pytest.raises(Exception, match="names no model"):
        config.read(path)  # the folder is empty here; everything else is right
    (tmp_path / "a.onnx").touch()
    read = config.read(path)
    pod = resources["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {p["containerPort"] for p in container["ports"]} == {read.settings.http_port, read.settings.grpc_port}
    assert read.settings.drain < pod["terminationGracePeriodSeconds"]
    assert container["args"] == ["serve", "--config", "/etc/tilewright/serve.toml"]
