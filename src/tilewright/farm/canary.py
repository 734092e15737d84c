"""Measurements in production that compare a model compiled with the canary channel's records with the same model
compiled with the stable channel's.

    model = canary(policy, service="https://farm.example#key=9f3c...", share=0.02)
    action, value = model(obs)              like tw.compile(...)(obs)

Every call is answered by the stable program. A small share of calls is computed by both on the same inputs, one right
after the other, in changing order: the ratio of the two times is one round of a paired race, and outputs are compared.
The measurements of one process count as one loading; the service decides from several.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.farm.intake import decoded, parse
from tilewright.parts.entry import compile as compile_model
from tilewright.plans.framework.decision_key import target_class
from tilewright.records.places import SHIPPED, user_store
from tilewright.records.remote import WAIT_SECONDS, check
from tilewright.records.store import Store
from tilewright.records.subscription import Channel, parse_address
from tilewright.runtime.model import Model
from tilewright.runtime.schema import encode
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.support.sql import is_postgres
from tilewright.targets.target import Target
from tilewright.tuning.workers import difference

MAX_ROUNDS = 4096
MAX_RECORDS = 10_000
MAX_BYTES = 1 << 20
WARM_UP = 20
"""The number of pairs that are discarded first, while caches and branch predictors do not know the second program."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One process's comparison of a model compiled with the canary's records with the stable one.

    Args:
        name: digest of the process and model, by which it counts once.
        structure: the program's key.
        records: digests of the canary's records that the program uses and the stable one does not.
        ratios: stable time by canary time, pair by pair: above 1 the canary is faster.
        tail: the time of the slowest hundredth of calls, canary divided by stable.
        times: those of the stable program, pair by pair, relative to their median. Empty from older clients, for whose
            tail no verdict is made.
        difference: the largest difference of outputs, relative to their scale.
        label: what the operators call the model.
        calls: the number of calls answered meanwhile.
    """

    name: str
    structure: str
    target: str
    records: tuple[str, ...]
    ratios: tuple[float, ...]
    tail: float
    difference: float
    label: str = ""
    calls: int = 0
    times: tuple[float, ...] = ()

    def both(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(times of the stable program, times of the other one), pair by pair, relative to the median of the stable
        program's."""
        return self.times, tuple(t / r for t, r in zip(self.times, self.ratios, strict=False))


def parse_measurement(content: bytes) -> Measurement:
    """Parse a measurement from JSON. Raises Error for anything else."""
    m = decoded(Measurement, parse(content, MAX_BYTES), "measurement")
    wrong = (
        not all(map(_DIGEST.fullmatch, (m.name, m.structure, *m.records)))
        or not 1 <= len(m.records) <= MAX_RECORDS
        or not 1 <= len(m.ratios) <= MAX_ROUNDS
        or not all(1e-3 < r < 1e3 for r in m.ratios)
        or not (len(m.times) in (0, len(m.ratios)) and all(1e-7 < t < 1e7 for t in m.times))
        or not (0.0 < m.tail < 1e6 and 0.0 <= m.difference <= 1e30 and 0 <= m.calls < 1 << 50)
        or not (m.label.isprintable() and len(m.label) <= 200 and m.target.isprintable() and len(m.target) <= 300)
    )
    if wrong:
        raise Error("a measurement is not possible")
    return m


class Canary:
    """A model that measures tuning records on trial: the program with the stable channel's records answers all calls,
    and a share of them is also computed by the program with the canary channel's records, to compare times and outputs.
    Any number of threads may call it.

    Args:
        stable, tried: the model compiled with the stable and with the canary's records.
        share: the part of the calls that both programs compute.
        send: called with a measurement to send it.
        pairs: the number of pairs after which a measurement is sent.
    """

    def __init__(
        self,
        stable: Model,
        tried: Model,
        *,
        share: float = 0.02,
        label: str = "",
        pairs: int = 600,
        send: Callable[[Measurement], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stable, self.tried = stable, tried
        self.label, self.pairs = label, pairs
        self._share, self._send, self._clock = share, send, clock
        self._draw = random.Random()
        self._lock = threading.Lock()
        self._times: list[tuple[float, float]] = []
        self._difference = 0.0
        self._calls = self._seen = 0
        self._name = os.urandom(16).hex()
        self.records = new_records(stable, tried)
        self.sent: Measurement | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self._calls += 1
        if not self.records or self.sent is not None or self._draw.random() >= self._share:
            return self.stable(*inputs, **named)
        return self._both(inputs, named)

    def _both(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        with self._lock:  # one pair at a time, so that none of two pairs disturbs the other
            order = (self.stable, self.tried) if self._seen % 2 else (self.tried, self.stable)
            times, outputs = {}, {}
            for model in order:
                start = self._clock()
                outputs[model] = model(*inputs, **named)
                times[model] = self._clock() - start
            self._seen += 1
            if self._seen > WARM_UP:
                self._times.append((times[self.stable], times[self.tried]))
            self._difference = max(self._difference, _difference(outputs[self.stable], outputs[self.tried]))
            if len(self._times) >= self.pairs or self._difference > 0.1:
                self._finish()
        return outputs[self.stable]

    def measurement(self) -> Measurement | None:
        """The measurement so far; None without pairs."""
        pairs = self._times[-MAX_ROUNDS:] or ([(1.0, 1.0)] if self._difference > 0.0 else [])
        if not pairs:
            return None
        stable, tried = np.array(pairs, float).T
        tail = float(np.quantile(tried, 0.99) / max(np.quantile(stable, 0.99), 1e-12))
        ratios = tuple(float(min(max(a / max(b, 1e-12), 2e-3), 5e2)) for a, b in pairs)
        middle = max(float(np.median(stable)), 1e-12)
        times = tuple(float(min(max(t / middle, 1e-6), 1e6)) for t in stable)
        wrong = self._difference if np.isfinite(self._difference) else 1e30
        manifest = self.stable.manifest
        return Measurement(
            self._name,
            manifest.structure_key,
            _class_of(self.stable),
            tuple(sorted(self.records)),
            ratios,
            min(max(tail, 1e-3), 1e5),
            min(wrong, 1e30),
            self.label,
            self._calls,
            times,
        )

    def _finish(self) -> None:
        measured = self.measurement()
        self.sent = measured
        if measured is not None:
            threading.Thread(target=self._send, args=(measured,), daemon=True).start()


def canary(
    model: Any,
    *,
    service: str,
    share: float = 0.02,
    pairs: int = 600,
    label: str = "",
    token: str = "",
    **options: Any,
) -> Canary:
    """Compile a model twice, with the stable and with the canary's records of a service, and measure while it answers.

    Args:
        service: "https://...#key=HEX", or the address of its database, as for `tw.compile(records=)`.
        share: the part of the calls that both programs compute.
        pairs: the number of pairs after which the measurement is sent.
        label: a name of the model in its measurements.
        token: an access token of the service, with the roles "read" and "submit".
        options: the options of `tw.compile`, except `records`.
    """
    address = parse_address(service)
    own = (user_store(), Store(SHIPPED))
    base = f"{address.place}#key={address.key}"
    stable, tried = (Channel(f"{base}&channel={name}", token or None) for name in ("stable", "canary"))
    first = compile_model(model, records=(stable, *own), **options)
    second = compile_model(model, records=(tried, stable, *own), **options)
    if not (isinstance(first, Model) and isinstance(second, Model)):
        raise Error("a model that is compiled in parts cannot be measured")

    def send(measured: Measurement) -> None:
        submit(address.place, measured, token)

    return Canary(first, second, share=share, label=label, pairs=pairs, send=send)


def submit(place: str, measured: Measurement, token: str = "") -> None:
    """Send a measurement to the service at the address `place`, with the bearer token `token`, or write it to the
    service's database if `place` is one. Raises OSError or Error if that fails."""
    body = json.dumps(encode(measured)).encode()
    if "://" not in place or is_postgres(place):
        from tilewright.farm.rollout import take_measurement
        from tilewright.farm.state import State

        take_measurement(State(place), body)
        return
    check(place)
    headers = {"Content-Type": "application/json", "User-Agent": "tilewright"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"{place}/v1/measurements", body, headers, method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        answer.read(1 << 16)


def new_records(stable: Model, tried: Model) -> frozenset[str]:
    """The digests of records that the program `tried` uses and `stable` does not."""
    used = [{use.record for use in model.manifest.records if use.state != "unusable"} for model in (stable, tried)]
    return frozenset(used[1] - used[0])


def _class_of(model: Model) -> str:
    from dataclasses import replace

    return target_class(replace(Target.host(), threads=model.threads))


def _difference(a: Any, b: Any) -> float:
    first, second = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    if len(first) != len(second):
        return float("inf")
    numbered = [{str(k): np.asarray(v) for k, v in enumerate(x)} for x in (first, second)]
    return difference(*numbered)


__all__ = ["Canary", "Measurement", "canary", "new_records", "parse_measurement", "submit"]
