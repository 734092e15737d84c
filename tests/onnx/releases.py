"""Runs the node tests of every ONNX release since 1.5 on Tilewright: `python -m tests.onnx.releases`
(or `make onnx-releases`).

Each release has tests of the operator sets of its day, which later releases replace by tests of newer ones. The wheels
are fetched with pip and only read, never installed: a test is a model and the inputs and outputs that the release says
it has. A test that several releases share byte for byte runs once. Outcomes and tolerances are those of
`tests.onnx.run`.

`releases.txt` lists each test that does not pass, with the releases that have it and why; the run fails where a test
that is not listed fails, and where one that is listed passes. `--update` rewrites the list, keeping the reasons.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner
from rich.console import Console

from tests.onnx.backend import BACKENDS, data_inputs
from tests.onnx.running import Result, Test, Watch, parser_of, run_shown

LISTED = Path(__file__).with_name("releases.txt")
FOLDER = Path("build/onnx-releases")
RTOL, ATOL = 1e-3, 1e-7
DATA = "onnx/backend/test/data/"

RELEASES = {
    "1.5.0": "37",
    "1.6.0": "37",
    "1.7.0": "38",
    "1.8.1": "38",
    "1.9.0": "38",
    "1.10.2": "38",
    "1.11.0": "39",
    "1.12.0": "39",
    "1.13.1": "310",
    "1.14.1": "310",
    "1.15.0": "310",
    "1.16.2": "310",
    "1.17.0": "311",
    "1.18.0": "311",
    "1.19.1": "312",
    "1.20.1": "312",
    "1.21.0": "312",
    "1.22.0": "312",
}
"""The last patch of each release whose wheel holds node tests, and a Python version that it has a wheel for. The tests
of the newest release are made by its own code: `tests.onnx.run` runs them."""

PLATFORMS = ("1", "2010", "2014", "_2_12", "_2_17", "_2_27", "_2_28")


@dataclass(frozen=True, slots=True)
class Case:
    """A test as one or more releases have it: where its files are, and in which releases."""

    name: str
    folder: Path
    releases: tuple[str, ...]


# ---------------------------------------------------------------- collecting


def fetch(release: str, folder: Path) -> Path:
    """The wheel of a release, downloaded unless it is there."""
    present = sorted(folder.glob(f"onnx-{release}-*.whl"))
    if present:
        return present[0]
    python = RELEASES[release]
    abis = [f"cp{python}", f"cp{python}m", "abi3"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--implementation", "cp", "--python-version", python, "--dest", str(folder), f"onnx=={release}"]
    command += [word for abi in abis for word in ("--abi", abi)]
    command += [word for name in PLATFORMS for word in ("--platform", f"manylinux{name}_x86_64")]
    subprocess.run(command, check=True)
    return sorted(folder.glob(f"onnx-{release}-*.whl"))[0]


def unpack(wheel: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and folder of each node test of a wheel. Folders are named by a digest of what is in them."""
    with zipfile.ZipFile(wheel) as archive:
        tests: dict[str, list[str]] = {}
        for name in archive.namelist():
            if name.startswith(f"{DATA}node/") and name.endswith((".onnx", ".pb")):
                tests.setdefault(name.removeprefix(DATA).split("/")[1], []).append(name)
        for test, files in sorted(tests.items()):
            digest = hashlib.blake2b(digest_size=8)
            read = {f: archive.read(f) for f in sorted(files)}
            for file, data in read.items():
                digest.update(f"{file} {len(data)} ".encode() + data)
            place = folder / f"{test}-{digest.hexdigest()}"
            for file, data in read.items():
                target = place / Path(file).relative_to(f"{DATA}node/{test}")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            yield test, place


def collect(releases: list[str], folder: Path) -> list[Case]:
    """All tests of the releases, each once."""
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[Path, tuple[str, list[str]]] = {}
    for release in releases:
        for name, place in unpack(fetch(release, folder), folder / "tests"):
            result.setdefault(place, (name, []))[1].append(release)
    return [Case(name, place, tuple(having)) for place, (name, having) in sorted(result.items())]


def key(case: Case) -> str:
    """The name of a test in `releases.txt`: its name and the first and last release that has it so."""
    first, last = case.releases[0], case.releases[-1]
    return f"{case.name} {first}" if first == last else f"{case.name} {first}..{last}"


def test_of(case: Case, backend: Any) -> Test:
    """The test as `tests.onnx.run` runs tests."""

    def function(_: Any) -> None:
        model = onnx.load(case.folder / "model.onnx")
        prepared = backend.prepare(model, "CPU")
        for data in sorted(case.folder.glob("test_data_set_*")):
            results = prepared.run(_values(data, "input", data_inputs(model)))
            Runner.assert_similar_outputs(_values(data, "output", model.graph.output), results, RTOL, ATOL)

    return Test(key(case), "Node", case.name, function)


def _values(folder: Path, kind: str, declared: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """The inputs or outputs of one set of data: arrays, lists of them or None, as the model declares them."""
    return [_value((folder / f"{kind}_{k}.pb").read_bytes(), info.type) for k, info in enumerate(declared)]


def _value(data: bytes, type: onnx.TypeProto) -> Any:
    match type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    array = numpy_helper.to_array(onnx.TensorProto.FromString(data))
    if type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 and array.dtype == np.uint16:
        return array.view(ml_dtypes.bfloat16)  # up to 1.18 files hold the bits as integers
    return array


# ---------------------------------------------------------------- the list


def read_listed() -> dict[str, str]:
    """The tests that need not pass, each with its reason."""
    if not LISTED.exists():
        return {}
    lines = [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def write_listed(results: list[Result], listed: dict[str, str]) -> None:
    head = (
        "# Node tests of ONNX's releases that do not pass, and why: `name, first..last release: reason`.\n"
        "# `python -m tests.onnx.releases --update` rewrites this file.\n"
    )
    lines = [f"{r.name}: {listed.get(r.name, r.reason)}\n" for r in results if r.outcome != "passed"]
    LISTED.write_text(head + "".join(sorted(lines)))


# ---------------------------------------------------------------- command line


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of("tests.onnx.releases", __doc__)
    parser.add_argument("--releases", nargs="*", default=list(RELEASES), metavar="X.Y.Z", help="only these")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where wheels are kept and unpacked")
    parser.add_argument("--listed", action="store_true", help="only the tests that releases.txt names")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    unknown = [r for r in options.releases if r not in RELEASES]
    if unknown:
        raise SystemExit(f"unknown releases {', '.join(unknown)}; there are {', '.join(RELEASES)}")
    start = time.perf_counter()
    cases = [c for c in collect(options.releases, options.folder) if fnmatch.fnmatch(c.name, options.k)]
    cases = [c for c in cases if not options.listed or key(c) in read_listed()]
    watch = Watch()
    tests = [test_of(c, watch.watching(BACKENDS[options.backend])) for c in cases]
    results = run_shown(tests, watch, options)
    report(cases, results, console)
    if options.backend != "tilewright":
        return 0
    if options.update:
        if options.k != "*" or options.releases != list(RELEASES):
            raise SystemExit("--update needs all tests: leave out -k and --releases")
        write_listed(results, read_listed())
        console.print(f"wrote {LISTED.name}")
        return 0
    console.print(f"{time.perf_counter() - start:.0f} s")
    return conclude(results, read_listed(), console)


def report(cases: list[Case], results: list[Result], console: Console) -> None:
    """How many tests of each release pass."""
    outcome = {r.name: r for r in results}
    for release in RELEASES:
        having = [outcome[key(c)] for c in cases if release in c.releases]
        counts = Counter(r.outcome for r in having)
        routes = Counter(r.route for r in having if r.outcome == "passed")
        if having:
            console.print(
                f"{release:7} {counts['passed']:5} of {len(having):5} pass: {routes['native']} native, "
                f"{routes['values']} for the values of a call, {routes['fallback']} with fallback",
                highlight=False,
            )
    passed = sum(r.outcome == "passed" for r in results)
    console.print(f"Different tests: {passed} of {len(results)} pass", highlight=False)


def conclude(results: list[Result], listed: dict[str, str], console: Console) -> int:
    """Prints what is not as `releases.txt` says; the exit status."""
    surprises = [r for r in results if (r.outcome == "passed") == (r.name in listed)]
    for r in surprises:
        what = "passes, but is listed" if r.outcome == "passed" else f"{r.outcome}: {r.reason}"
        console.print(f"{r.name}: {what}", markup=False, highlight=False, soft_wrap=True)
    expected = sum(r.name in listed for r in results)
    console.print(f"{expected} tests are listed with a reason, {len(surprises)} are not as the list says")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
