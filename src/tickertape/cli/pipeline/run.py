"""`pipeline run`: run a project with Spark's runner of declarative pipelines.

The command checks project, packages and Java before it starts the runner. The runner ends with the command.
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
import msgspec

from tickertape.cli.pipeline.session import OUR_ERROR, error_line, require_spark, stop_signals_to
from tickertape.cli.support.command_group import Failure, UserMistake
from tickertape.cli.support.output_options import output_option

SPEC_NAMES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
INSTALL: Final = "pip install 'tickertape[pipelines]'"
_PROGRESS: Final = re.compile(r"\d{4}-\d\d-\d\d[ T][\d:.]+:? ")
"""Prefix of a progress line of the runner."""
_ERROR: Final = re.compile(r"(?:[\w.]+: )?(\[[A-Z][A-Z0-9_.]+\].*)")
"""Form of Spark's errors: an optional class, a condition in brackets, and the text."""
_KEPT_LINES: Final = 500
_STOP_SECONDS: Final = 20.0
"""Time limit for a stop of the runner. Afterwards it is killed."""


@click.command(short_help="Run a declarative pipeline project.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path())
@click.option("--dry-run", is_flag=True, help="Check the definitions without reading or writing data.")
@click.option(
    "--refresh", "refreshed", multiple=True, metavar="TABLE", help="Update only this table (may be repeated)."
)
@click.option(
    "--full-refresh",
    "recomputed",
    multiple=True,
    metavar="TABLE",
    help="Reset and recompute this table (may be repeated).",
)
@click.option("--full-refresh-all", is_flag=True, help="Reset and recompute all tables.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting (may be repeated).")
@click.option("--master", metavar="URL", help="Spark master URL.  [default: this machine]")
@click.option("--verbose", is_flag=True, help="Show all output of Spark, not only the progress.")
@output_option
def run(
    directory: Path,
    dry_run: bool,
    refreshed: tuple[str, ...],
    recomputed: tuple[str, ...],
    full_refresh_all: bool,
    conf: tuple[str, ...],
    master: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline project in DIR. Default: the project of the working directory or of a parent
    directory.

    Requirements: Java 17 or later, and pip install 'tickertape[pipelines]'

    \b
    tickertape pipeline run --dry-run                        check the definitions
    tickertape pipeline run --conf spark.sql.catalogImplementation=hive
    tickertape pipeline run last-flights --full-refresh-all
    """
    for given in conf:
        if not re.fullmatch(r"[^=\s]+=.*", given, re.DOTALL):
            raise click.BadParameter(
                f"Invalid setting {given!r}. Use KEY=VALUE, without spaces in KEY.", param_hint="'--conf'"
            )
    if full_refresh_all and (refreshed or recomputed):
        raise click.UsageError(
            "--full-refresh-all excludes --refresh and --full-refresh. "
            "Remove --full-refresh-all, or the others."
        )
    if dry_run and (refreshed or recomputed or full_refresh_all):
        raise click.UsageError(
            "--dry-run excludes --refresh, --full-refresh and --full-refresh-all. "
            "Remove --dry-run, or the others."
        )
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
    if as_json:
        click.echo(msgspec.json.encode({"directory": str(spec.parent), "dry_run": dry_run}))
        return
    click.echo(f"{spec.parent}: {'the definitions are valid' if dry_run else 'done'}")


def find_project(directory: Path) -> Path:
    """Return the specification file of the project in `directory`, or in its nearest parent directory.

    Raises `UserMistake`."""
    if directory.is_file() and directory.name in SPEC_NAMES:
        return directory.resolve()
    if not directory.exists():
        raise UserMistake(
            f"Cannot run a pipeline: {str(directory)!r} does not exist. Create it with `tickertape pipeline "
            "init DIR`, or check the path."
        )
    if not directory.is_dir():
        raise UserMistake(
            f"Cannot run a pipeline: {str(directory)!r} is not a directory. Use the directory of a project."
        )
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
        "Pass the directory of a project, or create a project with `tickertape pipeline init DIR`."
    )


def require_runner() -> Path:
    """Return the directory of Spark and its runner. Raises `UserMistake` if a package or Java is missing."""
    try:
        require_spark()
    except UserMistake as error:
        raise UserMistake(error.message.replace("tickertape[spark]", "tickertape[pipelines]")) from None
    missing = missing_packages()
    if missing:
        raise UserMistake(f"Cannot run a pipeline: missing packages {', '.join(missing)}. Run: {INSTALL}")
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
    """Return the packages that Spark's runner needs and that are not installed."""
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
    """Run Spark's runner with progress on standard error. Return its exit code and the last lines of output.

    On an interrupt, the runner and all its child processes are ended first."""
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
            start_new_session=True,  # Ctrl-C signals only this process, which ends the whole group
        )
        try:
            signals.arm()
            assert process.stdout is not None
            _show(process.stdout, lines, verbose=verbose)
            return process.wait(), list(lines)
        except KeyboardInterrupt:
            signals.armed = False
            click.echo("tickertape: interrupted, stopping Spark", err=True)
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
    """End the runner and its child processes (its process group)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    assert process.stdout is not None
    process.stdout.close()


class _Signals:
    """Signal handler that raises `KeyboardInterrupt` for SIGINT and SIGTERM, but only while `armed`.

    So a signal interrupts neither the start nor the end of the runner."""

    def __init__(self) -> None:
        self.armed = False
        self._noted = False

    def __call__(self, *_: object) -> None:
        self._noted = True
        if self.armed:
            raise KeyboardInterrupt

    def arm(self) -> None:
        """Raise `KeyboardInterrupt` on a signal from now on, and now if one has arrived."""
        self.armed = True
        if self._noted:
            raise KeyboardInterrupt


def reason(lines: Sequence[str], code: int) -> str:
    """Return the line of the output with the cause of the failure."""
    text = "\n".join(lines)
    if OUR_ERROR.search(text):
        return error_line(text)
    found = [match[1] for line in lines if (match := _ERROR.match(line.strip()))]
    if found:
        return found[-1]
    rest = [line.strip() for line in lines if line.strip() and not _PROGRESS.match(line)]
    return rest[-1] if rest else f"Spark's runner ended with exit code {code}"
