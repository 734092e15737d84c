"""The operators that each frontend supports, as text made from the registries; docs/operators.md is generated from
it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import onnx

WIDTH = 118


def onnx_operators() -> str:
    """ONNX's own operators, grouped by how they are imported, then those of other domains that have rules."""
    from tilewright.frontend.onnx.control import CONTROL
    from tilewright.frontend.onnx.registry import RULES, find

    latest: dict[str, onnx.defs.OpSchema] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        known = latest.get(schema.name)
        if schema.domain == "" and (known is None or schema.since_version > known.since_version):
            latest[schema.name] = schema
    names = {name for name, schema in latest.items() if not schema.deprecated}
    ruled = {name for name in names if find("", name) is not None or name in CONTROL}
    expanded = {
        name for name in names - ruled if latest[name].has_function or latest[name].has_context_dependent_function
    }
    parts = [
        _part("by a rule", ruled),
        _part("by the function that ONNX defines them by", expanded),
        _part("without a rule", names - ruled - expanded),
        _part("of older operator sets", {name for name in RULES if "." not in name} - names),
    ]
    domains = sorted({name.rpartition(".")[0] for name in RULES if "." in name})
    parts += [_part(d, {name.rpartition(".")[2] for name in RULES if name.rpartition(".")[0] == d}) for d in domains]
    return "\n".join(parts)


def torch_operators() -> str:
    """ATen's operators that have rules; "max.dim" is one overload, "add" is all. Needs PyTorch."""
    import tilewright.frontend.torch.rules  # noqa: F401  registers them
    from tilewright.frontend.torch.registry import RULES

    return _part("ATen, by a rule", RULES)


def stablehlo_operators() -> str:
    """StableHLO's and CHLO's operations that have rules. Needs jaxlib."""
    import tilewright.frontend.stablehlo.rules  # noqa: F401  registers them
    from tilewright.frontend.stablehlo.registry import RULES

    dialects = sorted({name.partition(".")[0] for name in RULES})
    return "\n".join(
        _part(d, {name.partition(".")[2] for name in RULES if name.partition(".")[0] == d}) for d in dialects
    )


def _part(title: str, names: Iterable[str]) -> str:
    """The names in alphabetical order, wrapped into lines, below `title` with their number."""
    results = sorted(names)
    text = textwrap.fill(" ".join(results), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{title} ({len(results)})\n{text}"


__all__ = ["onnx_operators", "stablehlo_operators", "torch_operators"]
