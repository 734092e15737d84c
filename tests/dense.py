"""The source of a module in fewer bytes, line by line: a space a level of indentation, none within brackets, no
comments, no strings that describe constants and fields, which Python drops when it compiles a module, and no docstrings
of private functions and classes, which `help` leaves out.

The rest of the syntax tree stays, with each node on its line, and so do the other docstrings, whose lines begin at the
margin.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from typing import TypeGuard

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWNERS = (ast.Module, ast.ClassDef, *_FUNCTIONS)
LEVEL = 4
"""Spaces of a level of indentation, as modules have it."""


def dense(source: str) -> str:
    """A module's source in fewer bytes. Raises ValueError where it would be another module."""
    lines, tree = source.split("\n"), ast.parse(source)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    within, columns, continued = _within(tokens), _docstrings(tree), _continued(tokens)
    for note in _unread(tree):
        rows = range(note.lineno - 1, note.end_lineno or note.lineno)
        lines[rows.start : rows.stop] = [""] * len(rows)
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for row, line in enumerate(lines, 1):
        spaces = len(line) - len(line.lstrip(" "))
        if row in columns:
            lines[row - 1] = line[min(spaces, columns[row]) :]
        elif row not in within:
            narrow = 0 if row in continued else spaces // LEVEL + spaces % LEVEL
            lines[row - 1] = " " * narrow + line[spaces:]
    result = "\n".join(lines)
    if _shape(ast.parse(result)) != _shape(tree):
        raise ValueError("a module's source means something else in fewer bytes")
    return result


def _within(tokens: list[tokenize.TokenInfo]) -> set[int]:
    """The lines that begin within a string."""
    lines: set[int] = set()
    begun: list[int] = []
    """Lines where strings with fields begin, of which Python 3.12 and later have several tokens."""
    for token in tokens:
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            begun.append(token.start[0])
        elif name in ("STRING", "FSTRING_END"):
            first = begun.pop() if name == "FSTRING_END" else token.start[0]
            lines.update(range(first + 1, token.end[0] + 1))
    return lines


def _continued(tokens: list[tokenize.TokenInfo]) -> set[int]:
    """The lines whose first token stands within brackets."""
    lines: set[int] = set()
    depth, last = 0, 0
    for token in tokens:
        if depth and token.start[0] > last:
            lines.add(token.start[0])
        last = token.end[0]
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
    return lines


def _docstrings(tree: ast.Module) -> dict[int, int]:
    """The lines of docstrings beside their first ones, with the columns where these begin."""
    return {
        row: node.col_offset
        for node in ast.walk(tree)
        if _is_docstring(node)
        for row in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
    }


def _unread(tree: ast.AST, private: bool = False) -> list[ast.Expr]:
    """The strings among a tree's statements that `help` does not show: all but docstrings, and those docstrings that
    belong to private functions and classes (their names begin with one underscore) or to what stands within these or
    within any function. A docstring that is a whole body stays. `private`: whether all docstrings of `tree` are such
    ones."""
    body = tree.body if isinstance(tree, _OWNERS) else []
    result = list(filter(_is_docstring, body[0 if private and len(body) > 1 else 1 :]))
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) else ""
        hidden = isinstance(tree, _FUNCTIONS) or (name.startswith("_") and not name.startswith("__"))
        result += _unread(node, private or hidden)
    return result


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _shape(tree: ast.Module) -> tuple[str, list[int | None]]:
    """The tree with the docstrings that `help` shows, as `inspect` cleans them, without other strings that are
    statements, and the lines of its nodes."""
    unread = set(_unread(tree))
    for owner in ast.walk(tree):
        if isinstance(owner, _OWNERS):
            owner.body = [node for node in owner.body if node not in unread]
    nodes = list(ast.walk(tree))
    for node in nodes:
        if _is_docstring(node):
            node.value = ast.Constant(inspect.cleandoc(str(ast.literal_eval(node.value))))
    return ast.dump(tree), [getattr(node, "lineno", None) for node in nodes]
