"""`/metrics`: the page that Prometheus reads, generated from the current statistics at each request."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tilewright.serve.core import Core

_BOUNDS = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LABELS = ("model", "version")


class _Collector:
    """The statistics of a server's core in the form that Prometheus's library collects, computed anew for each page."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tilewright_requests_in_flight", "Requests under way.", self._core.under_way)
        yield GaugeMetricFamily("tilewright_ready", "Whether requests are taken.", float(self._core.accepting))
        yield from self._counters()
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        name = "tilewright_requests"
        requests = CounterMetricFamily(name, "Requests by how they ended.", labels=(*_LABELS, "result"))
        rows = CounterMetricFamily("tilewright_rows", "Rows that were computed.", labels=_LABELS)
        queue = CounterMetricFamily("tilewright_queue_seconds", "Seconds that requests waited.", labels=_LABELS)
        compute = CounterMetricFamily("tilewright_compute_seconds", "Seconds of their batches.", labels=_LABELS)
        missed = CounterMetricFamily("tilewright_missed_deadlines", "Answers after their deadline.", labels=_LABELS)
        waiting = GaugeMetricFamily("tilewright_requests_waiting", "Requests in the queue.", labels=_LABELS)
        weights = GaugeMetricFamily("tilewright_weights_version", "The newest weights.", labels=_LABELS)
        for served in self._core.catalogue:
            (s, waits), key = self._core.totals(served), served.key
            requests.add_metric((*key, "answered"), s.success.count)
            for reason, number in s.dropped.items():
                requests.add_metric((*key, f"dropped: {reason}"), number)
            for status, number in s.failed.items():
                requests.add_metric((*key, str(status)), number)
            rows.add_metric(key, s.rows)
            queue.add_metric(key, s.queue.ns / 1e9)
            compute.add_metric(key, s.compute.ns / 1e9)
            missed.add_metric(key, s.missed)
            waiting.add_metric(key, waits)
            weights.add_metric(key, served.weights_version)
        yield from (requests, rows, queue, compute, missed, waiting, weights)

    def _histograms(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily("tilewright_latency_seconds", "From arrival to answer.", labels=_LABELS)
        batches = HistogramMetricFamily("tilewright_batch_rows", "Rows of batches.", labels=_LABELS)
        for served in self._core.catalogue:
            s, _ = self._core.totals(served)
            buckets = [(str(bound), number) for bound, number in s.latency.cumulative(_BOUNDS)]
            latency.add_metric(served.key, [*buckets, ("+Inf", s.latency.count)], s.latency.total)
            sizes: list[tuple[str, float]] = []
            total = 0
            for rows, duration in sorted(s.batches.items()):
                total += duration.count
                sizes.append((str(rows), total))
            batches.add_metric(served.key, [*sizes, ("+Inf", total)], sum(r * d.count for r, d in s.batches.items()))
        yield from (latency, batches)


class Metrics:
    """The page of metrics for Prometheus, about the models that a server's core serves."""

    def __init__(self, core: Core) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(core))

    def page(self) -> bytes:
        """The page with the present statistics, in Prometheus's text format."""
        return generate_latest(self._registry)


__all__ = ["Metrics"]
