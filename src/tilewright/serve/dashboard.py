"""The dashboard: a static page that draws the data of `/dashboard/data` once a second."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.serve.core import Core


def data(core: Core) -> dict[str, Any]:
    """Counts, times and versions of all models, as data for JSON."""
    return {
        "time": time.time(),
        "started": core.started,
        "ready": core.accepting,
        "in_flight": core.under_way,
        "models": [_model(core, served) for served in core.catalogue],
    }


def _model(core: Core, served: Any) -> dict[str, Any]:
    s, waiting = core.totals(served)
    canary = core.catalogue.canary(served.name)
    return {
        "name": served.name,
        "version": served.version,
        "weights_version": served.weights_version,
        "canary": canary is not None and canary.version == served.version and (canary.abandoned or canary.share),
        "promise": None if served.promise == float("inf") else served.promise,
        "answered": s.success.count,
        "failed": sum(s.failed.values()),
        "dropped": dict(s.dropped),
        "missed": s.missed,
        "rows": s.rows,
        "executions": s.executions,
        "waiting": waiting,
        "batches": {str(rows): d.count for rows, d in sorted(s.batches.items())},
        "latency": {str(share): _finite(s.latency.quantile(share)) for share in (0.5, 0.9, 0.99, 0.999)},
        "estimates": [[rows, seconds] for rows, seconds in served.estimates.table()],
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


@cache
def page() -> bytes:
    """The HTML page, which loads no other resources but its data."""
    return (Path(__file__).parent / "dashboard.html").read_bytes()


__all__ = ["data", "page"]
