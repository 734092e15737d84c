"""What pyproject.toml cannot say: the wheel carries bytecode, for installers that make none.

An import without it takes three times as long, in every process of a machine whose packages cannot be written. Files
are found valid by their source's digest (PEP 552), for installers set times of their own.
"""

from __future__ import annotations

import compileall
from py_compile import PycInvalidationMode

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithBytecode(build_py):
    """Copies the modules and compiles the copies; an editable install, which has no copies, is left to `make`."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            mode = PycInvalidationMode.CHECKED_HASH
            compileall.compile_dir(self.build_lib, quiet=1, force=True, invalidation_mode=mode)


setup(cmdclass={"build_py": BuildWithBytecode})
