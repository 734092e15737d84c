"""Schedules: primitives that check, rewrite and record themselves in a trace."""

from __future__ import annotations

from tilewright.schedule.recording import BlockRef, Choice, LoopRef
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import Instruction, Trace, parse_trace

__all__ = ["BlockRef", "Choice", "Instruction", "LoopRef", "Schedule", "Trace", "parse_trace"]
