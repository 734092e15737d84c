"""Digits as a person draws them: strokes on a paper of 280x280, and the picture of 8x8 that they give."""

from __future__ import annotations

from itertools import pairwise
from math import cos, radians, sin
from typing import Any

import numpy as np

Point = tuple[float, float]
Stroke = list[Point]
PEN, FIELD = 2.7, 32


def _arc(x: float, y: float, width: float, height: float, start: float, end: float) -> Stroke:
    """A part of an ellipse, from one angle in degrees to another."""
    angles = [radians(start + (end - start) * k / 24) for k in range(25)]
    return [(x + width * cos(a), y + height * sin(a)) for a in angles]


def _line(*corners: Point) -> Stroke:
    pairs = pairwise(corners)
    return [(a + (c - a) * k / 8, b + (d - b) * k / 8) for (a, b), (c, d) in pairs for k in range(9)]


DIGITS: dict[int, list[Stroke]] = {
    0: [_arc(140, 140, 60, 95, -90, 270)],
    1: [_line((105, 80), (145, 45), (145, 235))],
    2: [_arc(140, 95, 55, 50, -180, 30) + _line((186, 122), (85, 230), (205, 230))],
    3: [_arc(130, 92, 55, 47, -150, 80) + _arc(130, 187, 62, 50, -80, 150)],
    4: [_line((150, 45), (80, 165), (205, 165)), _line((165, 110), (165, 240))],
    5: [_line((195, 50), (105, 50), (98, 130)) + _arc(135, 175, 62, 58, -120, 150)],
    6: [_line((175, 45), (120, 110), (90, 170)) + _arc(138, 185, 50, 50, 180, 540)],
    7: [_line((80, 55), (200, 55), (130, 235))],
    8: [_arc(140, 90, 45, 45, 90, 450) + _arc(140, 187, 55, 52, -90, 270)],
    9: [_arc(140, 95, 50, 50, 0, 360) + _line((190, 95), (180, 170), (160, 235))],
}


def picture(strokes: list[Stroke]) -> np.ndarray[Any, Any]:
    """The share of ink of each of 8x8 fields [64], of strokes that are made to fill 32x32."""
    points = np.array([point for stroke in strokes for point in stroke])
    low, high = points.min(0), points.max(0)
    scale = (FIELD - 2 * PEN) / max(*(high - low), 1)
    ink, y, x = np.zeros((FIELD, FIELD), bool), *(np.mgrid[:FIELD, :FIELD] + 0.5)
    for stroke in strokes:
        placed = FIELD / 2 + (np.array(stroke) - (low + high) / 2) * scale
        for a, b in zip((placed[0], *placed), placed, strict=False):
            d = b - a
            along = np.clip(((x - a[0]) * d[0] + (y - a[1]) * d[1]) / max(d @ d, 1e-30), 0, 1)
            ink |= np.hypot(x - a[0] - along * d[0], y - a[1] - along * d[1]) <= PEN
    result: np.ndarray[Any, Any] = ink.reshape(8, 4, 8, 4).mean((1, 3), dtype=np.float32).reshape(64)
    return result
