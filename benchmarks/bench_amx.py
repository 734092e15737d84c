"""All figures of a machine with AMX, by one script of some minutes: `python -m benchmarks.bench_amx`.

Each part is a command with a limit of its own, whose text goes to `amx.txt` of the folder that `--out` names. A part
that fails, or takes too long, leaves the others theirs. `--only products,bert` runs some parts. `--dry-run` runs the
smallest form of each part, on any machine: without AMX all ways are the ordinary one.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tilewright.ir.dtype import bf16, f32, i8, u8
from tilewright.schedule.dot_intrinsics import find_tile_dot
from tilewright.support.classes import dataclass
from tilewright.targets.target import Target


@dataclass(frozen=True, slots=True)
class Part:
    """One part: a title, its command after `python -m`, that of a dry run, and its limit in seconds."""

    name: str
    shows: str
    command: tuple[str, ...]
    dry: tuple[str, ...]
    seconds: float


SPLIT, TILES = "benchmarks.bench_split", "benchmarks.bench_tiles"
PARTS = (
    Part("products", "30 products as f32, x3 and x6", (SPLIT,), (SPLIT, "--any", "--only", "64x64x64"), 150),
    Part(
        "tiles",
        "30 products of bf16 and of 8 bits against OpenVINO",
        (TILES, "--seconds", "1"),
        (TILES, "--any", "--no-peer", "--only", "64x64x64", "--seconds", "0.1"),
        240,
    ),
    Part("attention", "attention as f32 and by tiles", (SPLIT, "--attention"), (SPLIT, "--any", "--attention"), 60),
    Part("errors", "errors of products and of models", (SPLIT, "--errors"), (SPLIT, "--errors", "--seeds", "1"), 60),
    *(
        Part(name, f"{name} with pieces and without", (SPLIT, "--model", name), (SPLIT, "--any", "--model", "m64"), 90)
        for name in ("bert", "resnet50", "vgg16", "az6", "hok1")
    ),
    *(
        Part(
            f"training-{name}",
            f"a step of training {case} with pieces and without",
            (SPLIT, "--training", case),
            (SPLIT, "--any", "--training", "mlp 16x256@2048"),
            180,
        )
        for name, case in (
            ("transformer", "transformer 6x256, 128 tokens@8"),
            ("resnet18", "resnet18 64x64@32"),
        )
    ),
    Part(
        "quantised",
        "8 and 16 bits against OpenVINO",
        (
            "benchmarks.bench_models",
            "--models",
            "bert-qdq,resnet18-qdq,mobilenetv2-qdq,bert-f16",
            "--peers",
            "openvino",
        ),
        ("benchmarks.bench_models", "--help"),
        120,
    ),
    Part(
        "subnormals",
        "functions around arguments that vanish",
        ("benchmarks.bench_subnormals",),
        ("benchmarks.bench_subnormals", "--help"),
        60,
    ),
)


def run(part: Part, dry: bool) -> tuple[str, bool]:
    """The part's text, and whether it ended as it should."""
    command, begin = part.dry if dry else part.command, time.perf_counter()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=part.seconds, check=False
        )
        text, fine = ended.stdout, ended.returncode == 0
        text += "" if fine else ended.stderr[-2000:]
    except subprocess.TimeoutExpired as stopped:
        text, fine = f"{stopped.stdout or ''}\nmore than {part.seconds:.0f} s\n", False
    return f"## {part.name}: {part.shows} ({time.perf_counter() - begin:.0f} s)\n\n{text}\n", fine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_amx", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {part.name for part in PARTS}:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; known: {', '.join(p.name for p in PARTS)}")
    host = Target.host()
    tiles = [dot.name for a, b in ((bf16, bf16), (u8, i8), (f32, f32)) if (dot := find_tile_dot(a, b, host))]
    if not tiles and not options.dry_run:
        raise SystemExit("this machine multiplies no matrices (AMX); --dry-run runs the smallest form of each part")
    options.out.mkdir(parents=True, exist_ok=True)
    texts, failed = [f"{platform.processor() or platform.machine()}, {host.cpu}, {', '.join(tiles) or 'no AMX'}\n"], []
    for part in PARTS:
        if names and part.name not in names:
            continue
        text, fine = run(part, options.dry_run)
        print(text, flush=True)
        texts.append(text)
        failed += [] if fine else [part.name]
        (options.out / "amx.txt").write_text("\n".join(texts))
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
