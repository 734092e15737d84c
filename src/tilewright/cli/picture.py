"""Images: `tilewright profile` draws kernels under the machine's roofline, and one call's threads, waits and memory;
`tilewright bench` draws times and throughput over sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from tilewright.measure.roofline import Roofline
from tilewright.support.errors import CallError, MissingPackageError

if TYPE_CHECKING:
    from tilewright.cli.profile import Kernel
    from tilewright.compression.report import CompressionReport
    from tilewright.quantization.report import Report
    from tilewright.runtime.trace_events import Timeline

_NAMED = 8
"""How many kernels, those that take longest, have a label and a colour of their own."""
_OTHERS, _WAITS = "#8a9099", "#e4e4e4"


def check(path: Path | None) -> None:
    """Check early whether an image can be written: its suffix is supported, and the plotting library installed."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"expected a name that ends in .png, .svg or .pdf, got {path}", param_hint="--png")
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        raise MissingPackageError("pictures need matplotlib", hint="pip install 'tilewright[plot]'") from None


def save(path: Path, title: str, kernels: Sequence[Kernel], timeline: Timeline, roofline: Roofline) -> None:
    """Write an image of a profile, with a title, to `path`: kernels against the roofline, the threads' timeline, and
    memory. Raises CallError if the file cannot be written."""
    from matplotlib import pyplot

    figure, (top, threads, memory) = pyplot.subplots(
        3, figsize=(12, 9), height_ratios=(5, 1 + 0.5 * timeline.threads, 1.5), layout="constrained"
    )
    colours = _colours(kernels)
    _draw_roofline(top, kernels, roofline, colours)
    end = _draw_threads(threads, timeline, colours)
    _draw_memory(memory, timeline, end)
    figure.suptitle(title)
    write(figure, path)


def save_sweep(path: Path, reports: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write a picture of races at several sizes to the file `path`: the median and 99th percentile of a call's time,
    and samples a second, over the size. `reports` has one race of one model at one size each. Raises CallError if the
    file cannot be written."""
    from matplotlib import pyplot

    figure, (times, rates) = pyplot.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    lines: dict[str, list[tuple[int, float, float | None]]] = {}
    for report in reports:
        ((name, size),) = report["sizes"].items()
        for c in report["contenders"]:
            if c["median_seconds"]:
                label = f"{report['name']}, {c['name']}"
                lines.setdefault(label, []).append((size, c["median_seconds"], c["p99"]))
        times.set(
            xlabel=name, ylabel="a call, µs", xscale="log", yscale="log", title="median (dotted: 99th percentile)"
        )
        rates.set(xlabel=name, ylabel=f"{name} a second", xscale="log", yscale="log", title="throughput")
    for label, points in lines.items():
        sizes, medians, tails = zip(*sorted(points), strict=True)
        (line,) = times.plot(sizes, [1e6 * m for m in medians], marker="o", label=label)
        known = [(n, 1e6 * t) for n, t in zip(sizes, tails, strict=True) if t is not None]
        times.plot([n for n, _ in known], [t for _, t in known], linestyle=":", color=line.get_color())
        rates.plot(sizes, [n / m for n, m in zip(sizes, medians, strict=True)], marker="o", color=line.get_color())
    for axes in (times, rates):
        axes.grid(alpha=0.3, which="both")
        axes.set_xticks(sorted({n for points in lines.values() for n, _, _ in points}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    times.legend(fontsize=8)
    figure.suptitle(title)
    write(figure, path)


def write(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise CallError(f"cannot be written: {error.strerror}", where=str(path)) from None
    finally:
        pyplot.close(figure)


def _colours(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """The colours of the kernels that take longest, by label."""
    from matplotlib import colormaps

    longest = sorted(kernels, key=lambda k: -k.seconds)
    labels = list(dict.fromkeys(k.label for k in longest))[:_NAMED]
    return dict(zip(labels, (colormaps["tab10"](n) for n in range(10)), strict=False))


def _draw_roofline(axes: Any, kernels: Sequence[Kernel], roofline: Roofline, colours: dict[str, Any]) -> None:
    """Draw the roofline into the Matplotlib `axes`, and the kernels as discs: GFLOP/s over operations a byte, with
    areas by their shares of the time, in the colour that `colours` has for a kernel's label."""
    known = [(k, k.gflops, k.gflops / k.gbytes) for k in kernels if k.gflops and k.gbytes]
    at = [x for _, _, x in known] or [1.0]
    intensity = np.geomspace(min(0.05, *at) / 2, max(100.0, *at) * 2, 200)
    for place, level in enumerate(roofline.levels):
        reached = np.minimum(roofline.peak, level.rate * intensity) / 1e9
        axes.loglog(intensity, reached, color="#555555", linewidth=1)
        axes.annotate(
            level.name, (intensity[10 * place], reached[10 * place]), fontsize=8, color="#555555", va="bottom"
        )
    for k, rate, x in known:
        area = 15 + 600 * k.share
        axes.scatter([x], [rate], s=area, color=colours.get(k.label, _OTHERS), alpha=0.7, zorder=3)
    for label, colour in colours.items():
        share = sum(k.share for k in kernels if k.label == label)
        axes.scatter([], [], color=colour, label=f"{share:5.1%}  {label[:60]}")
    axes.set(xlabel="operations a byte", ylabel="GFLOP/s")
    axes.legend(loc="lower right", fontsize=8)


def _draw_threads(axes: Any, timeline: Timeline, colours: dict[str, Any]) -> float:
    """Draw the last traced call of `timeline` into the Matplotlib `axes`: each thread's kernels, in their `colours`,
    and waits. Returns the duration of the call in microseconds."""
    call = timeline.of("call")[-1]
    for s in (*timeline.of("kernel"), *timeline.of("wait")):
        if call.begin <= s.begin < call.end:
            step = timeline.steps[s.step]
            colour = _WAITS if s.kind == "wait" else colours.get(step.label or step.kernel, _OTHERS)
            axes.barh(s.thread, (s.end - s.begin) / 1e3, left=(s.begin - call.begin) / 1e3, color=colour)
    end = (call.end - call.begin) / 1e3
    axes.set(xlim=(0, end), yticks=range(timeline.threads), ylabel="thread", title="one call (light: waits)")
    axes.invert_yaxis()
    return end


def _draw_memory(axes: Any, timeline: Timeline, end: float) -> None:
    call = timeline.of("call")[-1]
    spans = [s for s in timeline.of("kernel") if s.thread == 0 and call.begin <= s.begin < call.end]
    axes.step(
        [(s.begin - call.begin) / 1e3 for s in spans], [timeline.live[s.step] / 1024 for s in spans], where="post"
    )
    axes.set(xlim=(0, end), ylim=(0, None), xlabel="µs", ylabel="temporaries, KiB")


def save_mixes(path: Path, title: str, report: Report) -> None:
    """Draw the choices of int8 layers that a quantisation tried, the loss of the metric over the time of a call, to the
    file `path`. Raises CallError if the file cannot be written."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for mix in report.mixes:
        at = (mix.seconds * 1e3, report.metric[0] - mix.metric)
        axes.plot(*at, "o", color="#2f6db5")
        axes.annotate(f" {mix.layers} in int8", at)
    axes.plot(report.seconds[0] * 1e3, 0.0, "s", color="#8a9099", label="fp32")
    axes.plot(report.seconds[1] * 1e3, report.drop, "*", ms=14, color="#c2452d", label=f"chosen: {report.chosen}")
    axes.set(title=title, xlabel="milliseconds of a call", ylabel="loss of the metric")
    axes.legend()
    write(figure, path)


def save_tries(path: Path, title: str, report: CompressionReport) -> None:
    """Draw the recipes that a compression tried, the loss of the metric over the bytes of the weights, to the file
    `path`. Raises CallError if the file cannot be written."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for tried in report.tries:
        axes.plot(tried.nbytes, report.metric[0] - tried.metric, "o", label=tried.recipe)
    axes.plot(report.nbytes[0], 0.0, "s", color="#8a9099", label="as it was")
    axes.set(title=title, xlabel="bytes of the weights", ylabel="loss of the metric", xscale="log")
    axes.legend(fontsize=8)
    write(figure, path)
