"""Hostile record files, archives and indexes: a RecordError or a sound record, never anything else.

`make test` runs 2,000 files, `make fuzz` 10^6 (or TILEWRIGHT_FUZZ_CASES) from TILEWRIGHT_FUZZ_SEED on; a failure names
its seed.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.artifacts import damage
from tests.records.samples import LABELS, ZEN4, product, record, target_class
from tilewright.plans.framework.advice import Advice, follow
from tilewright.records.index import Index, form_of
from tilewright.records.lookup import Lookup
from tilewright.records.record import Difference, Record, from_bytes
from tilewright.records.store import Store
from tilewright.runtime.recorded import STATES
from tilewright.support.errors import RecordError

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
CASES = int(os.environ.get("TILEWRIGHT_FUZZ_CASES", "1000000")) if LONG else 2000
SOURCES = [record(rows, difference=d).to_bytes() for rows in (1, 8) for d in (None, Difference(1e-6, 2e-6))]
VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1 << 31,
        1 << 63,
        10**400,
        0.0,
        -0.0,
        1e-320,
        1e308,
        3.5,
        "",
        "x",
        " ",
        "\0",
        "\ud800",
        "é" * 9,
    ),
    *("a" * 5000, "plan " + "f" * 32, "../..", "x threads=1", "f" * 32, [], [[]], {}, {"setting": "direct"}, [1.0] * 9),
]


def mutant(seed: int) -> bytes:
    """Bytes changed as disks do, or values as an author who knows the form changes them."""
    rng = random.Random(seed)
    source = rng.choice(SOURCES)
    if rng.random() < 0.3:
        return damage(source, rng)
    data = json.loads(source)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place, name = rng.choice(list(_places(data)))
        match rng.randrange(5):
            case 0 if isinstance(place, dict):
                del place[name]
            case 1 if isinstance(place, dict):
                place[str(rng.choice(VALUES))[:9]] = copy.deepcopy(rng.choice(VALUES))
            case 2 if isinstance(place[name], str):
                place[name] = _text(place[name], rng)
            case 3 if type(place[name]) in (int, float) and abs(place[name]) < 1e300:
                place[name] = place[name] * rng.choice((-1, 0, 2, 1e9, 1e300, float("nan"), float("inf")))
            case _:
                place[name] = copy.deepcopy(rng.choice(VALUES))
    return (json.dumps(data, separators=(",", ":"), sort_keys=True) + "\n").encode()


def _places(data: Any) -> Any:
    """Every value inside, as the object that holds it and its name there."""
    names = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for name in names:
        yield data, name
        yield from _places(data[name])


def _text(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return (
        text[:at]
        + rng.choice(("", "\n", "[", "9", "=", ",", " ", "@", "f32", "\x1b", text))
        + text[at + rng.randrange(3) :]
    )


def use(result: Record) -> str:
    """The use of a record that was accepted."""
    assert from_bytes(result.to_bytes()) == result
    form_of(result.about)
    advice = Advice(result.digest, result.setting, result.measured, result.space, True)
    _, said = follow(result.decision, [advice], LABELS, lambda: [1.0, 2.0, 3.0])
    assert said.state in STATES
    try:
        result.key()
    except RecordError:
        return "another workload"
    return "sound"


def test_damaged_records_are_refused() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + CASES):
        content = mutant(seed)
        try:
            outcome = use(from_bytes(content))
        except RecordError as error:
            outcome = "refused"
            assert str(error).strip() and len(str(error)) < 20_000, f"seed {seed}"
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        outcomes[outcome] += 1
    assert outcomes["refused"] > 0.5 * CASES and outcomes["sound"] + outcomes["another workload"] > 0.02 * CASES, (
        outcomes
    )


def test_damaged_indexes_mislead_no_one(tmp_path: Path) -> None:
    """Whatever a file of the index says, a record that is found is about what was asked; a miss is the worst."""
    store, target = Store(tmp_path / "s"), target_class(ZEN4)
    for rows in range(1, 9):
        store.put(record(rows), durable=False)
    os.utime(store.class_folder(target), (time.time() - 60,) * 2)
    Index(store, target, tmp_path / "i").refresh()
    (path,) = (tmp_path / "i").iterdir()
    sound = path.read_bytes()
    hits = 0
    for seed in range(FIRST, FIRST + max(60, CASES // 200)):
        rng = random.Random(seed)
        content = sound
        for _ in range(rng.choice((1, 1, 8, 64))):
            content = damage(content, rng) or sound
        path.write_bytes(content)
        index = Index(store, target, tmp_path / "i")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rows in (1, 5, 99):
                name = product(rows).name
                result = Lookup([index]).find(name)
                assert all(r.decision == name for _, r in result), f"seed {seed}"
                hits += len(result)
                index.similar(product(rows).text)
        index.close()
    assert hits > 0


def test_names_that_no_one_has_find_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.put(record(1))
    index = Index(store, target_class(ZEN4), tmp_path / "i")
    for name in ("", "'", '" OR 1=1 --', "plan \0", "\ud800", "x" * 100_000, "%", "plan " + "0" * 32):
        assert index.find(name) == [] and index.similar(name) == []
