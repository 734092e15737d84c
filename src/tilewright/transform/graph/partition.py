"""Parts of a graph for other compilers, which plug-ins bring (`runtime/compilers.py`).

    a = conv(x, w); b = relu(a); c = softmax(b)      ->      b, fine, failure = lowered.external_call(x, w) {...}
                                                             b = require(b, fine, failure); c = softmax(b)

Each compiler states patterns of operators that it takes. A match becomes a block of nodes, and blocks of one compiler
that read each other are merged unless a value would leave a block and come back into it, which would make a cycle of
blocks. The compiler gets each merged block, a region, as a graph. Values that depend on weights alone are the region's
parameters, so that new weights reach it. A refused region is offered to the compilers named later.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field, replace

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import ConstantArray
from tilewright.ir.expr import Var, as_int
from tilewright.ir.graph import Graph, GraphBuilder, Node, TensorType, Value
from tilewright.ir.rewrite import variables
from tilewright.ops.lowered.external_call import NAME, ExternalCallAttrs
from tilewright.ops.require import RequireAttrs
from tilewright.runtime.compilers import PREPARE, TILEWRIGHT, Compiled, Compiler, find, loaded
from tilewright.support.classes import dataclass
from tilewright.support.errors import CompileError, Error, PluginError, PluginWarning
from tilewright.transform.graph.matching import matches
from tilewright.transform.graph.patterns import Pattern
from tilewright.transform.graph.rewrite import Rewriter
from tilewright.transform.regions.captures import builder_for, fixed_values


def partition(graph: Graph, asked: Sequence[str]) -> Graph:
    """The graph in which calls replace the parts that other compilers take. The compilers are asked in the order of
    `asked`.

    Raises CompileError for a region that its compiler cannot compile, unless another one follows in the list
    ("tilewright" stands for the rest of this compiler).
    """
    regions, blocks = claimed(graph, asked)
    if not regions:
        return graph
    return _Writer(graph, blocks, regions).graph_of()


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that a compiler takes, as a graph: inputs and parameters are the values outside that it reads.

    Args:
        patterns: the names of the patterns that matched.
        compiled: the result of the compiler; None before that.
    """

    compiler: str
    graph: Graph
    patterns: tuple[str, ...]
    compiled: Compiled | None = None


@dataclass(slots=True)
class Blocks:
    """The nodes of a graph divided into blocks, which never read each other in a cycle. At first each node is a
    block."""

    graph: Graph
    members: dict[int, set[int]] = field(init=False)
    block: list[int] = field(init=False)
    readers: list[set[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        self.members = {k: {k} for k in range(len(nodes))}
        self.block = list(range(len(nodes)))
        self.readers = [set() for _ in nodes]
        producers = {v: k for k, n in enumerate(nodes) for v in n.outputs}
        for k, node in enumerate(nodes):
            for value in node.inputs:
                if value in producers:
                    self.readers[producers[value]].add(k)

    def after(self, block: int) -> set[int]:
        """The blocks, other than `block` itself, that read a result of `block`."""
        return {self.block[r] for k in self.members[block] for r in self.readers[k]} - {block}

    def join(self, blocks: Collection[int]) -> int | None:
        """Merge blocks into one and return its number; None if a path leads from them through other blocks back to
        them."""
        chosen = set(blocks)
        stack = [b for each in chosen for b in self.after(each) - chosen]
        seen = set(stack)
        while stack:
            for following in self.after(stack.pop()):
                if following in chosen:
                    return None
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        first = min(chosen)
        for other in chosen - {first}:
            for k in self.members[other]:
                self.block[k] = first
            self.members[first] |= self.members.pop(other)
        return first

    def dissolve(self, block: int) -> None:
        """Split a block into blocks of one node each."""
        for k in self.members.pop(block):
            self.block[k], self.members[k] = k, {k}

    def in_order(self) -> Iterator[int]:
        """All blocks, each after those that it reads; otherwise in the order of their first nodes in the graph."""
        waiting = dict.fromkeys(self.members, 0)
        for block in self.members:
            for following in self.after(block):
                waiting[following] += 1
        first = {block: min(members) for block, members in self.members.items()}
        ready = [(first[block], block) for block, count in waiting.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, block = heapq.heappop(ready)
            yield block
            for following in self.after(block):
                waiting[following] -= 1
                if not waiting[following]:
                    heapq.heappush(ready, (first[following], following))


def claimed(graph: Graph, asked: Sequence[str], *, compiling: bool = True) -> tuple[dict[int, Region], Blocks]:
    """(the regions that the compilers called `asked` claim, by block number; all blocks). Without `compiling` no region
    is compiled."""
    blocks, regions = Blocks(graph), dict[int, Region]()
    fixed = fixed_values(graph, graph.params)
    for position, name in enumerate(asked):
        if name == TILEWRIGHT:
            break
        compiler = find(name)
        for block, patterns in _matched(graph, compiler, blocks, regions).items():
            region = _region(graph, f"{graph.name}_{name}_{len(regions)}", sorted(blocks.members[block]), fixed)
            if region is None:
                blocks.dissolve(block)
                continue
            compiled: Compiled | None = None
            try:
                compiled = _compiled(compiler, region) if compiling else None
            except Exception as error:  # whatever foreign code raises
                refused = _refused(compiler, region, error)
                if position + 1 == len(asked):
                    raise refused from error
                warnings.warn(
                    f"{refused.headline()}; {asked[position + 1]} is asked instead", PluginWarning, stacklevel=2
                )
                blocks.dissolve(block)
                continue
            regions[block] = Region(name, region, patterns, compiled)
    return regions, blocks


def _refused(compiler: Compiler, region: Graph, error: Exception) -> CompileError:
    reason = error.headline() if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    what = f"the compiler {compiler.name!r} cannot compile a part of the model"
    operators = ", ".join(dict.fromkeys(n.op for n in region.nodes))
    hint = f'name another compiler after it, such as "{TILEWRIGHT}"'
    return CompileError(what, where=f"{region.name} ({operators})", got=reason, hint=hint)


def _compiled(compiler: Compiler, region: Graph) -> Compiled:
    """Compile a region, and load the result once as a check. Raises PluginError if that fails."""
    compiled: object = compiler.compile(region)
    if not isinstance(compiled, Compiled) or not isinstance(compiled.payload, bytes):
        raise PluginError("gives no part", expected="a Compiled with bytes", got=type(compiled).__name__)
    part = loaded(compiler, compiled.payload)
    if compiled.packed is None:
        return compiled
    if part.prepare is None or not all(isinstance(t, TensorType) for t in compiled.packed):
        raise PluginError("packs weights", expected="types of them, and a part with `prepare`", got=compiled.packed)
    if any(as_int(d) is None for t in compiled.packed for d in t.shape) or not region.params:
        raise PluginError("packs weights that there are not, or of no size", got=compiled.packed)
    return compiled


def _matched(graph: Graph, compiler: Compiler, blocks: Blocks, regions: Collection[int]) -> dict[int, tuple[str, ...]]:
    """The blocks of nodes that a compiler's patterns match, by number, each with the names of the patterns."""
    claims: dict[int, tuple[str, ...]] = {}

    def free(k: int) -> bool:
        block = blocks.block[k]
        return block not in claims and block not in regions and _is_ordinary(graph.nodes[k])

    matcher = Matcher(graph, free)
    for pattern in sorted(compiler.patterns, key=_order):
        for k in reversed(range(len(graph.nodes))):  # the largest match has its result last
            match = matcher.match(pattern, k)
            block = None if match is None else blocks.join(match)
            if block is not None:
                claims[block] = (pattern.name,)
    return _merged(blocks, claims)


class Matcher(Rewriter):
    """A graph in which a compiler's patterns are matched.

    Args:
        free: whether a node, by its position, may be part of a match.
    """

    def __init__(self, graph: Graph, free: Callable[[int], bool]) -> None:
        super().__init__(graph)
        self.free = free
        self.places = {v: k for k, n in enumerate(graph.nodes) for v in n.outputs}

    def producer(self, value: Value | None, *names: str) -> Node | None:
        """The node that computes a value, if a pattern may match this node; None otherwise."""
        node = super().producer(value, *names)
        return node if node is not None and self.free(self.places[node.outputs[0]]) else None

    def match(self, pattern: Pattern, root: int) -> frozenset[int] | None:
        """The positions of the nodes that a pattern matches with the result at `root`; None if it does not match."""
        value = self.graph.nodes[root].outputs[0]
        for bound in matches(pattern.named, value, self, {}):
            matched = frozenset(self.places[v] for v in bound.values() if isinstance(v, Value))
            if matched and (pattern.accepts is None or pattern.accepts([self.graph.nodes[k] for k in sorted(matched)])):
                return matched
        return None


def _order(pattern: Pattern) -> int:
    return -pattern.priority


def _is_ordinary(node: Node) -> bool:
    """Whether a region may contain a node: it defines no symbol for others, and its elements are whole bytes."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    whole = all(v.dtype.bits % 8 == 0 or v.dtype.bits == 1 for v in values)
    return node.defines is None and not node.bodies and node.op not in ("constant", NAME, "require") and whole


def _merged(blocks: Blocks, claims: dict[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    """The claimed blocks after those that read each other were merged, until no two can be; each with its patterns'
    names."""
    waiting = sorted(claims)
    while waiting:
        block = waiting.pop()
        if block not in claims:
            continue
        for following in sorted(blocks.after(block) & claims.keys()):
            patterns = (*claims[block], *claims[following])
            joined = blocks.join((block, following))
            if joined is not None:
                del claims[block], claims[following]
                claims[joined] = patterns
                waiting.append(joined)
                break
    return dict(sorted(claims.items()))


def _region(graph: Graph, name: str, members: Sequence[int], fixed: Collection[Value]) -> Graph | None:
    """The nodes of a block, whose numbers are `members`, as a graph called `name`, with the constants that they read;
    its parameters are the values in `fixed`. None if they use symbols that the shapes of no input define."""
    constants = {n.output: n for n in graph.nodes if n.op == "constant"}
    nodes = [graph.nodes[k] for k in members]
    own = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in own)
    inside = set(members)
    elsewhere = {v for k, n in enumerate(graph.nodes) if k not in inside for v in n.inputs} | set(graph.outputs)
    outputs = tuple(v for n in nodes for v in n.outputs if v in elsewhere)
    inputs = tuple(v for v in read if v not in constants and v not in fixed)
    params = tuple(v for v in read if v in fixed)
    all_nodes = (*(constants[v] for v in read if v in constants), *nodes)
    result = Graph(name, inputs, params, all_nodes, outputs)
    known = {d for v in inputs for d in v.shape if isinstance(d, Var)}
    needed = {s for v in inputs for d in v.shape for s in variables(d)} | set(result.used_symbols)
    return result if needed <= known and outputs else None


@dataclass(slots=True)
class _Writer:
    """Builds a graph in which regions that other compilers compute are replaced by calls."""

    graph: Graph
    blocks: Blocks
    regions: dict[int, Region]
    builder: GraphBuilder = field(init=False)

    def __post_init__(self) -> None:
        self.builder = builder_for(self.graph)

    def graph_of(self) -> Graph:
        for block in self.blocks.in_order():
            if block in self.regions:
                self.call(self.regions[block])
            else:
                self.builder.nodes.extend(self.graph.nodes[k] for k in sorted(self.blocks.members[block]))
        return replace(self.graph, nodes=tuple(self.builder.nodes))

    def call(self, region: Region) -> None:
        graph, compiled = region.graph, region.compiled
        assert compiled is not None
        weights = list(graph.params)
        if compiled.packed is not None:
            weights = self.checked(region, PREPARE, [], weights, compiled.packed, [])
        body = "" if compiled.packed is not None else str(graph)
        self.checked(region, "", list(graph.inputs), weights, [v.type for v in graph.outputs], graph.outputs, body)

    def checked(
        self,
        region: Region,
        ending: str,
        inputs: list[Value],
        weights: list[Value],
        types: Sequence[TensorType],
        values: Sequence[Value],
        body: str = "",
    ) -> list[Value]:
        """Emit the call of a compiled region, with `inputs` and `weights` as operands and results of `types`, and a
        check that it succeeded. Returns the checked results; they take the place of `values`, or are new if there are
        none. `ending` ends the name of the call; `body` is the text of the region's graph, or empty if the call does
        not need it."""
        assert region.compiled is not None
        attrs = ExternalCallAttrs(
            region.compiler,
            region.graph.name + ending,
            ConstantArray(np.frombuffer(region.compiled.payload, np.uint8)),
            len(weights),
            tuple(t.dtype for t in types),
            tuple(t.shape for t in types),
            body,
        )
        *results, fine, failure = ops.emit(self.builder, NAME, *inputs, *weights, attrs=attrs)
        says = RequireAttrs(f"a part by the compiler {region.compiler!r} failed", external=True)
        targets = list(values) or [Value(self.builder.fresh(r.name), r.type) for r in results]
        for result, value in zip(results, targets, strict=True):
            self.builder.nodes.append(Node("require", (result, fine, failure), (value,), says))
        return targets


__all__ = ["Blocks", "Matcher", "Region", "claimed", "partition"]
