"""The record (`transform/algorithm.py`) of attention in matrix registers."""

from __future__ import annotations

from tilewright.algorithms.attention_tiles.selection import AttentionTiles
from tilewright.support.discover import imported_later
from tilewright.transform.algorithm import Record

with_tiles = imported_later("tilewright.algorithms.attention_tiles.offers:with_tiles")
in_tiles = imported_later("tilewright.algorithms.attention_tiles.layout:in_tiles")

RECORDS = (Record(AttentionTiles, "lowered.attention", with_tiles, in_tiles),)
