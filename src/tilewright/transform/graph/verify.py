"""What the driver of passes checks of graphs: the rules of the IR, and the types that operators give."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright import ops
from tilewright.ir.graph import Graph, Node
from tilewright.ir.verify import verify_graph
from tilewright.support.errors import Error
from tilewright.transform.driver import ANNOUNCED, GRAPHS_SHOWN, VERIFY_STAGES, Stage


def graph_stage() -> Stage[Graph]:
    """Graphs of one compile: rules of the IR, and each node's types as its operator's rule gives them. A node that
    stays the same is looked at once."""
    seen: dict[int, Node] = {}  # by identity; kept, so that no other node gets the same one

    def node_problems(node: Node) -> Iterable[str]:
        if id(node) not in seen:
            seen[id(node)] = node
            try:
                ops.check_node(node)
            except Error as error:
                yield str(error)
            except (AttributeError, LookupError, TypeError, ValueError) as error:  # a graph that somebody wrote by hand
                yield f"its type rule takes no such attributes: {type(error).__name__}: {error}"

    def check(graph: Graph) -> None:
        verify_graph(graph, node_problems)

    return Stage(check, check, None, VERIFY_STAGES, ANNOUNCED, GRAPHS_SHOWN)
