"""A compile for this processor loads no code that it does not need."""

from __future__ import annotations

import subprocess
import sys


def fresh(code: str) -> set[str]:
    """The words that a fresh process prints."""
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_the_compiler_loads_no_code_for_other_targets_and_files() -> None:
    loaded = fresh("import onnx, tilewright as tw, sys; tw.compile; tw.load; print(*sys.modules)")
    assert "tilewright.compiler" in loaded
    rooms = (
        *("tilewright.targets.vta.isa", "tilewright.schedule.mma_intrinsics", "tilewright.transform.loops.barriers"),
        *("tilewright.plans.gpu", "tilewright.codegen.cuda.emit", "tilewright.codegen.ptx", "tilewright.plans.vta"),
        *("tilewright.runtime.huffman", "tilewright.frontend.tflite.importer", "_hashlib"),
    )
    assert not loaded & set(rooms)


def test_intrinsics_of_threads_are_registered_when_one_is_asked_for() -> None:
    code = """
from tilewright.schedule.intrinsics import find_intrinsic, is_known
from tilewright.support.errors import ScheduleError
print(is_known("mma_f16"), find_intrinsic("copy_async_f32").name, is_known("mma_f17"))
try:
    find_intrinsic("mma_f17")
except ScheduleError as error:
    print(error)
"""
    words = fresh(code)
    assert {"True", "copy_async_f32", "False", "'mma_f17':", "wgmma64_f16,"} <= words
