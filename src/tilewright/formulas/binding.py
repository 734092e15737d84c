"""A program with the types of its inputs: ranges for every index, a type for every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright import te
from tilewright.arith import simplify
from tilewright.formulas.functions import conversion
from tilewright.formulas.lowering import lower
from tilewright.formulas.nests import Nest, Nests
from tilewright.formulas.ranges import Extent, Scope, index_value, infer
from tilewright.formulas.source import NOWHERE, Source
from tilewright.formulas.syntax import Declaration, Name, Node, Read, walk
from tilewright.ir.dtype import DType, f32
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.graph import TensorType
from tilewright.support.classes import dataclass
from tilewright.support.errors import ComprehensionError, Problems

MAX_ELEMENTS = 1 << 40
"""The number of elements of a result at which a program is refused: more than any use needs."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A nest of loops with the range of each of its indices and the type of its result."""

    nest: Nest
    extents: Mapping[str, Extent]
    type: TensorType


@dataclass(frozen=True, slots=True)
class Program:
    """Nests of loops whose inputs have types. `sizes` maps each named size to its extent, `types` the name of each
    tensor, inputs and results, to its type."""

    nests: Nests
    bounds: tuple[Bound, ...]
    sizes: Mapping[str, Expr]
    types: Mapping[str, TensorType]


def bind(nests: Nests, types: Sequence[TensorType], assuming: bool = False) -> Program:
    """The program `nests` with these types of inputs. Raises ComprehensionError if they do not fit. `assuming`, for
    texts only: that no size is negative, that element types fit and that all reads are in bounds."""
    source = nests.source
    if len(types) != len(nests.inputs):
        expected = f"{len(nests.inputs)} ({', '.join(nests.inputs)})"
        source.fail("wrong number of inputs", NOWHERE, expected=expected, got=len(types))
    known = dict(zip(nests.inputs, types, strict=True))
    sizes = _sizes(nests, known)
    bounds: list[Bound] = []
    for nest in nests.nests:
        bound = bind_nest(nest, Scope(source, sizes, {n: t.shape for n, t in known.items()}, assuming), known)
        known[nest.target] = bound.type
        bounds.append(bound)
    return Program(nests, tuple(bounds), sizes, known)


def bind_nest(nest: Nest, scope: Scope, types: Mapping[str, TensorType]) -> Bound:
    """The nest with the ranges of its indices and the type of its result, for tensors of these types."""
    extents = infer(nest, scope)
    shape = tuple(simplify(extents[i].size) for i in nest.left)
    count = 1
    for d in shape:
        count *= as_int(d) or 1
    if count >= MAX_ELEMENTS:
        scope.source.fail(f"{nest.label!r} is too large", nest.at, got=f"{count} elements")
    if scope.assuming:
        return Bound(nest, extents, TensorType(f32, shape))
    tensors = {n: te.placeholder(t.shape, t.dtype, n) for n, t in types.items()}
    created = lower(nest, extents, tensors, scope)
    return Bound(nest, extents, TensorType(created.dtype, shape))


def _sizes(nests: Nests, types: Mapping[str, TensorType]) -> dict[str, Expr]:
    """The named sizes, each the extent of the first dimension that is declared with this name. Raises
    ComprehensionError if other dimensions of the name, or the ranks, disagree."""
    problems = Problems()
    sizes: dict[str, Expr] = {}
    for name, t in types.items():
        declared = nests.declared.get(name)
        if declared is None:
            if nests.ranks.get(name, t.rank) != t.rank:
                expected = f"{nests.ranks[name]} dimensions"
                problems.add(
                    nests.source.error(f"input {name!r} does not fit", _place(nests, name), expected=expected, got=t)
                )
        elif declared.dtype is not None and _declared_type(declared, nests.source) is not t.dtype:
            what = f"input {name!r} does not fit"
            problems.add(nests.source.error(what, declared.at, expected=declared.dtype, got=t))
        elif len(declared.sizes) != t.rank:
            expected = f"{len(declared.sizes)} dimensions"
            problems.add(nests.source.error(f"input {name!r} does not fit", declared.at, expected=expected, got=t))
        else:
            for node, d in zip(declared.sizes, t.shape, strict=True):
                if isinstance(node, Name):
                    sizes.setdefault(node.name, d)
    problems.raise_if_any(kind=ComprehensionError)
    for name, declared in nests.declared.items():
        for dim, (node, d) in enumerate(zip(declared.sizes, types[name].shape, strict=True)):
            wanted = _size_of(node, sizes, nests.source)
            if wanted is not d and simplify(wanted - d) is not const(0):
                what = f"dimension {dim} of {name!r} has another size"
                problems.add(nests.source.error(what, node.at, expected=f"{_shown(node)}{wanted}", got=d))
    problems.raise_if_any(kind=ComprehensionError)
    return sizes


def _shown(node: Node) -> str:
    return f"{node.name} = " if isinstance(node, Name) else ""


def _size_of(node: Node, sizes: Mapping[str, Expr], source: Source) -> Expr:
    for n in walk(node):
        if isinstance(n, Name) and n.name not in sizes:
            hint = f"name it where it stands alone: A: [{n.name}]"
            source.fail(f"size {n.name!r} is not known", n.at, hint=hint)
    value = index_value(node, {}, Scope(source, sizes, {}))
    if value is None:
        source.fail("this is no size", node.at, expected="a name, a number, or a sum or product of those")
    return value


def _declared_type(declared: Declaration, source: Source) -> DType:
    result = conversion(declared.dtype or "")
    if result is None:
        source.fail(f"there is no type {declared.dtype!r}", declared.at, expected="f32, f64, i32, ... or none")
    return result


def _place(nests: Nests, name: str) -> tuple[int, int]:
    """Where the text first reads the input `name`, as offsets; NOWHERE if it does not."""
    results = (
        n.at for nest in nests.nests for e in nest.nodes for n in walk(e) if isinstance(n, Read) and n.tensor == name
    )
    return next(results, NOWHERE)


def symbolic_types(nests: Nests, dtype: DType) -> list[TensorType]:
    """The types of the inputs with a symbol for each dimension. Dimensions share a symbol if a declaration gives them
    one name, or if one index runs through them."""
    classes = _Classes()
    for d in nests.declared.values():
        for k, node in enumerate(d.sizes):
            if isinstance(node, Name):
                classes.join(("dim", d.name, k), ("size", node.name))
    for number, nest in enumerate(nests.nests):
        _join_by_indices(number, nest, classes)
    selected: dict[object, Expr] = {}
    types = []
    for name in nests.inputs:
        declared = nests.declared.get(name)
        shape: list[Expr] = []
        for k in range(nests.ranks.get(name, 0)):
            root = classes.root(("dim", name, k))
            if root not in selected:
                selected[root] = _symbol(classes, root, name, k, {str(v) for v in selected.values()})
            shape.append(selected[root])
        kind = conversion(declared.dtype) if declared is not None and declared.dtype is not None else None
        types.append(TensorType(kind or dtype, tuple(shape)))
    return _derived(nests, types)


def _derived(nests: Nests, types: list[TensorType]) -> list[TensorType]:
    """`types` with the sizes that declarations state as numbers or expressions in place of their symbols."""
    known = dict(zip(nests.inputs, types, strict=True))
    sizes = {
        n.name: d for c in nests.declared.values() for n, d in zip(c.sizes, known[c.name].shape, strict=True)
        if isinstance(n, Name)
    }  # fmt: skip
    created = []
    for name, t in known.items():
        declared = nests.declared.get(name)
        if declared is not None:
            shape = tuple(simplify(_size_of(n, sizes, nests.source)) for n in declared.sizes)
            t = TensorType(t.dtype, shape)
        created.append(t)
    return created


def _symbol(classes: _Classes, root: object, name: str, k: int, used_names: set[str]) -> Expr:
    """A symbol for the class `root` of equal dimensions, named after its size or index, else after dimension `k` of the
    input `name`. Names in `used_names` are avoided."""
    named = [key[-1] for key in classes.members(root) if key[0] == "size"]
    indices = [str(key[-1]).upper() for key in classes.members(root) if key[0] == "index"]
    for label in (*map(str, named), *indices, f"{name}_{k}"):
        if label not in used_names:
            return Var(label, lo=1)
    return Var(f"{name}_{k}_", lo=1)


def _join_by_indices(number: int, nest: Nest, classes: _Classes) -> None:
    """Merge the classes of all dimensions that an index of the nest alone indexes, including the result's, since they
    have one size; but not if its range is stated, or the index occurs in a sum. `number` is the nest's number in the
    text."""
    stated = {r.index for r in nest.ranges}
    alone: dict[str, list[tuple[str, str, int]]] = {}
    mixed: set[str] = set()
    for n in (n for e in nest.nodes for n in walk(e)):
        if isinstance(n, Read) and not n.outside:
            for k, index in enumerate(n.indices):
                if isinstance(index, Name):
                    alone.setdefault(index.name, []).append(("dim", n.tensor, k))
                else:
                    mixed |= _moving(index)
    for name in nest.indices:
        if name in stated or name in mixed:
            continue
        key = ("index", number, name)
        for dim in alone.get(name, ()):
            classes.join(key, dim)
        if name in nest.left:
            classes.join(key, ("dim", nest.target, nest.left.index(name)))


def _moving(index: Node) -> set[str]:
    """The names in an index expression, without those inside of a nested read (a gather)."""
    if isinstance(index, Read):
        return set()
    own = {index.name} if isinstance(index, Name) else set()
    return own.union(*map(_moving, index.children))


class _Classes:
    """Equivalence classes of keys (union-find)."""

    def __init__(self) -> None:
        self.parent: dict[tuple[object, ...], tuple[object, ...]] = {}

    def root(self, key: tuple[object, ...]) -> tuple[object, ...]:
        while key in self.parent:
            key = self.parent[key]
        return key

    def join(self, a: tuple[object, ...], b: tuple[object, ...]) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parent[b] = a

    def members(self, root: object) -> list[tuple[object, ...]]:
        return [k for k in (*self.parent, *set(self.parent.values())) if self.root(k) == root]


__all__ = ["Bound", "Program", "bind", "bind_nest", "symbolic_types"]
