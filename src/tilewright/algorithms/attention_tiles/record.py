"""The record of attention in matrix registers."""

from __future__ import annotations

from tilewright.algorithms.attention_tiles.layout import in_tiles
from tilewright.algorithms.attention_tiles.offers import with_tiles
from tilewright.algorithms.attention_tiles.selection import AttentionTiles
from tilewright.transform.algorithm import Record

RECORDS = (Record(AttentionTiles, "lowered.attention", with_tiles, in_tiles),)
