"""A Postgres server for tests: Debian's, started in a folder of its own and reached by a socket in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = "postgres"


def binaries() -> Path | None:
    """The folder of the server's programs; None where there is no server."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if folders:
        return folders[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).parent


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database on a server that runs meanwhile."""
    programs = binaries()
    assert programs is not None
    # A server does not run as root; a socket's path has 107 characters at most.
    as_user = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="tw-postgres-"))
    try:
        if as_user:
            shutil.chown(folder, USER)
        data = folder / "data"
        subprocess.run(
            [*as_user, programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=200"
        command = [*as_user, programs / "pg_ctl", "-D", data, "-w", "-t", "60", "-o", options, "-l", folder / "log"]
        subprocess.run([*command, "start"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            subprocess.run([*command, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def emptied(url: str) -> str:
    """The URL after all tables of the database are gone."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url


__all__ = ["binaries", "emptied", "server"]
