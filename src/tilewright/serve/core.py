"""The part of the server that all protocols share: it gets requests, computes batches on lanes, and returns answers.

`Core.infer` is called on the thread of an asyncio loop. A batch that takes microseconds is computed directly on that
thread: handing it to another one would take a hundred times as long. Anything longer goes to a lane, which is a thread;
the GIL is free while it computes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.serve.batching.dispatcher import Dispatcher, Start
from tilewright.serve.batching.policy import AimdQueue, Batch, DeadlineQueue, Job, Queue
from tilewright.serve.catalogue import Catalogue
from tilewright.serve.errors import ServeError, Status
from tilewright.serve.models import Rows, Served
from tilewright.serve.requests import Answer, Done, Request
from tilewright.serve.statistics import Statistics
from tilewright.serve.tensors import Array

INLINE_SECONDS = 100e-6
"""The longest batch, in seconds, that is computed on the loop's own thread, which reads no requests meanwhile."""
_RESERVE = 0.1
"""The fraction of a timeout that is reserved for the network and for the loop's other work."""
_OBSERVED = 8
"""One in so many batches on the loop's thread is timed to correct the estimates."""


@dataclass(slots=True)
class _Pending:
    """A request that waits or is being computed. `request`: as it came; `served`: the version of a model that computes
    it; `arrays`: its checked inputs, in the order of a call; `done`: the function that gets the answer or the error,
    once; `deadline`: the time by which it must be answered, on the monotonic clock."""

    request: Request
    served: Served
    arrays: list[Array]
    done: Done
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class Options:
    """How a core computes.

    Args:
        lanes: batches at once; each is a thread.
        in_flight: requests at once; more are refused with 503.
        policy: "deadline", or "aimd" for comparisons.
        inline: seconds below which a batch is computed on the loop's thread; 0: none is.
    """

    lanes: int = 1
    in_flight: int = 1000
    policy: str = "deadline"
    inline: float = INLINE_SECONDS


POLICIES = ("deadline", "aimd")


def check_policy(name: str) -> str:
    """A valid name of a policy. Raises ServeError for others."""
    if name not in POLICIES:
        raise ServeError("is no policy", expected=" or ".join(POLICIES), got=repr(name)[:40])
    return name


class Others(Protocol):
    """The interface by which a core learns of the server's other processes, which serve the same models. `in_flight`:
    the number of requests in progress in them. `statistics`: (those of a version over all processes, the number of
    requests that wait for it in the others)."""

    def in_flight(self) -> int: ...
    def statistics(self, own: Served) -> tuple[Statistics, int]: ...


class Core:
    """The served models and the lanes that compute them. All methods but `close` are called on the thread of one event
    loop."""

    def __init__(self, options: Options = Options()) -> None:
        self.options = options
        self.catalogue = Catalogue()
        self.accepting = True
        self.in_flight = 0
        self.started = time.time()
        self.colleagues: Others | None = None
        self.on_request: Callable[[], None] | None = None
        self.on_answer: Callable[[Request, Served | None, Answer | ServeError], None] | None = None
        self._dispatcher = Dispatcher(options.lanes)
        self._threads = ThreadPoolExecutor(options.lanes, "lane")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._empty = asyncio.Event()
        self._lag = 0.0

    # -- models --------------------------------------------------------------------------------------------------------

    def add(self, served: Served, share: float = 1.0) -> None:
        """Serve the version `served`; requests that wait for the version that it replaces are computed by it."""
        self.catalogue.add(served, share)
        self._dispatcher.queues[served] = self._queue(served)

    def remove(self, name: str, version: str = "") -> None:
        """Stop serving the model `name`, or one version of it: new requests for it are refused, those that wait are
        still computed. Raises ServeError if there is none."""
        self.catalogue.remove(name, version)

    def _queue(self, served: Served) -> Queue:
        if self.options.policy == "aimd":
            return AimdQueue(served.promise, served.max_batch)
        return DeadlineQueue(served.estimates, served.promise, served.max_batch)

    def totals(self, served: Served) -> tuple[Statistics, int]:
        """(statistics of the version `served`, number of requests that wait for it), both over all processes of the
        server; those of others are as these last reported them."""
        if self.colleagues is None:
            return served.statistics, self.backlog(served)
        statistics, waiting = self.colleagues.statistics(served)
        return statistics, waiting + self.backlog(served)

    @property
    def under_way(self) -> int:
        """The number of requests that wait or are being computed, in all processes of the server; those of others are
        as these last reported them."""
        return self.in_flight + (0 if self.colleagues is None else self.colleagues.in_flight())

    def backlog(self, served: Served) -> int:
        """The number of requests in this process that wait for the version `served`; those that are being computed do
        not count."""
        queue = self._dispatcher.queues.get(served)
        return 0 if queue is None else len(queue)

    # -- requests ------------------------------------------------------------------------------------------------------

    def infer(self, request: Request, done: Done) -> None:
        """Compute `request`, or refuse it: `done` is called once with its Answer or a ServeError, on the loop's thread,
        before this method returns or later."""
        served = None
        if self.on_request is not None:
            self.on_request()
        try:
            if not self.accepting:
                raise ServeError("the server is shutting down", Status.UNAVAILABLE)
            served = self.catalogue.choose(request.model, request.version)
            served.check_outputs(request.outputs)
            arrays, rows = served.bind(request)
            self._enqueue(_Pending(request, served, arrays, done), rows)
        except ServeError as error:
            self._refuse(request, served, error, done)

    def _enqueue(self, pending: _Pending, rows: int) -> None:
        served, request = pending.served, pending.request
        now = time.monotonic()
        timeout = served.promise if request.timeout is None else request.timeout
        deadline = pending.deadline = request.arrival + timeout
        queue = self._dispatcher.queues[served]
        if not len(queue) and served.estimates.seconds(rows) < self.options.inline:
            if now > deadline:
                raise _dropped("its deadline has passed")
            self._inline(pending, rows, now)
            return
        if self.in_flight >= self.options.in_flight:
            raise ServeError("too many requests are in flight", Status.UNAVAILABLE, reason="full")
        job = Job(rows, request.arrival, deadline - self._reserve(timeout), request.priority, pending)
        if not self._dispatcher.arrive(served, job, now):
            raise _dropped("it cannot be answered before its deadline")
        self.in_flight += 1
        self._pump()

    def _reserve(self, timeout: float) -> float:
        """The part of a request's timeout that is not for waiting and computing: the delay until the loop reads the
        request, and until it has written the answer."""
        return min(_RESERVE * timeout + 3 * self._lag, timeout / 2) if timeout < math.inf else 0.0

    def _inline(self, pending: _Pending, rows: int, now: float) -> None:
        served = pending.served
        result = _alone(served, _copies(pending.arrays) if pending.request.shared else pending.arrays)
        if isinstance(result, ServeError):
            raise result
        end = time.monotonic()
        if served.statistics.executions % _OBSERVED == 0:  # which takes as long as a small model
            served.estimates.observe(rows, end - now)
        served.statistics.executed(rows, end - now)
        self._answer(pending, *result, rows, rows, now, end)

    def _answer(
        self,
        pending: _Pending,
        result: Any,
        weights: int,
        own: int,
        rows: int,
        began: float,
        end: float,
    ) -> None:
        """Return a result to the request's caller.

        Args:
            own, rows: of the request, and of the batch that it was part of.
            began, end: of the batch.
        """
        served, request = pending.served, pending.request
        outputs = served.outputs_of(result, request.outputs)
        queue, compute = began - request.arrival, end - began
        served.statistics.answered(own, queue, compute, end - request.arrival, end > pending.deadline)
        answer = Answer(served.name, served.version, outputs, request.id, weights, rows, max(queue, 0.0), compute)
        if self.on_answer is not None:
            self.on_answer(request, served, answer)
        pending.done(answer)

    def _refuse(self, request: Request, served: Served | None, error: ServeError, done: Done) -> None:
        if served is not None:
            served.statistics.refused(error.status.http, error.reason, time.monotonic() - request.arrival)
        if self.on_answer is not None:
            self.on_answer(request, served, error)
        done(error)

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Let every free lane start a batch, and refuse requests that can no longer meet their deadlines."""
        while True:
            start, dropped = self._dispatcher.next(time.monotonic())
            for _, job in dropped:
                pending: _Pending = job.payload
                self._left()
                self._refuse(pending.request, pending.served, _dropped("its deadline cannot be met"), pending.done)
            if start is None:
                return
            served = start.model
            assert isinstance(served, Served)
            self._dispatcher.expect(start, served.estimates.seconds(start.batch.rows))
            self._loop = asyncio.get_running_loop()
            self._threads.submit(self._compute, self._loop, served, start)

    def _compute(self, loop: asyncio.AbstractEventLoop, served: Served, start: Start) -> None:
        """Compute the batch of `start`, on a lane's thread, and hand its results to the event loop."""
        began = time.monotonic()
        pending = [job.payload for job in start.batch.jobs]
        results = computed(served, [p.arrays for p in pending], any(p.request.shared for p in pending))
        loop.call_soon_threadsafe(self._computed, served, start, results, began, time.monotonic())

    def _computed(
        self, served: Served, start: Start, results: Sequence[tuple[Any, int] | ServeError], began: float, end: float
    ) -> None:
        lag = time.monotonic() - end
        self._lag += (0.5 if lag > self._lag else 0.05) * (lag - self._lag)
        self._dispatcher.finished(start, end)
        served.statistics.executed(start.batch.rows, end - began)
        self._pump()  # first, so that the lane has work while answers are written
        for job, result in zip(start.batch.jobs, results, strict=True):
            pending: _Pending = job.payload
            self._left()
            if isinstance(result, ServeError):
                self._refuse(pending.request, served, result, pending.done)
            else:
                self._answer(pending, *result, job.rows, start.batch.rows, began, end)
        if not self.backlog(served) and served not in set(self.catalogue):
            self._dispatcher.queues.pop(served, None)

    def _left(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            self._empty.set()

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests, and wait until all in progress are answered; False if that took more than `seconds`."""
        self.accepting = False
        if self.in_flight:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """Wait for the batches that are being computed, drop those that have not begun, and end the threads that
        compute batches."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def _dropped(what: str) -> ServeError:
    return ServeError(what, Status.DROPPED, reason="deadline")


def computed(
    served: Served, requests: Sequence[list[Array]], shared: bool = False
) -> list[tuple[Any, int] | ServeError]:
    """Compute `requests`, lists of inputs, by the version `served`: as one batch, or one by one if they cannot form one
    or it fails. Returns for each its outputs and the version of the weights, or the error.

    Args:
        shared: whether clients can still write to the inputs, which are then copied before they are computed.
    """
    rows = served.rows
    if rows is not None and len(requests) > 1:
        try:
            return together(served, rows, requests)
        except Exception:  # one of them may be at fault: each by itself says which
            pass
    return [_alone(served, _copies(arrays) if shared else arrays) for arrays in requests]


def _copies(arrays: list[Array]) -> list[Array]:
    """Copies of arrays, in memory that no client can write."""
    return [array.copy() for array in arrays]


def _alone(served: Served, arrays: list[Array]) -> tuple[Any, int] | ServeError:
    try:
        return served.call(arrays)
    except ServeError as error:
        return error
    except Exception as error:
        return ServeError(f"the model failed: {type(error).__name__}", Status.INTERNAL, got=str(error)[:200])


def together(served: Served, rows: Rows, requests: Sequence[list[Array]]) -> list[tuple[Any, int] | ServeError]:
    """Compute `requests` (the inputs of each) as one batch: inputs are concatenated along the axes of `rows`, and
    outputs split again. Returns each request's outputs with the version of the weights."""
    counts = [arrays[0].shape[rows.inputs[0]] for arrays in requests]
    batch = [served.gathered(k, axis, [arrays[k] for arrays in requests]) for k, axis in enumerate(rows.inputs)]
    result, version = served.call(batch)
    outputs = result if isinstance(result, tuple) else (result,)
    ends = np.cumsum(counts)[:-1]
    parts = [np.split(output, ends, axis) for output, axis in zip(outputs, rows.outputs, strict=True)]
    return [(tuple(part), version) for part in zip(*parts, strict=True)]


__all__ = ["POLICIES", "Batch", "Core", "Options", "check_policy", "computed"]
