"""Texts of MLIR, run by the compilers that read them: XLA through jaxlib's client, IREE through its own packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def by_xla(text: str, arrays: Sequence[Any]) -> list[Array]:
    """The results of the function `main` of a StableHLO module for arrays of the types that it states."""
    import jax
    from jax._src import xla_bridge
    from jaxlib import _jax, xla_client

    backend = xla_bridge.get_backend("cpu")
    devices = _jax.DeviceList(tuple(backend.local_devices()[:1]))
    program = backend.compile_and_load(text, devices, xla_client.CompileOptions())
    with jax.enable_x64(True):  # else it makes 32 bits of 64
        return [np.asarray(x) for x in program.execute([jax.device_put(a) for a in arrays])]


def by_iree(text: str, arrays: Sequence[Any], language: str = "stablehlo") -> list[Array]:
    """Results of IREE for a module in `language`, IREE's name for it: "stablehlo", or "none" for linalg on tensors."""
    from iree import compiler, runtime

    target = ["--iree-llvmcpu-target-cpu=host"]
    binary = compiler.compile_str(text, input_type=language, target_backends=["llvm-cpu"], extra_args=target)
    config = runtime.Config("local-sync")
    module = runtime.VmModule.copy_buffer(config.vm_instance, binary)
    result = runtime.load_vm_modules(module, config=config)[0].main(*arrays)
    return [np.asarray(x) for x in (result if isinstance(result, tuple | list) else (result,))]
