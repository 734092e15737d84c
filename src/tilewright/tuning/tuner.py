"""The tuner: from a model to settings that are verified to be faster in it, level by level.

    listed decisions -> sites -> search (halving by descent, candidates of all sites in one program) -> finals of each
    site -> a race of the whole model -> accepted, or the incumbent stays

Steps are timed inside the model, so that one program can try another setting of each site at once, and the data a
kernel reads is cached as in deployment. Measurements are written to the journal before they are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from tilewright.ir.key import digest
from tilewright.support.classes import dataclass
from tilewright.support.errors import Error
from tilewright.tuning.journal import Journal, Turns
from tilewright.tuning.programs import Built, Listed, Maker, changed, fed
from tilewright.tuning.recording import Finding, Memory, Seeds
from tilewright.tuning.result import Progress, Row, Tuned
from tilewright.tuning.search import FINALISTS, Descent, Policy
from tilewright.tuning.significance import MIN_GAIN, MODEL_GAIN, NONE, Gain, gain, slowness, there_and_back
from tilewright.tuning.sites import MIN_SHARE, Part, Site, codes, sites, split, together, window
from tilewright.tuning.workers import Races, Timed

SIDE_BY_SIDE = 5
"""The number of candidates that race with the incumbent at once."""
SEARCH_ROUNDS = 6
"""Turns of each contender in a search; two make one round, there and back. With three rounds there is a median, so that
a disturbance of one of them does not count."""
FINAL_RACES, MAX_RACES, FINAL_ROUNDS = 3, 8, 6
"""Races of a site's finalists, each with programs loaded anew, and their rounds: so many at least, and further ones
while it is not decided whether a gain is worth the change."""
WORTH = 0.0005
"""The share of a call's time that a setting must promise to save to be raced again. Ten that save so much are a gain of
the whole model that can be verified; searches name several as promising by chance for each that is."""
SURELY_LESS = 0.5
"""Accepted settings whose own gains amount to less than this part of the least gain of a model are not raced in the
model."""
MODEL_RACES = 4
"""The most races of the whole model while they do not decide whether it is faster."""
KERNELS_REACH = 2.0
"""The reach of a kernel's alternatives (`Policy.reach`): their estimates hold better than those of algorithms.
ResNet-50's and IMP's 37 kernels take 1.1 to 5.2 times as long by another plan where 2.3 to 4 are estimated (Zen 4,
2026-11-26)."""
LEVELS = ("algorithms and layouts", "kernels")


@dataclass(slots=True)
class _Search:
    """The search at one site, with what is known about it: its share of a call's time, outcomes of settings, a record's
    decision, and the winner."""

    site: Site
    search: Descent
    share: float = 1.0
    outcomes: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    closed: bool = False
    exhausted: bool = False
    decided: str | None = None
    winner: str = ""
    gain: Gain = NONE

    @property
    def other(self) -> str:
        """The best label other than the incumbent by estimates or, if there is a record, its setting."""
        if self.decided is not None and self.decided != self.site.incumbent:
            return self.decided
        return self.site.decision.runners_up[0][0].label


Bundle = dict[str, str]
"""A candidate setting for each of some sites, tried in one program: a site's name -> a label."""
Wanted = tuple[str, str]
"""A candidate: a site's name and a label."""


class Tuner:
    """One tuning run.

    Args:
        maker: compiles candidates.
        races: times them.
        journal: earlier measurements.
        sizes: the values of symbolic sizes in the timed call.
        memory: records. Of a site that they decide, here or in another model, the setting is verified in this one, and
            nothing else is timed; those of decisions like it are what a search begins with. What is found is kept as
            soon as its level is verified.
        policy: how far searches go.
        seconds: after which no further search begins; what was found is verified still.
        announce: called with the progress.
        clock: the time now, in seconds.
    """

    def __init__(
        self,
        maker: Maker,
        races: Races,
        journal: Journal,
        *,
        sizes: Mapping[str, int] | None = None,
        memory: Memory | None = None,
        policy: Policy | None = None,
        seconds: float = float("inf"),
        announce: Callable[[Progress], None] = lambda _progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.maker = maker
        self.races = races
        self.journal = journal
        self.sizes = sizes or {}
        self.memory = memory
        self.policy = policy or Policy()
        self.announce = announce
        self.clock = clock
        self.start = clock()
        self.end = self.start + seconds
        self.accepted: Bundle = {}
        self.rows: list[Row] = []
        self.total = NONE
        self.causes: list[str] = []
        self.findings: list[Finding] = []
        self._ratios: tuple[tuple[float, ...], ...] = ()
        self._timed = 0
        self._clashes: set[frozenset[str]] = set()
        """Pairs of sites, by their names, whose parts could not be distinguished in one program."""

    def run(self, untuned: Listed) -> Tuned:
        """Tune. If time is up or the user interrupts, the result is what has been verified by then."""
        interrupted = False
        incumbent = untuned
        try:
            for level in LEVELS:
                won = self._level(level, incumbent)
                if won:
                    incumbent = self.maker.listed(self.accepted)
        except KeyboardInterrupt:
            interrupted = True
        return Tuned(
            dict(self.accepted),
            tuple(self.rows),
            self.total,
            self._ratios,
            self._timed,
            self.clock() - self.start,
            interrupted,
            tuple(dict.fromkeys(self.causes)),
            findings=tuple(self.findings),
        )

    # -- one level -----------------------------------------------------------------------------------------------------

    def _level(self, level: str, incumbent: Listed) -> bool:
        """Tune one level: search, finals and the race of the whole model. Returns whether settings were accepted."""
        kernels = level == LEVELS[-1]
        results = [s for s in sites(incumbent, self.sizes) if s.is_kernel == kernels]
        if not results:
            return False
        shares = self._shares(incumbent.built)
        searches = {}
        for site in results:
            share = 1.0 if site.steps is None else sum(shares[k] for k in site.steps)
            searched = self._searched(site, share) if share >= MIN_SHARE else None
            if searched is not None and (searched.decided is not None or not self._only_decided):
                searches[site.name] = searched
        unknown = [s for s in searches.values() if s.site.steps is None]
        for kind in dict.fromkeys(s.site.decision.key.kind for s in unknown):
            self._find_steps([s for s in unknown if s.site.decision.key.kind == kind], incumbent.built, shares)
        for s in searches.values():
            stored = None if s.site.is_kernel else self.journal.result(_steps_of(s.site))
            if stored is not None:
                self._widen(s, frozenset(stored["steps"]), shares)
        self._search(level, {name: s for name, s in searches.items() if s.decided is None}, incumbent.built)
        self._finals(level, searches, incumbent.built)
        won = {name: s.winner for name, s in searches.items() if s.winner}
        accepted, error = self._accept(incumbent.built, won, searches) if won else ({}, 0.0)
        self.rows += [_row(level, s, name in accepted) for name, s in searches.items()]
        for name, s in searches.items():
            # A search that was cut off knows no best one, and what a record of this compiler decided is known.
            told = s.decided is None or self._only_decided
            if s.outcomes and told and (name in accepted or self._left() > 0):
                finding = self._finding(s, accepted.get(name), error)
                self.findings.append(finding)
                if self.memory is not None:
                    self.memory.keep(finding)
        self.accepted |= accepted
        return bool(accepted)

    @property
    def _only_decided(self) -> bool:
        return self.memory is not None and self.memory.only_decided

    def _finding(self, s: _Search, accepted: str | None, error: float) -> Finding:
        key = s.site.name, s.site.incumbent
        races = {label: self.journal.turns(*key, label) for label in s.outcomes}
        turns = {label: [t for race in candidate for t in race.after] for label, candidate in races.items()}
        turns[s.site.incumbent] = [t for candidate in races.values() for race in candidate for t in race.before]
        finals = max([FINAL_RACES, *(len(self._final_turns(s, label)) for label in races)])
        return Finding(
            s.site.decision,
            accepted or s.site.incumbent,
            s.gain if accepted else NONE,
            s.outcomes,
            turns,
            s.why,
            finals * FINAL_ROUNDS,
            finals,
            (error, self.races.own_error),
        )

    def _searched(self, site: Site, share: float) -> _Search:
        d = site.decision
        resolved = None if self.memory is None else self.memory.decided(site)
        seeds = Seeds() if self.memory is None or resolved is not None else self.memory.seeds(site)
        policy = self.policy
        if d.key.kind == "ahead":  # estimates do not tell which of those before it prefetches for a kernel
            policy = replace(policy, first=1)  # the nearest
        elif site.is_kernel:
            policy = replace(policy, reach=min(policy.reach, KERNELS_REACH))
        search = Descent(d.space, d.estimates, policy, seeds.labels, site.incumbent, seeds.close)
        return _Search(site, search, share, decided=resolved if resolved in d.space.labels else None)

    def _shares(self, built: Built) -> list[float]:
        """The share of a call's time that each step of a program takes, measured or from the journal."""
        stored = self.journal.result("shares")
        if stored is not None and stored.get("kernels") == list(built.kernels):
            return [float(x) for x in stored["shares"]]
        (timed,) = self.races.steps([built], 3)
        self._must(timed)
        medians = [sorted(column)[len(column) // 2] for column in zip(*timed.rounds, strict=True)]
        total = sum(medians) or 1.0
        shares = [m / total for m in medians]
        self.journal.keep("shares", {"kernels": list(built.kernels), "shares": shares})
        return shares

    def _find_steps(self, searches: Sequence[_Search], incumbent: Built, shares: Sequence[float]) -> None:
        """Find which steps of the program `incumbent` each decision changes by compiling few programs: in each, the
        decisions of a different subset have another setting, so that the subsets whose programs change a step identify
        its decision.

        Each site, one of `searches`, has a set of programs of its own (`codes`), in which it has the other setting. The
        steps that differ in all of these count as the site's; some may be steps that several other sites change, which
        only means that fewer sites share a program later. A site whose steps take no time, by their `shares`, is not
        searched. If the settings of a program do not compile together, no steps are assigned: then candidates that are
        tried alone show which steps they change.
        """
        own = codes(len(searches))
        programs = sorted(frozenset().union(*own))
        if len(programs) >= len(searches):
            return
        seen: dict[int, set[int]] = {}
        fed_in: dict[int, set[int]] = {}
        for number in programs:
            other = {s.site.name: s.other for s, code in zip(searches, own, strict=True) if number in code}
            try:
                built = self.maker.built({**incumbent.forced, **other})
            except Error:
                return
            for step in changed(incumbent.kernels, built.kernels)[0]:
                seen.setdefault(step, set()).add(number)
            for step in fed(incumbent, built):
                fed_in.setdefault(step, set()).add(number)
        for s, code in zip(searches, own, strict=True):
            steps, readers = (
                frozenset(step for step, numbers in candidate.items() if code <= numbers)
                for candidate in (seen, fed_in)
            )
            s.share = sum(shares[k] for k in steps | readers)
            s.site = replace(s.site, steps=window(s.site.decision.key.kind, steps, readers))
            s.closed = s.share < MIN_SHARE or not s.site.steps

    def _must(self, timed: Timed) -> None:
        if timed.outcome != "timed":
            raise Error(f"nothing was measured: the untuned program is {timed.outcome}: {timed.why}")

    # -- search --------------------------------------------------------------------------------------------------------

    def _search(self, level: str, searches: Mapping[str, _Search], incumbent: Built) -> None:
        """Time the labels that the searches request until they request no more or time is up."""
        while True:
            # What a layout changes is not known before it is tried alone, if `_find_steps` did not say it.
            asked = {n: self._ask(s, 1 if s.site.steps is None else SIDE_BY_SIDE) for n, s in searches.items()}
            wanted = _pairs(asked)
            if not wanted or self.clock() > self.end:
                return
            self._progress(level, searches, wanted[0][1])
            self._time(wanted, searches, incumbent, SEARCH_ROUNDS)

    def _ask(self, s: _Search, count: int) -> list[str]:
        """At most `count` labels to time at a site. The search is told the times that the journal has, until it
        requests unknown ones."""
        while labels := [] if s.closed else s.search.ask(count):
            unknown = [label for label in labels if not self._known(s, label)]
            if unknown:
                return unknown
        s.exhausted = True
        return []

    def _known(self, s: _Search, label: str) -> bool:
        key = s.site.name, s.site.incumbent, label
        failed, turns = self.journal.failure(*key), self.journal.turns(*key)
        if failed is not None:
            s.outcomes[label], s.why[label] = failed
            self.causes.append(failed[1])
            s.search.tell(label, float("inf"))
        elif turns:
            s.outcomes[label] = "timed"
            s.search.tell(label, slowness(there_and_back(turns[0].gains)))
        return failed is not None or bool(turns)

    def _time(self, wanted: Sequence[Wanted], searches: Mapping[str, _Search], incumbent: Built, rounds: int) -> None:
        """Time candidates (site, label) in `rounds` rounds, as many sites as possible in one program. Candidates whose
        effects cannot be separated go to different programs; a program that fails is halved, until each candidate has
        an outcome."""
        waiting, sides = list(wanted), list[Bundle]()
        while waiting or sides:
            packed = together([(searches[name].site, label) for name, label in waiting], self._clashes)
            now, waiting = [*sides, *packed][:SIDE_BY_SIDE], _loose(packed[max(SIDE_BY_SIDE - len(sides), 0) :])
            sides = sides[SIDE_BY_SIDE:]
            ready: list[tuple[Bundle, Built, dict[str, Part]]] = []
            for bundle in now:
                created = self._build(bundle, searches, incumbent)
                if isinstance(created, str):
                    sides += self._split(bundle, searches, "refused", created)
                    continue
                built, result, separate = created
                missing = {n: label for n, label in bundle.items() if n not in result}
                if result:
                    ready.append((bundle, built, result))
                if separate:
                    self._clashes |= separate
                    waiting += missing.items()
                elif len(missing) == 1 < len(bundle):
                    sides.append(missing)
                elif missing:
                    sides += self._split(missing, searches, "refused", "its steps cannot be found in the program")
            if not ready:
                continue
            first, *others = self.races.steps([incumbent, *(built for _, built, _ in ready)], rounds)
            self._must(first)
            for (bundle, _, result), timed in zip(ready, others, strict=True):
                if timed.outcome != "timed":
                    told = {name: bundle[name] for name in result}
                    sides += self._split(told, searches, timed.outcome, timed.why)
                    continue
                for name, part in result.items():
                    self._learn(searches[name], part, first)
                    times = part.times(first.rounds, after=False), part.times(timed.rounds, after=True)
                    self._tell(searches[name], bundle[name], Turns(*map(tuple, times)))

    def _learn(self, s: _Search, part: Part, incumbent: Timed) -> None:
        """Note which steps the candidate's part changes, if they were not known to belong to the site. The search ends
        if they take too little time."""
        if s.site.steps is not None and part.before <= s.site.steps:
            return
        total = sum(map(sum, incumbent.rounds)) or 1.0
        self._widen(s, part.before, [sum(column) / total for column in zip(*incumbent.rounds, strict=True)])
        self.journal.keep(_steps_of(s.site), {"steps": sorted(s.site.steps or ())})

    def _widen(self, s: _Search, steps: frozenset[int], shares: Sequence[float]) -> None:
        """Add `steps` to those that a site changes, and their shares of the time to the site's."""
        known = s.site.steps or frozenset()
        share = sum(shares[k] for k in steps - known)
        s.share = share if s.site.steps is None else s.share + share
        s.site = replace(s.site, steps=steps | known)
        s.closed = s.share < MIN_SHARE

    def _build(
        self, bundle: Bundle, searches: Mapping[str, _Search], incumbent: Built
    ) -> tuple[Built, dict[str, Part], set[frozenset[str]]] | str:
        """Build a program with the settings of `bundle`. Returns (the program, the part of it that each site changed
        where that is known, pairs of sites whose changes cannot be told from each other); or a text with the reason why
        it failed."""
        results = [searches[name].site for name in bundle]
        try:
            built = self.maker.built({**incumbent.forced, **bundle})
        except Error as error:
            return error.headline()
        divided = split(results, incumbent, built)
        known = {site.name: part for site, part in zip(results, divided.parts, strict=True) if part is not None}
        return built, known, {frozenset((results[a].name, results[b].name)) for a, b in divided.tangled}

    def _split(self, bundle: Bundle, searches: Mapping[str, _Search], outcome: str, why: str) -> list[Bundle]:
        """After `bundle` failed: its two halves, to be tried separately; none for a single setting, whose `outcome` is
        noted with the reason `why`."""
        names = list(bundle)
        if len(names) > 1:
            half = len(names) // 2
            return [{n: bundle[n] for n in names[:half]}, {n: bundle[n] for n in names[half:]}]
        s, label = searches[names[0]], bundle[names[0]]
        self.journal.failed(s.site.name, s.site.incumbent, label, outcome, why)
        s.outcomes[label], s.why[label] = outcome, why
        self.causes.append(why)
        s.search.tell(label, float("inf"))
        return []

    def _tell(self, s: _Search, label: str, turns: Turns) -> None:
        self.journal.timed(s.site.name, s.site.incumbent, label, turns)
        if label not in s.outcomes:  # finals tell nothing to a search that is over
            self._timed += 1
            s.search.tell(label, slowness(there_and_back(turns.gains)))
        s.outcomes[label] = "timed"

    # -- finals and acceptance -----------------------------------------------------------------------------------------

    def _finals(self, level: str, searches: Mapping[str, _Search], incumbent: Built) -> None:
        """Race the best settings of each site again, and note the winners. Only these races decide: the search's own
        times favour the setting that they chose."""
        finalists = {name: _finalists(s) for name, s in searches.items()}
        for race in range(MAX_RACES):
            if not self._may_gain(finalists, searches):
                break
            wanted = {n: [x for x in ls if self._wanted(searches[n], x, race)] for n, ls in finalists.items()}
            if any(wanted.values()):
                self._progress(level, searches, f"finals, race {race + 1} of {FINAL_RACES} to {MAX_RACES}")
                self._time(_pairs(wanted), searches, incumbent, FINAL_ROUNDS)
        for name, labels in finalists.items():
            s = searches[name]
            turns = {x: self._final_turns(s, x) for x in labels if s.outcomes.get(x, "timed") == "timed"}
            shown = {label: gain(races) for label, races in turns.items() if races}
            best = max(shown.values(), key=lambda g: g.median, default=NONE)
            if best.verified:
                # Of winners between which races show no difference the one that estimates prefer: always the same.
                tied = [x for x in shown if shown[x].verified and shown[x].high >= best.low]
                s.winner = min(tied, key=s.search.rank)
                s.gain = shown[s.winner]

    def _may_gain(self, finalists: Mapping[str, Sequence[str]], searches: Mapping[str, _Search]) -> bool:
        """Whether all finalists together may give a verifiable gain of the whole model: the sum of their gains, plus
        the root of the sum of squares of what their intervals leave open. Before the first race the search's times
        count; a record's setting that was not raced always may."""
        likely, spread = 0.0, 0.0
        for name, labels in finalists.items():
            s = searches[name]
            chances = []
            for label in labels:
                turns = self._final_turns(s, label)
                if not turns and s.decided is not None:
                    return True
                shown = gain(turns) if turns else Gain(1 / s.search.times[label], 1.0, 1 / s.search.times[label])
                saved = 1 - 1 / max(shown.median, 1.0)
                chances.append((s.share * saved, s.share * (1 - 1 / max(shown.high, 1.0) - saved)))
            most = max(chances, key=sum, default=(0.0, 0.0))
            likely, spread = likely + most[0], spread + most[1] ** 2
        return likely + math.sqrt(spread) >= 1 - 1 / MODEL_GAIN

    def _wanted(self, s: _Search, label: str, race: int) -> bool:
        """Whether finalist `label` takes part in race number `race`. All take part in the first; later only finalists
        whose gain may matter for the model, and in the last ones only finalists that are undecided."""
        turns = self._final_turns(s, label)
        if len(turns) > race or not turns:
            return len(turns) <= race
        result = gain(turns)
        # The rounds of a single loading do not show how far the place of memory moves them.
        hopeless = result.high <= (1.0 if race == 1 else MIN_GAIN) or s.share * (1 - 1 / result.high) < WORTH
        return not hopeless and (race < FINAL_RACES or result.undecided)

    def _final_turns(self, s: _Search, label: str) -> list[tuple[float, ...]]:
        """The gains of a label in its final races, without the race of the search itself."""
        searched = 1 if s.decided is None else 0
        return [there_and_back(t.gains) for t in self.journal.turns(s.site.name, s.site.incumbent, label)[searched:]]

    def _accept(self, incumbent: Built, won: Bundle, searches: Mapping[str, _Search]) -> tuple[Bundle, float]:
        """(settings, difference): the settings of `won` with which the whole model is verified to be faster, all or
        else the half that saves most, and the largest difference of the model's outputs from the exact ones. No
        settings if neither is faster."""
        saving = {name: searches[name].share * (1 - 1 / searches[name].gain.median) for name in won}
        ranked = sorted(won, key=lambda name: -saving[name])
        trials = [ranked] if len(ranked) == 1 else [ranked, ranked[: (len(ranked) + 1) // 2]]
        for names in trials:
            if sum(saving[name] for name in names) < SURELY_LESS * (1 - 1 / MODEL_GAIN):
                continue
            chosen = {name: won[name] for name in names}
            self.announce(Progress("the whole model", 0, 0, self._left(), self.total.median, f"{len(names)} settings"))
            try:
                built = self.maker.built({**incumbent.forced, **chosen})
            except Error as error:
                self.causes.append(error.headline())
                continue
            result, loadings, off = self._raced(incumbent, built)
            if loadings and 1.0 <= result.median <= MODEL_GAIN:
                break  # nothing here spoils the others' gain: a part of them would save less
            if result.improves:
                self._ratios = loadings
                old = self.total
                self.total = Gain(result.median * old.median, result.low * old.low, result.high * old.high)
                return chosen, off
        return {}, 0.0

    def _raced(self, incumbent: Built, built: Built) -> tuple[Gain, tuple[tuple[float, ...], ...], float]:
        """Race the whole model as built with new settings, `built`, against `incumbent`. Returns the gain, the ratios
        by loading and the challenger's error. The race goes on while more loadings may decide it; a small gain is
        accepted only if a second race confirms it."""
        loadings, off = self._verified(incumbent, built)
        result = gain(loadings)
        if result.improves and result.disturbed:  # no gain is taken from such a race alone
            repeated, off = self._verified(incumbent, built, "again ")
            loadings = (*loadings, *repeated)
            return gain(repeated if gain(repeated).median < result.median else loadings), loadings, off
        for turn in range(1, MODEL_RACES):
            small = result.improves and not result.verified and result.low < MODEL_GAIN
            if not (result.open or (small and turn == 1)) or self.clock() > self.end:
                break
            more, off = self._verified(incumbent, built, f"{turn + 1} ")
            if not more:
                return NONE, (), 0.0
            loadings = (*loadings, *more)
            result = gain(loadings)
        return result, loadings, off

    def _verified(self, incumbent: Built, built: Built, turn: str = "") -> tuple[tuple[tuple[float, ...], ...], float]:
        """(ratios of a whole-model race of `built` against `incumbent` by loading, the error of `built`) from the
        journal, or measured now; ((), 0.0) if the race failed. `turn` distinguishes repeated races."""
        name = f"race {turn}{digest([repr(sorted(b.forced.items())) for b in (incumbent, built)])}"
        stored = self.journal.result(name)
        if stored is not None:
            return tuple(tuple(rounds) for rounds in stored["loadings"]), stored["error"]
        loadings, state = self.races.verify(incumbent, built)
        if state.outcome != "timed":
            self.causes.append(state.why)
            return (), 0.0
        self.journal.keep(name, {"loadings": [list(rounds) for rounds in loadings], "error": state.error})
        return loadings, state.error

    # -- progress ------------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return max(0.0, self.end - self.clock())

    def _progress(self, level: str, searches: Mapping[str, _Search], what: str) -> None:
        done = sum(s.search.measured for s in searches.values())
        most = sum(self._most(s) for s in searches.values())
        self.announce(Progress(level, done, most, self._left(), self.total.median, what))

    def _most(self, s: _Search) -> int:
        """How many candidates a search will have timed at most; once it is over, how many it has."""
        if s.closed or s.exhausted or s.decided is not None:
            return s.search.measured
        # Alternatives that estimates do not leave are timed, too.
        return max(min(self.policy.most, len(s.search.allowed)), s.search.measured)


def _finalists(s: _Search) -> list[str]:
    """The labels for the final races: the search's best that save enough of the model's time, or only a record's
    setting."""
    if s.decided is not None:
        return [s.decided] if s.decided != s.site.incumbent else []
    return [x for x in s.search.finalists(FINALISTS) if s.share * (1 - s.search.times[x]) >= WORTH]


def _steps_of(site: Site) -> str:
    """The name under which the journal stores the steps that a decision was seen to change."""
    return f"steps {site.name} {site.incumbent}"


def _pairs(asked: Mapping[str, Sequence[str]]) -> list[Wanted]:
    return [(name, label) for name, labels in asked.items() for label in labels]


def _loose(bundles: Sequence[Bundle]) -> list[Wanted]:
    return [candidate for bundle in bundles for candidate in bundle.items()]


def _row(level: str, s: _Search, accepted: bool) -> Row:
    d = s.site.decision
    outcomes: dict[str, int] = {}
    for outcome in s.outcomes.values():
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return Row(
        s.site.name,
        d.key.text,
        level,
        s.share,
        len(d.space),
        outcomes,
        s.site.incumbent,
        s.winner or s.site.incumbent,
        s.gain,
        accepted,
    )
