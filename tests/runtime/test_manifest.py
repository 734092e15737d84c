"""The manifest round-trips, and refuses by name whatever is not consistent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random

import pytest

from tests.runtime.programs import affine, copy16
from tilewright.runtime.manifest import (
    ABI_VERSION,
    InputSpec,
    Manifest,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    StepSpec,
    SymbolSpec,
    TargetSpec,
    TempSpec,
    evaluate,
)
from tilewright.support.errors import ArtifactError

TARGET = TargetSpec("x86_64-unknown-linux-gnu", "znver4", ("avx512f",))


@pytest.mark.parametrize("manifest", [copy16().manifest, affine().manifest, Manifest("empty", TARGET)])
def test_round_trip(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(manifest.to_json()).to_json() == manifest.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"symbols": (SymbolSpec("n", 5, 4),)}, "range 5..4"),
        ({"symbols": (SymbolSpec("n"), SymbolSpec("m"))}, "symbol 'm': no input has this dimension"),
        ({"inputs": (InputSpec("x", "f33", ("n",)),)}, "no such element type"),
        ({"inputs": (InputSpec("x", "f32", ("k",)),)}, "are no symbols"),
        ({"inputs": (InputSpec("x", "f32", (-1, "n")),)}, "negative or too large"),
        ({"inputs": (InputSpec("x", "f32", ("n",)), InputSpec("x", "f32", ("n",)))}, "used twice"),
        ({"outputs": (OutputSpec("y", "f32", (1,) * 40), OutputSpec("c", "f32", (1,)))}, "rank 40"),
        ({"packed": (PackedSpec("w", 24), PackedSpec("s", 4, alias="nobody"))}, "is no parameter"),
        ({"packed": (PackedSpec("w", 24), PackedSpec("s", 8, alias="scale"))}, "not that of its alias"),
        ({"packed": (PackedSpec("w", -1), PackedSpec("scale", 4, alias="scale"))}, "size -1"),
        ({"run_temps": (TempSpec(0, 3),)}, "lives from step 0 to 3 of 3"),
        ({"run_temps": (TempSpec(0, 1, alias=0),)}, "no earlier temporary"),
        ({"prepare_temps": (TempSpec(0, 0),)}, "size None"),
        ({"run_steps": (StepSpec("exponent", (0, 6), (0,)), StepSpec("b", ()))}, "a slot is outside 0..5"),
        ({"run_steps": (StepSpec("exponent", (0,), (1,)), StepSpec("b", ()))}, "a symbol is outside 0..0"),
        ({"run_steps": (StepSpec("a b", ()), StepSpec("b", ()))}, "not an identifier"),
        ({"run_steps": (StepSpec("a", (), flops=((1, ("q",)),)), StepSpec("b", ()))}, "unknown symbols"),
        ({"structure_key": "XYZ"}, "hexadecimal"),
        ({"abi_version": 0}, "ABI version 0"),
        ({"params": (ParamSpec("w", "f32", (1 << 39, 1 << 39)), ParamSpec("scale", "f32", (1,)))}, "too many elements"),
    ],
)
def test_inconsistent(change: dict[str, object], message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        dataclasses.replace(affine().manifest, **change)
    assert message in str(caught.value)


def test_lists_everything() -> None:
    with pytest.raises(ArtifactError) as caught:
        Manifest("m", TARGET, inputs=(InputSpec("a", "x", ()), InputSpec("b", "y", ())))
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("name",), 3, "manifest.name: expected str, got int"),
        (("symbols", 0, "lo"), True, "expected int, got bool"),
        (("symbols", 0, "lo"), 1.0, "expected int, got float"),
        (("inputs",), {}, "manifest.inputs: expected a list"),
        (("inputs", 0), [], "manifest.inputs[0]: expected an object"),
        (("inputs", 0, "shape", 0), None, "manifest.inputs[0].shape[0]: expected int or str"),
        (("inputs", 0, "surprise"), 1, "unknown fields"),
        (("run_steps", 0, "flops"), [[1]], "expected 2 entries"),
        (("run_temps", 0, "nbytes"), "64", "expected int or NoneType"),
        (("abi_version",), ABI_VERSION + 1, "written by a newer version"),
    ],
)
def test_mistyped(path: tuple[object, ...], value: object, message: str) -> None:
    data = json.loads(affine().manifest.to_json())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ArtifactError) as caught:
        Manifest.from_json(json.dumps(data))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"name": "a", "name": "b"}', "[" * 100_000, '{"name": NaN}', "{}", "9" * 5000, '"\ud800"'],
)
def test_not_a_manifest(text: str) -> None:
    with pytest.raises(ArtifactError):
        Manifest.from_json(text)


def test_missing_field() -> None:
    data = json.loads(affine().manifest.to_json())
    del data["target"]["triple"]
    with pytest.raises(ArtifactError, match=r"manifest.target: field 'triple' is missing"):
        Manifest.from_json(json.dumps(data))


def test_mutants_never_crash() -> None:
    text = affine().manifest.to_json()
    rng = random.Random(1)
    for _ in range(1500):
        chars = list(text)
        for _ in range(rng.randint(1, 3)):
            k = rng.randrange(len(chars))
            chars[k : k + rng.randint(0, 3)] = rng.choice(['"', "0", "-", "]", "{", "9999999999999999999", "é", ""])
        with contextlib.suppress(ArtifactError):
            Manifest.from_json("".join(chars))


def test_evaluate() -> None:
    assert evaluate(((8, ("n", "n")), (3, ("m",)), (1, ())), {"n": 5, "m": 2}) == 207
