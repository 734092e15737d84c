"""Random programs of open sizes between pages that may not be touched: none reads or writes outside of its inputs,
outputs, temporaries and weights. `make guarded` makes 100,000 such calls; `TILEWRIGHT_FUZZ` is how many programs of
each kind are tried here."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from tests.fuzz.guarded import PAIRS, SIZES, Fault, pairs, report
from tests.fuzz.open_reported import ONNX

COUNT = int(os.environ.get("TILEWRIGHT_FUZZ", "3"))


@pytest.mark.parametrize(("door", "first", "count"), [("reported", 0, len(ONNX)), ("onnx", 0, COUNT), ("te", 0, COUNT)])
def test_nothing_is_touched_outside(door: str, first: int, count: int) -> None:
    said = list(report(door, first, count))
    assert not [str(s) for s in said if isinstance(s, Fault)]
    assert sum(s.ran for s in said if not isinstance(s, Fault)) > 100


OUTSIDE = """
import os

import numpy as np
import tilewright as tw
from tests.fuzz.guards import install
from tilewright import te

guard = install()
for before, between, guard.at_end, size in %r:
    n = te.var("n", lo=0)
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i + before] * 2.0, name="B")
    C = te.compute((n,), lambda i: B[i + between] + 1.0, name="C")
    f = tw.build(te.create_schedule(C), [A, C], unchecked=True)
    child = os.fork()
    if child == 0:
        f(np.ones(size, np.float32), np.ones(size, np.float32))
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""
CASES = [
    (0, 0, True, 16, False),
    (0, 0, False, 16, False),
    (1, 0, True, 16, True),  # the end of an input
    (-1, 0, False, 16, True),
    (0, 1, True, 16, True),  # the end of a temporary
    (0, -1, False, 16, True),
    (1, 1, True, 0, False),
]
"""The offsets of indices of an input and of a temporary, where they lie, their size, and whether it is outside."""


def test_what_is_touched_is_noticed() -> None:
    code = OUTSIDE % [case[:4] for case in CASES]
    environment = os.environ | {"TILEWRIGHT_VERIFY": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(int(signal.SIGSEGV)) if case[4] else "0" for case in CASES]


def test_a_program_is_called_at_all_sizes() -> None:
    drawn = pairs(random.Random(0))
    assert {n for n, _ in drawn} >= set(SIZES)
    assert PAIRS - 4 <= len(drawn) == len(set(drawn)) <= PAIRS


ENDLESS = """
from tests.fuzz import guarded

def spin(door, seed):
    while True:
        pass

guarded.SECONDS, guarded.tried = 1, spin
guarded.child("onnx", 5, 1)
"""


def test_a_program_that_never_ends_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGXCPU, "seed 5\n")
