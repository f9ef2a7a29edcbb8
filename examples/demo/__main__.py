"""`python -m examples.demo`: arguments, the scratch directory, and how it ends."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from pathlib import Path
from typing import Final

import tickertape as tt
from examples.demo.checking import CheckFailed
from examples.demo.flights import NoData
from examples.demo.screen import Screen
from examples.demo.story import ROOT, Story, missing_for_spark
from tickertape.testing import RunningServer, ServerNotReady

SCRATCH: Final = ROOT / "build" / "demo"
EXIT_FAILED: Final = 1
EXIT_MISSING: Final = 2
FLIGHTS_MIN: Final = 100


def main() -> int:
    """Tell the story; 0 when every check holds, 1 when one fails, 2 when something is missing."""
    arguments = _arguments()
    if arguments.spark and (missing := missing_for_spark()):
        return _fail(missing, EXIT_MISSING)
    try:
        data = _data_directory(arguments.data)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}", EXIT_MISSING)
    server = RunningServer(data)
    story = Story(Screen(), server, limit=arguments.flights, spark=arguments.spark)
    try:
        story.tell()
    except NoData as error:
        return _fail(str(error), EXIT_MISSING)
    except (CheckFailed, ServerNotReady, tt.TickertapeError, OSError) as error:
        return _fail(f"FAILED: {error}", EXIT_FAILED)
    except KeyboardInterrupt:
        return 130
    finally:
        with contextlib.suppress(AssertionError):
            server.kill()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/demo",
        description="A year of real flights through server, kill, replay and Spark; every step is checked.",
    )
    parser.add_argument(
        "--flights", type=_flights, metavar="N", help=f"only the first N flights ({FLIGHTS_MIN} or more)"
    )
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="leave the Spark job out")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="directory for the log, new or empty; default build/demo/data, which is emptied at the start",
    )
    return parser.parse_args()


def _flights(text: str) -> int:
    number = int(text)
    if number < FLIGHTS_MIN:
        raise argparse.ArgumentTypeError(f"{FLIGHTS_MIN} or more, not {number}")
    return number


def _data_directory(given: Path | None) -> Path:
    """An empty place for the log; what an earlier run left in our own is removed. Raises `OSError`."""
    if given is None:
        if SCRATCH.exists():
            shutil.rmtree(SCRATCH)
        SCRATCH.mkdir(parents=True)
        return SCRATCH / "data"
    data = given.absolute()
    if data.exists() and any(data.iterdir()):
        raise FileExistsError(17, "not empty; the demo wants a new or empty directory", str(given))
    data.parent.mkdir(parents=True, exist_ok=True)
    return data


def _fail(text: str, code: int) -> int:
    print(f"demo: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
