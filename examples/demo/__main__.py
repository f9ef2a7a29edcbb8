"""`python -m examples.demo`: arguments, scratch directory and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import sys
from pathlib import Path
from typing import Final

import tickertape as tt
from examples.demo.aircraft import CONFIG
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
    """Run the demo. Return 0 if all checks pass, 1 if one fails, 2 if a requirement is missing."""
    arguments = _arguments()
    logging.getLogger("tickertape.client").setLevel(logging.ERROR)  # the server is killed on purpose
    if arguments.spark and (missing := missing_for_spark()):
        return _fail(missing, EXIT_MISSING)
    try:
        data = _data_directory(arguments.data)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}", EXIT_MISSING)
    config = data.with_name(f"{data.name}.toml")
    config.write_text(CONFIG)
    server = RunningServer(data, config)
    story = Story(Screen(), server, limit=arguments.flights, spark=arguments.spark)
    try:
        story.run()
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
        description="A year of real flights: publish, server kill, replay and Spark. Each step is checked.",
    )
    parser.add_argument(
        "--flights", type=_flights, metavar="N", help=f"use only the first N flights (at least {FLIGHTS_MIN})"
    )
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="skip the Spark job")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="new or empty directory for the log (default: build/demo/data, which is emptied at the start)",
    )
    return parser.parse_args()


def _flights(text: str) -> int:
    number = int(text)
    if number < FLIGHTS_MIN:
        raise argparse.ArgumentTypeError(f"Invalid number {number}. Use {FLIGHTS_MIN} or more.")
    return number


def _data_directory(given: Path | None) -> Path:
    """Return an empty directory for the log. Empty the default directory first. Raises `OSError`."""
    if given is None:
        if SCRATCH.exists():
            shutil.rmtree(SCRATCH)
        SCRATCH.mkdir(parents=True)
        return SCRATCH / "data"
    data = given.absolute()
    if data.exists() and any(data.iterdir()):
        raise FileExistsError(17, "not empty. Use a new or empty directory.", str(given))
    data.parent.mkdir(parents=True, exist_ok=True)
    return data


def _fail(text: str, code: int) -> int:
    print(f"demo: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
