"""StableHLO modules (text or bytecode) and JAX functions (exported or jitted) to graphs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tilewright.ir.dim import DimSizes
from tilewright.ir.interface import Imported
from tilewright.support.errors import MissingPackageError, ModelError

SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")
MAGIC = b"ML\xefR"
_BINARY = re.compile("[\0-\x08\x0e-\x1f]")
"""Control characters, which occur in ONNX files but in no text. Some ONNX files contain the word `module`."""


def reads(model: Any) -> bool:
    """Whether `model` is StableHLO's or JAX's, tested without importing either."""
    if isinstance(model, bytes):
        head = model[:4096].decode("utf-8", "replace")
        return model.startswith(MAGIC) or (_is_text(head) and not _BINARY.search(head))
    if isinstance(model, str) and _is_text(model):
        return True
    if isinstance(model, str | Path):
        return Path(model).suffix in SUFFIXES
    return is_jax(model)


def _is_text(text: str) -> bool:
    return "\n" in text and ("func.func" in text or "module" in text or "stablehlo." in text)


def is_jax(model: Any) -> bool:
    """Whether `model` is an exported or jitted JAX function. JAX is not imported for the test: a caller with one has
    done so."""
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    return type(model).__name__ == "Exported" or (hasattr(model, "trace") and hasattr(model, "lower"))


def import_stablehlo(model: Any, example: Any = None, dims: DimSizes | None = None, params: Any = None) -> Imported:
    """The graph of a StableHLO module, or of an exported or jitted JAX function, with its weights by name. `example`,
    `dims` and `params` are arguments of `tilewright.compile`.

    Raises MissingPackageError without jaxlib, and ModelError (UnsupportedError for what Tilewright lacks), which lists
    everything that is wrong.
    """
    try:
        import jaxlib  # noqa: F401
    except ImportError:
        hint = "pip install 'tilewright[jax]'"
        raise MissingPackageError("reading StableHLO needs jaxlib, whose parser it uses", hint=hint) from None
    from tilewright.frontend.stablehlo.importer import import_module

    if is_jax(model):
        from tilewright.frontend.stablehlo import jax

        if jax.is_exported(model):
            module, signature = jax.read_exported(model, params)
            sizes = jax.platform_of(model, module) | dict(dims or {})
            return import_module(module, signature, sizes, model.fun_name)
        module, signature = jax.read_jitted(model, example, params)
        return import_module(module, signature, dims, str(getattr(model, "__name__", "function")))
    if params is not None:
        raise ModelError("a module alone does not say which arguments are weights", expected="a function of JAX")
    from tilewright.frontend.common.contents import other_format
    from tilewright.frontend.common.finish import located
    from tilewright.frontend.stablehlo.child import read_outside

    data, label = _contents(model)
    try:
        module = read_outside(data)
    except ModelError as error:
        if _is_text(data[:4096].decode("utf-8", "replace")) or data.startswith(MAGIC):
            raise located(error, label) from None
        got = None if error.got is None else str(error.got)
        raise other_format("this is no StableHLO that jaxlib can read", data, where=label, got=got) from None
    return import_module(module, None, dims, label)


def _contents(model: str | bytes | Path) -> tuple[bytes, str]:
    if isinstance(model, bytes):
        return model, "module"
    if isinstance(model, str) and _is_text(model):
        return model.encode(), "module"
    path = Path(model)
    try:
        return path.read_bytes(), path.name
    except OSError as error:
        raise ModelError(f"the file cannot be read: {error.strerror or error}", where=str(path)) from None


__all__ = ["import_stablehlo", "is_jax", "reads"]
