"""Algorithms: other ways to compute an operator than as it is defined, a folder each, with all that one consists of.

    selection.py    what a node notes that is computed by it (`ir/selection.py`)
    operators.py    the operators of its stages: type rule, tensor expression, NumPy reference (`ops/`)
    plan.py         `PLANS`, how those are scheduled, if a plan for everything does not do (`plans/`)
    record.py       `RECORDS`, when it is offered and how a node is rewritten (`transform/algorithm.py`)
    strips.py       `STRIPS`, where a convolution changes layouts by itself (`transform/graph/conversions.py`)

Each may be a folder of that name. They are discovered by these names (`support/discover.py`): a new algorithm is a new
folder and no line elsewhere.
"""
