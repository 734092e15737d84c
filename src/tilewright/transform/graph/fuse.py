"""Group nodes into kernels.

    conv -> add(bias) -> add(skip) -> relu        one group: the anchor and its pointwise epilogue
    block_channels -> conv -> unblock_channels    one group where the convolution converts better by itself
    cast -> mul(1/255) -> conv                    one group: the anchor and what feeds its data alone
    mul(scale) -> pack_conv                       likewise: weights are scaled where they are packed
    pack_dot -> pieces                            likewise: each number is read once for all of its pieces
    matmul -> mul(sub(1, y y))                     likewise: what only the epilogue reads
    add -> mean -> sub -> ... -> mul               one group over common rows: see rowgroups.py
    transpose -> mul -> pooling                    one group: the reduction and what feeds it alone
    slice, slice -> concat                         one group: elements go where they belong at once

But for row groups, a group has one output. It grows from a leader along immediate post-dominators: everything between
the leader and its post-dominator comes along, so the group's inside is never seen from outside (the method of TVM's
FuseOps and of "Relay", section 4.4). Aliases (reshape, views) make no code and end a group, unless
pointwise nodes surround them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.arith import prove_equal
from tilewright.ir.expr import Var, as_int
from tilewright.ir.graph import Graph, Node, Value
from tilewright.ir.rewrite import variables
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.plans.framework.cost import FUNCTIONS as COSTS
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.transform.graph.conversions import Absorbs, never
from tilewright.transform.graph.rowgroups import RowGrower, row_shape

MAX_NODES = 48
"""The largest number of nodes in a group."""
CUT_NODES = 6
"""The number of nodes after a place in a chain that a digest covers; the digest decides whether a group is cut
there."""
MAX_INPUTS = 24
"""The largest number of inputs of a group, since its kernel holds an address for each."""

MAX_COPIES = 8
"""The largest number of slices and concatenations in a kernel: each part of a concatenation costs a condition."""

SIDES_OF = ("matmul", "lowered.matmul_packed")
"""Products whose groups also take in pointwise work on values that the product does not read. Convolutions gained
nothing by it."""


SMALL_SIDE = 1 << 16
"""The largest number of elements of pointwise work beside a product, on values that the product does not read, that may
contain costly functions. Larger work is computed faster by a separate kernel than in register tiles, which leave it few
registers (docs/decisions/transformer-steps.md)."""

FUNCTIONS = {*COSTS, *(name for name, known in ACTIVATIONS.items() if known.costly)}
"""Operators that are functions of many operations, such as exp, or contain one."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one kernel computes, in order. `inputs` are the values that they read from outside; `outputs` are the
    results that are read outside."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def label(self) -> str:
        """The names of the operators, in order, for tables."""
        names = [n.label for n in self.nodes]
        return " + ".join(names[:6]) + (f" + {len(names) - 6} more" if len(names) > 6 else "")


def fuse(graph: Graph, absorbs: Absorbs = never) -> list[Group]:
    """The graph as kernels, in an order that respects their dependencies. Alias nodes are groups of their own.

    `absorbs` says which changes of layout a convolution makes by itself (`conversions.py`).
    """
    return _Fuser(graph, absorbs).run()


class _Fuser:
    def __init__(self, graph: Graph, absorbs: Absorbs) -> None:
        self.graph = graph
        self.absorbs = absorbs
        self.nodes = [n for n in graph.nodes if n.op != "constant"]
        self.constants = {n.output: n for n in graph.nodes if n.op == "constant"}
        self.position = {id(n): i for i, n in enumerate(self.nodes)}
        self.users = self.readers()
        self.outputs = set(graph.outputs)
        self.leader = list(range(len(self.nodes)))
        self.led = [[i] for i in self.leader]
        self.dominator = self.post_dominators()
        self.row_groups: set[int] = set()

    def readers(self) -> dict[Value, list[Node]]:
        """For each value the nodes that read it. A node that uses a symbol also reads the value that defines it."""
        users = self.graph.consumers()
        defined = {n.defines: n.output for n in self.nodes if n.defines is not None}
        for node in self.nodes if defined else ():
            for symbol in node.symbols:
                if symbol in defined and node.defines is not symbol:
                    readers = users.setdefault(defined[symbol], [])
                    if all(u is not node for u in readers):
                        readers.append(node)
        return users

    def run(self) -> list[Group]:
        for kinds in (("contraction",), ("reduction",), ("injective", "pointwise")):
            if kinds == ("reduction",):
                self.grow_rows()
            for i, node in enumerate(self.nodes):
                if ops.get(node.op).kind in kinds and not ops.is_alias(node) and self.leader[i] == i:
                    self.grow(i)
            if kinds == ("contraction",):
                self.grow_sides()
                self.grow_prologues()
            if kinds == ("reduction",):
                self.grow_copies()
        self.grow_pointwise()
        members: dict[int, list[int]] = {}
        for i in range(len(self.nodes)):
            members.setdefault(self.find(i), []).append(i)
        return [self.group([self.nodes[i] for i in group]) for group in self.in_order(members)]

    def grow_prologues(self) -> None:
        """Fuse pointwise chains that feed only one convolution or packing, into its padding or copying of the input."""
        makers = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        for root, node in enumerate(self.nodes):
            value = node.inputs[0] if node.inputs else None
            if value in makers and self.is_conversion_for(makers[value], node):
                self.join(makers[value], self.find(root))
            if not ops.get(node.op).prologue:
                continue
            while value is not None and (i := makers.get(value)) is not None and self.is_private(i):
                new_node = self.nodes[i]
                self.join(i, self.find(root))
                value = next(
                    (v for v in new_node.inputs if v in makers and v is not None and same_shape(v, value)), None
                )

    def grow_sides(self) -> None:
        """Fuse pointwise chains that only a product's epilogue reads, such as the slope of an activation that a
        gradient is multiplied by: the product's kernel computes them instead of reading them from memory."""
        makers = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        for i in reversed(range(len(self.nodes))):
            root = self.find(i)
            node, output = self.nodes[i], self.nodes[i].outputs[0]
            if root == i or self.nodes[root].op not in SIDES_OF or ops.get(node.op).kind != "pointwise":
                continue
            for v in node.inputs:
                maker = None if v is None else makers.get(v)
                if maker is not None and self.is_private(maker) and same_shape(self.nodes[maker].output, output):
                    if (as_int(output.type.size) or 0) > SMALL_SIDE and self.has_functions(maker, makers):
                        continue
                    inside = [*self.members(root), maker]
                    if len(inside) <= MAX_NODES and len(self.read_by(inside)) <= MAX_INPUTS:
                        self.join(maker, root)

    def grow_pointwise(self) -> None:
        """Merge a pointwise group into another one if that is the only reader of its result, as in the second operand
        of an addition."""
        makers = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        for i in reversed(range(len(self.nodes))):
            node, own = self.nodes[i], self.find(i)
            if not self.is_pointwise(own):
                continue
            for v in node.inputs:
                maker = None if v is None or v in self.outputs else makers.get(v)
                if v is None or maker is None or (other := self.find(maker)) == own or not self.is_pointwise(other):
                    continue
                inside = [*self.members(own), *self.members(other)]
                readers = {self.find(self.position[id(user)]) for user in self.users.get(v, [])}
                fits = len(inside) <= MAX_NODES and len(self.read_by(inside)) <= MAX_INPUTS
                if readers == {own} and fits and same_shape(v, node.output):
                    self.join(other, own)

    def is_pointwise(self, root: int) -> bool:
        """Whether all nodes of a group are pointwise with one result."""
        nodes = [self.nodes[k] for k in self.members(root)]
        return all(ops.is_pointwise(n) for n in nodes)

    def has_functions(self, i: int, makers: Mapping[Value, int]) -> bool:
        """Whether a node, or a node that only it reads, is a function of many operations."""
        inputs = (makers.get(v) for v in self.nodes[i].inputs if v is not None)
        return self.nodes[i].op in FUNCTIONS or any(
            k is not None and self.is_private(k) and self.has_functions(k, makers) for k in inputs
        )

    def is_conversion_for(self, i: int, reader: Node) -> bool:
        """Whether node `i` only prepares the operand of its one reader and is faster in the reader's kernel: it blocks
        channels for a convolution that can do so itself, or packs a weight that is then split into pieces."""
        node = self.nodes[i]
        if node.op not in ("lowered.block_channels", "lowered.pack_dot") or len(self.members(i)) != 1:
            return False
        if self.find(i) != i or len(self.users.get(node.output, [])) != 1:
            return False
        if node.op == "lowered.pack_dot":
            return reader.op == "lowered.pieces" and node.output not in self.outputs
        return self.absorbs(reader, node)

    def is_private(self, i: int) -> bool:
        """Whether a node is pointwise, in no group, and read by one node only."""
        node = self.nodes[i]
        if ops.get(node.op).kind != "pointwise" or len(node.outputs) != 1 or len(self.members(i)) != 1:
            return False
        value = node.output
        return self.find(i) == i and value not in self.outputs and len(self.users.get(value, [])) == 1

    def grow_rows(self) -> None:
        """Form groups of several reductions over common rows."""
        sizes = [len(self.members(i)) if self.find(i) == i else 0 for i in range(len(self.nodes))]

        def take_one(i: int) -> bool:
            return sizes[self.find(i)] > 1

        def whole(i: int) -> list[int]:
            return self.members(self.find(i)) if take_one(i) else [i]

        spans = self.spans()
        grower = self.grower(take_one, whole, spans)
        for i, node in enumerate(self.nodes):
            if row_shape(node) is not None and not take_one(i):
                group = grower.grow(i)
                for k in group:
                    self.join(k, i)
                sizes[i] = len(group)
                if len(group) > 1:
                    self.row_groups.add(i)
                    insort(spans, (group[0], group[-1]))

    def spans(self) -> list[tuple[int, int]]:
        """(first node, last node) of each group of several nodes, in order."""
        ends: dict[int, tuple[int, int]] = {}
        for i in range(len(self.nodes)):
            root = self.find(i)
            ends[root] = (ends[root][0] if root in ends else i, i)
        return sorted(span for span in ends.values() if span[0] < span[1])

    def grower(
        self,
        in_use: Callable[[int], bool],
        whole: Callable[[int], Sequence[int]],
        spans: Sequence[tuple[int, int]],
    ) -> RowGrower:
        users = {v: sorted(self.position[id(u)] for u in us) for v, us in self.users.items()}
        makers = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        return RowGrower(self.nodes, users, makers, self.outputs, in_use, whole, spans)

    def is_convex(self, members: Sequence[int]) -> bool:
        """Whether no path leads from `members` through other nodes back to them."""
        grower = self.grower(lambda i: False, lambda i: self.members(self.find(i)), self.spans())
        return grower.is_convex(set(members))

    def grow_copies(self) -> None:
        """Fuse slices and concatenations that feed one concatenation alone, so that a roll is one copy."""
        for root in reversed(range(len(self.nodes))):
            if self.nodes[root].op == "concat" and self.is_copy(root):
                selected = {root}
                for i in reversed(range(root)):
                    users = self.users.get(self.nodes[i].outputs[0], [])
                    private = self.nodes[i].outputs[0] not in self.outputs and bool(users)
                    inside = private and all(self.position[id(u)] in selected for u in users)
                    if inside and len(selected) < MAX_COPIES and self.is_copy(i):
                        selected.add(i)
                for i in selected:
                    self.join(i, root)

    def is_copy(self, i: int) -> bool:
        """Whether a node outside all groups becomes a kernel that only concatenates or slices."""
        node = self.nodes[i]
        return (
            node.op in ("slice", "concat")
            and not ops.is_alias(node)
            and self.leader[i] == i
            and len(self.members(i)) == 1
        )

    def in_order(self, members: dict[int, list[int]]) -> list[list[int]]:
        """The groups, whose nodes are in `members`, ordered by their last nodes, but each before the first group that
        reads from it. So the outputs of a group that begins in the forward pass and ends in the backward pass are
        computed in time, and weights that come with each call are packed late: the copy occupies memory for a short
        time and is read from a cache."""
        makers = {v: i for i, n in enumerate(self.nodes) for v in n.outputs}
        defined = {n.defines: n.output for n in self.nodes if n.defines is not None}

        def needs(root: int) -> list[int]:
            results = {self.find(makers[v]) for i in members[root] for v in self.read(i, defined) if v in makers}
            return sorted(results - {root}, key=lambda other: -members[other][-1])

        copies: set[int] = set()
        for root in sorted(members, key=lambda root: members[root][-1]):
            kinds = {ops.get(self.nodes[i].op).kind for i in members[root]}
            if kinds <= {"injective"} and copies.issuperset(needs(root)):
                copies.add(root)  # of what the caller gives
        ordered: list[list[int]] = []
        opened: set[int] = set()
        done: set[int] = set()
        for first in sorted(members, key=lambda root: (root in copies, members[root][-1])):
            stack = [first]
            while stack:
                root = stack[-1]
                if root not in opened:
                    opened.add(root)
                    missing = [other for other in needs(root) if other not in done]
                    assert opened.isdisjoint(missing), "groups depend on each other in a circle"
                    stack += missing
                    continue
                stack.pop()
                if root not in done:
                    done.add(root)
                    ordered.append(members[root])
        return ordered

    def read(self, i: int, defined: Mapping[Var, Value]) -> list[Value]:
        """The inputs of node number `i`, and the values that its data-dependent symbols come from, by `defined`."""
        node = self.nodes[i]
        symbols = node.symbols if defined and node.defines is None else ()
        return [*(v for v in node.inputs if v is not None), *(defined[s] for s in symbols if s in defined)]

    def find(self, i: int) -> int:
        return self.leader[i]

    def members(self, root: int) -> list[int]:
        return self.led[root]

    def join(self, i: int, root: int) -> None:
        """Move node `i` into the group of `root`, and with it the nodes of the group that it leads."""
        if self.leader[i] == root:
            return
        own = self.led[self.leader[i]]
        moved = list(own) if self.leader[i] == i else [i]
        for k in moved:
            self.leader[k] = root
            own.remove(k)
            insort(self.led[root], k)

    def post_dominators(self) -> list[int | None]:
        """For each node the nearest node that is on every path from it to an output (None: the graph's end)."""
        depth = [0] * len(self.nodes)
        result: list[int | None] = [None] * len(self.nodes)
        for i in reversed(range(len(self.nodes))):
            node = self.nodes[i]
            users = {self.position[id(u)] for v in node.outputs for u in self.users.get(v, [])}
            if not users or any(v in self.outputs for v in node.outputs):
                continue
            candidate: int | None = None
            for k, user in enumerate(sorted(users)):
                candidate = user if k == 0 else self.common(candidate, user, depth, result)
            result[i] = candidate
            depth[i] = 0 if candidate is None else depth[candidate] + 1
        return result

    @staticmethod
    def common(a: int | None, b: int | None, depth: list[int], up: list[int | None]) -> int | None:
        while a != b:
            if a is None or b is None:
                return None
            if depth[a] >= depth[b] and depth[a] > 0:
                a = up[a]
            elif depth[b] > 0:
                b = up[b]
            else:
                return None
        return a

    def grow(self, start: int) -> None:
        """Extend the group of `start` by post-dominators as long as the rules allow."""
        root = start
        tip = start
        steps: list[list[int]] = []
        while True:
            end = self.dominator[tip]
            if end is None:
                return
            between = self.between(tip, end)
            if between is None or not self.may_join(root, tip, between, end):
                if steps and len(self.members(root)) + 1 + len(between or ()) > MAX_NODES:
                    self.cut(root, steps)
                return
            for i in (*between, end):
                self.join(self.find(i), root)
            steps.append([*between, end])
            if ops.get(self.nodes[end].op).kind != "pointwise":
                return
            tip = end

    def cut(self, root: int, steps: Sequence[Sequence[int]]) -> None:
        """End the group `root`, which has reached its limits, after one of its last `steps`. Which one depends on the
        nodes that follow it alone, so that a long chain of repetitions is cut at the same place of each, and there are
        few different kernels: it is the step with the smallest digest (content-defined chunking: Muthitacharoen et al.,
        "A Low-bandwidth Network File System", section 3.1)."""
        last = range(max(1, len(steps) // 4), len(steps) + 1)
        place = min(last, key=lambda k: self.digest_after(steps[k - 1][-1]))
        for i in (i for step in steps[place:] for i in step):
            self.led[root].remove(i)
            self.leader[i], self.led[i] = i, [i]

    def digest_after(self, i: int) -> bytes:
        """A digest, without names, of the next nodes on the path from a node to the outputs."""
        seen = []
        for _ in range(CUT_NODES):
            following = self.dominator[i]
            if following is None:
                break
            i, node = following, self.nodes[following]
            seen.append(f"{node.op} {node.attrs!r} {[str(v.type) for v in node.outputs]}")
        return blake2b("\n".join(seen).encode(), digest_size=8).digest()

    def between(self, start: int, end: int) -> list[int] | None:
        """The numbers of the nodes that depend on node `start`, up to the node `end`, or None if they are too many."""
        seen: set[int] = set()
        stack = [start]
        while stack:
            for v in self.nodes[stack.pop()].outputs:
                for user in self.users.get(v, []):
                    i = self.position[id(user)]
                    if i != end and i not in seen:
                        seen.add(i)
                        stack.append(i)
                        if len(seen) > MAX_NODES:
                            return None
        return sorted(seen)

    def may_join(self, root: int, tip: int, between: list[int], end: int) -> bool:
        anchor = ops.get(self.nodes[root].op).kind
        joined = [*between, end]
        inside = self.members(root) + joined
        for i in joined:
            if self.find(i) != i or len(self.members(i)) > 1:
                return False
        if len(inside) > MAX_NODES or len(self.nodes[tip].outputs) != 1:
            return False
        if root in self.row_groups and not self.is_convex(inside):
            return False  # rows leave by other ways than the tip, too
        if len(self.read_by(inside)) > MAX_INPUTS:
            return False
        produced = {v for i in inside for v in self.nodes[i].outputs}
        shape_of = self.nodes[tip].output
        for i in joined:
            node = self.nodes[i]
            op = ops.get(node.op)
            if node.op == "lowered.unblock_channels" and i == end and not between:
                return self.absorbs(self.nodes[root], node)
            if op.kind == "reduction" and i == end and anchor in ("pointwise", "injective"):
                return self.is_prologue_of(node, produced)
            if op.kind != "pointwise" or len(node.outputs) != 1 or not same_shape(node.output, shape_of):
                return False
        return True

    def read_by(self, inside: Sequence[int]) -> set[Value]:
        """The values that nodes `inside` read from other nodes, without constants."""
        produced = {v for i in inside for v in self.nodes[i].outputs}
        return {v for i in inside for v in self.nodes[i].inputs if v is not None} - produced - set(self.constants)

    def is_prologue_of(self, reduction: Node, produced: set[Value]) -> bool:
        """Whether a chain that produces these values may be fused into a reduction: it must feed only the reduction's
        main input."""
        return all(v not in produced for v in reduction.inputs[1:])

    def group(self, nodes: list[Node]) -> Group:
        produced = {v for n in nodes for v in n.outputs}
        read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in produced)
        constants = [self.constants[v] for v in read if v in self.constants]
        inputs = tuple(v for v in read if v not in self.constants)
        leaving = tuple(
            v
            for n in nodes
            for v in n.outputs
            if v in self.outputs or any(u not in nodes for u in self.users.get(v, [])) or n is nodes[-1]
        )
        return Group((*constants, *nodes), (*inputs, *self.carriers(nodes, (*inputs, *leaving))), leaving)

    def carriers(self, nodes: list[Node], values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Inputs of the graph, or results of nodes that define symbols, whose shapes have symbols that occur in the
        attributes of a kernel's `nodes` and not in the shapes of `values`, its inputs."""
        known = {symbol for v in values for d in v.shape for symbol in variables(d)}
        results: list[Value] = []
        for symbol in (s for n in nodes if not n.bodies for s in n.symbols):
            if symbol not in known:
                created = (n.output for n in self.graph.nodes if n.defines is not None)
                carriers = (*self.graph.inputs, *created)
                carrier = next(v for v in carriers if any(symbol in variables(d) for d in v.shape))
                known.update(s for d in carrier.shape for s in variables(d))
                results.append(carrier)
        return tuple(results)


def same_shape(a: Value, b: Value) -> bool:
    """True when the shapes are provably equal."""
    return a.type.rank == b.type.rank and all(
        x is y or prove_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True)
    )
