"""Errors name the thing, list all problems at once, and survive a trip between processes."""

from __future__ import annotations

import pickle

import pytest

from tilewright.frontend.common.finish import first_line, reason
from tilewright.parts.report import reason_of
from tilewright.support.errors import (
    Error,
    ModelError,
    Problems,
    ScheduleError,
    ShapeError,
    UnsupportedError,
    WeightError,
)


def test_message_names_where_expected_and_got() -> None:
    error = ShapeError("operands do not broadcast", where="node 'Add_3' (Add)", expected="(n, 4)", got=(2, 5))
    assert str(error) == "node 'Add_3' (Add): operands do not broadcast: expected (n, 4), got (2, 5)"
    assert isinstance(error, ModelError)
    assert isinstance(error, Error)


def test_fields_without_text_are_left_out() -> None:
    error = Error("cannot be run", where="node 'a'", expected="", got="")
    assert error.headline() == "node 'a': cannot be run"
    assert reason_of(Error.combined([error, UnsupportedError("no rule", got="")])) == "cannot be run; no rule"
    assert (reason(KeyError()), reason(ValueError("so\nit is"))) == ("KeyError", "ValueError: so")
    assert (first_line(RuntimeError()), first_line(RuntimeError("\n why \n"))) == ("", "why")


def test_schedule_error_shows_the_loops() -> None:
    error = ScheduleError("loop i is parallel already", loops="for i in range(4):\n  C[i] = A[i]\n")
    assert "for i in range(4):" in str(error)
    assert error.loops is not None


def test_problems_are_listed_together() -> None:
    problems = Problems()
    problems.add(UnsupportedError("operator is not supported", where="node 'a' (Foo)"))
    problems.add(UnsupportedError("operator is not supported", where="node 'b' (Bar)"))
    with pytest.raises(UnsupportedError) as info:
        problems.raise_if_any("the model was not imported", where="m.onnx")
    text = str(info.value)
    assert text.startswith("m.onnx: the model was not imported")
    assert "node 'a' (Foo)" in text
    assert "node 'b' (Bar)" in text
    assert len(list(info.value.each())) == 2


def test_one_problem_is_raised_as_itself_and_none_raise_nothing() -> None:
    Problems().raise_if_any("never")
    only = WeightError("weight is missing", where="weight 'w'")
    assert Error.combined([only]) is only


def test_mixed_problems_get_their_common_class() -> None:
    merged = Error.combined([ShapeError("a"), UnsupportedError("b")])
    assert type(merged) is ModelError
    assert type(Error.combined([ShapeError("a"), WeightError("b")])) is Error


def test_nested_aggregates_are_flattened() -> None:
    inner = Error.combined([ShapeError("a"), ShapeError("b")])
    outer = Error.combined([inner, ShapeError("c")])
    assert [e.what for e in outer.problems] == ["a", "b", "c"]


def test_scheduling_aggregate_prints() -> None:
    merged = ScheduleError.combined([ScheduleError("a", loops="for i"), ScheduleError("b")], "refused")
    assert "1. a" in str(merged)


def test_long_lists_are_cut() -> None:
    merged = Error.combined([Error(f"p{i}") for i in range(250)])
    assert "... and 150 more" in str(merged)


def test_pickle_keeps_the_fields() -> None:
    error = ScheduleError("no", where="loop i", expected=4, got=5, hint="split first", loops="for i")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is ScheduleError
    assert str(copy) == str(error)
    assert copy.to_dict() == error.to_dict()
