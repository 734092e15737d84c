"""The conformance runner itself: what it counts as passed, skipped and failed."""

from __future__ import annotations

import os
import time
import unittest

import numpy as np
import pytest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from tests.onnx import run, running
from tests.onnx.backend import ReferenceBackend


def _passes(_: object) -> None:
    return None


def _fails(_: object) -> None:
    np.testing.assert_array_equal(np.zeros(2), np.ones(2))


def _skips(_: object) -> None:
    raise unittest.SkipTest("operator Foo is not implemented")


def _crashes(_: object) -> None:
    os._exit(3)


def _hangs(_: object) -> None:
    while True:
        pass


def _sleeps(_: object) -> None:
    time.sleep(60)


def test_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "NODE_LIMIT_S", 1.0)
    monkeypatch.setattr(running, "IDLE_FACTOR", 4)
    functions = (_passes, _hangs, _fails, _crashes, _skips, _passes, _sleeps)
    tests = [running.Test(f"t{i}{f.__name__}", "Node", "Foo", f) for i, f in enumerate(functions)]
    results = running.run_all(tests, running.Watch(), 2, lambda _: None)
    assert [r.outcome for r in results] == ["passed", "failed", "failed", "failed", "skipped", "passed", "failed"]
    assert "hang" in results[1].reason
    assert "AssertionError" in results[2].reason
    assert "crash" in results[3].reason
    assert "hang" in results[6].reason
    assert results[4].reason == "operator Foo is not implemented"


class _Declines(ReferenceBackend):
    @classmethod
    def prepare(cls, model: object, device: str = "CPU", **kwargs: object) -> object:
        raise BackendIsNotSupposedToImplementIt("not here")


@pytest.fixture(scope="module")
def collected() -> tuple[list[running.Test], running.Watch]:
    """All tests, for a backend that declines each."""
    return run.collect(_Declines)


def test_declined_tests_are_skips(collected: tuple[list[running.Test], running.Watch]) -> None:
    tests, watch = collected
    result = running.run_one(next(t for t in tests if t.name == "test_abs"), watch)
    assert result.outcome == "skipped"
    assert "not here" in result.reason


def test_every_test_is_there(collected: tuple[list[running.Test], running.Watch]) -> None:
    tests, _ = collected
    assert sum(t.category == "Real" for t in tests) == 9
    assert sum(t.category == "Node" for t in tests) > 1500
    assert len({(t.category, t.name) for t in tests}) == len(tests)
