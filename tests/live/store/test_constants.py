"""A model's constants belong to its program: a store has them for any publisher."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tests.runtime.programs import affine
from tilewright.live.store.actor import attach
from tilewright.live.store.publisher import Publisher
from tilewright.runtime.model import Model
from tilewright.runtime.program import Program

X = np.linspace(-1, 1, 5, dtype=np.float32)


def test_constants_are_in_the_store(tmp_path: Path) -> None:
    original = affine()
    params = tuple(dataclasses.replace(p, fixed=p.name == "scale") for p in original.manifest.params)
    manifest = dataclasses.replace(original.manifest, params=params)
    model = Model(Program(manifest, original.objects, original.weights))
    w = np.full((2, 3), 2.5, np.float32)
    for source in (model, model.program):
        with Publisher("constants", source, directory=tmp_path) as publisher:
            publisher.publish({"w": w})
            assert [p.name for p in publisher.params] == ["w"]
            assert set(publisher.program.weights) == {"scale"}
            with attach("constants", directory=tmp_path) as actor:
                model.update({"w": w})
                assert all((a == b).all() for a, b in zip(actor(X), model(X), strict=True))
