"""StableHLO out: graphs of source operators as text for other compilers."""

from tilewright.codegen.stablehlo.emit import stablehlo_text

__all__ = ["stablehlo_text"]
