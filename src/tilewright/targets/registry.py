"""Families of machines by name. Each family is one file here, which registers it; others may `register` theirs.

register(Family("mine", "x86_64", {"my-cpu": Target(...)}))
Target.parse("my-cpu")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module

from tilewright.support import plugins
from tilewright.support.classes import dataclass
from tilewright.support.errors import TargetError
from tilewright.targets.isa import Dot
from tilewright.targets.target import Target

Describe = Callable[[str, tuple[str, ...]], Target]
"""A function from LLVM's name of a processor and its features to a description of it."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of machines with a common architecture, such as all x86-64 processors.

    Args:
        name: of the family.
        architecture: the first part of its machines' triples, as LLVM writes it.
        targets: its machines by name.
        dots: all dot instructions of the family; each target lists its own.
        describe: describes any processor of the architecture, for hosts that are not among `targets`.
        accelerators: names of devices. As a target, each means the host with such a device, to which graph passes
            assign the layers that it can compute.
    """

    name: str
    architecture: str
    targets: Mapping[str, Target]
    dots: tuple[Dot, ...] = ()
    describe: Describe | None = None
    accelerators: tuple[str, ...] = ()


_FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Add a family. Raises TargetError if its name, the name of one of its targets or of a dot instruction is already
    in use."""
    _load()
    if family.name in _FAMILIES:
        raise TargetError(f"there is another family {family.name!r} of targets")
    for name in family.targets:
        owner = next((f.name for f in _FAMILIES.values() if name in f.targets), None)
        if owner is not None or name == "host":
            raise TargetError(f"there is another target {name!r}", where=f"family {family.name!r}", got=owner)
    offered = {*family.dots, *(dot for target in family.targets.values() for dot in target.isa.dots)}
    for dot in offered:
        if dots().get(dot.name, dot) != dot:
            raise TargetError(f"there is another dot instruction {dot.name!r}", where=f"family {family.name!r}")
    _FAMILIES[family.name] = family
    return family


def _register_family(plugin: plugins.Plugin, loaded: object) -> tuple[str, ...]:
    (family,) = plugins.several(loaded, Family)
    register(family)
    return tuple(f"target {name}" for name in family.targets)


def unregister(name: str) -> None:
    """Remove a family: for tests, and for a plug-in that cannot be used."""
    _FAMILIES.pop(name, None)


def find(name: str, where: str | None = None) -> Target:
    """The target of this name, which may begin with its architecture ("aarch64-neoverse-v1"). Raises TargetError, which
    lists the known names; `where` says where the name comes from."""
    _load()
    for family in _FAMILIES.values():
        if name in family.accelerators:
            from tilewright.targets.host import host  # which imports this module

            return replace(host(), accelerator=name)
        for known in (name, name.removeprefix(f"{family.architecture}-")):
            if known in family.targets:
                return family.targets[known]
    raise TargetError(
        "no such target", where=where, expected=", ".join(("host", *names(), *accelerators())), got=repr(name)
    )


def names() -> tuple[str, ...]:
    """The names of all targets, family by family."""
    _load()
    return tuple(name for family in _FAMILIES.values() for name in family.targets)


def accelerators() -> tuple[str, ...]:
    """The names of all accelerators."""
    _load()
    return tuple(name for family in _FAMILIES.values() for name in family.accelerators)


def families() -> tuple[Family, ...]:
    _load()
    return tuple(_FAMILIES.values())


_OF_HOSTS = {"x86_64": "x86", "aarch64": "arm", "riscv64": "riscv"}
"""The modules of the families that describe processors of an architecture."""


def family_of(triple: str) -> Family | None:
    """The family that can describe any machine of this triple."""
    architecture, _, _ = triple.partition("-")
    if not _FAMILIES and architecture in _OF_HOSTS:  # the others need not be imported
        own: Family = import_module(f"tilewright.targets.{_OF_HOSTS[architecture]}").FAMILY
        return own
    return next((f for f in families() if f.describe is not None and f.architecture == architecture), None)


def dots() -> dict[str, Dot]:
    """All dot instructions by name, of families and of single targets."""
    result: dict[str, Dot] = {}
    for family in families():
        for group in (family.dots, *(target.isa.dots for target in family.targets.values())):
            result.update((dot.name, dot) for dot in group)
    return result


def _load() -> None:
    """Register Tilewright's own families and those of plug-ins, once."""
    if not _FAMILIES:
        from tilewright.targets import arm, cortex, nvidia, riscv, wasm, x86  # which import this module
        from tilewright.targets.vta import family as vta

        own = (x86.FAMILY, arm.FAMILY, riscv.FAMILY, wasm.FAMILY, cortex.FAMILY, nvidia.FAMILY, vta.FAMILY)
        _FAMILIES.update((f.name, f) for f in own)
    plugins.load_group("targets", _register_family)


__all__ = ["Family", "accelerators", "dots", "families", "family_of", "find", "names", "register", "unregister"]
