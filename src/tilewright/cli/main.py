"""The program `tilewright`: its commands, and how an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from tilewright.cli.attach import attach
from tilewright.cli.bench import bench
from tilewright.cli.bench_serve import bench_serve
from tilewright.cli.broker import broker
from tilewright.cli.bundle import bundle
from tilewright.cli.common import Exit, exit_code, out, report_error
from tilewright.cli.compile import compile_command
from tilewright.cli.compress import compress
from tilewright.cli.coverage import coverage
from tilewright.cli.db import db
from tilewright.cli.doctor import doctor
from tilewright.cli.export import export
from tilewright.cli.farm import farm
from tilewright.cli.offer import offer
from tilewright.cli.opt import opt
from tilewright.cli.plan_serving import plan_serving
from tilewright.cli.profile import profile
from tilewright.cli.publish import publish
from tilewright.cli.quantize import quantize
from tilewright.cli.relay import relay
from tilewright.cli.run import run
from tilewright.cli.serve import serve
from tilewright.cli.show import show
from tilewright.cli.store import store
from tilewright.cli.tune import tune
from tilewright.support.errors import Error

EXIT_CODES = """
Exit codes: **0** done; **1** the model, its file, its inputs or the machine do not fit; **2** wrong usage of the
command line; **3** results differ from what was expected; **4** something optional that was asked for is not
installed; **70** a defect of Tilewright; **130** interrupted.
"""

app = typer.Typer(
    name="tilewright",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(asked: bool) -> None:
    if asked:
        import tilewright

        out.print(f"tilewright {tilewright.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def about(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """A compiler for neural networks: a model goes in, native code comes out.

    Begin with `tilewright bench model.onnx`, which compiles a model and races it against ONNX Runtime, and
    `tilewright compile model.onnx -o model.tw`, which writes one file that needs no compiler to run.
    """


app.command("compile")(compile_command)
app.command("run")(run)
app.command("show")(show)
app.command("opt")(opt)
app.command("export")(export)
app.command("bundle")(bundle)
app.command("coverage")(coverage)
app.command("bench")(bench)
app.command("profile")(profile)
app.command("tune")(tune)
app.command("quantize")(quantize)
app.command("compress")(compress)
app.add_typer(db)
app.add_typer(farm)
app.command("publish")(publish)
app.command("attach")(attach)
app.add_typer(store)
app.command("serve")(serve)
app.command("bench-serve")(bench_serve)
app.command("plan-serving")(plan_serving)
app.command("offer")(offer)
app.command("relay")(relay)
app.command("broker")(broker)
app.command("doctor")(doctor)


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        app()
    except Error as error:
        report_error(error, json="--json" in sys.argv)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except MemoryError:
        report_error(Error("there is not enough memory"), json="--json" in sys.argv)
        sys.exit(Exit.ERROR)
    except BrokenPipeError:
        # The reader of a pipe went away (`tilewright show ... | head`); nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OK)
    except OSError as error:
        # A full disk, a folder that may not be written: the machine's matter, not a defect.
        what = error.strerror or str(error)
        where = None if error.filename is None else str(error.filename)
        report_error(Error(what, where=where), json="--json" in sys.argv)
        sys.exit(Exit.ERROR)
    except Exception as error:
        traceback.print_exc()
        hint = "this is a defect of Tilewright, not of your input: please report it with the text above"
        report_error(Error(f"{type(error).__name__}: {error}", hint=hint), json="--json" in sys.argv)
        sys.exit(Exit.INTERNAL)


if __name__ == "__main__":
    main()
