"""The table of rules: ATen operator -> function that puts it into the graph as our own operators.

A rule is called with the operator's arguments in the order of its schema, defaults filled in: tensors as values of the
graph, sizes as numbers or expressions. It returns its results (a value, or a list).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from tilewright.frontend.torch.control import is_control
from tilewright.ops.pointwise import ACTIVATIONS

Rule = Callable[..., Any]
F = TypeVar("F", bound=Rule)

RULES: dict[str, Rule] = {}
NAMESPACES = ("aten", "prims", "tilewright", "quantized_decomposed")
"""Namespaces of PyTorch operators that have rules."""
IGNORED = {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "_guards_fn"}
IGNORED |= {"_linalg_check_errors", "sym_constrain_range_for_size"}
"""Operators without results that check what the compiler knows."""

_RANDOM = "bernoulli dropout multinomial normal rand randint randn randperm uniform exponential geometric log_normal"
RANDOM = {name for base in _RANDOM.split() for name in (base, f"{base}_", f"{base}_like", f"native_{base}")}
"""Operators that draw random numbers."""


SAMPLING: dict[str, Rule] = {}
"""Rules for operators that draw random numbers."""


def rule(*names: str, table: dict[str, Rule] = RULES, single: bool = False) -> Callable[[F], F]:
    """Register a function for ATen operators: "add" is all overloads, "max.dim" is one; "tilewright::name" is one of
    Tilewright's own, which its passes insert into PyTorch's graphs; "prims::name" is one that PyTorch's decompositions
    use. `single`: the rule computes numbers of 16 bits in f32 (`Call.single`)."""

    def register(f: F) -> F:
        for name in names:
            assert name not in table, name
            table[name] = _in_single(f) if single else f
        return f

    return register


def _in_single(f: Rule) -> Rule:
    def run(n: Any, *args: Any, **kwargs: Any) -> Any:
        return n.single(f, *args, **kwargs)

    return run


def find(target: Any) -> Rule | None:
    """The import rule of an ATen operator; None if there is none."""
    return _rule_of(target, RULES)


def find_sampling(target: Any) -> Rule | None:
    """The rule of an operator that draws random numbers, for graphs that have a key."""
    return _rule_of(target, SAMPLING)


def _rule_of(target: Any, table: Mapping[str, Rule]) -> Rule | None:
    import tilewright.frontend.torch.rules  # noqa: F401  imports every file of rules

    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES:
        return None
    packet = target._schema.name.removeprefix("aten::")
    is_there = table.get(f"{packet}.{target._overloadname}") or table.get(packet)
    if is_there is None and packet.endswith("_") and not packet.startswith("_"):
        base = packet[:-1]
        is_there = table.get(f"{base}.{target._overloadname}") or table.get(base)
    return is_there


def is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def handles(node: torch.fx.Node) -> bool:
    """Whether the importer can import a node: it has a rule, and no side effect that another node could see."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__module__", None) == "torch._functorch.predispatch":
            return False  # a function that `vmap` has applied to all rows at once
        return not isinstance(target, torch._ops.HigherOrderOperator) or is_wrapper(target) or is_control(target)
    if target._schema.name.removeprefix("aten::") in IGNORED or _is_symbolic(node):
        return True
    if (is_mutable(target) and not _private(node)) or moves_statistics(target, node.args):
        return False
    return find(target) is not None


_NORMS = ("aten::batch_norm", "aten::instance_norm")


def moves_statistics(target: Any, arguments: Sequence[Any]) -> bool:
    """Whether an operator is a norm that changes running statistics in place, which its schema does not say."""
    if target._schema.name not in _NORMS:
        return False
    running, by_batch = arguments[3:5], arguments[5]
    return by_batch is True and any(x is not None for x in running)


WRAPPERS = {"wrap_with_set_grad_enabled": 1, "tag_activation_checkpoint": 0, "wrap": 0}
"""Operators that just call a graph, and the position of that graph among their arguments."""


def is_wrapper(target: Any) -> bool:
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in WRAPPERS


def is_ordered_check(node: torch.fx.Node) -> bool:
    """Whether `node` is a runtime check (`with_effects`), which PyTorch orders by tokens."""
    target: Any = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.name() != "with_effects":
        return False
    checked: Any = node.args[1]
    return checked._schema.name.removeprefix("aten::") in IGNORED


def _is_symbolic(node: torch.fx.Node) -> bool:
    """Whether `node` computes a number, size or truth value rather than a tensor."""
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


# Operators whose result is memory of its own: those may be changed in place by their only reader.
_FRESH = set(
    """linear conv1d conv2d conv3d convolution batch_norm layer_norm group_norm add sub mul div matmul mm bmm addmm
    baddbmm cat stack clone zeros ones full zeros_like ones_like full_like empty_like relu tanh sigmoid gelu silu elu
    leaky_relu hardtanh exp log softplus max_pool1d max_pool2d avg_pool2d where softmax instance_norm
    conv_transpose2d
    """.split()
) | {known.aten for known in ACTIVATIONS.values() if known.aten}


def _private(node: torch.fx.Node) -> bool:
    """Whether `node` modifies a tensor in place that only it reads, so that a new tensor may take its place."""
    changed: Any = node.args[0] if node.args else None
    if not isinstance(changed, torch.fx.Node) or len(changed.users) != 1 or changed.op != "call_function":
        return False
    target: Any = changed.target
    if (
        not isinstance(target, torch._ops.OpOverload)
        or sum(a.alias_info is not None for a in node_arguments(node)) != 1
    ):
        return False
    packet = target._schema.name.removeprefix("aten::")
    return packet in _FRESH or (is_mutable(target) and _private(changed))


def node_arguments(node: torch.fx.Node) -> Any:
    target: Any = node.target
    return target._schema.arguments


def operators() -> Iterator[Any]:
    """All operator overloads that have rules, and those that are never decomposed."""
    import tilewright.frontend.torch.rules  # noqa: F401

    for name in (*RULES, *RANDOM):
        packet, _, overload = name.partition(".")
        result = getattr(torch.ops.aten, packet, None)
        if result is not None:
            yield from (getattr(result, o) for o in ([overload] if overload else result.overloads()))


__all__ = ["IGNORED", "RULES", "Rule", "find", "handles", "is_wrapper", "operators", "rule"]
