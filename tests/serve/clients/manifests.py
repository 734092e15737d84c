"""Checks `deploy/kubernetes`: Kubernetes' own schemas, and every field of KServe's resources against its types."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kserve.models as kserve_models
import kubernetes.client.models as kubernetes_models
import kubernetes_validate
import yaml

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}


def kind_of(name: str) -> Any:
    return getattr(kserve_models, name, None) or getattr(kubernetes_models, name)


def check(value: Any, kind: str, where: str) -> None:
    """AssertionError for a field that the type does not have, or a value that is none of its type."""
    if match := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        assert isinstance(value, list), where
        for k, entry in enumerate(value):
            check(entry, match[1], f"{where}[{k}]")
    elif match := re.fullmatch(r"[Dd]ict[\[(](.*?), (.*)[\])]", kind):
        assert isinstance(value, dict), where
        for key, entry in value.items():
            check(entry, match[2], f"{where}.{key}")
    elif kind in ("str", "int", "bool", "float"):
        assert type(value).__name__ == kind, f"{where}: {value!r} is no {kind}"
    elif kind not in ("object", "datetime"):
        model = kind_of(kind)
        fields = {json: name for name, json in model.attribute_map.items()}
        assert isinstance(value, dict), where
        for key, entry in value.items():
            assert key in fields, f"{where}: {kind} has no field {key}"
            check(entry, model.openapi_types[fields[key]], f"{where}.{key}")


def main() -> None:
    count = 0
    for path in sorted(FOLDER.glob("*.yaml")):
        for resource in yaml.safe_load_all(path.read_text()):
            where = f"{path.name}: {resource['kind']}"
            if resource["kind"] in KINDS:
                check(resource, KINDS[resource["kind"]], where)
            else:
                kubernetes_validate.validate(resource, "1.33", strict=True)
            count += 1
    try:
        check({"kind": "ServingRuntime", "spec": {"containrs": []}}, KINDS["ServingRuntime"], "a wrong one")
    except AssertionError:
        print(f"manifests: {count} resources: all as their schemas want")
    else:
        raise AssertionError("a wrong field was not noticed")


if __name__ == "__main__":
    main()
