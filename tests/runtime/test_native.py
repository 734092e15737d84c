"""The support code of a process that is linked when it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORK = """
import os, signal, threading
import numpy as np
from tilewright.runtime import native as module

own, begun = module.compile_text, threading.Event()

def slow(text, **options):
    begun.set()
    threading.Event().wait(0.3)
    return own(text, **options)

native, numbers = module.native(), [np.ones(8, np.float32)]
module.compile_text = slow
thread = threading.Thread(target=native.are_finite, args=(numbers,))
thread.start()
begun.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(not native.are_finite(numbers))
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_fork_while_another_thread_links() -> None:
    """The child has the library too."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True)
