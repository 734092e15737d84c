"""A learned residual of the estimates against the estimates alone: `python -m benchmarks.bench_residual`.

Spaces of decisions that were timed as a whole are played back: a search sees the first times and is evaluated by
others; where there are third ones, these decide among the best few, as the tuner's finals do. LightGBM learns what the
estimates leave out, log(time / estimate) relative to the space's mean, from a setting's kind and knobs, its estimate's
distance from the best, and the sizes in the decision's text. It is asked about spaces that it has not seen: folds are
by workload, and numbers are means over all spaces as test spaces.

`--record NAME...` times the spaces of more models or layers ("layer-conv3x3-64-64-15"), and keeps them in
results/spaces.json. The spaces of results/tune.json are used too. Needs the extra `tune`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import harness
from tilewright.plans.framework.space import Setting
from tilewright.targets.target import Target
from tilewright.tuning.replay import Recorded, mean, play
from tilewright.tuning.search import Descent, EstimateOnly, Policy, RandomSearch, Search

SPACES = harness.RESULTS / "spaces.json"
SIZES = 8
"""Numbers of a decision's text that are features: the first ones, which are its types' sizes."""
MIN_SETTINGS = 3
"""Settings that a space has to have."""
_NUMBER = re.compile(r"(?<![A-Za-z_0-9.])\d+")


def recorded(models: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """The spaces of some models, timed now."""
    from benchmarks.bench_tune import MAX_SETTINGS, everything, spaces, tune

    results = []
    for name in models:
        print(name, flush=True)
        runs = [tune(name, 1, Target.host(), everything(MAX_SETTINGS), turn, seconds, timed=True) for turn in (1, 2, 3)]
        results += [{**s.to_dict(), "model": name} for s in spaces(*runs)]
    return results


def known() -> list[Recorded]:
    """All spaces that there are, each once, with several settings."""
    tuned = json.loads((harness.RESULTS / "tune.json").read_text())["rows"]
    rows = [s for row in tuned for s in row.get("spaces", ())]
    rows += json.loads(SPACES.read_text())["rows"] if SPACES.exists() else []
    result = {(r["about"], len(r["labels"])): Recorded.from_dict(r) for r in rows}
    return [s for s in result.values() if len(s.labels) >= MIN_SETTINGS and all(e > 0 for e in s.estimates)]


class Features:
    """Settings as rows of numbers: the same columns for all spaces."""

    def __init__(self, spaces: Sequence[Recorded]) -> None:
        settings = [Setting.parse(label) for s in spaces for label in s.labels]
        self.kinds = sorted({s.kind for s in settings})
        self.knobs = sorted({name for s in settings for name, _ in s.knobs})

    def of(self, space: Recorded) -> np.ndarray[Any, Any]:
        """A row for each setting of a space."""
        least = min(space.estimates)
        sizes = [math.log2(int(n) + 1) for n in _NUMBER.findall(space.about)][:SIZES]
        sizes += [-1.0] * (SIZES - len(sizes))
        rows = []
        for label, estimate in zip(space.labels, space.estimates, strict=True):
            setting = Setting.parse(label)
            knobs = dict(setting.knobs)
            values = [math.log2(knobs[n] + 1) if n in knobs else -1.0 for n in self.knobs]
            rows.append([self.kinds.index(setting.kind), math.log(estimate / least), *values, *sizes])
        return np.array(rows, float)


def residual(space: Recorded) -> np.ndarray[Any, Any]:
    """The residual of the estimates, in logarithms, relative to the space's mean."""
    left = np.log(space.seen) - np.log(space.estimates)
    return np.asarray(left - left.mean())


PARAMETERS = {
    "objective": "regression", "num_leaves": 7, "min_data_in_leaf": 8, "learning_rate": 0.05, "lambda_l2": 1.0,
    "seed": 0, "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1,
}  # fmt: skip
ROUNDS = 60


def folds_of(groups: Sequence[str], count: int) -> list[list[int]]:
    """Places by fold, those of a group in one: the largest groups first, each into the fold that has least."""
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    folds: list[list[int]] = [[] for _ in range(min(count, len(members)))]
    for group in sorted(members, key=lambda g: (-len(members[g]), g)):
        min(folds, key=len).extend(members[group])
    return folds


def corrected(spaces: Sequence[Recorded], folds: int) -> list[Recorded]:
    """The spaces with estimates that were corrected by a residual learned from other workloads."""
    import lightgbm

    features = Features(spaces)
    producers: dict[int, Recorded] = {}
    for test in folds_of([s.about for s in spaces], folds):
        train = [k for k in range(len(spaces)) if k not in test]
        data = lightgbm.Dataset(
            np.concatenate([features.of(spaces[k]) for k in train]),
            np.concatenate([residual(spaces[k]) for k in train]),
            weight=np.concatenate([np.full(len(spaces[k].labels), 1 / len(spaces[k].labels)) for k in train]),
            categorical_feature=[0],
        )
        model = lightgbm.train(PARAMETERS, data, num_boost_round=ROUNDS)
        for k in test:
            factors = np.exp(np.asarray(model.predict(features.of(spaces[k])), float))
            estimates = tuple(float(e * f) for e, f in zip(spaces[k].estimates, factors, strict=True))
            producers[k] = replace(spaces[k], estimates=estimates)
    return [producers[k] for k in range(len(spaces))]


class Preferred(EstimateOnly):
    """The setting of the best estimate, without any measurement."""

    def __init__(self, space: Recorded) -> None:
        super().__init__(space.space)
        self._best = space.labels[int(np.argmin(space.estimates))]

    @property
    def best(self) -> str:
        return self._best


Make = Callable[[Recorded], Search]
SEARCHES: Mapping[str, Make] = {
    "the estimate alone": Preferred,
    "descent, at most 20": lambda s: Descent(s.space, s.estimates, Policy()),
    "descent, at most 4": lambda s: Descent(s.space, s.estimates, Policy(most=4)),
}


def order(space: Recorded) -> float:
    """The share of pairs of settings that differ by 5 % and more whose order the estimates tell."""
    right = total = 0
    for i, a in enumerate(space.truth):
        for j, b in enumerate(space.truth[:i]):
            if max(a, b) > 1.05 * min(a, b):
                total += 1
                right += (space.estimates[i] < space.estimates[j]) == (a < b)
    return right / total if total else 1.0


def table(spaces: Sequence[Recorded], learned: Sequence[Recorded]) -> str:
    """Regrets of the searches with bare and with corrected estimates."""
    rows = []
    for name, make in SEARCHES.items():
        for what, candidate in (("bare", spaces), ("corrected", learned)):
            regret, worst, timed = mean(candidate, make)
            rows.append([name, what, f"{regret:.2%}", f"{worst:.2%}", f"{timed:.1f}"])
    for count in (8, 20):
        regret, worst, timed = mean(spaces, lambda s, n=count: RandomSearch(s.space, n))  # type: ignore[misc]
        rows.append([f"random, {count}", "none", f"{regret:.2%}", f"{worst:.2%}", f"{timed:.1f}"])
    head = ["search", "estimates", "mean regret", "worst", "timed a decision"]
    return harness.markdown_table(head, rows)


def verdict(spaces: Sequence[Recorded], learned: Sequence[Recorded]) -> str:
    """Where the corrected estimates choose better and worse than the bare ones."""
    both = [(play(a, Preferred).regret, play(b, Preferred).regret) for a, b in zip(spaces, learned, strict=True)]
    better, worse = sum(b < a - 0.005 for a, b in both), sum(b > a + 0.005 for a, b in both)
    bare, new = (sum(order(s) for s in candidate) / len(candidate) for candidate in (spaces, learned))
    return (
        f"{len(spaces)} spaces, {sum(len(s.labels) for s in spaces)} settings. Chosen without measuring, the corrected "
        f"estimates are better by more than 0.5 % in {better} spaces and worse in {worse}. Of pairs of settings that "
        f"differ by 5 % and more the bare estimates tell {bare:.1%}, the corrected ones {new:.1%}."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="*", default=[], metavar="NAME")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="of each recording; what it lacks the next one times"
    )
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--no-report", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    if options.record:
        old = json.loads(SPACES.read_text())["rows"] if SPACES.exists() else []
        new = recorded(options.record, options.seconds)
        retained = [s for s in old if s["model"] not in options.record]
        SPACES.write_text(json.dumps({"environment": harness.environment(), "rows": [*retained, *new]}))
    spaces = known()
    learned = corrected(spaces, options.folds)
    text = f"{verdict(spaces, learned)}\n\n{table(spaces, learned)}"
    print(text)
    if not options.no_report:
        harness.write_markdown("residual", "A learned residual of the estimates, played back", text)


if __name__ == "__main__":
    main()
