"""Reads a server's configuration from a TOML file, which is checked as a whole before any socket is opened.

http_port = 8000
grpc_port = 8001
[limits]
body = 1048576
[tokens]
"a-token-of-sixteen-characters" = ["infer"]
[models.policy]
path = "policy.onnx"
promise_ms = 20
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.serve.core import Options, check_policy
from tilewright.serve.errors import ServeError
from tilewright.serve.opening import SUFFIXES, Source, in_folder
from tilewright.serve.protocol.http import Limits
from tilewright.serve.server import Settings, tls_context
from tilewright.serve.tokens import Tokens
from tilewright.support.errors import Problems

_INTEGERS = {"lanes": (1, 1024), "in_flight": (1, 1 << 20), "workers": (1, 1024)}
_PORTS = ("http_port", "grpc_port")
_TEXTS = ("host", "unix", "local", "access_log")
_FLAGS = ("shared_memory", "metrics")
_PATHS = ("certificate", "key", "clients", "repository", "dir")
_TABLES = ("limits", "tokens", "models")


@dataclass(frozen=True, slots=True)
class Config:
    """The contents of a configuration file."""

    settings: Settings
    sources: tuple[Source, ...]
    workers: int = 1
    access_log: str | None = None
    folder: Path | None = None


def read(path: Path) -> Config:
    """Read a configuration file. Raises one ServeError that lists all errors in it."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ServeError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ServeError(f"is no TOML: {error}", where=str(path)) from None
    return _Reader(path.parent).config(table, str(path))


class _Reader:
    """Reads tables of TOML, and collects errors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems = Problems()

    def config(self, table: Mapping[str, Any], where: str) -> Config:
        known = {*_INTEGERS, *_PORTS, *_TEXTS, *_FLAGS, *_PATHS, *_TABLES, "drain", "spin_us", "policy"}
        self._unknown(table, known, "")
        integers: dict[str, Any] = {
            name: self._integer(table, name, *bounds) for name, bounds in _INTEGERS.items() if name in table
        }
        settings: dict[str, Any] = {name: self._port(table, name) for name in _PORTS if name in table}
        settings |= {name: self._of(table, name, str) for name in _TEXTS if name in table}
        settings |= {name: self._of(table, name, bool) for name in _FLAGS if name in table}
        paths = {name: self._path(table, name) for name in _PATHS if name in table}
        settings |= self._tls(paths)
        if "repository" in paths:
            settings["repository"] = paths["repository"]
            if not paths["repository"].is_dir():
                self._add("there is no such folder", "repository", got=str(paths["repository"]))
        if "drain" in table:
            settings["drain"] = self._number(table, "drain", 0.0, 3600.0)
        if "spin_us" in table:
            settings["spin"] = self._number(table, "spin_us", 0.0, 1e6) / 1e6
        settings["limits"] = self._limits(self._table(table, "limits"))
        settings["tokens"] = self._checked(lambda: Tokens(self._table(table, "tokens"))) or Tokens()
        if "policy" in table:
            self._checked(lambda: check_policy(self._of(table, "policy", str)))
        workers, log = integers.pop("workers", 1), settings.pop("access_log", None)
        sources = self._sources(self._table(table, "models"), paths.get("dir"))
        if not sources and "repository" not in paths and not len(self._problems):
            self._add("names no model", "models")
        self._problems.raise_if_any("the configuration cannot be used", where=where, kind=ServeError)
        settings["core"] = Options(**integers, policy=str(table.get("policy", "deadline")))
        return Config(Settings(**settings), tuple(sources), workers, log, paths.get("dir"))

    def _tls(self, paths: Mapping[str, Path]) -> dict[str, Any]:
        """The settings of TLS; reads its files. Without a certificate it is an error to state others, as TLS would be
        off."""
        if "certificate" not in paths:
            for name in ("key", "clients"):
                if name in paths:
                    self._add("has no use without a certificate", name, expected="certificate")
            return {}
        pair, clients = (paths["certificate"], paths.get("key")), paths.get("clients")
        self._checked(lambda: tls_context(*pair, clients))
        return {"certificate": pair, "clients": clients}

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _limits(self, table: Mapping[str, Any]) -> Limits:
        names = {f.name: f.type for f in fields(Limits)}
        self._unknown(table, set(names), "limits.")
        created: dict[str, Any] = {
            name: self._number(table, name, 0.01, 1e6, "limits.")
            if name.endswith("_seconds")
            else self._integer(table, name, 1, 1 << 40, "limits.")
            for name in table
            if name in names
        }
        return Limits(**created)

    def _sources(self, models: Mapping[str, Any], folder: Path | None) -> list[Source]:
        sources = []
        for name, table in models.items():
            where = f"models.{name}."
            if not isinstance(table, dict):
                self._add("is no table", f"models.{name}", got=table)
                continue
            self._unknown(table, {"path", "store", "version", "promise_ms", "max_batch", "threads", "share"}, where)
            source = self._source(name, table, where)
            if source is not None:
                sources.append(source)
        if folder is not None:
            sources += self._checked(lambda: list(in_folder(folder))) or []
        return sources

    def _source(self, name: str, table: Mapping[str, Any], where: str) -> Source | None:
        if ("path" in table) == ("store" in table):
            self._add("wants either path or store", where[:-1])
            return None
        path = self._path(table, "path", where) if "path" in table else None
        if path is not None and (path.suffix not in SUFFIXES or not path.is_file()):
            self._add("is no model", f"{where}path", expected=f"a file, {' or '.join(SUFFIXES)}", got=path)
        promise = self._number(table, "promise_ms", 0.001, 3.6e6, where) if "promise_ms" in table else None
        return Source(
            name.partition("@")[0],
            str(table.get("version", "1")),
            path,
            str(table.get("store", "")),
            None if promise is None else promise / 1000,
            self._integer(table, "max_batch", 1, 1 << 20, where) if "max_batch" in table else 64,
            self._integer(table, "threads", 1, 1024, where) if "threads" in table else 1,
            share=self._number(table, "share", 0.0, 1.0, where) if "share" in table else 1.0,
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def _add(self, what: str, where: str, **details: Any) -> None:
        self._problems.add(ServeError(what, where=where, **details))

    def _unknown(self, table: Mapping[str, Any], known: set[str], prefix: str) -> None:
        for name in table:
            if name not in known:
                self._add("there is no such setting", f"{prefix}{name}", expected=", ".join(sorted(known)))

    def _checked(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except ServeError as error:
            self._problems.add(error)
            return None

    def _table(self, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = table.get(name, {})
        if isinstance(value, dict):
            return value
        self._add("is no table", name, got=value)
        return {}

    def _of(self, table: Mapping[str, Any], name: str, kind: type) -> Any:
        if type(table[name]) is not kind:
            self._add(f"is no {kind.__name__}", name, got=repr(table[name]))
        return table[name]

    def _path(self, table: Mapping[str, Any], name: str, prefix: str = "") -> Path:
        value = table[name]
        if not isinstance(value, str) or not re.fullmatch(r"[^\0]+", value):
            self._add("is no path", f"{prefix}{name}", got=repr(value))
            return self._folder
        return self._folder / value

    def _port(self, table: Mapping[str, Any], name: str) -> int:
        return self._integer(table, name, 0, 65535)

    def _integer(self, table: Mapping[str, Any], name: str, low: int, high: int, prefix: str = "") -> int:
        value = table[name]
        if type(value) is not int or not low <= value <= high:
            self._add("cannot be had", f"{prefix}{name}", expected=f"{low} to {high}", got=repr(value))
            return low
        return value

    def _number(self, table: Mapping[str, Any], name: str, low: float, high: float, prefix: str = "") -> float:
        value = table[name]
        if type(value) not in (int, float) or not low <= value <= high:
            self._add("cannot be had", f"{prefix}{name}", expected=f"{low:g} to {high:g}", got=repr(value))
            return low
        return float(value)


__all__ = ["Config", "read"]
