"""`tilewright store list|info|sweep`: the weight stores of this node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import Exit, JsonOption, bytes_text, facts, is_quiet, out, print_json, table, time_text
from tilewright.cli.publish import DirectoryOption, StoreName
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.live.store import StoreInfo

store = typer.Typer(
    name="store",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@store.callback()
def about() -> None:
    """Look at the weight stores of this node, and sweep those that nothing uses.

    A store is a folder in shared memory that a publisher writes and actors read; `tilewright publish` makes one.

    ```
    tilewright store list
    tilewright store info policy --verify
    tilewright store sweep --dry-run
    ```
    """


@store.command("list")
def list_command(directory: DirectoryOption = None, json: JsonOption = False) -> None:
    """Show all stores: version, its age, publisher, readers, memory.

    ```
    tilewright store list
    tilewright store list --directory /dev/shm/experiment --json
    ```
    """
    from tilewright.live.store import stores

    result = stores(directory)
    if json:
        print_json([_fields(each) for each in result])
        return
    if not result:
        out.print(f"no stores in {_root(directory)}")
        return
    columns = ["store", "program", "version", "age", "publisher", "readers", "memory", ""]
    table("", columns, [_row(each) for each in result], left=2)


def _row(each: StoreInfo) -> list[object]:
    program = each.details.get("program", "-")
    version = each.version if each.version >= 0 else "-"
    age = time_text(each.age) if each.version >= 0 else "-"
    remark = each.problem.splitlines()[0] if each.problem else "leftovers" if each.leftovers else ""
    return [each.name, program, version, age, each.publisher or "-", len(each.readers), bytes_text(each.nbytes), remark]


@store.command("info")
def info_command(
    name: StoreName,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the newest version with its checksum.")] = False,
    directory: DirectoryOption = None,
    json: JsonOption = False,
) -> None:
    """Show one store: its program, its slots, and how far each of its readers is.

    Exit code 3 if the store cannot be used or, with --verify, if the newest version does not match its checksum.

    ```
    tilewright store info policy
    tilewright store info policy --verify --json
    ```
    """
    from tilewright.live.store import info

    result = info(name, directory, verify=verify)
    if json:
        print_json(_fields(result))
    else:
        _print(result, verify)
    if result.problem:
        raise typer.Exit(Exit.MISMATCH)


def _print(result: StoreInfo, verify: bool) -> None:
    details = result.details
    rows: dict[str, object] = {"store": f"{result.name} in {result.path.parent}"}
    if result.problem:
        rows["problem"] = result.problem
    if result.version >= 0:
        rows["version"] = f"{result.version}, published {time_text(result.age)} ago" + (
            f" in {time_text(details['seconds'])}" if details.get("seconds") is not None else ""
        )
    if verify and not result.problem:
        rows["checksum"] = "as it was published"
    rows["publisher"] = f"process {result.publisher}" if result.publisher else "none now"
    if details:
        rows["program"] = f"{details['program']} for {details['target']}, structure {details['structure']}"
        rows["slots"] = _slots(details["slots"])
        rows["a version takes"] = bytes_text(details["nbytes"])
    rows["memory in all"] = bytes_text(result.nbytes)
    if result.leftovers:
        rows["leftovers"] = "  ".join(result.leftovers) + " (the next publisher, or a sweep, removes them)"
    facts(rows)
    readers = details.get("readers", [])
    if readers:
        out.print()
        columns = ["reader", "attached for", "calls", "version", "behind", "in a call"]
        table("", columns, [_reader(r) for r in readers])


def _slots(slots: list[dict[str, Any]]) -> str:
    used = [f"{s['version'] if s['version'] is not None else ''} {s['state']}".strip() for s in slots]
    free = used.count("free")
    return ", ".join([text for text in used if text != "free"] + ([f"{free} free"] if free else []))


def _reader(r: dict[str, Any]) -> list[object]:
    known = [r["version"], r["behind"]] if r["version"] is not None else ["-", "-"]
    return [r["process"], time_text(r["attached"]), r["calls"], *known, "yes" if r["pins"] else "no"]


@store.command("sweep")
def sweep_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Look at this store alone.")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would go.")] = False,
    directory: DirectoryOption = None,
    json: JsonOption = False,
) -> None:
    """Remove stores that have no publisher, no readers and no broker, and what dead publishers left in the others.

    Stores in use are not touched: each process that uses one holds a lock, which the system releases however the
    process ends. A store whose publisher has ended and that no actor reads is removed too, with its last version.

    ```
    tilewright store sweep --dry-run
    tilewright store sweep
    tilewright store sweep policy
    ```
    """
    from tilewright.live.store import sweep

    with progress("sweep", enabled=not is_quiet(json)):
        swept = sweep(directory, name, dry=dry)
    total = sum(each.nbytes for each in swept)
    if json:
        rows = [{"path": str(each.path), "bytes": each.nbytes} for each in swept]
        print_json({"dry": dry, "bytes": total, "removed": rows})
        return
    if not swept:
        out.print("nothing to sweep")
        return
    table("", ["would go" if dry else "removed", "memory"], [[each.path, bytes_text(each.nbytes)] for each in swept])
    out.print(f"{bytes_text(total)} {'would be' if dry else ''} freed".replace("  ", " "))


def _root(directory: Path | None) -> str:
    from tilewright.support import flags

    return os.fspath(directory or flags.STORE_DIR())


def _fields(result: StoreInfo) -> dict[str, Any]:
    return {
        "name": result.name,
        "path": str(result.path),
        "publisher": result.publisher,
        "problem": result.problem,
        "version": result.version,
        "age": result.age,
        "bytes": result.nbytes,
        "leftovers": list(result.leftovers),
        "details": result.details,
    }
