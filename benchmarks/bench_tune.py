"""The gain of tuning, the gain that there is, and the cost of the search.

    python -m benchmarks.bench_tune [--models NAME...] [--threads N] [--target NAME] [--everything] [--most N]
                                    [--ceilings] [--wrong WHAT] [--searches N] [--repeat N] [--prepare] [--name NAME]

The headroom of a model is what the tuner verifies when it times all settings whose estimates are within a factor of
two of the best (--everything), or the N of these with the best estimates (--most); beside it stands what it verifies
with its own search. What is verified is raced against untuned once more, for the race that chose it flatters it. With
--everything alone each is timed twice, so that searches can be played back on recorded spaces: seen by the first times,
evaluated by the second.
A name may end with @ and a batch, which is 1 otherwise.
--prepare compiles the candidates only, which needs no quiet machine. Runs that are stopped go on from their journals.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import harness, layers, models
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Built, Maker
from tilewright.tuning.recording import Finding
from tilewright.tuning.replay import Recorded, mean
from tilewright.tuning.result import Progress, Tuned
from tilewright.tuning.search import Descent, EstimateOnly, Policy, RandomSearch
from tilewright.tuning.significance import NONE, Gain, gain, slowness
from tilewright.tuning.workers import Processes, Timed

MODELS = ("m64", "nat")
FOLDER = models.ROOT / "build" / "tune"
MAX_SETTINGS = 1000
"""Settings of a decision, more than there are."""
REPEATS = 4
"""Races of the whole model, of five loadings each, that say what was gained."""


class Untimed:
    """Races in which all take the same time: what they ask for is compiled."""

    own_error = 0.0

    def steps(self, candidates: Sequence[Built], rounds: int) -> list[Timed]:
        return [Timed("timed", (tuple(1e-6 for _ in c.kernels),) * rounds) for c in candidates]

    def verify(self, incumbent: Built, challenger: Built) -> tuple[tuple[tuple[float, ...], ...], Timed]:
        return (), Timed("timed")


def tune(
    name: str, threads: int, machine: Target, policy: Policy | None, turn: int, seconds: float, *, timed: bool
) -> tuple[Tuned, Journal]:
    """One run, the `turn`-th of its kind."""
    with tempfile.TemporaryDirectory() as folder:
        path, dims = _model(name)
        maker = Maker(path, Path(folder), threads=threads, target=machine, dims=dims)
        program = maker.untuned()
        question = f"benchmark {turn} {policy}"
        journal = Journal.of(program.manifest.structure_key, maker.target, question, FOLDER) if timed else Journal(None)
        arrays = entry.example_inputs(program, None)
        races = None if timed else Untimed()
        return entry.run(maker, program, arrays, journal, policy, seconds, _say, races), journal


def _say(p: Progress) -> None:
    print(f"  {p.level} {p.done} of {p.total}, gain {p.gain:.3f}, next {p.next}", flush=True)


def spaces(
    first: tuple[Tuned, Journal], second: tuple[Tuned, Journal], between: tuple[Tuned, Journal] | None = None
) -> list[Recorded]:
    """The spaces that were timed as a whole in all runs; that `between` decides among finalists."""
    there = {f.decision.key.name: f for f in second[0].findings}
    if between is not None:
        there = {n: f for n, f in there.items() if n in {b.decision.key.name for b in between[0].findings}}
    shares = {row.name: row.share for row in first[0].rows}
    results = []
    for f in first[0].findings:
        d = f.decision
        if d.key.name not in there:
            continue
        seen, truth, finals = (_times(f, run[1]) for run in (first, second, between or second))
        labels = [label for label in d.space.labels if label in seen and label in truth and label in finals]
        all_estimates = dict(zip(d.space.labels, d.estimates, strict=True))
        estimates, seen_, truth_, finals_ = (
            tuple(times[label] for label in labels) for times in (all_estimates, seen, truth, finals)
        )
        if len(labels) > 2:
            decided = finals_ if between is not None else ()
            share = shares[d.key.name]
            results.append(Recorded(d.key.text, tuple(labels), estimates, seen_, truth_, share, decided))
    return results


def _times(f: Finding, journal: Journal) -> dict[str, float]:
    """The time of each setting as a multiple of the incumbent's, by the races of the search."""
    name, incumbent = f.decision.key.name, f.decision.selected.label
    races = {label: journal.turns(name, incumbent, label) for label in f.outcomes}
    return {incumbent: 1.0, **{label: slowness(turns[0].gains) for label, turns in races.items() if turns}}


def misjudged(machine: Target) -> dict[str, Target]:
    """The machine with other ceilings: off by two in each direction, and those of the level that it belongs to."""
    c = machine.ceilings
    bandwidths = {n: getattr(c, n) for n in ("l2_bandwidth", "l3_bandwidth", "memory_bandwidth")}
    generic = Target.parse("x86-64-v4" if machine.vector_bits == 512 else "x86-64-v3")
    result = {
        "half the bandwidths": machine.adjusted(**{n: b / 2 for n, b in bandwidths.items()}),
        "twice the bandwidths": machine.adjusted(**{n: b * 2 for n, b in bandwidths.items()}),
        f"{generic.cpu}'s constants": replace(machine, ceilings=generic.ceilings, costs=generic.costs),
    }
    # A processor without constants of its own has the level's already.
    return {what: target for what, target in result.items() if target.fingerprint != machine.fingerprint}


def everything(most: int) -> Policy:
    """All settings of a decision, or so many of the best estimates."""
    return Policy(prune=2.0, most=most, first=most)


def raced(name: str, args: argparse.Namespace, *contenders: tuple[Target, Mapping[str, str]]) -> Gain:
    """How many times faster the second program is than the first: a model for a target with settings each. Both are
    loaded anew as often as the tuner does at most."""
    with tempfile.TemporaryDirectory() as folder:
        path, dims = _model(name)
        makers = [
            Maker(path, _new_folder(Path(folder) / str(k)), threads=args.threads, target=t, dims=dims)
            for k, (t, _) in enumerate(contenders)
        ]
        program = makers[0].untuned()
        arrays = entry.example_inputs(program, None)
        races = Processes(makers[0].weights(program), makers[0].inputs(arrays), args.threads)
        built = [maker.built(settings) for maker, (_, settings) in zip(makers, contenders, strict=True)]
        return gain([rounds for _ in range(REPEATS) for rounds in races.verify(built[0], built[1])[0]])


def _model(label: str) -> tuple[Path, dict[str, int] | None]:
    """A model's file and the sizes of its symbols."""
    name, _, batch = label.partition("@")
    return models.load(name), None if name.startswith(layers.PREFIX) else {"batch": int(batch or 1)}


def ceilings(name: str, args: argparse.Namespace, machine: Target) -> list[list[str]]:
    """The cost of wrong ceilings, untuned and tuned: times as multiples of those with the right ones. Searches are
    those of both, which know nothing of each other."""
    rows = []
    for turn in range(args.searches):
        for what, wrong in misjudged(machine).items():
            if args.wrong and not what.startswith(args.wrong):
                continue
            right, _ = tune(name, args.threads, machine, None, turn, args.seconds, timed=True)
            tuned, _ = tune(name, args.threads, wrong, None, turn, args.seconds, timed=True)
            both = [
                raced(name, args, (wrong, w), (machine, r)) for w, r in (({}, {}), (tuned.settings, right.settings))
            ]
            rows.append([name, what + (f", search {turn + 1}" if args.searches > 1 else ""), *map(str, both)])
            print(" ", rows[-1], flush=True)
    return rows


def repeated(name: str, args: argparse.Namespace, machine: Target) -> dict[str, Any]:
    """Several runs that know nothing of each other: decisions that they take differently, and what that costs."""
    runs = [tune(name, args.threads, machine, None, 100 + k, args.seconds, timed=True)[0] for k in range(args.repeat)]
    names = sorted({row.name for run in runs for row in run.rows})
    labels = {n: [run.settings.get(n, "untuned") for run in runs] for n in names}
    flips = [n for n in names if len(set(labels[n])) > 1]
    # A kernel that only some of the layouts have is no decision of the others.
    usual = {n: max(set(candidate), key=candidate.count) for n, candidate in labels.items()}
    flipped = sum(label != usual[n] for n in flips for label in labels[n])
    common = {n: label for n, label in usual.items() if label != "untuned"}
    others = [dict(run.settings) for run in runs if dict(run.settings) != common]
    costs = [str(raced(name, args, (machine, other), (machine, common))) for other in others]
    return {
        "runs": len(runs),
        "decisions": len(names),
        "flips": flipped,
        "rate": flipped / max(len(names) * len(runs), 1),
        "gains": [str(run.gain) for run in runs],
        "timed": [run.timed for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "labels": {n: labels[n] for n in flips},
        "costs": costs,
    }


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measure(name: str, args: argparse.Namespace, machine: Target) -> dict[str, Any]:
    """A model's row."""
    run = (name, args.threads, machine)
    tuned, _ = tune(*run, None, 0, args.seconds, timed=True)
    row: dict[str, Any] = {
        "commit": harness.commit(),
        "model": name,
        "threads": args.threads,
        "target": args.target or "host",
        "decisions": len([r for r in tuned.rows if r.outcomes]),
        "timed": tuned.timed,
        "seconds": tuned.seconds,
        "gain": tuned.gain.to_dict(),
        "again": (raced(name, args, (machine, {}), (machine, tuned.settings)) if tuned.settings else NONE).to_dict(),
        "accepted": [[r.about, r.untuned, r.tuned, str(r.gain)] for r in tuned.rows if r.accepted],
    }
    if args.everything:
        turns = (1, 2) if args.most == MAX_SETTINGS else (1,)
        runs = [tune(*run, everything(args.most), turn, args.seconds, timed=True) for turn in turns]
        best = runs[0][0]
        row["headroom"] = (
            raced(name, args, (machine, {}), (machine, best.settings)) if best.settings else NONE
        ).to_dict()
        row["everything"] = sum(r.outcomes.get("timed", 0) for r in best.rows)  # known ones from journals, too
        row["most"] = args.most
        if len(runs) > 1:
            row["spaces"] = [s.to_dict() for s in spaces(runs[0], runs[1])]
    if args.repeat:
        row["repeated"] = repeated(name, args, machine)
    if args.ceilings:
        row["ceilings"] = ceilings(name, args, machine)
    return row


def replays(result: Sequence[Recorded]) -> str:
    """The searches side by side on recorded spaces."""
    searches = {
        "descent (the tuner's)": lambda r: Descent(r.space, r.estimates, Policy()),
        "descent, pruned at 1.2": lambda r: Descent(r.space, r.estimates, Policy(prune=1.2)),
        "descent, from the best estimate alone": lambda r: Descent(r.space, r.estimates, Policy(first=1)),
        "descent, at most 8": lambda r: Descent(r.space, r.estimates, Policy(most=8)),
        "random, 20": lambda r: RandomSearch(r.space, 20),
        "random, 8": lambda r: RandomSearch(r.space, 8),
        "the estimate alone": lambda r: EstimateOnly(r.space),
    }
    rows = []
    for name, make in searches.items():
        regret, worst, timed = mean(result, make)
        rows.append([name, f"{regret:.2%}", f"{worst:.2%}", f"{timed:.1f}"])
    return harness.markdown_table(["search", "mean regret", "worst", "timed a decision"], rows)


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables."""
    table = []
    for r in rows:
        headroom = str(Gain(**r["headroom"])) if "headroom" in r else "-"
        result = str(Gain(**r["gain"])) if r["accepted"] else "nothing verified"
        second = str(Gain(**r["again"])) if r["accepted"] and "again" in r else "-"
        most = "all" if r.get("most", MAX_SETTINGS) == MAX_SETTINGS else f"{r['most']} each"
        every = f"{most}: {r['everything']}" if "headroom" in r else "-"
        mean_timed = r["timed"] / max(r["decisions"], 1)
        table.append(
            [r["model"], r["threads"], r["target"], r["decisions"], headroom, every, result, second, r["timed"]]
            + [f"{mean_timed:.1f}", f"{r['seconds']:.0f}"]
        )
    head = ["model", "threads", "target", "decisions", "headroom", "of", "gain", "raced again", "timed", "a decision"]
    text = [
        "Gains are how many times faster the whole model is than untuned, with 90 % intervals from programs that were",
        "loaded anew, by the race that accepted them and by four others. Headroom is what other races show of the best",
        "that a search finds which times all settings whose estimates are within a factor of two of the best, or so",
        "many of these for each decision as is said; then it says how many were timed.",
        "",
        harness.markdown_table([*head, "seconds"], table),
    ]
    for r in rows:
        if "repeated" in r:
            second = r["repeated"]
            costs = ", ".join(second.get("costs", ())) or "all are the same"
            text += [
                f"{second['runs']} runs of {r['model']} that know nothing of each other: {second['flips']} of",
                f"{second['decisions'] * second['runs']} decisions differ from the usual one ({second['rate']:.1%});",
                f"gains {', '.join(second['gains'])}.",
                f"Times of results that differ, as multiples of the usual one's: {costs}.",
                "",
            ]
    wrong = [c for r in rows for c in r.get("ceilings", ())]
    if wrong:
        text += [
            "A target whose ceilings are wrong: times as multiples of those with the machine's own, untuned and tuned.",
            "",
            harness.markdown_table(["model", "ceilings", "untuned", "tuned"], wrong),
        ]
    result = [Recorded.from_dict(s) for r in rows for s in r.get("spaces", ())]
    if result:
        text += [
            f"Searches played back on {len(result)} recorded spaces: regret is how much longer the choice takes than",
            "the best setting of the space, by other races than those that the search saw.",
            "",
            replays(result),
        ]
    return "\n".join(text)


def _rows(name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of runs of the report `name` so far, by model, threads and target."""
    path = harness.RESULTS / f"{name}.json"
    return {tuple(r["key"]): r for r in (json.loads(path.read_text())["rows"] if path.exists() else [])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=1e9, help="of each run; what it lacks the next one times")
    parser.add_argument("--everything", action="store_true", help="time all settings too, twice")
    parser.add_argument(
        "--most", type=int, default=MAX_SETTINGS, metavar="N", help="settings of a decision with --everything"
    )
    parser.add_argument("--ceilings", action="store_true", help="what wrong ceilings cost, untuned and tuned")
    parser.add_argument("--wrong", default="", metavar="WHAT", help="of the wrong ceilings those that begin so")
    parser.add_argument("--searches", type=int, default=1, metavar="N", help="searches of each of the wrong ceilings")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="runs that know nothing of each other")
    parser.add_argument("--prepare", action="store_true", help="compile the candidates only")
    parser.add_argument("--name", default="tune", help="of the report")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    machine = Target.host() if args.target is None else Target.on_host(args.target)
    for name in args.models:
        print(name, flush=True)
        if args.prepare:
            for target in (machine, *(misjudged(machine).values() if args.ceilings else ())):
                policy = everything(args.most) if args.everything else None
                tune(name, args.threads, target, policy, 0, args.seconds, timed=False)
            continue
        key, now = (name, args.threads, args.target or "host"), measure(name, args, machine)
        rows = _rows(args.name)  # another run may have written since
        before = rows.get(key, {})
        if before and now["timed"] == 0:  # all was in the journal: what it cost is known from then
            now = {**now, **{n: before[n] for n in ("timed", "seconds")}}
        if "ceilings" in now:  # rows of others stay
            seen = {what for _, what, *_ in now["ceilings"]}
            now["ceilings"] = [*(c for c in before.get("ceilings", ()) if c[1] not in seen), *now["ceilings"]]
        rows[key] = {**before, "key": list(key), **now}
        results = list(rows.values())
        print(harness.write_report(args.name, "What tuning gains", results, report(results)), flush=True)


if __name__ == "__main__":
    main()
