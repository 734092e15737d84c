"""`tilewright doctor`: describes this machine, its measured ceilings, the installed packages and the plug-ins in
use."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from importlib import metadata
from typing import Annotated, Any

import typer

from tilewright.cli.common import JsonOption, bytes_text, err, facts, out, print_json
from tilewright.measure import calibration, peak
from tilewright.support import bytecode, flags, machine, plugins
from tilewright.support.cache import ObjectCache
from tilewright.support.errors import PluginWarning
from tilewright.targets.host import native

_NEEDED = ("numpy", "llvmlite", "ml_dtypes", "onnx", "safetensors", "apache-tvm-ffi", "typer", "rich")
_OPTIONAL = ("torch", "onnxruntime", "jax", "gymnasium", "stable-baselines3", "ray", "torchrl")
_TELLING = (
    "sse4.2",
    "avx2",
    "fma",
    "f16c",
    "avx512",
    "amx",
    "avxvnni",
    "neon",
    "dotprod",
    "i8mm",
    "bf16",
    "sve",
    "sme",
)


def doctor(
    measure: Annotated[
        bool, typer.Option(help="Measure the ceilings and store them for later compiles (about six seconds).")
    ] = True,
    net: Annotated[
        bool, typer.Option("--net", help="Measure links between processes, and show which all-reduction suits them.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the CPU, its caches, its measured ceilings, versions, plug-ins and the cache folder.

    The ceilings bound every kernel's speed: no program does more multiply-adds a second than the peak, and none reads
    or writes memory faster than a copy. They are stored in the cache folder, and from then on compiles use them in
    their estimates; run this once on a quiet machine. Each is the best of several passes; measurements that other
    processes disturbed are only stored where they are better than the stored ones. `--no-measure` shows the stored
    ceilings, and how old they are.
    """
    if net:
        _print_net(json)
        return
    report = collect(measure)
    if report["disturbed"] and not json:
        err.print("warning: the measurement is disturbed: run this again on a quiet machine", soft_wrap=True)
        for text in report["disturbed"]:
            err.print(f"  {text}", soft_wrap=True)
    if json:
        print_json(report)
    else:
        _print(report)


def _print_net(json: bool) -> None:
    """Print the models of the links between two processes of this machine, and the algorithms that they choose."""
    from tilewright.collective.topology.measured import models

    links = models()
    choices = {name: {n: {s: m.choose(n, s) for s in _NET_BYTES} for n in _NET_RANKS} for name, m in links.items()}
    if json:
        tables = {k: {n: {s: asdict(c) for s, c in row.items()} for n, row in t.items()} for k, t in choices.items()}
        print_json({name: {"model": asdict(m), "choices": tables[name]} for name, m in links.items()})
        return
    for name, m in links.items():
        facts({name: str(m)})
        for n in _NET_RANKS:
            row = (f"{bytes_text(s)}: {c.algorithm}, {1e3 * c.seconds:.3g} ms" for s, c in choices[name][n].items())
            facts({f"{n} ranks": "; ".join(row)})
        out.print()


_NET_RANKS, _NET_BYTES = (8, 64, 1024), (1 << 12, 1 << 18, 1 << 26)


def _print(report: dict[str, Any]) -> None:
    host, ceilings, stored = report["machine"], report["ceilings"], report["calibration"]
    facts(
        {
            "CPU": f"{host['model']} ({host['cpu']}, {host['triple']})"
            + (f", by its features a {report['processor']}" if report["processor"] != host["cpu"] else ""),
            "features": " ".join(f for f in host["features"] if f.startswith(_TELLING)),
            "cores": f"{host['cores']} cores, {host['cpus']} threads, {host['usable']:g} usable here",
            "caches": ", ".join(
                f"{c['name']} {bytes_text(c['bytes'])}" + (f" shared by {c['shared_by']}" if c["shared_by"] > 1 else "")
                for c in host["caches"]
            )
            or "unknown",
            "memory": bytes_text(host["memory"]) if host["memory"] else "unknown",
        }
    )
    if ceilings:
        out.print()
        facts(
            {
                "peak, one core": f"{ceilings['peak_gflops_one']:.0f} GFLOP/s (float32 multiply-adds)",
                f"peak, {ceilings['threads']} threads": f"{ceilings['peak_gflops_all']:.0f} GFLOP/s",
                "frequency": f"{ceilings['frequency_ghz']:.2f} GHz under load",
                "multiply-adds": f"{ceilings['fma_per_cycle']:.2f} full vectors a cycle",
                "read, one core": ", ".join(
                    f"{level} {ceilings[key]:.1f}"
                    for level, key in (("L1", "l1_gbs"), ("L2", "l2_gbs"), ("L3", "l3_gbs"), ("memory", "memory_gbs"))
                )
                + " GB/s",
                f"read, {ceilings['threads']} threads": f"memory {ceilings['memory_gbs_all']:.1f} GB/s",
                "copy, one core": f"{ceilings['copy_gbs_one']:.1f} GB/s (read and write)",
                "barrier": f"{1e9 * report['barrier_seconds']:.0f} ns among {ceilings['threads']} threads"
                + f"; handing a call over: {1e9 * report['handover_seconds']:.0f} ns"
                if report["barrier_seconds"]
                else "none: one thread",
            }
        )
    out.print()
    facts(
        {
            "estimates with": "what is known of this kind of CPU (nothing is stored)"
            if stored is None
            else f"{stored['fma_per_cycle']:g} multiply-adds a cycle at {stored['frequency']:g} GHz; bytes a cycle: "
            + ", ".join(f"{n} {stored[f'{n.lower()}_bandwidth']:g}" for n in ("L1", "L2", "L3", "memory"))
            + f", to all cores together {stored['memory_total']:g}; barrier {stored['barrier']:g}, "
            f"handover {stored['handover']:g} cycles",
            "stored in": report["calibration_file"] if stored else "-",
            "measured": f"{age_text(report['calibration_age_seconds'])} ago" if stored else "never",
        }
    )
    out.print()
    facts({name: version or "not installed" for name, version in report["versions"].items()})
    if uncompiled := report["bytecode"]["missing"]:
        text = f"none: {len(uncompiled)} modules are compiled again in every process, until someone who may write runs"
        facts({"bytecode": f"{text} {report['bytecode']['command']}"})
    out.print()
    facts({"plug-ins": (len(report["plugins"]) or "none") if flags.PLUGINS() else "switched off"})
    facts({f"{p['name']} ({p['group']}, {p['package']} {p['version']})": _state(p) for p in report["plugins"]})
    out.print()
    cache = report["cache"]
    size, bound = bytes_text(cache["bytes"]), bytes_text(cache["bound"])
    facts({"object cache": f"{cache['folder']}: {cache['entries']} entries, {size} of at most {bound}"})


def _state(plugin: dict[str, Any]) -> str:
    return f"left out: {plugin['error']}" if plugin["error"] else ", ".join(plugin["brings"])


def collect(measure: bool) -> dict[str, Any]:
    """All facts as data for JSON."""
    import llvmlite.binding as llvm

    import tilewright

    host = machine.describe()
    cache = ObjectCache()
    usage = cache.usage()
    versions: dict[str, str | None] = {"tilewright": tilewright.__version__}
    versions["LLVM"] = ".".join(map(str, llvm.llvm_version_info))
    versions |= {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    ceilings, barrier, handover, disturbed = calibrate(host) if measure else (None, None, None, [])
    stored = calibration.load(host)
    return {
        "machine": asdict(host) | {"caches": [asdict(c) | {"name": c.name} for c in host.caches]},
        "processor": native().cpu,
        "ceilings": asdict(ceilings) if ceilings else None,
        "disturbed": disturbed,
        "barrier_seconds": barrier,
        "handover_seconds": handover,
        "calibration": asdict(stored) if stored else None,
        "calibration_file": str(calibration.path(host)),
        "calibration_age_seconds": calibration.age(host) if stored else None,
        "versions": versions,
        "bytecode": {"missing": bytecode.missing("tilewright"), "command": bytecode.command("tilewright")},
        "cache": {
            "folder": str(cache.folder),
            "entries": usage.entries,
            "bytes": usage.bytes,
            "bound": cache.limit,
        },
        "plugins": [asdict(o.plugin) | {"brings": o.brings, "error": o.error or None} for o in open_doors()],
        "flags": {flag.name: str(flag()) for flag in flags.table()},
    }


def open_doors() -> tuple[plugins.Outcome, ...]:
    """The outcome of each plug-in, after every registry has loaded its own. The report shows failures, so no warning is
    printed."""
    from tilewright.compiler import graph_passes
    from tilewright.frontend import registry as frontends
    from tilewright.frontend.onnx import registry as rules
    from tilewright.plans import PLANS, extended
    from tilewright.runtime import compilers
    from tilewright.targets.target import Target
    from tilewright.transform.layout import assign

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        graph_passes(Target.parse("x86-64"))
        extended(PLANS)
        frontends.names()
        rules.plugin_rules()
        assign.plugin_rules()
        compilers.names()
    return plugins.outcomes()


def calibrate(host: machine.Machine) -> tuple[peak.Ceilings, float, float, list[str]]:
    """Measure and store the ceilings; returns (ceilings, seconds of a barrier among all usable threads, seconds to hand
    a call to them (both 0.0 with one thread), disturbances). A disturbed measurement only improves stored values, and
    is not stored if there are none."""
    from tilewright.measure.barrier import barrier_seconds, handover_seconds

    measured = peak.measure_often(host)
    ceilings = measured.ceilings
    barrier, handover = barrier_seconds(ceilings.threads), handover_seconds(ceilings.threads)
    disturbed = _disturbed(measured, host)
    before = calibration.load(host)
    if before is not None or not disturbed:
        calibration.store(calibration.updated(ceilings, barrier, before, handover), host)
    return ceilings, barrier, handover, disturbed


def _disturbed(measured: peak.Measured, host: machine.Machine) -> list[str]:
    """The reasons why a measurement may be worse than the machine's true ceilings; empty if there are none."""
    from tilewright.targets.registry import family_of

    family = family_of(host.triple)
    describe = None if family is None else family.describe
    known = {} if describe is None else asdict(describe(host.cpu, host.features).ceilings)
    texts = calibration.doubts(measured.ceilings, known)
    if measured.spread > peak.SPREAD:
        texts.append(
            f"passes differ by {measured.spread:.0%} (more than {peak.SPREAD:.0%}): others use caches or memory"
        )
    if measured.waited > peak.WAITED:
        texts.append(f"this process did not run {measured.waited:.0%} of the time: others use its core")
    return texts


def age_text(seconds: float) -> str:
    """An age in seconds as text in a unit that suits it: 200000.0 is "2 days"."""
    for scale, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= scale:
            count = int(seconds // scale)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
