"""The site: pages, and beside them a bundle of WebAssembly for each network."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import onnx

import tilewright as tw

PAGES = Path(__file__).parent / "pages"
TARGET = "wasm32-simd128"


def write(folder: Path, models: Mapping[str, onnx.ModelProto]) -> dict[str, int]:
    """Write the site, each model as a bundle in a folder of its name; give the bytes of each module."""
    shutil.copytree(PAGES, folder, dirs_exist_ok=True)
    for name, model in models.items():
        tw.compile_program(model, target=TARGET).bundle(folder / name, name=name)
    return {name: (folder / name / f"{name}.wasm").stat().st_size for name in models}
