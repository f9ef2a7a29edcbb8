"""`pipeline run`: run a project with Spark's runner of declarative pipelines.

The runner is started after project, packages and Java were found, and ends with the command.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

import click

from tickertape.cli.pipeline.session import error_line, require_spark, stop_signals_to
from tickertape.cli.support.command_group import EXIT_USAGE, Failure

SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
INSTALL: Final = "pip install 'tickertape[pipelines]'"
_PROGRESS: Final = re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+:? ")
"""How the runner begins a line about its progress."""
_ERROR: Final = re.compile(r"(?:[\w.]+: )?(\[[A-Z][A-Z0-9_.]+\].*)")
"""Form of Spark's errors: an optional class, a condition in brackets, and the text."""
_KEPT_LINES: Final = 500
_STOP_SECONDS: Final = 20.0
"""How long the runner has for its end before it is killed."""


class UserMistake(Failure):
    """A failure that the user can mend before anything is started."""

    exit_code = EXIT_USAGE


@click.command(short_help="Run a declarative pipeline project.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
@click.option("--dry-run", is_flag=True, help="Check the definitions, and read and write nothing.")
@click.option(
    "--refresh", "refreshed", multiple=True, metavar="TABLE", help="Update only this table; may be repeated."
)
@click.option(
    "--full-refresh",
    "recomputed",
    multiple=True,
    metavar="TABLE",
    help="Reset this table and compute it again; may be repeated.",
)
@click.option("--full-refresh-all", is_flag=True, help="Reset all tables and compute them again.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: this machine]")
@click.option("--verbose", is_flag=True, help="Show all output of Spark, not only the progress.")
def run(
    directory: Path,
    dry_run: bool,
    refreshed: tuple[str, ...],
    recomputed: tuple[str, ...],
    full_refresh_all: bool,
    conf: tuple[str, ...],
    master: str | None,
    verbose: bool,
) -> None:
    """Run the pipeline project in DIR, by default the one of the working directory or of one above it.

    Needs Java 17 or later and: pip install 'tickertape[pipelines]'

    \b
    tickertape pipeline run --dry-run                        do the definitions fit together?
    tickertape pipeline run --conf spark.sql.catalogImplementation=hive
    tickertape pipeline run last-flights --full-refresh-all
    """
    for given in conf:
        if not re.fullmatch(r"[^=\s]+=.*", given, re.DOTALL):
            raise click.BadParameter(f"Cannot use {given!r}. Give KEY=VALUE.", param_hint="--conf")
    if full_refresh_all and (refreshed or recomputed):
        raise click.UsageError("--full-refresh-all excludes --refresh and --full-refresh")
    if dry_run and (refreshed or recomputed or full_refresh_all):
        raise click.UsageError("--dry-run excludes --refresh, --full-refresh and --full-refresh-all")
    spec = find_project(directory)
    home = require_runner()
    command = [str(home / "bin" / "spark-pipelines"), "dry-run" if dry_run else "run"]
    command += ["--spec", str(spec)]
    command += [word for name in refreshed for word in ("--refresh", name)]
    command += [word for name in recomputed for word in ("--full-refresh", name)]
    command += ["--full-refresh-all"] * full_refresh_all
    command += [word for given in conf for word in ("--conf", given)]
    command += ["--master", master] if master else []
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ, "SPARK_HOME": str(home)}
    code, lines = run_runner(command, spec.parent, environment, verbose=verbose)
    if code:
        more = "" if verbose else " Use --verbose to see all output."
        raise Failure(f"Cannot run the pipeline {spec}: {reason(lines, code).rstrip('.')}.{more}")
    click.echo(f"{spec.parent}: {'the definitions fit together' if dry_run else 'done'}")


def find_project(directory: Path) -> Path:
    """Return the file that describes the project of `directory`, or of the nearest directory above it. Raises
    `UserMistake`."""
    if directory.is_file() and directory.name in SPEC_NAMES:
        return directory.resolve()
    if not directory.is_dir():
        raise UserMistake(f"Cannot run a pipeline: {str(directory)!r} is not a directory.")
    start = directory.resolve()
    for place in (start, *start.parents):
        found = [place / name for name in SPEC_NAMES if (place / name).is_file()]
        if len(found) > 1:
            raise UserMistake(
                f"Cannot run a pipeline: {str(place)!r} has {' and '.join(SPEC_NAMES)}. Remove one of them."
            )
        if found:
            return found[0]
    raise UserMistake(
        f"Cannot run a pipeline: neither {str(start)!r} nor a directory above it has a {SPEC_NAMES[0]}. "
        "Name the directory of a project, or make one with `tickertape pipeline init DIR`."
    )


def require_runner() -> Path:
    """Return the directory of Spark, with its runner. Raises `UserMistake` when a package or Java is
    missing."""
    try:
        require_spark()
    except Failure as error:
        raise UserMistake(error.message.replace("tickertape[spark]", "tickertape[pipelines]")) from None
    missing = missing_packages()
    if missing:
        raise UserMistake(f"Cannot run a pipeline: missing packages {', '.join(missing)}. {INSTALL}")
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent)
    if not (home / "bin" / "spark-pipelines").is_file():
        raise UserMistake(
            f"Cannot run a pipeline: {str(home)!r} has no bin/spark-pipelines. Unset SPARK_HOME, or set it "
            "to Spark 4.3."
        )
    return home


def missing_packages() -> list[str]:
    """Return the packages that Spark's runner needs and this Python does not have."""
    missing = []
    for requirement in metadata.requires("pyspark") or []:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name is not None and re.search(r"extra\s*==\s*['\"]pipelines['\"]", requirement):
            try:
                metadata.version(name[0])
            except metadata.PackageNotFoundError:
                missing.append(name[0])
    return missing


def run_runner(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], *, verbose: bool
) -> tuple[int, list[str]]:
    """Run Spark's runner, showing its progress on standard error; its exit code and last lines of output.

    When this process is interrupted or ended, the runner and all it started are ended first."""
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    signals = _Signals()
    with stop_signals_to(signals):
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C is for us: we end it as a whole
        )
        try:
            signals.arm()
            assert process.stdout is not None
            _show(process.stdout, lines, verbose=verbose)
            return process.wait(), list(lines)
        except KeyboardInterrupt:
            signals.armed = False
            click.echo("tickertape: interrupted; stopping Spark", err=True)
            raise
        finally:
            signals.armed = False
            _end(process)


def _show(output: IO[str], lines: deque[str], *, verbose: bool) -> None:
    for line in output:
        lines.append(line.rstrip("\n"))
        if verbose or _PROGRESS.match(line):
            click.echo(line.rstrip("\n"), err=True)


def _end(process: subprocess.Popen[str]) -> None:
    """End the runner and all it started: its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    assert process.stdout is not None
    process.stdout.close()


class _Signals:
    """Turns SIGINT and SIGTERM into `KeyboardInterrupt`, but only while `armed`: the runner is never left
    behind half started, and its end is not interrupted."""

    def __init__(self) -> None:
        self.armed = False
        self._noted = False

    def __call__(self, *_: object) -> None:
        self._noted = True
        if self.armed:
            raise KeyboardInterrupt

    def arm(self) -> None:
        """From now on a signal interrupts; one that has arrived does now."""
        self.armed = True
        if self._noted:
            raise KeyboardInterrupt


def reason(lines: Sequence[str], code: int) -> str:
    """Return the line of the output that says why the runner failed."""
    text = "\n".join(lines)
    if "tickertape.base.errors." in text:
        return error_line(text)
    found = [match[1] for line in lines if (match := _ERROR.match(line.strip()))]
    if found:
        return found[-1]
    rest = [line.strip() for line in lines if line.strip() and not _PROGRESS.match(line)]
    return rest[-1] if rest else f"Spark's runner ended with exit code {code}"
