"""The table of rules: ONNX operator -> function that puts it into the graph as our own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module

from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.scope import Item
from tilewright.ir.graph import Value
from tilewright.ops import registry as ops
from tilewright.support import plugins
from tilewright.support.errors import PluginError, UnsupportedError

Result = Value | Sequence[Value | Item | None]
Rule = Callable[[Call], Result]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of the operators called `names` (of the domain ai.onnx)."""

    def register(f: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = f
        plugins.count(f)  # programs of known files are found without it (`model_files.py`)
        return f

    return register


CHECKS: dict[str, Callable[[Call], None]] = {}


def check(*names: str) -> Callable[[Callable[[Call], None]], Callable[[Call], None]]:
    """Register a function that checks the inputs of operators which are imported through ONNX's function bodies, where
    the body itself would not detect invalid inputs."""

    def register(f: Callable[[Call], None]) -> Callable[[Call], None]:
        CHECKS.update(dict.fromkeys(names, f))
        plugins.count(f)
        return f

    return register


FIRST = ("pointwise", "contraction", "shape", "reduce", "norm", "pool", "constants")
"""The modules of rules that most models need, in the order in which they are searched."""


def find(domain: str, name: str) -> Rule | None:
    """The rule of operator `name` in `domain`; None if there is none. It imports the modules with rules: all of
    them where there is none, so that `CHECKS` is filled."""
    own = domain in ("", "ai.onnx")
    key = name if own else f"{domain}.{name}"
    for module in FIRST:
        if key not in RULES:
            import_module(f"tilewright.frontend.onnx.rules.{module}")
    if key not in RULES:
        import tilewright.frontend.onnx.rules.families  # noqa: F401  registers the others
    return RULES.get(key) or (None if own else plugin_rules().get(key))


STORAGE = frozenset(
    "BitCast Cast CastLike Concat ConstantOfShape DepthToSpace DequantizeLinear Dropout Expand Flatten Gather "
    "GatherElements GatherND Identity Pad QuantizeLinear Reshape ReverseSequence Scatter ScatterElements ScatterND "
    "Shape Size Slice SpaceToDepth Split Squeeze TensorScatter Tile Transpose Unsqueeze Where IsInf IsNaN".split()
)
"""The operators that accept floats of 4 and 8 bits: those that move elements, and those that convert them."""


def check_storage(call: Call) -> None:
    """Raise UnsupportedError where an arithmetic operator gets floats of 4 or 8 bits, which are only for storage."""
    if call.node.op_type in STORAGE or call.node.domain not in ("", "ai.onnx"):
        return
    small = next((i.dtype for i in call.items if i is not None and i.dtype.is_minifloat), None)
    if small is not None:
        raise UnsupportedError(f"{call.node.op_type} does not compute with {small}", expected="a Cast to a wider type")


@cache
def plugin_rules() -> Mapping[str, Rule]:
    """The rules of plug-ins, by domain and operator. A plug-in with a rule for an operator that Tilewright itself
    imports is unloaded, together with its operators."""
    import tilewright.frontend.onnx.rules.families  # noqa: F401  all rules, to compare with

    result: dict[str, Rule] = {}
    for plugin, operators in list(ops.plugin_operators().items()):
        try:
            plugins.check_new("ONNX rule", list(operators.onnx), list(RULES))
        except PluginError as error:
            ops.unload(plugin, error)
        else:
            result.update(operators.onnx)
    return result


__all__ = ["CHECKS", "RULES", "STORAGE", "Result", "Rule", "plugin_rules", "check", "check_storage", "find", "rule"]
