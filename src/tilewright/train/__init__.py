"""Training: gradients of graphs, and a whole learning step as one program (docs/training.md)."""

from __future__ import annotations

from tilewright.train import schedules
from tilewright.train.optimizers import SGD, Adam, AdamW, Lion, RMSprop
from tilewright.train.overlapped import overlapped
from tilewright.train.reduced import averaged
from tilewright.train.stages import Average, Stage

__all__ = ["SGD", "Adam", "AdamW", "Average", "Lion", "RMSprop", "Stage", "averaged", "overlapped", "schedules"]
