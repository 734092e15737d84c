"""Time per call of whole models, side by side: `python -m benchmarks.bench_models --only 'm64*,nat' --rounds 20`.

The list of models, each with its batch, is `suites/models.txt`.
"""

from __future__ import annotations

import argparse

from benchmarks import layers, models, suite
from benchmarks.peers import EXACT

PEERS = ("onnxruntime", "openvino", "mnn", "ncnn", EXACT)
ROUNDS = 7
TURN_SECONDS = 0.1
"""A model is called again and again; in short turns the first call, with a peer's data in the caches, weighs most."""
DEFAULT = "m64,nat,az6,resnet50,bert"
"""Models for reports that look at a few."""


def cases(names: str | None = None) -> list[suite.Case]:
    """The cases of the table, or the named ones (any model, with @batch)."""
    results = []
    for group, (label, *more) in layers.lines("models"):
        results.append(_case(label, group, (*PEERS, *more)))
    if names is None:
        return results
    known = {case.label: case for case in results}
    return [known.get(name) or _case(name, "others", PEERS) for name in names.split(",")]


def _case(label: str, group: str, peers: tuple[str, ...]) -> suite.Case:
    model, _, batch = label.partition("@")
    return suite.Case(model, label, group, peers, batch=int(batch or 1))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", help=f"these alone, each with @batch if not 1; of {', '.join(models.NAMES)}")
    suite.add_options(parser, ROUNDS, TURN_SECONDS, "tilewright-fixed")
    options = parser.parse_args(arguments)
    return suite.run(cases(options.models), options, "models", f"Models, {options.threads} thread(s)")


if __name__ == "__main__":
    raise SystemExit(main())
