"""Plug-ins: extensions that other packages provide through entry points. A package's `pyproject.toml` says

    [project.entry-points."tilewright.operators"]
    soft-clip = "my_package.operator:OPERATORS"

A group is loaded when its registry is first used (`load_group`). An entry point names an object; the registry checks it
completely before registering any of it, so that a failure leaves no trace. A failing plug-in is reported by a warning
and ignored. `outcomes` lists what became of each.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.digest import blake2b
from tilewright.support.errors import Error, PluginError, PluginWarning

GROUPS = ("frontends", "operators", "plans", "targets", "passes", "compilers")
COUNTED = ("operators", "plans", "passes", "compilers")
"""The groups of plug-ins whose code affects compiled code, and so is part of cache keys. Frontends and targets are not
among them: what they produce is in the keys itself."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of another package.

    Args:
        group: one of `GROUPS`.
        name: the entry point's.
        value: the object that it names, "module:attribute".
        package, version: of the distribution that it comes with.
    """

    group: str
    name: str
    value: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"plug-in {self.name!r} ({self.group}) of {self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of loading `plugin`. `brings`: the names that it has registered; `error`: the reason why it was
    ignored, "" if it is used."""

    plugin: Plugin
    brings: tuple[str, ...] = ()
    error: str = ""


Register = Callable[[Plugin, Any], Sequence[str]]
"""A function that checks and registers a plug-in's object, and returns the registered names. It raises before it has
registered anything."""

_outcomes: dict[Plugin, Outcome] = {}
_open: set[str] = set()
_opening: set[str] = set()
_by_hand: Counter[str] = Counter()
"""For each top-level module, or text of a value, the number of registered functions that contain it."""
_held: dict[int, tuple[object, str]] = {}
"""Objects in registered code without a stable text, by `id`, with a name that is unique in this process."""
_lock = threading.RLock()


def load_group(group: str, register: Register) -> None:
    """Load the plug-ins of a group and let `register` add their objects; later calls do nothing."""
    if group in _open:
        return
    with _lock:
        if group in _open or group in _opening:  # a plug-in asks its own registry while it is being loaded
            return
        _opening.add(group)
        try:
            for plugin in installed():
                if plugin.group == group:
                    _load(plugin, register)
        finally:
            _opening.remove(group)
        _open.add(group)


def _load(plugin: Plugin, register: Register) -> None:
    from importlib.metadata import EntryPoint

    try:
        loaded = EntryPoint(plugin.name, plugin.value, f"tilewright.{plugin.group}").load()
        _outcomes[plugin] = Outcome(plugin, tuple(register(plugin, loaded)))
    except Exception as error:  # whatever foreign code raises
        leave_out(plugin, error)


def leave_out(plugin: Plugin, error: Exception) -> None:
    """Record that `plugin` is not used because of `error`, and warn."""
    text = _headline(error)
    _outcomes[plugin] = Outcome(plugin, error=text)
    warnings.warn(f"{plugin} is left out: {text}", PluginWarning, stacklevel=2)


def _headline(error: Exception) -> str:
    if isinstance(error, Error):
        return error.headline()
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")


def outcomes() -> tuple[Outcome, ...]:
    """The outcomes of the plug-ins of all groups that were loaded."""
    return tuple(_outcomes[plugin] for plugin in installed() if plugin in _outcomes)


def several(loaded: Any, kind: type[T]) -> tuple[T, ...]:
    """The objects that an entry point names, `loaded`: one object of class `kind`, or a tuple of them. Raises
    PluginError for anything else."""
    objects = loaded if isinstance(loaded, tuple) else (loaded,)
    for each in objects:
        if not isinstance(each, kind):
            expected = f"a {kind.__name__} or a tuple of them"
            raise PluginError("the entry point names something else", expected=expected, got=type(each).__name__)
    return objects


def check_new(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise PluginError, which calls the names `what`, if one of them is already `known`, or occurs twice."""
    for position, name in enumerate(names):
        if name in known or name in names[:position]:
            raise PluginError(f"there is another {what} {name!r}")


# --- finding ----------------------------------------------------------------------------------------------------------


@cache
def installed() -> tuple[Plugin, ...]:
    """The plug-ins of the environment, none of them loaded; none at all with TILEWRIGHT_PLUGINS=0. Flag and environment
    are read once, as registrations are permanent."""
    plugins: list[Plugin] = []
    for folder in _announcing() if flags.PLUGINS() else []:
        try:
            plugins += _plugins(folder)
        except Exception as error:  # its metadata are damaged
            warnings.warn(f"plug-ins of {folder.name} are left out: {_headline(error)}", PluginWarning, stacklevel=2)
    return tuple(sorted(plugins, key=lambda p: (GROUPS.index(p.group), p.package, p.name)))


def _announcing() -> list[Path]:
    """The folders of metadata that announce plug-ins. `importlib.metadata.entry_points` finds them too, after tens of
    milliseconds that every process would pay."""
    folders: dict[str, Path] = {}
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and _announces(f"{place or '.'}/{name}/entry_points.txt"):
                folders.setdefault(name.partition("-")[0].lower(), Path(place, name))  # as imports: the first one
    return list(folders.values())


def _announces(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"[tilewright." in file.read()
    except OSError:
        return False


def _plugins(folder: Path) -> list[Plugin]:
    from importlib.metadata import PathDistribution

    package = PathDistribution(folder)
    entries = [(*entry.group.partition("."), entry) for entry in package.entry_points]
    return [
        Plugin(group, entry.name, entry.value, package.metadata["Name"], package.version)
        for kind, _, group, entry in entries
        if kind == "tilewright" and group in GROUPS
    ]


# --- keys -------------------------------------------------------------------------------------------------------------


def count(*code: Callable[..., Any] | None) -> None:
    """Add the code of a manually registered object, and the values that its functions refer to, to cache keys.
    Plug-ins' code is always in them, loaded or not, so that keys do not depend on what was used before."""
    if not _opening:
        _by_hand.update(_counted(code))


def discount(*code: Callable[..., Any] | None) -> None:
    """Undo `count`, when the object is unregistered."""
    _by_hand.subtract(_counted(code))
    for f in code:
        _held.pop(id(getattr(f, "__self__", f)), None)


def _counted(code: Sequence[Callable[..., Any] | None]) -> set[str]:
    """The names of the top-level modules outside of this package that define the functions in `code`, and texts of the
    values that the functions refer to. Numbers, strings and objects composed of them have stable texts; texts of other
    values are new in each process."""
    result = set()
    for f in code:
        root = getattr(f.func if isinstance(f, partial) else f, "__module__", "").partition(".")[0]
        if root in ("", "tilewright"):
            continue
        owner = getattr(f, "__self__", f)  # a method is another object each time
        name = _named(f) or _held.setdefault(id(owner), (owner, uuid.uuid4().hex))[1]
        result |= {root, f"value {blake2b(name.encode(), digest_size=16).hexdigest()}"}
    return result


def _named(value: object, depth: int = 8) -> str:
    """A text that identifies a value beside its source code: a function's closure and defaults, a partial's arguments,
    an object's fields, at most `depth` levels deep. "" if there is none."""
    if value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, type):
        return repr(value)
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, MethodType):
        parts: list[object] = [value.__self__, value.__func__]
    elif isinstance(value, partial):
        parts = [value.func, value.args, tuple(value.keywords.items())]
    elif isinstance(value, FunctionType):
        try:
            parts = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a variable that has no value yet
            return ""
        parts += [value.__module__, value.__qualname__, value.__defaults__, tuple((value.__kwdefaults__ or {}).items())]
        parts.append(str([*value.__code__.co_positions()]))  # several lambdas of a module have one name
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    else:
        slots = [n for kind in type(value).__mro__ for n in getattr(kind, "__slots__", ()) if hasattr(value, n)]
        fields = {n: getattr(value, n) for n in slots} | getattr(value, "__dict__", {})
        if type(value).__base__ is not object or not (slots or hasattr(value, "__dict__")):
            return ""  # one that is not written in Python, such as an array
        parts = [type(value), tuple(fields.items())]
    names = [_named(part, depth - 1) if depth else "" for part in parts]
    return f"{type(value).__name__}({', '.join(names)})" if all(names) else ""


def digests() -> tuple[str, ...]:
    """Digests of all outside code that affects compiling, for cache keys: of the top-level packages of plug-ins, and of
    code registered by `count`."""
    roots = {p.value.partition(":")[0].partition(".")[0] for p in installed() if p.group in COUNTED}
    versions = {f"{p.package} {p.version}" for p in installed() if p.group in COUNTED}
    names = sorted(roots.union(+_by_hand))
    return (*sorted(versions), *(n if " " in n else f"{n} {_source_digest(n)}" for n in names))


@cache
def _source_digest(root: str) -> str:
    """A digest of the source files of a top-level module or package, as they are on disk, since the metadata of an
    editable installation does not list them. Code without a file gets a new digest in each process."""
    files = _sources(root)
    if not files:
        return uuid.uuid4().hex
    digest = blake2b(digest_size=16)
    for name, path in files:
        text = path.read_bytes()
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _sources(root: str) -> list[tuple[str, Path]]:
    from importlib.util import find_spec

    try:
        spec = find_spec(root)
    except (ImportError, ValueError):  # `__main__`, or what a loader made without a name
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        folders = [Path(place) for place in spec.submodule_search_locations]
        return [
            (p.relative_to(f).as_posix(), p) for f in folders for s in (".py", ".so") for p in sorted(f.rglob(f"*{s}"))
        ]
    file = getattr(sys.modules.get(root), "__file__", None) if spec is None else spec.origin
    return [(root, Path(file))] if file is not None and Path(file).is_file() else []


__all__ = [
    "GROUPS",
    "Outcome",
    "Plugin",
    "check_new",
    "count",
    "digests",
    "discount",
    "installed",
    "leave_out",
    "load_group",
    "outcomes",
    "several",
]
