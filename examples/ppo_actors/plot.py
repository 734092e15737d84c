"""The plot: return, staleness and time of a call over time, for one run or two."""

from __future__ import annotations

from pathlib import Path

from examples.ppo_actors.monitor import EPISODES, Monitor

_COLOURS = {"Tilewright": "tab:blue", "eager PyTorch": "tab:orange"}


def save(monitors: list[Monitor], path: Path) -> None:
    """Draw the runs into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    by_steps, by_time, stale, calls = axes.flat
    for monitor in monitors:
        name, rows = monitor.config.label, monitor.rows
        style = {"color": _COLOURS[name], "linewidth": 1.2}
        seconds = [row.seconds for row in rows]
        by_steps.plot([row.steps for row in rows], [row.returned for row in rows], label=name, **style)
        by_time.plot(seconds, [row.returned for row in rows], label=name, **style)
        stale.plot(seconds, [row.stale for row in rows], label=f"{name}, mean of a batch", **style)
        calls.plot(seconds, [row.call_us for row in rows], label=name, **style)
        for when, _ in monitor.kills:
            for axis in (by_time, stale):
                axis.axvline(when, color=_COLOURS[name], alpha=0.5, linewidth=0.8, linestyle=":")
    config = monitors[0].config
    killed = ", dotted: one was killed" if any(monitor.kills for monitor in monitors) else ""
    figure.suptitle(f"PPO on {config.env}, {config.actors} actors of {config.envs} environments{killed}")
    by_steps.set(xlabel="environment steps", ylabel=f"return, last {EPISODES} episodes")
    by_time.set(xlabel="seconds", ylabel=f"return, last {EPISODES} episodes")
    stale.set(xlabel="seconds", ylabel="versions behind the learner", ylim=(0, None))
    calls.set(xlabel="seconds", ylabel=f"µs a call of {config.envs} observations", yscale="log")
    for axis in axes.flat:
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
