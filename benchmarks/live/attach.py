"""How soon a fresh process answers: from its start, and from the call of `attach`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from benchmarks import models
from benchmarks.harness import markdown_table
from benchmarks.live.common import inputs, program, store_folder, summary

ATTACH_BAR, START_BAR = 0.1, 0.5

CODE = """
import sys, time
born = float(sys.argv[2])
import numpy as np
import tilewright as tw
arrays = [np.ones(shape, dtype) for dtype, shape in eval(sys.argv[3])]
before, worked = time.monotonic(), time.process_time()
actor = tw.attach(sys.argv[1])
attached = time.monotonic()
actor(*arrays)
answered, worked = time.monotonic(), time.process_time() - worked
for _ in range(20):
    actor(*arrays)
start = time.monotonic()
actor(*arrays)
steady = time.monotonic() - start
import json
heavy = ("compiler", "kernels", "codegen", "transform", "plans", "ops", "frontend", "schedule", "te", "arith", "cli")
loaded = sorted({m.split(".")[1] for m in sys.modules if m.startswith("tilewright.")} & set(heavy))
others = [m for m in ("onnx", "torch", "typer", "rich", "tvm_ffi", "llvmlite.binding") if m in sys.modules]
print(json.dumps({"import": before - born, "attach": attached - before, "first": answered - before,
                  "start": answered - born, "steady": steady, "cpu": worked, "compiler": loaded, "others": others,
                  "modules": len(sys.modules)}))
"""


@dataclass(frozen=True, slots=True)
class AttachRow:
    """One policy: seconds, medians and p90 over fresh processes."""

    policy: str
    processes: int
    cache: str
    attach: dict[str, float]  # until `attach` returns
    first: dict[str, float]  # until the first answer
    cpu: float  # of that, time on a processor
    start: dict[str, float]  # from the start of the process until the first answer
    steady: float
    compiler: list[str]
    others: list[str]

    def cells(self) -> list[object]:
        return [
            self.policy, self.cache, self.processes, f"{self.attach['p50'] * 1e3:.0f}",
            f"{self.first['p50'] * 1e3:.0f}", f"{self.first['p90'] * 1e3:.0f}", f"{self.cpu * 1e3:.0f}",
            f"{ATTACH_BAR * 1e3:g}", f"{self.start['p50'] * 1e3:.0f}",
            f"{self.start['p90'] * 1e3:.0f}", f"{START_BAR * 1e3:g}", f"{self.steady * 1e3:.2f}",
            ", ".join(self.compiler) or "none", ", ".join(self.others) or "none",
        ]  # fmt: skip


def measure(policy: str, processes: int, *, uncached_cache: bool = False) -> AttachRow:
    """Fresh processes one after another; with a cold cache, each has an empty object cache of its own."""
    path = program(policy)
    model = tw.load(path)
    rows = []
    arguments = repr([(array.dtype.str, array.shape) for array in inputs(model).values()])
    with store_folder(), tw.Publisher(policy, model):
        environment = {**os.environ, "PYTHONPATH": f"{models.ROOT / 'src'}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(processes + 1):
            with tempfile.TemporaryDirectory() as empty:
                if uncached_cache:
                    environment["TILEWRIGHT_CACHE_DIR"] = empty
                born = time.monotonic()
                result = subprocess.run(
                    [sys.executable, "-c", CODE, policy, repr(born), arguments],
                    env=environment, cwd=models.ROOT, capture_output=True, text=True, check=False,
                )  # fmt: skip
            if result.returncode:
                raise RuntimeError(f"a fresh process failed: {result.stderr}")
            rows.append(json.loads(result.stdout))
    rows = rows[1:]  # the first one warms the disk's cache
    times = {
        key: summary(np.array([row[key] for row in rows])) for key in ("attach", "first", "start", "steady", "cpu")
    }
    return AttachRow(
        policy, processes, "empty" if uncached_cache else "warm", times["attach"], times["first"],
        times["cpu"]["p50"], times["start"],
        times["steady"]["p50"], rows[-1]["compiler"], rows[-1]["others"],
    )  # fmt: skip


def as_text(rows: list[AttachRow]) -> str:
    header = [
        "policy", "object cache", "processes", "attach ms", "first answer ms", "p90", "of it CPU", "bar",
        "from the start ms", "p90", "bar", "a later call ms", "compiler modules", "others loaded",
    ]  # fmt: skip
    text = markdown_table(header, [row.cells() for row in rows])
    return text + (
        "\nA fresh interpreter each time. First answer: from the call of `attach`, NumPy being imported; from the"
        "\nstart: from before the process is made. Empty: an object cache with nothing in it.\n"
    )
