"""The language that TVM's documentation (v0.6) and the course's assignments teach, and the tests that show it here.

python -m tests.te.test_conformance         the topics with their tests and numbers of cases
"""

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any

TOPICS: dict[str, tuple[str, ...]] = {
    "elements, types, casts": ("elements.arithmetic", "elements.bits", "elements.casts", "elements.functions"),
    "indices, gathers, shapes": ("elements.indexing", "elements.gather_scatter_by_index_tensors", "strides.views"),
    "division and remainder": ("elements.divisions", "elements.divisions_of_axes"),
    "conditions, lazy branches": ("conditions.comparisons", "elements.comparisons", "elements.lazy_branches"),
    "several outputs": ("elements.several_outputs", "elements.outputs_of_several_types"),
    "reductions": ("stages.rows", "stages.sets_of_axes", "stages.where", "stages.narrow_inputs_wide_sums"),
    "reducers of the user's": ("stages.reducers_of_several_values", "stages.any_and_all"),
    "ends that move": ("reductions.triangle", "reductions.starts", "reductions.empty_ranges"),
    "scan": (
        "scans.running",
        "scans.two_rows_back",
        "scans.recurrent_layers",
        "scans.several_states",
        "scans.a_scan_of_a_scan",
        "scans.a_producer_moves_into_a_step",
    ),
    "extern": ("externs.among_other_stages", "externs.nothing_and_constant_sizes", "externs.several_outputs_and_types"),
    "functions of C in elements": ("call_extern.functions_of_math_h", "call_extern.functions_that_are_defined"),
    "tensorize": (
        "stages.tensorize",
        "intrinsics.rows_inside_of_a_larger_array",
        "intrinsics.a_sum_adds_to_what_is_there",
    ),
    "rfactor": (
        "stages.rfactor",
        "stages.rfactor_of_a_maximum_over_threads",
        "reductions.a_condition_reads_only_where_the_loops_are_inside",
    ),
    "bound inference": (
        "stages.bound_inference_of_stencils",
        "stages.bound_inference_through_three_stages",
        "stages.upsampled_and_downsampled_regions",
        "stages.where_a_producer_is_computed",
    ),
    "inline chains": ("stages.inline_chains", "stages.broadcast_inline_into_a_reduction", "stages.diamonds"),
    "split, fuse, reorder, vectors, threads": (
        "stages.splits",
        "stages.splits_of_splits",
        "stages.fusions",
        "stages.orders",
        "stages.vectors",
        "stages.threads",
        "stages.unrolled",
    ),
    "caches": ("stages.blocked_products", "stages.copies_of_inputs"),
    "storage flattening and layouts": ("stages.storage_layouts", "stages.padding_of_a_product", "strides.results"),
    "symbolic and odd sizes": (
        "elements.symbolic_sizes",
        "elements.two_symbols",
        "stages.symbolic_reductions",
        "stages.symbolic_schedules",
        "stages.nothing_to_reduce",
    ),
    "the course's operators": ("stages.convolutions", "stages.softmax"),
}


def function(name: str) -> Any:
    module, _, test = name.partition(".")
    return getattr(import_module(f"tests.te.test_{module}"), f"test_{test}")


def cases(name: str) -> int:
    """How many cases a test has."""
    marks = getattr(function(name), "pytestmark", [])
    return prod(len(list(m.args[1])) for m in marks if m.name == "parametrize")


def test_each_topic_has_its_cases() -> None:
    named = [name for names in TOPICS.values() for name in names]
    assert len(set(named)) == len(named)
    assert all(sum(map(cases, names)) >= 3 or len(names) > 1 for names in TOPICS.values())
    assert sum(map(cases, named)) >= 150


def main() -> None:
    for topic, names in TOPICS.items():
        print(f"{sum(map(cases, names)):4}  {topic}: {', '.join(names)}")
    print(f"{sum(cases(name) for names in TOPICS.values() for name in names):4}  in all")


if __name__ == "__main__":
    main()
