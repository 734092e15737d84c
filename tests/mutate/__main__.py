"""Mutation testing: does a test fail where a line is wrong?

    python -m tests.mutate --rooms arith,ir --count 50 --seed 1

Mutants (`mutants.py`) are sampled by room and tried in a private copy of the tree, each with the tests that run its
line: the room's own and the quickest first, up to `--seconds` of the processor, as recorded; with `--own` those alone.
A line that no test runs, or that is run once a process for all of them (`COMPUTED_ONCE`), is tried with the room's own
tests. Survivors of `explained.toml` count as explained; with `--full` the others meet the whole suite too.

`--checks` takes out one legality check at a time (`raise refuse(...)` becomes `pass`) and lists which test notices:
`python -m tests.mutate --checks --rooms schedule,te --count 500`.

Which test runs which line is recorded once (`build/mutate/map`, a file for each test file) and again where the test
file has changed; in a source file that has changed since, a test counts for every line that it ran there. Results:
`build/mutate/ROOM-SEED-COUNT.json`, which a run that was ended goes on with; `--repeat` tries its survivors anew.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutate import explained
from tests.mutate.mutants import Mutant, checks, mutants
from tests.mutate.rooms import COMPUTED_ONCE, ROOT, TESTS, files_testing, sources
from tests.mutate.trial import Outcome, Recorded, Tree

DEFAULT = "arith,ir,schedule,te,ops,transform,codegen,runtime,live"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rooms", default=DEFAULT, help=f"of {', '.join(TESTS)}")
    parser.add_argument("--count", type=int, default=50, help="mutants a room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="recorded seconds of tests that a mutant meets")
    parser.add_argument("--match", default="", help="only mutants with this text in path, function or changed line")
    parser.add_argument("--checks", action="store_true", help="legality checks taken out, instead of small changes")
    parser.add_argument("--again", dest="repeat", action="store_true", help="try a stored result's survivors again")
    parser.add_argument("--own", action="store_true", help="the tests of the room's own folder alone")
    parser.add_argument("--full", action="store_true", help="survivors meet the whole suite")
    parser.add_argument("--record-only", action="store_true", help="bring the map of lines up to date, try nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and the copy go too
    with tempfile.TemporaryDirectory(prefix="tilewright-mutate-", ignore_cleanup_errors=True) as folder:
        tree = Tree(Path(folder))
        try:
            _rooms(tree, options)
        finally:
            tree.close()


def _rooms(tree: Tree, options: argparse.Namespace) -> None:
    for room in options.rooms.split(","):
        files = files_testing(room, own=options.own)
        for file in files:
            tree.record(file)
        if not options.record_only:
            _room(tree, room, {file: Recorded.read(file) for file in files}, options)


def _room(tree: Tree, room: str, recorded: dict[str, Recorded], options: argparse.Namespace) -> None:
    """Try the room's mutants, those first that an earlier run of the same sample did not come to."""
    path = _path(room, options)
    sample = _sample(room, options)
    known = {_place(r): r for r in json.loads(path.read_text())["mutants"]} if path.exists() else {}
    if options.repeat:
        known = {place: r for place, r in known.items() if r["verdict"] != "survived"}
    results = [known[_place(asdict(m))] for m in sample if _place(asdict(m)) in known]
    todo = [m for m in sample if _place(asdict(m)) not in known]
    if todo:
        tree.serve(list(recorded))
    for mutant in todo:
        start = time.monotonic()
        outcome = _try(tree, room, mutant, recorded, options)
        results.append({**asdict(mutant), **asdict(outcome), "seconds": round(time.monotonic() - start, 1)})
        print(f"{len(results):3} {results[-1]['seconds']:4.0f} s  {outcome.verdict:9} {_where(mutant)}", flush=True)
        print(f"       {mutant.kind}: {outcome.tests} tests {outcome.by}", flush=True)
        if outcome.verdict == "survived":
            print(_difference(mutant), flush=True)
        path.write_text(json.dumps({"room": room, "seed": options.seed, "mutants": results}, indent=1))
    _report(room, path, results)


def _try(tree: Tree, room: str, mutant: Mutant, recorded: dict[str, Recorded], options: argparse.Namespace) -> Outcome:
    outside = frozenset(line for r in recorded.values() for line in r.outside.get(mutant.path, ()))
    outcome = tree.try_mutant(mutant, _chosen(room, mutant, recorded, options.seconds), outside)
    why = explained.find(mutant) if outcome.verdict == "survived" else None
    if why is not None:
        return Outcome("explained", why.reason, outcome.tests)
    if options.full and outcome.verdict == "survived":
        return tree.try_mutant(mutant, None, outside)
    return outcome


def _place(result: dict[str, object]) -> tuple[object, ...]:
    """The fields that identify a mutant in a stored result, as long as its file is as it was."""
    return result["path"], *result["start"], *result["end"], result["before"], result["after"]  # type: ignore[misc]


def _sample(room: str, options: argparse.Namespace) -> list[Mutant]:
    """The room's mutants of this seed: another room or another count of rooms changes nothing."""
    kind = checks if options.checks else mutants
    every = [m for path in sources(room) for m in kind(path.relative_to(ROOT).as_posix(), path.read_text())]
    every = [m for m in every if any(options.match in text for text in m.key)]
    return random.Random(f"{options.seed} {room}").sample(every, min(options.count, len(every)))


def _chosen(room: str, mutant: Mutant, recorded: dict[str, Recorded], most: float) -> dict[str, float]:
    """The tests for a mutant: those that run its lines, the room's own first, the quickest first, as many as fit."""
    own = (TESTS[room][0],)
    ranked = []
    for file, r in recorded.items():
        ranked += [
            (not file.startswith(own), s, name)
            for name, s in r.covering(mutant.path, mutant.start[0], mutant.end[0]).items()
        ]
    ranked.sort()
    if not ranked or room in COMPUTED_ONCE:  # a file's tests in their own order: one may leave things to the next
        by_file = sorted((sum(r.seconds.values()), f, r) for f, r in recorded.items() if f.startswith(own))
        ranked += [(False, s, name) for _, _, r in by_file for name, s in r.seconds.items()]
    chosen: dict[str, float] = {}
    for _, seconds, name in ranked:
        if name not in chosen and (not chosen or sum(chosen.values()) + seconds <= most):
            chosen[name] = seconds
    return chosen


def _where(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line} {mutant.function}"


def _difference(mutant: Mutant) -> str:
    """The change as a diff of the file."""
    source = (ROOT / mutant.path).read_text()
    lines = difflib.unified_diff(source.splitlines(), mutant.apply(source).splitlines(), lineterm="", n=1)
    return "\n".join(f"       {line}" for line in list(lines)[2:])


def _path(room: str, options: argparse.Namespace) -> Path:
    match = "-" + options.match.replace("/", ".") if options.match else ""
    name = f"{'checks-' if options.checks else ''}{room}-{options.seed}-{options.count}{match}.json"
    return ROOT / "build" / "mutate" / name


def _report(room: str, path: Path, results: Sequence[Mapping[str, object]]) -> None:
    counts = Counter(str(r["verdict"]) for r in results)
    share = 100 * (len(results) - counts["survived"]) / max(1, len(results))
    print(
        f"{room}: {len(results)} mutants, {dict(counts)}: {share:.0f} % killed or explained; {path.relative_to(ROOT)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
