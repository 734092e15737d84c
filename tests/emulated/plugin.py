"""For pytest: programs run on another machine. `-p tests.emulated.plugin --emulator neoverse-n1`."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NoReturn

import pytest

from tests.emulated.machines import MACHINES, Machine

_machine: Machine | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emulator", choices=sorted(MACHINES), help="the machine that runs programs")


def pytest_configure(config: pytest.Config) -> None:
    """From here on, the machine that code is made for is the other one, and is run there."""
    global _machine
    name = config.getoption("--emulator")
    if name is None:
        return
    _machine = MACHINES[name]
    if (missing := _machine.missing) is not None:
        pytest.exit(f"there is no {missing}: make targets installs it", returncode=3)
    os.environ["TILEWRIGHT_TARGET"] = _machine.target
    from tests.emulated.library import EmulatedLibrary
    from tilewright.runtime import model, target
    from tilewright.runtime.program import Program, link
    from tilewright.runtime.specs import TargetSpec
    from tilewright.targets.target import Target

    theirs, machine, check = Target.parse(_machine.target).triple, _machine, target.check_target

    def linked(program: Program) -> object:
        return EmulatedLibrary(program, machine) if program.manifest.target.triple == theirs else link(program)

    def checked(spec: TargetSpec, where: str) -> None:
        if spec.triple != theirs:
            check(spec, where)

    for name, function in (("link", linked), ("check_target", checked)):
        setattr(model, name, function)
    from tests.codegen.llvm import amx_run

    amx_run.library = imitated  # type: ignore[assignment]


def imitated() -> NoReturn:
    """Kernels of x86 for registers of matrices call functions of this process, which no emulator has."""
    pytest.skip("AMX is imitated by functions of this process")


OTHERS = {
    "tests/plans/test_memory_bound.py::test_results_that_": "this machine's stores past the caches are looked at",
    "tests/plans/test_memory_bound.py::test_large_outputs_start_with_a_line": "calls of this process are timed",
    "tests/plans/framework/test_restate.py::test_what_is_taken_is_what_is_shown": "x86 plans what this one laid out",
    "tests/plans/framework/test_restate.py::test_names_stay_and_results_too": "x86 plans what this one laid out",
    "tests/ops/test_extent.py::test_kernels_read_the_size": "clocks are put between kernels of this process",
}
"""Tests, by how their names begin, that ask something of this machine, and what."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--emulator") is None:
        return
    for item in items:
        reason = next((why for name, why in OTHERS.items() if item.nodeid.startswith(name)), None)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


QEMU = "decode_save_opc: Assertion `ctx->insn_start != NULL' failed"
"""The message with which qemu 7.2 aborts where code for RISC-V converts vectors of floats to integers."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """A test whose calls failed fails: the calls themselves have no way to say so."""
    from tests.emulated.library import failures

    try:
        result = yield
    finally:
        said, failures[:] = list(failures), []
        if any(QEMU in text for text in said):
            pytest.skip("the emulator fails an assertion of its own")
    assert not said, "\n".join(said[:3])
    return result
