"""Tests that assert on what a machine decides, but name no machine: their outcome depends on where they run.

A test is reported if it mentions the host (`Target.host()`, a name bound to it, or `"host"`) and one of its assertions
reads a decision, an estimate, a layout, a schedule or generated text. A comment `# any machine: ...` in the test, with
the reason, says that what it asserts holds everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

DECIDED = frozenset(
    (
        *("taken", "deciding", "decisions", "decide", "candidates", "estimate", "estimates", "estimated", "cycles"),
        *("layout", "layouts", "assign_layouts", "emit_llvm", "emit_c", "text", "texts", "loops", "notes", "plan"),
        *("planned", "operators", "trace", "schedule", "kernels", "source", "golden", "passed", "algorithm"),
    )
)
"""Names that stand for what a machine decides, where an assertion reads them."""
ANY = "# any machine:"


def reported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each test of a file that depends on the machine."""
    text = path.read_text()
    if "host" not in text:
        return
    tree = ast.parse(text)
    hosts = {"host"} | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and _of_host(node.value, {"host"})
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    lines = text.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if any(ANY in line for line in lines[first - 1 : node.end_lineno]):
            continue
        if _of_host(node, hosts) and any(_decided(each) for each in ast.walk(node)):
            yield node.lineno, node.name


def _of_host(tree: ast.AST, names: set[str]) -> bool:
    """Whether a tree mentions this machine."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "host" and _is_target(node.value))
        or (isinstance(node, ast.Constant) and node.value == "host")
        or (isinstance(node, ast.Name) and node.id in names and node.id.isupper())
        for node in ast.walk(tree)
    )


def _is_target(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "Target"


def _decided(node: ast.AST) -> bool:
    """Whether a node is an assertion on something that a machine decides."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "golden":
        return True
    if not isinstance(node, ast.Assert):
        return False
    return any(
        (isinstance(each, ast.Name) and each.id in DECIDED)
        or (isinstance(each, ast.Attribute) and each.attr in DECIDED)
        for each in ast.walk(node.test)
    )
