"""The time that records of one network save another one: `python -m benchmarks.bench_transfer [--seconds N] [--only
NAME...]`.

A network is tuned without any records, ResNet-50 if no --source is named. Then ResNet-18 and ResNet-50 for images of
192 x 192 (or --only "resnet18 at 192x192", ...), each twice: without records, and with those of the first. Settings
that were timed, how long that took, and what is verified in the whole model: over the untuned program, and over the
result of the run without records. A run that is out of seconds goes on from its journal the next time; `--prepare`
compiles candidates only, which needs no quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks import harness, models
from benchmarks.bench_tune import Untimed
from tilewright.records.store import Store
from tilewright.targets.target import Target
from tilewright.tuning import entry
from tilewright.tuning.journal import Journal
from tilewright.tuning.programs import Maker
from tilewright.tuning.recording import Memory
from tilewright.tuning.result import Progress, Tuned
from tilewright.tuning.significance import gain
from tilewright.tuning.workers import Processes

FOLDER = models.ROOT / "build" / "transfer"
SOURCE = "resnet50"
GOALS = ("resnet18", "resnet50 at 192x192")
START = time.perf_counter()


def model_of(name: str) -> Path:
    """The file of a model; one of another image size is made of that."""
    base, _, size = name.partition(" at ")
    path = models.load(base)
    if not size:
        return path
    height, width = map(int, size.split("x"))
    other = FOLDER / f"{base}-{size}.onnx"
    if not other.exists():
        created = onnx.load(path)
        dims = created.graph.input[0].type.tensor_type.shape.dim
        dims[2].dim_value, dims[3].dim_value = height, width
        del created.graph.value_info[:]
        onnx.save(created, other)
    return other


def run(name: str, what: str, store: Store, options: argparse.Namespace) -> Tuned:
    """One run with the records of a store, into which its own go."""
    machine = Target.host()
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(model_of(name), Path(folder), threads=options.threads, target=machine, dims={"batch": 1})
        program = maker.untuned()
        arrays = entry.example_inputs(program, None)
        if options.prepare:
            return entry.run(maker, program, arrays, Journal(None), None, options.seconds, _say, Untimed())
        journal = Journal.of(program.manifest.structure_key, maker.target, f"transfer {what}", FOLDER)
        memory = Memory(store, maker.target)
        return entry.run(maker, program, arrays, journal, None, options.seconds, _say, memory=memory)


def _say(p: Progress) -> None:
    print(
        f"{time.perf_counter() - START:6.0f} s  {p.level} {p.done} of {p.total}, gain {p.gain:.3f}, next {p.next}",
        flush=True,
    )


def between(name: str, first: Mapping[str, str], second: Mapping[str, str], threads: int) -> str:
    """How many times faster the second settings are than the first, as whole models."""
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker(model_of(name), Path(folder), threads=threads, target=Target.host(), dims={"batch": 1})
        program = maker.untuned()
        inputs = maker.inputs(entry.example_inputs(program, None))
        races = Processes(maker.weights(program), inputs, threads)
        return str(gain(races.verify(maker.built(first), maker.built(second))[0]))


def stored(what: str) -> dict[str, Any]:
    """The times and settings of earlier runs of this kind, and whether the last one came to its end."""
    path = FOLDER / f"{what}.json"
    return json.loads(path.read_text()) if path.exists() else {"timed": 0, "seconds": 0.0, "ended": False}


def tuned(name: str, kind: str, store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """The sum of all runs of this kind, the last one run now if there is something left to do."""
    what = f"{name} {kind}".replace(" ", "-")
    known = stored(what)
    if known["ended"] and not options.prepare:
        return known
    print(f"{name}, {kind}", flush=True)
    result = run(name, what, store, options)
    if options.prepare:
        return known
    known = {
        "timed": known["timed"] + result.timed,
        "seconds": known["seconds"] + result.seconds,
        "decisions": len(result.rows),
        "ended": result.seconds < options.seconds and not result.interrupted,
        "gain": str(result.gain),
        "settings": dict(result.settings),
    }
    (FOLDER / f"{what}.json").write_text(json.dumps(known))
    return known


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1e9, help="of each run; what it lacks the next one times")
    parser.add_argument("--source", default=SOURCE, metavar="NAME")
    parser.add_argument("--only", nargs="*", default=list(GOALS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prepare", action="store_true", help="compile candidates only")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    first = Store(FOLDER / f"{options.source} alone")
    source = tuned(options.source, "alone", first, options)
    rows: list[list[Any]] = [[options.source, "none", *_cells(source), "-"]]
    if not source["ended"] and not options.prepare:
        print(f"the run of {options.source} is not at its end")
        return
    for name in options.only:
        alone = tuned(name, "alone", Store(FOLDER / f"{name} alone"), options)
        seeded = Store(FOLDER / f"{name} after {options.source}")
        if not seeded.folder.exists() and not options.prepare:
            shutil.copytree(first.folder, seeded.folder)
        after = tuned(name, f"after {options.source}", seeded, options)
        if options.prepare or not (alone["ended"] and after["ended"]):
            continue
        rows.append([name, "none", *_cells(alone), "-"])
        same = alone["settings"] == after["settings"]
        beside = "the same" if same else between(name, alone["settings"], after["settings"], options.threads)
        rows.append([name, options.source, *_cells(after), beside])
        print(f"{name}: {1 - after['timed'] / max(alone['timed'], 1):.0%} of the measurements saved; {beside}")
    if len(rows) > 1:
        header = [
            "model",
            "records",
            "decisions",
            "timed",
            "seconds",
            "gain over untuned",
            "over the run without records",
        ]
        title = f"What records of {options.source} save other networks"
        harness.write_markdown("transfer", title, harness.markdown_table(header, rows))


def _cells(result: Mapping[str, Any]) -> list[object]:
    gained = result["gain"] if result.get("settings") else "nothing verified"
    return [result.get("decisions", "-"), result["timed"], round(result["seconds"]), gained]


if __name__ == "__main__":
    main()
