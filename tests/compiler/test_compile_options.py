"""The one record of options: the same keywords by every door, checked once."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import tilewright as tw
from benchmarks import policy_suite
from tilewright.compile_options import CompileOptions
from tilewright.targets.target import Target

OF_LOADING = {"model", "example", "fallback", "custom_ops", "keep_weights"}
OF_PROGRAMS = {"products", "memory"}


def test_keywords_of_compile_are_the_fields() -> None:
    """`tw.compile` states each option with the record's default, and what it states has the record's order."""
    stated = inspect.signature(tw.compile).parameters
    known = {f.name: f.default for f in fields(CompileOptions)}
    assert stated.keys() - OF_LOADING == known.keys() - OF_PROGRAMS
    assert {name: known[name] for name in stated.keys() - OF_LOADING} == {
        name: p.default for name, p in stated.items() if name not in OF_LOADING
    }


def test_keywords_and_record_give_one_program() -> None:
    model = policy_suite.m64()
    options = CompileOptions(target="x86-64-v3", fast="exact", name="policy", dims={"batch": 2})
    record = tw.compile_program(model, None, options)
    keywords = tw.compile_program(model, target="x86-64-v3", fast="exact", name="policy", dims={"batch": 2})
    both = tw.compile_program(model, None, options, name="policy")
    assert record.manifest == keywords.manifest == both.manifest
    assert record.manifest.fast == "exact" and record.manifest.name == "policy"


def test_the_machine_has_the_threads() -> None:
    options = CompileOptions(target=Target.parse("neoverse-v1"), threads=3)
    assert options.machine.threads == 3 and options.machine.cpu == "neoverse-v1"
    assert options.passes.precision == "fp32"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"target": 3}, "target"),
        ({"name": 3}, "name"),
        ({"require_records": "yes"}, "require_records"),
        ({"fast": "f7"}, "no such setting of fast"),
        ({"threads": 0}, "threads"),
        ({"memory": "much"}, "memory"),
    ],
)
def test_values_that_are_none_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.Error, match=message):
        tw.compile_program(policy_suite.m64(), **keywords)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="winograd"):
        tw.compile_program(policy_suite.m64(), winograd="exact")
