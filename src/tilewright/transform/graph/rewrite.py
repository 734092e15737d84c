"""The rewriter of graphs: rules, each a pattern and what stands in its place, and the driver that applies them.

    def _softmax(m: Match) -> Value:
        return m.emit("softmax", m["x"], axis=-1)

    rewrite(graph, [Rule(op("div", op("exp", ...), ...), _softmax)])

The driver visits nodes in order, so that a rule sees what computes a node's operands in its final form. What a rule
emits stands where the node stood, and takes the names of its outputs; a rule that returns a
value which is there already renames the node's readers. With `repeat` what was emitted is visited as well: the result
is a fixpoint of rules that ask for producers alone. Nodes that nothing needs any more are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.ir.attributes import Attrs, AttrValue, same
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ops.shape import ConstantAttrs
from tilewright.support.classes import dataclass
from tilewright.transform.graph.fixed import depends_on_weights, fixed_values
from tilewright.transform.graph.matching import Bound, Op, Operand, matches, matches_node
from tilewright.transform.regions.captures import builder_for, with_inputs

MAX_STEPS = 16
"""The largest number of rewrites, per node of a graph, after which emitted nodes are no longer visited: so rules that
undo one another end."""

Build = Callable[["Match"], "Value | Sequence[Value] | None"]
"""A function that emits the replacement of a match and returns its value, or one value for each output. If it returns
None, nothing is replaced, and all that it emitted is removed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of rewriting: `build` emits the replacement of each match of `pattern`, and returns it, or None to leave
    the match as it is."""

    pattern: Op
    build: Build


class Rewriter:
    """A graph during rewriting: facts about its values, and the nodes of the result so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = builder_for(graph)
        self.producers = graph.producers()
        self.outputs = frozenset(graph.outputs)
        self.renamed: dict[Value, Value] = {}
        self.shared: dict[object, Value] = {}
        self.steps = 0
        self._fixed: set[Value] | None = None
        self._readers: dict[Value, list[Node]] | None = None
        self._numbers: dict[Value, float | None] = {}

    # facts

    def producer(self, value: Value | None, *names: str) -> Node | None:
        """The node that computes a value, if there is one and its operator is among `names` (any, without these)."""
        node = None if value is None else self.producers.get(value)
        return node if node is not None and (not names or node.op in names) else None

    @property
    def readers(self) -> dict[Value, list[Node]]:
        """For each value the nodes that read it in the graph before any rewriting."""
        if self._readers is None:
            self._readers = self.graph.consumers()
        return self._readers

    def only_reader(self, value: Value) -> Node | None:
        """The single node that reads a value which is no output; None if there is none or several."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and value not in self.outputs else None

    def number(self, value: Value | None) -> float | None:
        """The number that all elements of a constant are, reshaped and broadcast or not; None for other values."""
        node = self.producer(value)
        while node is not None and node.op in ("reshape", "broadcast"):
            node = self.producer(node.inputs[0])
        if node is None or node.op != "constant":
            return None
        (constant,) = node.outputs
        if constant not in self._numbers:
            self._numbers[constant] = _number(node.of(ConstantAttrs).value.array)
        return self._numbers[constant]

    @property
    def fixed(self) -> set[Value]:
        """The values that depend on weights alone."""
        if self._fixed is None:
            nodes = (*self.graph.nodes, *self.builder.nodes)  # those that were emitted before anyone asked, too
            self._fixed = fixed_values(replace(self.graph, nodes=nodes))
        return self._fixed

    def first_match(self, pattern: Operand, value: Value, **bound: Value) -> Match | None:
        """The first match of a pattern with the node that computes a value, with the names in `bound` bound already;
        None if there is none."""
        first = next(matches(pattern, value, self, bound), None)
        return None if first is None else Match(self, self.producers[value], first)

    # the result

    def emit(
        self, op: str, *inputs: Value | None, name: str | None = None, attrs: Attrs | None = None, **values: AttrValue
    ) -> Value:
        """Append a node of the operator `op` with one output, called `name`, whose type is inferred, and return its
        value. Its attributes are `attrs` or made of `values`."""
        value = ops.emit1(self.builder, op, *inputs, name=name, attrs=attrs, **values)
        self._note()
        return value

    def emit_all(self, op: str, *inputs: Value | None, attrs: Attrs | None = None) -> tuple[Value, ...]:
        """Append a node with several outputs, and return their values."""
        values = ops.emit(self.builder, op, *inputs, attrs=attrs)
        self._note()
        return values

    def _note(self) -> None:
        """Record the producer of the last node's values, and whether they depend on weights alone."""
        node = self.builder.nodes[-1]
        self.producers.update(dict.fromkeys(node.outputs, node))
        if self._fixed is not None and depends_on_weights(node.inputs, self._fixed):
            self._fixed.update(node.outputs)

    def once(self, op: str, *inputs: Value | None, **values: AttrValue) -> Value:
        """The result of a node that is emitted at the first request and shared by later ones. Only for rules that will
        not fail after it: the node is not removed again."""
        key = (op, inputs, tuple(values.items()))
        if key not in self.shared:
            self.shared[key] = self.emit(op, *inputs, **values)
        return self.shared[key]

    def run(self, rules: Sequence[Rule], *, repeat: bool = False, common: bool = False) -> Graph:
        """The graph after applying the rules. `repeat`: emitted nodes are visited too; `common`: equal nodes are
        computed once."""
        table: dict[str, list[Rule]] = {}
        seen: dict[object, list[Node]] = {}
        queue = list(reversed(self.graph.nodes))
        limit = MAX_STEPS * len(queue)
        while queue:
            source = queue.pop()
            node = with_inputs(source, self.renamed) if self.renamed else source
            at = len(self.builder.nodes)
            if node.op not in table:
                table[node.op] = [rule for rule in rules if rule.pattern.takes(node.op)]
            if (rules_of := table[node.op]) and self._is_rewritten(rules_of, node):
                self.steps += 1
                if repeat and self.steps < limit:
                    queue.extend(reversed(self.builder.nodes[at:]))
                    del self.builder.nodes[at:]
            elif common and self._is_repeated(seen, node):
                continue
            elif node is source:  # known as the producer of its outputs
                self.builder.nodes.append(node)
            else:
                self._append(node)
        return self._finished()

    def _append(self, node: Node) -> None:
        self.builder.nodes.append(node)
        for value in node.outputs:
            self.producers[value] = node

    def _is_rewritten(self, rules: Sequence[Rule], node: Node) -> bool:
        """Apply the first rule that matches a node; returns whether there was one."""
        at = len(self.builder.nodes)
        for rule in rules:
            for bound in matches_node(rule.pattern, node, self, {}):
                result = rule.build(Match(self, node, bound))
                values = (result,) if isinstance(result, Value) else result
                if values is not None and all(v.type == o.type for v, o in zip(values, node.outputs, strict=True)):
                    self._place(node, values, at)
                    return True
                del self.builder.nodes[at:]
        return False

    def _place(self, node: Node, values: Sequence[Value], at: int) -> None:
        """Replace the outputs of a node by `values`. Values of nodes that were emitted for it, from number `at` on,
        take the outputs' names; for others, readers of the outputs are changed to read them, and an output of the graph
        becomes an identity."""
        emitted = {v for n in self.builder.nodes[at:] for v in n.outputs}.difference(self.shared.values())
        names = {new: old for old, new in zip(node.outputs, values, strict=True) if new in emitted}
        nodes, self.builder.nodes[at:] = self.builder.nodes[at:], []
        for n in nodes:
            self._append(replace(with_inputs(n, names), outputs=tuple(names.get(v, v) for v in n.outputs)))
        for old, new in zip(node.outputs, values, strict=True):
            if names.get(new) == old:
                continue
            if old in self.outputs:
                self._append(Node("identity", (new,), (old,), ops.attributes("identity", {})))
            else:
                self.renamed[old] = new

    def _is_repeated(self, seen: dict[object, list[Node]], node: Node) -> bool:
        """Whether an earlier node computes the same; then readers of this node are changed to read that one."""
        alike = seen.setdefault((node.op, *node.inputs), [])
        first = next((n for n in alike if _computes_same(n, node)), None)
        if first is None:
            alike.append(node)
            return False
        if not self.outputs.isdisjoint(node.outputs) or repr(first.attrs) != repr(node.attrs):  # 0.0 is equal to -0.0
            return False
        self.renamed.update(zip(node.outputs, first.outputs, strict=True))
        self.steps += 1
        return True

    def _finished(self) -> Graph:
        return eliminate_dead(replace(self.graph, nodes=tuple(self.builder.nodes))) if self.steps else self.graph


@dataclass(frozen=True, slots=True)
class Match:
    """A node that a pattern matches, and the values and numbers bound to the pattern's names."""

    rewriter: Rewriter
    node: Node
    bound: Bound

    def __getitem__(self, name: str) -> Value:
        """The value bound to a name."""
        value = self.bound[name]
        assert isinstance(value, Value)
        return value

    def number(self, name: str) -> float:
        """The number bound to a name."""
        value = self.bound[name]
        assert isinstance(value, float)
        return value

    @property
    def is_output(self) -> bool:
        """Whether the node computes an output of the graph, which keeps its name."""
        return not self.rewriter.outputs.isdisjoint(self.node.outputs)

    def producer(self, name: str) -> Node:
        """The node that computes the value bound to a name."""
        return self.rewriter.producers[self[name]]

    def emit(
        self, op: str, *inputs: Value | None, name: str | None = None, attrs: Attrs | None = None, **values: AttrValue
    ) -> Value:
        """Append a node of the operator `op` with one output, called `name`, whose type is inferred, and return its
        value. Its attributes are `attrs` or made of `values`."""
        return self.rewriter.emit(op, *inputs, name=name, attrs=attrs, **values)

    def emit_all(self, op: str, *inputs: Value | None, attrs: Attrs | None = None) -> tuple[Value, ...]:
        """Append a node with several outputs, and return their values."""
        return self.rewriter.emit_all(op, *inputs, attrs=attrs)

    def once(self, op: str, *inputs: Value | None, **values: AttrValue) -> Value:
        """The value of a node that all matches share; the first match appends it. Only for rules that will not fail
        after it."""
        return self.rewriter.once(op, *inputs, **values)


def rewrite(graph: Graph, rules: Sequence[Rule], *, repeat: bool = False, common: bool = False) -> Graph:
    """The graph after applying the rules, or the graph itself if none applies. `repeat`: emitted nodes are rewritten as
    well; `common`: equal nodes are computed once. See the module's text."""
    if not common and not any(rule.pattern.takes(node.op) for rule in rules for node in graph.nodes):
        return graph
    return Rewriter(graph).run(rules, repeat=repeat, common=common)


def _number(array: np.ndarray[Any, Any]) -> float | None:
    """The number that all elements of an array are equal to; None if they differ or are no numbers."""
    if not np.issubdtype(array.dtype, np.number) or not array.size or (array != array.flat[0]).any():
        return None
    return float(array.flat[0])


def _computes_same(a: Node, b: Node) -> bool:
    """Whether two nodes of one operator and the same inputs have equal attributes, and results of the same types."""
    own, others = (tuple(n.attrs.values().values()) for n in (a, b))
    return same(own, others) and [v.type for v in a.outputs] == [v.type for v in b.outputs]


def eliminate_dead(graph: Graph) -> Graph:
    """The graph without nodes that no output needs. Parameters and inputs stay: they are the model's interface."""
    needed = graph.needed()
    return graph if len(needed) == len(graph.nodes) else replace(graph, nodes=needed)
