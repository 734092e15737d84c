"""Parts that several commands share: exit codes, output as tables or JSON, options."""

from __future__ import annotations

import json as json_library
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.support.errors import Error, MissingPackageError, TargetError
from tilewright.support.options import check_choice

if TYPE_CHECKING:
    from tilewright.ir.dim import Dim
    from tilewright.targets.target import Target

# Where there is no terminal to fit, tables are as wide as they like.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)


class Exit(IntEnum):
    """Exit codes of the program."""

    OK = 0
    ERROR = 1
    USAGE = 2
    MISMATCH = 3
    MISSING = 4
    INTERNAL = 70
    INTERRUPTED = 130


ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, help="Threads of one call at most. [default: TILEWRIGHT_THREADS or 1]"),
]
PackThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, help="Threads that pack weights. [default: TILEWRIGHT_THREADS or 1]"),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        "-d",
        metavar="NAME=N|LO..HI",
        help="A symbolic dimension is one size, `--dim batch=8`, or what is known of it: `--dim seq=1..512@32,64` (32 "
        "and 64 are likely), `--dim height=32..640/32` (multiples of 32). Of a .tw file: the size in calls. May be "
        "repeated.",
    ),
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="auto|INPUT=OUTPUT",
        help="Caches that callers keep (keys and values of a decoder): `auto`, those that exporters name so, or the "
        "input and the output that is its longer self. May be repeated. The file is called through `model.state()`.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="int8",
        help="Caches of `--state` are kept as codes of 8 bits with a scale a vector: a quarter of the memory.",
    ),
]
RaggedOption = Annotated[
    str | None,
    typer.Option(
        "--ragged",
        metavar="BATCH,LENGTH",
        help="The symbols that count the sequences of a batch and the rows of each: sequences are packed, not padded.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="TYPE",
        help="The type in which products multiply: fp32, bf16, fp16, int8, or int8w, int4w (weights). [default: fp32]",
    ),
]
FastOption = Annotated[
    str | None,
    typer.Option(
        "--fast",
        metavar="WHICH",
        help="Fast algorithms: auto (within 2.5e-5 of a layer), exact (no), f2, f4, f6, strassen. [default: auto]",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="The instruction set, such as x86-64-v3; caches stay this machine's. [default: TILEWRIGHT_TARGET or host]",
    ),
]
CompilersOption = Annotated[
    str | None,
    typer.Option(
        "--compilers",
        metavar="NAME,...",
        help="Other compilers that plug-ins bring, which are asked in this order for what they take; `tilewright` last "
        "compiles what they refuse.",
    ),
]
RecordsOption = Annotated[
    str | None,
    typer.Option(
        "--records",
        metavar="FOLDER",
        help="Where tuning records are looked for; `none`: nowhere. [default: the user's, TILEWRIGHT_RECORDS]",
    ),
]
RequireRecordsOption = Annotated[
    bool, typer.Option("--require-records", help="Fail where an estimate would choose, as no record can be used.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
FallbackOption = Annotated[
    str,
    typer.Option(
        "--fallback",
        metavar="auto|never",
        help="Operators that Tilewright lacks: auto (others run them, with a warning), never (an error lists them).",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of random inputs.")]


def parse_compilers(text: str | None) -> tuple[str, ...]:
    """The names in `--compilers`."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def print_json(value: object) -> None:
    """Print dicts, lists and numbers as JSON on stdout."""
    print(json_library.dumps(value, indent=2, default=str))


def print_line(value: object) -> None:
    """Print dicts, lists and numbers as JSON on one line of stdout, at once."""
    print(json_library.dumps(value, default=str), flush=True)


def report_error(error: Error, *, json: bool = False) -> None:
    """Report an error: as text on stderr, or with `json` as JSON on stdout."""
    if json:
        print_json(error.to_dict())
    else:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)


class UsageError(Error):
    """An option has an invalid value, whatever the model and machine."""


def exit_code(error: Error) -> Exit:
    """The exit code of the program after this error."""
    if isinstance(error, UsageError):
        return Exit.USAGE
    return Exit.MISSING if isinstance(error, MissingPackageError) else Exit.ERROR


def refuse_unused(context: typer.Context, unused: Mapping[str, str]) -> None:
    """Raise a usage error if an option was passed that would have no effect here. `unused`: the reasons, by parameter
    name."""
    for name, why in unused.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"does nothing {why}", param_hint=f"--{name.replace('_', '-')}")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> None:
    """Print a table with this title of `rows`, a cell for each column: the first `left` columns are aligned left, the
    others (numbers) right."""
    grid = Table(title=title or None, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        grid.add_column(column, justify="left" if number < left else "right", overflow="fold", no_wrap=number < left)
    for row in rows:
        grid.add_row(*[Text(str(cell)) for cell in row])
    out.print(grid)


def facts(rows: Mapping[str, object]) -> None:
    """Print names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, Text(str(value)))
    out.print(grid)


def shape_text(dtype: str, shape: Sequence[object]) -> str:
    """A tensor type as text: `f32[batch, 17]`."""
    return f"{dtype}[{', '.join(map(str, shape))}]"


def bytes_text(count: float) -> str:
    """A number of bytes as text in a unit that suits it: 1234567 is "1.18 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def time_text(seconds: float) -> str:
    """A time as text in a unit that suits it: 0.0000123 seconds are "12.3 µs"."""
    if seconds != seconds:
        return "-"
    for scale, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 100 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds:.2f} s"


def parse_dims(texts: Sequence[str] | None, option: str = "--dim", expected: str = "NAME=N") -> dict[str, int]:
    """`["batch=8", "n=3"]` -> {"batch": 8, "n": 3}; otherwise a usage error of `option`, which takes what `expected`
    says."""
    dims: dict[str, int] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not (name and re.fullmatch(r"[0-9]{1,9}", value)):
            raise typer.BadParameter(f"{text!r}: expected {expected}", param_hint=option)
        dims[name] = int(value)
    return dims


_RANGE = re.compile(
    r"(?P<lo>[0-9]{1,9})\.\.(?P<hi>[0-9]{1,9})(?:/(?P<multiple>[0-9]{1,9}))?(?:@(?P<likely>[0-9,]{1,999}))?"
)


def parse_ranges(texts: Sequence[str] | None) -> dict[str, int | Dim]:
    """Dimensions like `parse_dims`, and ranges: "seq=1..512@32,64" (32 and 64 are likely), "h=32..640/32" (multiples of
    32)."""
    from tilewright.ir.dim import dim

    result: dict[str, int | Dim] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        parts = _RANGE.fullmatch(value)
        if parts is None or not name:
            result |= parse_dims([text], expected="NAME=N or NAME=LO..HI")
            continue
        likely = [int(n) for n in (parts["likely"] or "").split(",") if n]
        try:
            result[name] = dim(int(parts["lo"]), int(parts["hi"]), multiple=int(parts["multiple"] or 1), likely=likely)
        except Error as error:
            raise typer.BadParameter(f"{text!r}: {error}", param_hint="--dim") from None
    return result


def parse_state(texts: Sequence[str] | None) -> dict[str, str] | Literal["auto"] | None:
    """`["auto"]` -> "auto", `["past=present"]` -> {"past": "present"}; a usage error otherwise."""
    if not texts:
        return None
    if list(texts) == ["auto"]:
        return "auto"
    pairs = dict(text.partition("=")[::2] for text in texts)
    if len(pairs) != len(texts) or not all(name and value for name, value in pairs.items()):
        raise typer.BadParameter(f"{', '.join(texts)}: expected auto, or INPUT=OUTPUT", param_hint="--state")
    return pairs


def parse_ragged(text: str | None) -> tuple[str, str] | None:
    """The names of the dimensions in `--ragged BATCH,LENGTH`; None without the option. Raises BadParameter for other
    texts."""
    if text is None:
        return None
    batch, _, length = text.partition(",")
    if not batch or not length or "," in length:
        raise typer.BadParameter(f"{text}: expected BATCH,LENGTH", param_hint="--ragged")
    return batch, length


def on_host(target: str | None) -> Target | None:
    """The target that `--target` names; None without the option, which `tilewright.compile` treats as this machine."""
    from tilewright.targets.target import Target

    if target is None:
        return None
    try:
        Target.parse(target)
    except TargetError as error:
        raise UsageError(error.what, where="--target", expected=error.expected, got=error.got) from None
    return Target.on_host(target, "--target")


def accuracy(precision: str | None, fast: str | None) -> dict[str, Any]:
    """The options `precision` and `fast` as keyword arguments of `tilewright.compile`, without the ones that are None.
    Raises UsageError for an unknown value."""
    options = {name: value for name, value in (("precision", precision), ("fast", fast)) if value is not None}
    if options:
        from tilewright.ir.selection import PRECISIONS
        from tilewright.transform.graph.options import ERRORS

        for name, value in options.items():
            check_choice(name, value, tuple(ERRORS) if name == "fast" else PRECISIONS, UsageError)
    return options


def is_quiet(json: bool) -> bool:
    """Whether progress bars and remarks must not be printed."""
    return json or not sys.stderr.isatty()
