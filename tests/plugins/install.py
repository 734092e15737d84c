"""Environments with plug-ins: the example as pip installs it, others written file by file, and processes inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"


def install_package(package: Path, folder: Path, scratch: Path) -> Path:
    """A package, installed into an empty folder without network. It is built from a copy: builds write into their
    sources."""
    source = shutil.copytree(package, scratch / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    options = "--quiet --no-deps --no-build-isolation --no-index --disable-pip-version-check".split()
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, source], check=True)
    return folder


def write_plugin(folder: Path, package: str, entries: Mapping[str, str], source: str) -> Path:
    """A package of one module, as an installation leaves it; `entries`: attributes of the module by group."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"[tilewright.{group}]\nentry = {package}:{attribute}\n" for group, attribute in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (folder / f"{package}.py").write_text(textwrap.dedent(source))
    return folder


def run(code: str, *folders: Path, cache: Path, **flags: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process that finds Tilewright and the packages in these folders."""
    path = os.pathsep.join(map(str, (ROOT / "src", *folders)))
    own = {"PYTHONPATH": path, "TILEWRIGHT_CACHE_DIR": str(cache), "TILEWRIGHT_PLUGINS": "1"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **own, **flags},
        cwd=cache,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def answer(code: str, *folders: Path, cache: Path, **flags: str) -> Any:
    """The JSON that such a process prints."""
    done = run(code, *folders, cache=cache, **flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def doctor(*folders: Path, cache: Path, **flags: str) -> Any:
    """The report of `tilewright doctor`."""
    code = (
        "from tilewright.cli.main import main; import sys; sys.argv[1:] = ['doctor', '--no-measure', '--json']; main()"
    )
    return answer(code, *folders, cache=cache, **flags)


__all__ = ["EXAMPLE", "answer", "doctor", "install_package", "run", "write_plugin"]
