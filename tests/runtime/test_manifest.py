"""The manifest round-trips, and refuses by name whatever is not consistent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from typing import Any

import pytest

from tests.runtime.programs import affine, copy16
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import (
    ABI_VERSION,
    InputSpec,
    OutputSpec,
    PackedSpec,
    ParamSpec,
    RegionSpec,
    RoomSpec,
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
        ({"run_steps": (StepSpec("a", (), flops=((1, ("n/2",)),)), StepSpec("b", ()))}, "unknown symbols"),
        ({"run_steps": (StepSpec("a", (), flops=((1, ("n/0",)),)), StepSpec("b", ()))}, "unknown symbols"),
        ({"structure_key": "XYZ"}, "hexadecimal"),
        ({"abi_version": 0}, "ABI version 0"),
        ({"params": (ParamSpec("w", "f32", (1 << 39, 1 << 39)), ParamSpec("scale", "f32", (1,)))}, "too many elements"),
    ],
)
def test_inconsistent(change: dict[str, object], message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        dataclasses.replace(affine().manifest, **change)
    assert message in str(caught.value)


def mark(kind: str, **fields: Any) -> StepSpec:
    return StepSpec("", (), label=kind, region=RegionSpec(kind, **fields))


CALL = StepSpec("exponent", (0, 5), (0,), shifts=((), ((4, ("i",)),)))
KERNEL_OF_K = StepSpec("exponent", (0,), (), flops=((1, ("k",)),))
LOOP = mark("loop", trip=((1, ("n",)),), number="i")


def regions(*steps: StepSpec) -> Manifest:
    temps = tuple(TempSpec(0, len(steps) - 1) for _ in affine().manifest.run_temps)
    return dataclasses.replace(affine().manifest, run_steps=steps, run_temps=temps)


def test_regions_that_stand_inside_each_other() -> None:
    other = mark("loop", count=4, condition=4, number="j", counter=4)
    inside = [other, CALL, mark("end", condition=4, counter=4)]
    manifest = regions(LOOP, CALL, mark("if", condition=4), *inside, mark("else"), CALL, mark("end"), mark("end"))
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([LOOP, CALL], "1 regions have no end"),
        ([CALL], "unknown symbols ['i']"),
        ([LOOP, CALL, mark("end"), CALL], "unknown symbols ['i']"),
        ([mark("end")], "has begun"),
        ([mark("else")], "has begun"),
        ([LOOP, mark("else"), mark("end")], "has begun"),
        ([mark("if", condition=4), mark("else"), mark("else"), mark("end")], "has begun"),
        ([LOOP, LOOP, mark("end"), mark("end")], "no name of its own"),
        ([mark("loop", number="n"), mark("end")], "no name of its own"),
        ([mark("loop"), mark("end")], "no name of its own"),
        ([mark("loop", number="k", trip=((1, ("q",)),)), mark("end")], "unknown symbols ['q']"),
        ([mark("loop", number="k", count=99), mark("end")], "a slot is outside"),
        ([mark("loop", number="k"), mark("end", condition=-1)], "a slot is outside"),
        ([mark("if"), mark("end")], "its condition makes no sense"),
        ([mark("if", condition=4), mark("end", condition=4)], "its condition makes no sense"),
        ([mark("if", condition=4), mark("end", counter=4)], "what only a loop has"),
        ([mark("if", condition=4, number="k"), mark("end")], "what only a loop has"),
        ([mark("while"), mark("end")], "no kind of region"),
        ([mark("extent", count=4, number="k")], "is no extent"),
        ([mark("extent", trip=((8, ()),), number="k")], "is no extent"),
        ([mark("extent", trip=((8, ()),), count=4, number="n")], "is no extent"),
        ([mark("extent", trip=((8, ("z",)),), count=4, number="k")], "unknown symbols ['z']"),
        ([StepSpec("exponent", (), (1,)), mark("extent", trip=((8, ()),), count=4, number="k")], "outside 0..0"),
        ([LOOP, mark("extent", trip=(), count=4, number="k"), mark("end"), KERNEL_OF_K], "unknown symbols ['k']"),
        ([dataclasses.replace(LOOP, kernel="exponent"), mark("end")], "both a call and"),
        ([mark("if", condition=4)] * 100 + [mark("end")] * 100, "nest deeper"),
    ],
)
def test_regions_that_make_no_sense(steps: list[StepSpec], message: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        regions(*steps)
    assert message in str(caught.value)


def test_extents_that_data_decides() -> None:
    extent = mark("extent", trip=((8, ("n",)),), count=4, number="k")
    manifest = regions(extent, StepSpec("exponent", (0,), (0, 1), flops=((1, ("k", "n")),)))
    outputs = [dataclasses.replace(o, shape=("2 * k",), real=(((2, ("k",)),),)) for o in manifest.outputs]
    result = dataclasses.replace(manifest, outputs=(*outputs, OutputSpec("k", "i64", ())), extents=("k",))
    assert Manifest.from_json(result.to_json()) == result
    assert [o.name for o in result.results] == [o.name for o in manifest.outputs]
    for change, message in (
        ({"extents": ("k", "k")}, "used twice"),
        ({"extents": ("n",)}, "used twice"),
        ({"outputs": result.outputs[:-1]}, "an output of i64[] for each"),
        ({"extents": ()}, "real shape makes no sense"),
    ):
        with pytest.raises(ArtifactError) as caught:
            dataclasses.replace(result, **change)
        assert message in str(caught.value)


def test_rooms() -> None:
    base = affine().manifest
    inputs, rooms = (*base.inputs, InputSpec("room", "i8", ("r", 0))), (RoomSpec("room", "k"),)
    extent = mark("extent", trip=((1, ("r",)),), count=4, number="k")
    result = dataclasses.replace(
        base,
        inputs=inputs,
        symbols=(*base.symbols, SymbolSpec("r", lo=0)),
        outputs=(*base.outputs, OutputSpec("k", "i64", ())),
        run_steps=(extent, StepSpec("exponent", (0,), (0,))),
        extents=("k",),
        rooms=rooms,
    )
    assert Manifest.from_json(result.to_json()) == result
    assert result.arguments == base.inputs
    for change, message in (
        ({"rooms": (RoomSpec("x", "k"),)}, "no input without elements"),
        ({"rooms": (RoomSpec("room", "n"),)}, "is for no extent"),
        ({"rooms": rooms * 2}, "used twice"),
        ({"inputs": (*inputs, InputSpec("y", "f32", ("r",)))}, "rows of another input"),
    ):
        with pytest.raises(ArtifactError) as caught:
            dataclasses.replace(result, **change)
        assert message in str(caught.value)


def test_places_of_what_regions_read() -> None:
    body = StepSpec("exponent", (0,), (0,))
    after = mark("loop", count=4, number="i", shifts=(((8, ()),), (), ()))
    assert regions(after, body, mark("end")).run_steps[0].region is not None
    for shifts, message in (((((8, ()),),), "one shift for each"), ((((8, ("q",)),), (), ()), "unknown symbols")):
        with pytest.raises(ArtifactError, match=message):
            regions(mark("loop", count=4, number="i", shifts=shifts), body, mark("end"))


def test_weights_are_packed_without_regions() -> None:
    steps = (mark("loop", number="i"), mark("end"))
    with pytest.raises(ArtifactError, match="no regions here"):
        dataclasses.replace(affine().manifest, prepare_steps=steps)


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


def test_fields_that_came_later_may_be_missing() -> None:
    manifest = affine().manifest
    data = json.loads(manifest.to_json())
    for name in ("fast", "tied", "patterns", "state", "ragged", "alone"):
        del data[name]
    del data["symbols"][0]["multiple"]
    assert Manifest.from_json(json.dumps(data)) == manifest


def test_an_option_that_there_is_not_is_refused() -> None:
    data = json.loads(affine().manifest.to_json())
    data["winograd"] = "auto"
    with pytest.raises(ArtifactError, match="winograd"):
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
    assert evaluate(((3, ("n/4", "m")),), {"n": 12, "m": 2}) == 18
