"""Algorithms: ways to compute an operator other than by its definition, each in a folder with all of its parts.

    selection.py    the note on nodes that are computed by it (`ir/selection.py`)
    operators.py    the operators of its stages: type rule, tensor expression, NumPy reference (`ops/`)
    plan.py         `PLANS`, the schedules of these operators, if general plans do not suffice (`plans/`)
    record.py       `RECORDS`, when it is offered and how a node is rewritten (`transform/algorithm.py`)
    strips.py       `STRIPS`, where a convolution changes layouts by itself (`transform/graph/conversions.py`)

Each may be a folder of that name. They are discovered by these names (`support/discover.py`): a new algorithm is a new
folder and no line elsewhere.
"""
