"""Nested containers as PyTorch flattens them: their leaves, each with its path of keys, fields and positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch.utils import _pytree as pytree

Path = tuple[Any, ...]


def leaves_with_paths(tree: Any) -> list[tuple[Path, Any]]:
    """The leaves in PyTorch's order. For classes that are registered without keys, a path uses the keys of mappings,
    the fields of dataclasses, else positions."""
    return list(_walk(tree, ()))


def _walk(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if pytree.tree_is_leaf(tree):
        yield path, tree
        return
    handler = pytree.SUPPORTED_NODES[pytree._get_node_type(tree)]
    keyed = handler.flatten_with_keys_fn
    if keyed is not None:
        try:
            pairs, _ = keyed(tree)
        except Exception:  # a class's own function, and some only raise
            keyed = None
    if keyed is None:
        children, _ = handler.flatten_fn(tree)
        pairs = list(zip(_keys(tree, len(children)), children, strict=True))
    for key, child in pairs:
        yield from _walk(child, (*path, key))


def _keys(tree: Any, count: int) -> list[Any]:
    """The keys of the `count` children of the container `tree`: names of a mapping's keys or a dataclass's fields, else
    positions."""
    names: list[str] = []
    if isinstance(tree, Mapping):
        names = list(map(str, tree))
    elif is_dataclass(tree):
        names = [f.name for f in fields(tree) if getattr(tree, f.name, None) is not None]
    if len(names) == count:
        return [pytree.MappingKey(name) for name in names]
    return [pytree.SequenceKey(k) for k in range(count)]
