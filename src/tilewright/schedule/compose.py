"""Primitives made of primitives: a Python function that is one step of a schedule, done as a whole or not at all.

@te.primitive
def in_registers(stage, loop):
    copy = stage.cache_write("local")
    ...

in_registers(s[C], tile)      # refused: the schedule is as it was before, and the error says whose step it was
print(s.diff())               # what the last step, this one, changed
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import Stage, StageSchedule
from tilewright.schedule.state import refuse
from tilewright.support.errors import ScheduleError

P = ParamSpec("P")
R = TypeVar("R")
On = TypeVar("On", Stage, StageSchedule, Schedule)


def primitive(function: Callable[Concatenate[On, P], R]) -> Callable[Concatenate[On, P], R]:
    """Make a function whose first argument is a stage or a schedule a single step of the schedule, which is done as a
    whole or not at all."""
    name = function.__name__

    @wraps(function)
    def step(on: On, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not isinstance(on, Stage | StageSchedule | Schedule):
            raise ScheduleError(f"{name}: no stage or schedule", got=type(on).__name__)
        owner = on.owner if isinstance(on, Stage) else on
        schedule = owner if isinstance(owner, Schedule) else owner.schedule
        saved = schedule.copy()
        used = None if isinstance(owner, Schedule) else dict(owner.axes_used)
        try:
            result = function(on, *args, **kwargs)
        except ScheduleError as error:
            schedule.restore(saved)
            if isinstance(owner, StageSchedule) and used is not None:
                owner.axes_used = used
            raise refuse(
                schedule.func, f"{name}: {error.what}", expected=error.expected, got=error.got, hint=error.hint
            ) from error
        schedule.name_step(name, saved.func)
        return result

    return step


def difference(schedule: Schedule) -> str:
    """The removed and added lines of the program in a schedule's last step, after the step's name; the name alone if
    nothing changed."""
    name, before = schedule.last_step
    lines = difflib.unified_diff(str(before).splitlines(), str(schedule.func).splitlines(), n=2, lineterm="")
    changed = [line for line in list(lines)[2:] if not line.startswith("@@")]
    return "\n".join([name, *changed]) if changed else name
