"""Algorithms of all-reductions over many machines, as rounds of messages, and the choice among them
(docs/course/allreduce.md)."""

from __future__ import annotations

from tilewright.collective.topology.algorithms import ALGORITHMS, Matching, Round, rounds_of
from tilewright.collective.topology.model import Choice, Model, fit
from tilewright.collective.topology.network import Network
from tilewright.collective.topology.picture import picture

__all__ = ["ALGORITHMS", "Choice", "Matching", "Model", "Network", "Round", "fit", "picture", "rounds_of"]
