"""The lint of machines: the tests that it reports, none of which are in this tree, and the machines of a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.__main__ import chosen
from tests.machines.lint import reported
from tilewright.targets.machines import MACHINES

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("def test_a():\n    assert plan(f, Target.host()).schedule", ["test_a"]),
        ("def test_a():\n    assert plan(f, Target.parse('x86-64-v3')).schedule", []),
        ("HERE = Target.host()\ndef test_a():\n    assert plan(f, HERE).schedule", ["test_a"]),
        ("@pytest.mark.parametrize('name', ['host'])\ndef test_a(name):\n    assert 'x' in text", ["test_a"]),
        ("def test_a():\n    assert run(f, Target.host()) == 3", []),
        ("def test_a(golden):\n    golden(show(Target.host()))", ["test_a"]),
        ("def test_a():\n    # any machine: stated\n    assert plan(f, Target.host()).schedule", []),
        ("def helper():\n    assert plan(f, Target.host()).schedule", []),
    ],
)
def test_what_is_reported(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(text + "\n# host\n")
    assert [name for _, name in reported(tmp_path / "test_it.py")] == names


def test_none_asserts_on_what_this_machine_decides() -> None:
    all_of_them = [
        f"{path}:{line}: {name} asserts on what the host decides: name a target, or say `# any machine: why`"
        for path in sorted(TESTS.rglob("test_*.py"))
        if path != Path(__file__)
        for line, name in reported(path)
    ]
    assert not all_of_them, "\n".join(all_of_them)


def test_four_machines_a_day_and_all_in_three_days() -> None:
    for day in range(20_000, 20_030):
        assert len(set(chosen(day))) == 4
        assert {name for later in range(3) for name in chosen(day + later)} == set(MACHINES)
