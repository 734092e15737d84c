"""The family of the accelerator: `target="vta-1x16x16"` is the host with a VTA beside it."""

from __future__ import annotations

from tilewright.targets.registry import Family

NAME = "vta-1x16x16"
"""Batch 1, blocks of 16 x 16: the default configuration."""

FAMILY = Family("vta", "", {}, accelerators=(NAME,))
