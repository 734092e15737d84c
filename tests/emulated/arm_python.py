"""`python -m tests.emulated.arm_python` (`make arm-python`): `smoke.py` in a Python for Arm, which qemu runs.

Debian's packages of that Python are unpacked into a folder, and the wheels that Tilewright needs beside them; nothing
is installed. What is there already is used again. Arguments go to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "arm-python"
EMULATOR = "qemu-aarch64-static"
PYTHON = "3.11"
PACKAGES = [
    *(f"{name.format(PYTHON)}" for name in ("python{}-minimal", "libpython{}-minimal", "libpython{}-stdlib")),
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5"),
    *("libsqlite3-0", "libuuid1", "libcrypt1", "libncursesw6", "libtinfo6", "libreadline8"),
]
WHEELS = [
    "numpy",
    "ml_dtypes",
    "onnx",
    "safetensors",
    "apache-tvm-ffi~=0.1.15",
    "typer",
    "rich",
    "pytest",
    "hypothesis",
]
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def system() -> Path:
    """The folder with Debian's files."""
    root, state = FOLDER / "root", FOLDER / "apt"
    if (root / "usr" / "bin" / f"python{PYTHON}").exists():
        return root
    for folder in (state / "lists" / "partial", state / "cache" / "archives" / "partial", FOLDER / "packages"):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    said = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::State::status": state / "status",
    }
    apt = ["apt-get", *(text for name, value in said.items() for text in ("-o", f"{name}={value}"))]
    subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=FOLDER / "packages", stdout=subprocess.DEVNULL)
    for package in sorted((FOLDER / "packages").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    return root


def wheels() -> Path:
    """The folder with what Tilewright imports."""
    site, wheels = FOLDER / "site", FOLDER / "wheels"
    if (site / "llvmlite").exists():
        return site
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(wheels)]
    line += [text for name in PLATFORMS for text in ("--platform", f"{name}_aarch64")]
    line += ["--python-version", PYTHON.replace(".", ""), *WHEELS, f"llvmlite=={version('llvmlite')}"]
    subprocess.run(line, check=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return site


def main() -> int:
    if shutil.which(EMULATOR) is None or shutil.which("apt-get") is None:
        print(f"arm-python: left out, there is no {EMULATOR} (make targets installs it), or no apt-get")
        return 0
    root, site = system(), wheels()
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, site))),
        "QEMU_LD_PREFIX": str(root),
        "QEMU_CPU": os.environ.get("QEMU_CPU", "neoverse-n1"),
        "TILEWRIGHT_CACHE_DIR": str(FOLDER / "cache"),
        "TILEWRIGHT_VERIFY": "1",
        "HOME": str(FOLDER),
        "PATH": os.environ["PATH"],
    }
    python = [EMULATOR, str(root / "usr" / "bin" / f"python{PYTHON}")]
    line = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/emulated/smoke.py", *sys.argv[1:]]
    return subprocess.run(line, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    raise SystemExit(main())
