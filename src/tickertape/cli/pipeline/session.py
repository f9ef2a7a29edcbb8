"""Spark session of a command: options, start without log output, and one-line errors.

Spark is imported when a command runs. A session that was active before the command is not stopped. Spark's
logs are not printed. The relevant line becomes part of an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tickertape.base.text_format import shown
from tickertape.cli.support.archive_options import INSTALL
from tickertape.cli.support.command_group import Failure, UserMistake
from tickertape.cli.support.option_types import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
DRIVER_MEMORY_DEFAULT: Final = "1g"

_ERROR_TEXT_CHARACTERS_MAX: Final = 600
OUR_ERROR: Final = re.compile(r"tickertape\.[A-Z]\w+: (.*)")
_START_ERROR: Final = re.compile(r"(?i).*(?:error|exception|unsupported|not found|no such|denied).*")

Command = TypeVar("Command", bound=Callable[..., Any])


@contextlib.contextmanager
def stop_signals_to(handler: Callable[..., object]) -> Iterator[None]:
    """Call `handler` on Ctrl-C and SIGTERM instead of the default handlers."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def session_options(command: Command) -> Command:
    """Add the options of commands that start Spark: `--master` and `--driver-memory`."""
    master = click.option(
        "--master",
        metavar="URL",
        default=MASTER_DEFAULT,
        show_default=True,
        help="Spark master URL. local[*] uses all cores of this machine.",
    )
    memory = click.option(
        "--driver-memory",
        metavar="SIZE",
        default=DRIVER_MEMORY_DEFAULT,
        show_default=True,
        callback=parsed(_memory),
        help="Memory of Spark's driver. With a local master this is all memory of Spark.",
    )
    return master(memory(command))


def _memory(value: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*[mgt]b?", value.lower()):
        raise click.BadParameter(f"Invalid size {value!r}. Use a whole number with m, g or t, such as 2g.")
    return value.lower()


@contextlib.contextmanager
def spark_session(name: str, *, master: str, driver_memory: str) -> Iterator[SparkSession]:
    """Provide a Spark session named `tickertape NAME`. Stop it at the end if it was started here.

    An active session of this process is used unchanged. Raises `UserMistake` if Spark or Java is missing.
    Raises `Failure` if it does not start, and for exceptions of Spark inside the block.
    """
    require_spark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    with contextlib.ExitStack() as stack:
        try:
            spark = active or stack.enter_context(_started(name, master, driver_memory))
            yield spark
        except (PySparkException, Py4JError) as error:
            raise Failure(error_line(str(error))) from error


def require_spark() -> None:
    """Raise `UserMistake` if PySpark or Java is not installed."""
    try:
        import pyspark.sql  # noqa: F401
    except ImportError as error:
        raise UserMistake(f"Cannot run a Spark job: {error}. Run: {INSTALL}") from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        if home:
            raise UserMistake(
                f"Cannot start Spark: JAVA_HOME {shown(home)} has no bin/java. Set JAVA_HOME to the "
                "directory of Java 17 or later."
            )
        raise UserMistake(
            "Cannot start Spark: java is not on the PATH. Install Java 17 or later, or set JAVA_HOME."
        )


def error_line(text: str) -> str:
    """Return the error line of Spark's output: the line of a Tickertape error, else the first line."""
    ours = OUR_ERROR.findall(text)
    if ours:
        return str(ours[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "Spark failed without a message")[:_ERROR_TEXT_CHARACTERS_MAX]


@contextlib.contextmanager
def _started(name: str, master: str, driver_memory: str) -> Iterator[SparkSession]:
    """Start a session. All output of Java is redirected to a temporary file."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master)
        .appName(f"tickertape {name}")
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        # The default is python3 from the PATH, which may lack the package.
        .config("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    )
    with tempfile.TemporaryDirectory(prefix="tickertape-spark-") as scratch:
        output = Path(scratch) / "java.log"
        try:
            with _standard_error_to(output):
                spark = builder.getOrCreate()
        except Exception as error:  # of many types, because Java prints the cause
            why = _why(output, error).rstrip(".")
            raise Failure(f"Cannot start Spark: {why}. Check Java and the options of the command.") from error
        try:
            yield spark
        finally:
            spark.stop()


def _why(output: Path, error: Exception) -> str:
    """Return Java's error message if Java did not start, else the message of PySpark."""
    found = _START_ERROR.findall(output.read_text(encoding="utf-8", errors="replace"))
    return str(found[0]).strip()[:_ERROR_TEXT_CHARACTERS_MAX] if found else error_line(str(error))


@contextlib.contextmanager
def _standard_error_to(file: Path) -> Iterator[None]:
    """Redirect standard error to `file` for processes started inside the block."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
