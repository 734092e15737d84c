"""The offer of a learner under one name: the newest program and weights, ready to be sent to any number of nodes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.live.store.publisher import Publisher
from tilewright.live.transport import structure
from tilewright.live.transport.blob import Blob, reusable
from tilewright.live.transport.messages import Mark
from tilewright.live.transport.structure import Structure
from tilewright.runtime.image import pack_into
from tilewright.runtime.interop import Array
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program
from tilewright.runtime.weights.check import check_finite, check_version, check_weights
from tilewright.support.classes import dataclass
from tilewright.support.errors import TransportError

MAX_IMAGES = 4
"""The most versions that are stored for nodes that are still fetching them."""

_GLANCE = 0.5
"""Seconds between two checks, while waiting for a version, whether the feed is still open."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One publication: a structure with its file, an image of weights, and their version."""

    mark: Mark
    version: int
    structure: Structure
    code: Blob
    weights: Blob
    memory: Array
    finite: bool


Served = Model | Publisher | Program
"""The objects that a learner may offer: a model with its weights, a program, or a publisher, which serves this node as
well."""


class Feed:
    """The newest snapshot of one name. One thread publishes at a time, any number read.

    Weights are copied once, into an image from which all connections send. At most `MAX_IMAGES` versions that nodes are
    fetching are stored; when that many are being fetched, a new node gets the newest of those. So slow nodes cost a
    bounded amount of memory, and never delay others.
    """

    def __init__(self, name: str, model: Served) -> None:
        program, weights, version, self._publisher = _parts(model)
        self.name = name
        self.version = version if weights is None else -1
        self.published = 0
        self._run = os.urandom(16)
        self._structure, code = structure.encode(program)
        self._code = Blob(code)
        self._newest: Snapshot | None = None
        self._fetched: dict[Snapshot, int] = {}
        self._spare: Array | None = None
        self._changed = threading.Condition()
        self._publishing = threading.Lock()
        self._closed = False
        if weights is not None:
            self.publish(weights, version, finite=False)

    # -- the learner -------------------------------------------------------------------------------------------------

    def publish(
        self, weights: Mapping[str, Any], version: int | None = None, *, force: bool = False, finite: bool = True
    ) -> int:
        """Offer new weights, by name, as `version` (None: one more than the newest); returns their version. `force`
        admits a version that does not grow, `finite` refuses NaN and infinity. Raises WeightError, and changes nothing,
        if they do not fit."""
        with self._publishing:
            if self._publisher is not None:
                version = self._publisher.publish(weights, version, force=force, finite=finite)
                force = True  # the store's versions are those that count
            chosen = check_version(version, self.version, force=force)
            self._offer(self._structure, self._code, weights, chosen, finite)
            return chosen

    def replace(self, model: Served, version: int | None = None, *, force: bool = False) -> int:
        """Offer another program with its weights as `version` (None: one more than the newest); returns their version.
        `force` admits a version that does not grow. If `model` is a publisher, the weights are the ones that it
        publishes next."""
        program, weights, _, publisher = _parts(model)
        with self._publishing:
            before = self._structure, self._code
            new, code = structure.encode(program)
            if new.id != self._structure.id:
                self._structure, self._code = new, Blob(code)
            try:
                if weights is not None:
                    chosen = check_version(version, self.version, force=force)
                    self._offer(self._structure, self._code, weights, chosen, finite=False)
            except BaseException:
                self._structure, self._code = before
                raise
            self._publisher = publisher
            return self.version

    def _offer(self, new: Structure, code: Blob, weights: Mapping[str, Any], version: int, finite: bool) -> None:
        manifest = new.program.manifest
        arrays = check_weights(
            new.params,
            weights,
            finite=finite,
            ignored=manifest.ignored,
            tied=manifest.tied,
            folded=manifest.folded,
            patterns=manifest.patterns,
            fixed=new.program.weights,
        )
        if finite:
            check_finite(new.params, arrays)
        with self._changed:
            spare, self._spare = self._spare, None
        memory = reusable(spare, new.layout.nbytes)
        pack_into(new.layout, new.params, arrays, memory)
        with self._changed:
            if self._closed:
                raise TransportError("the server is closed", where=f"weights {self.name!r}")
            self.published += 1
            mark = Mark(self._run, self.published)
            old = self._newest
            self._newest = Snapshot(mark, version, new, code, Blob(memory), memory, finite)
            self.version = version
            if old is not None and old not in self._fetched:
                self._spare = old.memory
            self._changed.notify_all()

    def close(self) -> None:
        """End the feed: threads that wait for a version return without one, and later publications raise
        TransportError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def forget(self) -> None:
        """In the child of a fork: locks and threads of the parent do not exist here; publishing is disabled."""
        self._changed, self._publishing = threading.Condition(), threading.Lock()
        self._fetched.clear()
        self._closed = True

    # -- nodes -------------------------------------------------------------------------------------------------------

    @contextmanager
    def newer(self, after: Mark | None, wait: float, wanted: Callable[[], bool]) -> Iterator[Snapshot | None]:
        """The newest snapshot after `after`, which stays valid during the context; None if none comes within `wait`
        seconds.

        Args:
            wanted: called now and then while waiting; False ends the wait.
        """
        result = self._take(after, time.monotonic() + wait, wanted)
        try:
            yield result
        finally:
            if result is not None:
                self._give_back(result)

    def _take(self, after: Mark | None, deadline: float, wanted: Callable[[], bool]) -> Snapshot | None:
        while True:
            with self._changed:
                result = self._choose(after)
                if result is not None:
                    self._fetched[result] = self._fetched.get(result, 0) + 1
                    return result
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return None
                self._changed.wait(min(left, _GLANCE))
            if not wanted():
                return None

    def _choose(self, after: Mark | None) -> Snapshot | None:
        result = self._newest
        if result is not None and result not in self._fetched and len(self._fetched) >= MAX_IMAGES:
            result = max(self._fetched, key=lambda s: s.mark.number)
        return result if result is not None and result.mark.newer_than(after) else None

    def _give_back(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._fetched[snapshot] -= 1
            if not self._fetched[snapshot]:
                del self._fetched[snapshot]
                if snapshot is not self._newest:
                    self._spare = snapshot.memory
                self._changed.notify_all()

    @property
    def structure(self) -> Structure:
        """The program that is offered."""
        return self._structure

    def images(self) -> int:
        """The number of versions whose weights are in memory: the newest, and older ones that nodes are still
        fetching."""
        with self._changed:
            return len({*self._fetched, *([self._newest] if self._newest else [])})


def _parts(model: Served) -> tuple[Program, Mapping[str, Any] | None, int, Publisher | None]:
    """(program, its weights by name or None, their version, the publisher or None) of the model or publisher that a
    caller passes."""
    match model:
        case Publisher():
            return model.program, None, model.version, model
        case Model():
            return model.program, model.weights, model.version, None
        case Program():
            names = [p.name for p in model.manifest.params if not p.fixed]
            whole = all(name in model.weights for name in names)
            return model, {name: model.weights[name] for name in names} if whole else None, -1 + whole, None
    hint = "compile it first: tw.serve_weights(name, tw.compile(module, example))"
    raise TransportError("cannot be served", expected="a Model or a Publisher", got=type(model).__qualname__, hint=hint)
