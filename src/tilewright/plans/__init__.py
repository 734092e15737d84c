"""Plans: parameterised schedules, one folder for each kind of computation; `plan` chooses the one with the best
estimate among those that fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilewright.ir.key import key
from tilewright.ir.loops import PrimFunc
from tilewright.plans.attention import gradient as attention_gradient
from tilewright.plans.attention import plan as attention
from tilewright.plans.convolution import by_weight, depthwise, direct, pixels, transposed, windows
from tilewright.plans.convolution import dots as dot_convolution
from tilewright.plans.convolution import mmla as mmla_convolution
from tilewright.plans.convolution import tile_dots as tile_convolution
from tilewright.plans.framework.alone import alone_if_small
from tilewright.plans.framework.analysis import Structure, analyse
from tilewright.plans.framework.base import BARRIERS, Candidate, Plan, Planned, Rejected
from tilewright.plans.framework.cost import least
from tilewright.plans.framework.decision_key import Key, key_of_function
from tilewright.plans.framework.decisions import Scheduled, current, decide
from tilewright.plans.framework.registry import extended, register
from tilewright.plans.framework.space import Setting
from tilewright.plans.framework.variants import Values, condition_of, specialize, versions_of
from tilewright.plans.framework.work import MAX_EXCESS, work_of
from tilewright.plans.matmul import codes, contraction, dots, mmla, sparse, tile_dots
from tilewright.plans.pointwise import elementwise, packing, pieces, unscheduled
from tilewright.plans.rows import plan as rows
from tilewright.plans.sketch import plan as sketch
from tilewright.schedule.schedule import Schedule
from tilewright.support import flags
from tilewright.support.classes import dataclass
from tilewright.support.errors import ScheduleError
from tilewright.targets.target import Target

PLANS: tuple[Plan, ...] = (
    unscheduled.PLAN,
    attention.PLAN,
    attention_gradient.PLAN,
    pieces.PLAN,
    pixels.PLAN,
    codes.PLAN,
    sparse.PLAN,
    sparse.COLUMNS,
    contraction.PLAN,
    dots.PLAN,
    tile_dots.PLAN,
    mmla.PLAN,
    dot_convolution.PLAN,
    mmla_convolution.PLAN,
    tile_convolution.PLAN,
    windows.PLAN,
    direct.PLAN,
    transposed.PLAN,
    depthwise.PLAN,
    by_weight.PLAN,
    packing.PLAN,
    elementwise.PLAN,
    rows.PLAN,
    sketch.PLAN,
)
"""All plans of this package. Those that fit a function, and those of algorithms' folders (`extended`), compete by
estimates."""


def named(name: str) -> Plan:
    """The registered plan called `name`, for CPUs or GPUs. There must be one."""
    own = next((p for p in extended(PLANS) if p.name == name), None)
    return own or next(p for p in _gpu_plans() if p.name == name)


def plans_for(target: Target) -> tuple[Plan, ...]:
    """The plans from which one is chosen for each function that is compiled for `target`: those for CPUs, or those for
    GPUs."""
    return extended(PLANS) if target.gpu is None else (unscheduled.PLAN, *_gpu_plans())


def _gpu_plans() -> tuple[Plan, ...]:
    from tilewright.plans.gpu import PLANS  # which programs for processors do without

    return PLANS


def plan(func: PrimFunc, target: Target) -> Planned:
    """Schedule an unscheduled function with the plan and knobs of the best estimate, among those whose schedules do no
    excess work (or with forced ones). A function with several versions is scheduled version by version."""
    *special, (_, general) = versions_of(func)
    planned = _plan(general, target)
    others = ((c, replace(_plan(f, target), symbols=func.symbols)) for c, f in reversed(special) if c is not None)
    return replace(planned, variants=(*planned.variants, *others), symbols=func.symbols) if special else planned


def _plan(func: PrimFunc, target: Target) -> Planned:
    """The schedule and decision for `func`, which has no versions for different sizes; `plan` handles those."""
    structure = analyse(func)
    choices = candidates(structure, target)
    chosen = _decide(lambda: key_of_function(func, target), choices)
    # What is forced is wanted as it is.
    trials = choices if chosen is choices[0] else [chosen]
    schedule, chosen, rejected, stated = _first_lawful(structure, trials, target)
    others = tuple(c for c in choices if c is not chosen and all(c is not r.candidate for r in rejected))
    cases = () if target.isa.compact else named(chosen.plan).cases(structure, target)
    variants = tuple((condition_of(v), plan(specialize(func, v), target)) for v in cases)
    alone = runs_alone(lambda: key_of_function(func, target, "threads"), func, chosen, target)
    return Planned(schedule, chosen, others, target, least(stated, target), variants, rejected, alone)


def runs_alone(about: Callable[[], Key], func: PrimFunc, chosen: Candidate, target: Target) -> bool:
    """Whether a single thread runs the function `func`: its work is so little, for all values of the symbols, that
    sharing it is estimated to take longer, or the machine has one thread and no memory for code that shares work.
    `about` is the key under which the choice is tuned."""
    if target.isa.compact:
        return True
    if func.symbols or target.gpu is not None:
        return False
    barrier, threads = BARRIERS * target.barrier, target.threads
    if threads == 1:
        return chosen.cycles < barrier
    alone, shared = Setting("alone"), Setting("shared")
    cycles = {alone: chosen.cycles, shared: chosen.cycles / threads + waiting(target)}
    options = [alone, shared] if chosen.cycles < barrier else [shared, alone]
    return decide(about, options, lambda s: s, lambda s: cycles[s]) == alone


def waiting(target: Target) -> float:
    """Estimated cycles per thread of the barrier that ends shared work: `target.barrier`, weighted by the share of
    threads that wait there for another one; 0 with one thread."""
    return BARRIERS * target.barrier * (1 - 1 / target.threads)


def estimate(func: PrimFunc, target: Target) -> float:
    """Cycles of one core for a function without symbols by the estimate of the best candidate; nothing is scheduled."""
    return candidates(analyse(func), target)[0].cycles


def shared_cycles(cycles: float, target: Target) -> float:
    """The cycles that the threads of a call need for work that takes one core `cycles`: by one thread if it is little,
    else by all."""
    return cycles if cycles < BARRIERS * target.barrier else cycles / target.threads + waiting(target)


def _first_lawful(
    structure: Structure, trials: Sequence[Candidate], target: Target
) -> tuple[Schedule, Candidate, tuple[Rejected, ...], Structure]:
    """Schedule the candidates `trials` in order until one performs no more operations than its plan states
    (`plans/framework/work.py`). Returns (schedule, candidate, candidates rejected before it, structure of the function
    that was scheduled); if all do excess work, those of the candidate with the smallest excess."""
    rejected: list[Rejected] = []
    schedules: list[tuple[Schedule, Structure]] = []
    unfit: list[ScheduleError] = []  # symbolic sizes may hide the bounds that a candidate's primitives need
    for candidate in [*trials[:TRIALS], *others_than(trials[:TRIALS], trials)]:
        if rejected and candidate not in trials[:TRIALS]:
            continue
        selected = named(candidate.plan)
        try:
            schedule, stated = scheduled_by(selected, structure, candidate, target)
        except ScheduleError as error:
            if not structure.func.symbols:
                raise
            unfit.append(error)
            continue
        work = work_of(schedule.func, selected.added(structure, candidate, target))
        if work.excess <= MAX_EXCESS:
            return schedule, candidate, tuple(rejected), stated
        rejected.append(Rejected(candidate, work.excess, work.worst))
        schedules.append((schedule, stated))
    if not rejected:
        raise unfit[0]
    best = min(range(len(rejected)), key=lambda k: rejected[k].excess)
    schedule, stated = schedules[best]
    return schedule, rejected[best].candidate, tuple(rejected), stated


def scheduled_by(
    selected: Plan, structure: Structure, candidate: Candidate, target: Target
) -> tuple[Schedule, Structure]:
    """The function scheduled by a candidate of the plan `selected`, whatever its estimate, and the structure of the
    function as the candidate states it."""
    schedule, stated = Schedule(structure.func), structure
    if selected.restated is not None:
        schedule.implement(selected.restated.name, **{size: candidate.knob(size) for size in selected.restated.sizes})
        stated = analyse(schedule.func)
    selected.apply(schedule, stated, candidate, target)
    return schedule, stated


def others_than(tried: Sequence[Candidate], candidates: Sequence[Candidate]) -> list[Candidate]:
    """From `candidates`, the best of each plan to which no candidate in `tried` belongs, in order."""
    plans = {c.plan for c in tried}
    first: dict[str, Candidate] = {}
    for c in candidates:
        if c.plan not in plans:
            first.setdefault(c.plan, c)
    return list(first.values())


TRIALS = 8
"""The number of best candidates that are scheduled, of any plan, before the one with the least excess work is
chosen."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The decision about a function or a variant of it. `forced`: "" if the best estimate decided, else a text with the
    function and the setting that was taken instead."""

    decision: Scheduled
    forced: str


def decided(func: PrimFunc, target: Target, where: Values = MappingProxyType({})) -> tuple[Chosen, ...]:
    """The decisions about a function and its variants, without scheduling it; they are recorded as by `plan`.

    Args:
        where: for which values of symbols the function is a variant of another.
    """
    return tuple(c for _, version in versions_of(func) for c in _decided(version, target, where))


def _decided(func: PrimFunc, target: Target, where: Values) -> tuple[Chosen, ...]:
    """The decisions by which `func` is scheduled, with those of its variants for values of symbols; `where` are the
    symbols' values that already hold."""
    structure = analyse(func)
    choices = _choices(structure, target)
    about = key_of_function(func, target)
    selected = _decide(lambda: about, choices)
    decision = Scheduled(about.name, tuple((v.name, n) for v, n in where.items()))
    own = Chosen(decision, "" if selected is choices[0] else f"{key(func)}: {selected.label}")
    variants = (decided(specialize(func, v), target, v) for v in named(selected.plan).cases(structure, target))
    return (own, *_threads(func, selected, target), *(c for candidate in variants for c in candidate))


def _threads(func: PrimFunc, selected: Candidate, target: Target) -> Iterator[Chosen]:
    """The decision between one thread and all threads for a function; nothing for targets with one thread and functions
    with symbols, where it is not a decision."""
    if target.threads == 1 or func.symbols:
        return
    about = key_of_function(func, target, "threads")
    alone = runs_alone(lambda: about, func, selected, target)
    usual = selected.cycles < BARRIERS * target.barrier
    yield Chosen(Scheduled(about.name), "" if alone == usual else f"{key(func)}: {'alone' if alone else 'shared'}")


def may_differ(func: PrimFunc, target: Target) -> bool:
    """Whether a function, or a variant of it, may be scheduled by another candidate than the best-estimated one:
    decisions are listed, some are forced, or a record exists."""
    context = current()
    if context is None:
        return False
    if context.listing or context.forced:
        return True
    # All are asked, whatever the first one says: what is asked is what a cached program depends on.
    said = [context.ask(name) for name in _names(func, target)]
    return any(said)


def _names(func: PrimFunc, target: Target) -> Iterator[str]:
    """The names of all possible decisions about a function and its variants, by any plan."""
    for _, version in versions_of(func):
        yield from _names_of_version(version, target)


def _names_of_version(func: PrimFunc, target: Target) -> Iterator[str]:
    yield key_of_function(func, target).name
    if target.threads > 1 and not func.symbols:
        yield key_of_function(func, target, "threads").name
    if func.symbols:
        structure = analyse(func)
        cases = [v for p in plans_for(target) if p.fits(structure, target) for v in p.cases(structure, target)]
        for values in {tuple(v.items()): v for v in cases}.values():
            yield from _names(specialize(func, values), target)


def candidates(structure: Structure, target: Target) -> list[Candidate]:
    """The settings of all plans that fit a function of this structure on `target`, the best estimate first; those of
    plans that another one refines come last."""
    if unscheduled.PLAN.fits(structure, target):
        return [replace(c, plan=unscheduled.PLAN.name) for c in unscheduled.PLAN.candidates(structure, target)]
    fitting = [p for p in plans_for(target) if p.fits(structure, target)]

    def rank(target: Target) -> list[Candidate]:
        # Sketches that are asked for alone may have no tile for a function.
        return _ranked(_offered(fitting), structure, target) or _ranked(fitting, structure, target)

    if structure.func.symbols:
        return rank(target)
    return list(alone_if_small(rank, lambda c: c.cycles, target))


def _choices(structure: Structure, target: Target) -> list[Candidate]:
    """The candidates of a function, remembered by its structure: a model has many layers several times, and a tuner
    compiles it hundreds of times with one of its decisions changed."""
    about = key(structure.func), target, flags.SKETCHES(), extended(PLANS)
    with _lock:
        known = _known.get(about)
    if known is None:
        known = candidates(structure, target)
        with _lock:
            while len(_known) >= MAX_KNOWN:
                del _known[next(iter(_known))]
            _known[about] = known
    return list(known)


MAX_KNOWN = 1024
"""The largest number of functions whose candidates are remembered."""
_known: dict[tuple[str, Target, str, tuple[Plan, ...]], list[Candidate]] = {}
_lock = threading.Lock()


def _ranked(fitting: list[Plan], structure: Structure, target: Target) -> list[Candidate]:
    """The candidates of the plans `fitting` for a function, the best estimate first; those of plans that another one
    refines come last."""
    refined = {name for p in fitting for name in p.refines}
    fitting.sort(key=lambda p: p.name in refined)
    ranked = [(p.name in refined, replace(c, plan=p.name)) for p in fitting for c in p.candidates(structure, target)]
    # A plan's own order stands where sums differ by rounding only.
    ranked.sort(key=lambda option: (option[0], float(f"{option[1].cycles:.9g}")))
    return [c for _, c in ranked]


ANYTHING = (elementwise.PLAN.name, rows.PLAN.name, sketch.PLAN.name)
"""The names of general plans. If no plan for a special kind fits, sketches (schedules by rules) compete with the
others."""


def _offered(fitting: list[Plan]) -> list[Plan]:
    """The plans that compete, among those that fit; TILEWRIGHT_SKETCHES says whether sketches take part."""
    asked = flags.SKETCHES()
    if asked == "alone" and sketch.PLAN in fitting:
        return [sketch.PLAN]
    planned = any(p.name not in ANYTHING for p in fitting)
    if asked == "never" or (planned and asked == "unplanned"):
        return [p for p in fitting if p is not sketch.PLAN]
    return fitting


def _decide(about: Callable[[], Key], choices: list[Candidate]) -> Candidate:
    return decide(about, choices, lambda c: c.setting, lambda c: c.cycles)


__all__ = [
    "PLANS",
    "Candidate",
    "Plan",
    "Planned",
    "candidates",
    "decided",
    "estimate",
    "extended",
    "may_differ",
    "plan",
    "register",
    "shared_cycles",
    "waiting",
]
