"""Training: gradients of graphs, and a whole learning step as one program (docs/training.md)."""

from __future__ import annotations

from tilewright.train import schedules
from tilewright.train.optimizers import SGD, Adam, AdamW, Lion, RMSprop

__all__ = ["SGD", "Adam", "AdamW", "Lion", "RMSprop", "schedules"]
