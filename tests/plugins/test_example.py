"""The example plug-in, installed as a package: each of the things that it brings is used by a process that never
imports it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.plugins.install import EXAMPLE, answer, doctor, install_package, run, write_plugin

LIMIT = 1.5


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_package(EXAMPLE, tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("scratch"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder and cache with two models: y = -(-soft_clip(x)), as ONNX and as a chain."""
    nodes = [
        helper.make_node("SoftClip", ["x"], ["a"], domain="com.example", limit=LIMIT),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("Abs", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 250]) for name in "xy")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    (tmp_path / "m.chain").write_text(f"input 4 250\nsoft_clip {LIMIT}\nneg\nneg\nabs\n")
    return tmp_path


USE = """
import json, numpy as np, tilewright as tw
x = np.linspace(-4, 4, 1000, dtype=np.float32).reshape(4, 250)
found = {}
for name in ("m.onnx", "m.chain"):
    model = tw.compile(name)
    program = tw.compile_program(name, target="sandy-bridge")
    (y,) = model(x).values() if isinstance(model(x), dict) else (model(x),)
    found[name] = {
        "y": np.asarray(y).tolist(), "graph": model.show("graph"), "schedule": model.show("schedule"),
        "target": program.manifest.target.cpu, "asm": program.texts["asm"](),
    }
print(json.dumps(found))
"""


ONE = USE.replace('("m.onnx", "m.chain")', '("m.onnx",)')
"""`USE` with one of the models."""


def expected() -> np.ndarray[Any, Any]:
    return np.abs(LIMIT * np.tanh(np.linspace(-4, 4, 1000).reshape(4, 250) / LIMIT))


def test_all_that_it_brings_is_used(example: Path, folder: Path) -> None:
    result = answer(USE, example, cache=folder)
    for name in ("m.onnx", "m.chain"):  # the ONNX rule, the frontend
        each = result[name]
        np.testing.assert_allclose(each["y"], expected(), rtol=1e-6, atol=1e-7)  # the operator
        assert "example.soft_clip" in each["graph"]
        assert "neg" not in each["graph"]  # the pass
        assert "plan soft_clip" in each["schedule"]  # the plan
        assert each["target"] == "sandybridge"  # the target: 256 bits, no multiply-add with one rounding
        assert "%ymm" in each["asm"] and "%zmm" not in each["asm"] and "vfmadd" not in each["asm"]


def test_doctor_lists_it(example: Path, folder: Path) -> None:
    listed = doctor(example, cache=folder)["plugins"]
    assert [(p["group"], p["name"], p["brings"]) for p in listed] == [
        ("frontends", "chain", ["frontend chain"]),
        ("operators", "soft-clip", ["operator example.soft_clip", "ONNX rule com.example.SoftClip"]),
        ("plans", "soft-clip", ["plan soft_clip"]),
        ("targets", "sandy-bridge", ["target sandy-bridge"]),
        ("passes", "cancel-inverses", ["pass cancel inverses"]),
    ]
    assert {(p["package"], p["version"], p["error"]) for p in listed} == {("tilewright-example", "0.1.0", None)}


def test_switched_off(example: Path, folder: Path) -> None:
    assert doctor(example, cache=folder, TILEWRIGHT_PLUGINS="0")["plugins"] == []
    done = run(
        "import tilewright as tw; tw.compile('m.onnx', fallback='never')", example, cache=folder, TILEWRIGHT_PLUGINS="0"
    )
    assert "the operator SoftClip of domain com.example is not supported" in done.stderr


def test_code_of_plugins_is_part_of_what_is_retained(example: Path, folder: Path) -> None:
    """Equal code of a plug-in reuses objects, other code makes others, and the cache keeps both."""
    copy = Path(shutil.copytree(example, folder / "copy"))
    first = answer(ONE, copy, cache=folder)
    stored = entries(folder)
    assert answer(ONE, copy, cache=folder) == first and entries(folder) == stored
    source = copy / "tilewright_example" / "operator.py"
    text = source.read_text()
    source.write_text(text + "# the same, to all appearances\n")
    assert answer(ONE, copy, cache=folder) == first
    both = entries(folder)
    for kind in ("kernel", "entry", "program"):
        assert len(both[kind]) == 2 * len(stored[kind]) and both[kind] > stored[kind] > set()
    source.write_text(text.replace("* attrs.limit\n\n    return (te.", "* attrs.limit * 2.0\n\n    return (te."))
    assert source.read_text() != text
    other = answer(ONE, copy, cache=folder)
    np.testing.assert_allclose(other["m.onnx"]["y"], 2 * expected(), rtol=1e-6, atol=1e-7)
    source.write_text(text)
    assert answer(ONE, copy, cache=folder) == first


def entries(cache: Path) -> dict[str, set[str]]:
    """The names of what is kept, by kind."""
    names = [path.name for path in (cache / "objects").rglob("*") if path.is_file()]
    return {kind: {n for n in names if n.startswith(f"{kind}-")} for kind in ("kernel", "entry", "program")}


BROKEN: dict[str, tuple[dict[str, str], str, str]] = {
    "raises": ({"operators": "OPERATORS"}, "raise RuntimeError('no such library')", "RuntimeError: no such library"),
    "absent": ({"plans": "PLAN"}, "", "AttributeError: module 'absent' has no attribute 'PLAN'"),
    "other_kind": (
        {"plans": "PLAN"},
        "PLAN = 3",
        "the entry point names something else: expected a Plan or a tuple of them, got int",
    ),
    "same_operator": (
        {"operators": "OPERATORS"},
        """
        from dataclasses import replace
        from tilewright.ops import Operators, get
        OPERATORS = Operators((replace(get("relu"), name="half_done"), get("relu")))
        """,
        "there is another operator 'relu'",
    ),
    "same_rule": (
        {"operators": "OPERATORS"},
        """
        from dataclasses import replace
        from tilewright.ops import Operators, get
        OPERATORS = Operators((replace(get("relu"), name="half_done_too"),), onnx={"Relu": print})
        """,
        "there is another ONNX rule 'Relu'",
    ),
    "same_rule_of_a_family": (
        {"operators": "OPERATORS"},
        """
        from dataclasses import replace
        from tilewright.ops import Operators, get
        OPERATORS = Operators((replace(get("relu"), name="half_done_four"),), onnx={"com.microsoft.FastGelu": print})
        """,
        "there is another ONNX rule 'com.microsoft.FastGelu'",
    ),
    "foreign_layout": (
        {"operators": "OPERATORS"},
        """
        from tilewright.ops import Operators
        from tilewright.transform.layout.assign import POINTWISE
        OPERATORS = Operators((), layouts={"conv": POINTWISE})
        """,
        "layout rules are for a plug-in's own operators: got conv",
    ),
    "layout_kind": (
        {"operators": "OPERATORS"},
        """
        from dataclasses import replace
        from tilewright.ops import Operators, get
        OPERATORS = Operators((replace(get("relu"), name="half_done_three"),), layouts={"half_done_three": print})
        """,
        "a layout rule is something else: expected a Rule, got half_done_three",
    ),
    "same_plan": (
        {"plans": "PLANS"},
        "from tilewright.plans import PLANS\nPLANS = (PLANS[-1],)",
        "there is another plan 'sketch'",
    ),
    "same_plan_as_one_imported_later": (
        {"plans": "PLAN"},
        """
        from tilewright.plans import Plan
        PLAN = Plan("winograd", lambda *_: False, lambda *_: [], lambda *_: None)
        """,
        "there is another plan 'winograd'",
    ),
    "no_place": (
        {"passes": "PASS"},
        """
        from tilewright.transform.graph.extra import GraphPass
        PASS = GraphPass("mine", lambda graph, target: graph, ("after", "tea"))
        """,
        "pass 'mine': there is no such place: expected",
    ),
    "same_target": (
        {"targets": "FAMILY"},
        """
        from tilewright.targets import x86
        from tilewright.targets.registry import Family
        FAMILY = Family("another", "x86_64", x86.FAMILY.targets)
        """,
        "family 'another': there is another target",
    ),
    "same_frontend": (
        {"frontends": "FRONTEND"},
        "from tilewright.frontend.registry import Frontend\nFRONTEND = Frontend('onnx', bool, print)",
        "there is another frontend 'onnx'",
    ),
}


def test_broken_ones_are_named_and_left_out(example: Path, folder: Path) -> None:
    for package, (entries, source, _) in BROKEN.items():
        write_plugin(folder / "broken", package, entries, source)
    listed = {p["package"]: p for p in doctor(example, folder / "broken", cache=folder)["plugins"] if p["error"]}
    for package, (_, _, error) in BROKEN.items():
        said = listed.pop(package)
        assert error in said["error"] and said["brings"] == [], package
    assert not listed  # the example is well
    done = run(ONE + NAMES, example, folder / "broken", cache=folder)
    assert done.returncode == 0, done.stderr
    assert "half_done" not in done.stdout.splitlines()[-1]
    for package, (entries, _, error) in BROKEN.items():
        (group,) = entries
        assert done.stderr.count(f"PluginWarning: plug-in 'entry' ({group}) of {package} 1.0 is left out: {error}") == 1


NAMES = """
from tilewright import ops
from tilewright.frontend.onnx.registry import plugin_rules
plugin_rules()
print(ops.names())
"""


def test_keys_do_not_depend_on_what_was_loaded(example: Path, folder: Path) -> None:
    code = """
    import json
    from tilewright.support.plugins import digests
    before = digests()
    import tilewright as tw
    tw.compile("m.onnx")
    print(json.dumps([before, digests()]))
    """
    before, after = answer(code, example, cache=folder)
    assert before == after and len(before) == 2 and before[0] == "tilewright-example 0.1.0"


def test_damaged_metadata_are_left_out(example: Path, folder: Path) -> None:
    write_plugin(folder / "damaged", "damaged", {"plans": "PLAN"}, "")
    (folder / "damaged" / "damaged-1.0.dist-info" / "entry_points.txt").write_text("[tilewright.plans]\nno value\n")
    done = run(ONE, example, folder / "damaged", cache=folder)
    assert done.returncode == 0, done.stderr
    assert "PluginWarning: plug-ins of damaged-1.0.dist-info are left out" in done.stderr


def test_who_has_none_does_not_pay(tmp_path: Path) -> None:
    """Nothing of plug-ins is loaded, not even what reads metadata."""
    code = """
    import json, sys, numpy as np, tilewright as tw
    from tilewright.support import plugins
    from tilewright.ops import get
    get("relu")
    assert plugins.installed() == () and plugins.digests() == ()
    print(json.dumps("importlib.metadata" in sys.modules))
    """
    assert answer(code, cache=tmp_path) is False
