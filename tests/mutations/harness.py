"""Runner of mutation tests: plants a defect in a copy of the project, and runs its tests.

Must never touch the project itself. A failed run is not enough: a test must have started and failed. A defect
that keeps tests from being collected shows nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutations.mutation import Mutation

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COPIED: Final = ("src", "tests", "examples", "docs", "pyproject.toml", "README.md")
RUN_SECONDS_MAX: Final = 800
TEST_SECONDS_MAX: Final = 120
"""Ends a test that waits forever because of a defect, which counts as detection."""


class MutationError(Exception):
    """The mutation cannot be planted, or the run shows nothing."""


class Noticed(NamedTuple):
    """Which test failed first, and how."""

    test: str
    how: str

    @property
    def tier(self) -> str:
        """Return the directory of the test."""
        return self.test.removeprefix("tests.").partition(".")[0]


def source(mutation: Mutation, root: Path = ROOT) -> Path:
    """Return the file that a mutation changes."""
    return root / "src" / "tickertape" / mutation.module


def planted(mutation: Mutation, text: str) -> str:
    """Return `text` with the defect. Raises `MutationError` unless its text occurs exactly once."""
    count = text.count(mutation.old)
    if count != 1:
        raise MutationError(f"{mutation.name}: its text occurs {count} times in {mutation.module}, not once")
    return text.replace(mutation.old, mutation.new)


def copy_project(target: Path) -> None:
    """Copy the files that tests need."""
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc", ".*cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=leave_out)
        else:
            shutil.copy2(ROOT / name, target / name)


def run_tests(project: Path, tests: Iterable[str], seed: int | None = None) -> Noticed | None:
    """Run test files of a copy, up to the first failure. Return None when all pass.

    `seed` is the seed of the property tests. Without one they find the same examples in each run.
    Raises `MutationError`.
    """
    report = project / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += [
        *(
            ("--hypothesis-profile=planted",)
            if seed is None
            else ("--hypothesis-profile=planted-seeded", f"--hypothesis-seed={seed}")
        ),
        f"--timeout={TEST_SECONDS_MAX}",
        f"--junitxml={report}",
        *(f"tests/{test}" for test in tests),
    ]
    path = os.pathsep.join((str(project / "src"), str(project)))
    done = subprocess.run(
        command,
        cwd=project,
        env={**_environment(), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode == 0:
        return None
    failures = [
        Noticed(f"{case.get('classname')}::{case.get('name')}", (failure.get("message") or "").strip())
        for case in (ET.parse(report).iter("testcase") if report.exists() else ())
        for failure in case.findall("failure")
    ]
    if done.returncode != 1 or not failures:
        raise MutationError(f"no test failed, but the run did: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failures[0]


def _environment() -> dict[str, str]:
    """Return the environment without pytest's variables, so that the run is not a worker of this one.

    It has an order of tests of its own, which decides about the first failure.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def notice(mutation: Mutation, target: Path, seed: int | None = None) -> Noticed | None:
    """Plant a defect in a fresh copy in `target` and run its tests. Return None when none fails."""
    copy_project(target)
    file = source(mutation, target)
    file.write_text(planted(mutation, file.read_text()))
    return run_tests(target, mutation.tests, seed)
