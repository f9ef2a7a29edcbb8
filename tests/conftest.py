"""Tiers of tests, their order, and the Hypothesis profiles.

Fixtures of one part are beside its tests.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadScopeScheduling

TIERS = (
    "unit", "property", "golden", "models", "simulation", "conformance", "integration", "faults", "fuzz",
    "spark", "world",
)  # fmt: skip
"""Directories of tests, fastest first. Files beside them (tidy, documentation) run before all."""

FULL_SECONDS_MAX = 900
"""A test with the long counts."""
SPARK_SECONDS_MAX = 240
"""A Spark test may have to start a Java machine and workers first."""

settings.register_profile("dev", max_examples=20, deadline=None, derandomize=True)
settings.register_profile(
    "ci", parent=settings.get_profile("dev"), suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "full", parent=settings.get_profile("ci"), max_examples=1_000, derandomize=False, print_blob=True
)
settings.register_profile(
    "planted",  # any example of a defect is enough: the search for the smallest can take minutes
    parent=settings.get_profile("ci"),
    max_examples=400,
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)
for _name in ("dev", "ci", "planted"):
    settings.register_profile(f"{_name}-seeded", parent=settings.get_profile(_name), derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked full, and the long counts")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the Hypothesis profile unless the command line does (`--hypothesis-profile`).

    Hypothesis ignores `--hypothesis-seed` in profiles that derandomize, so a seed needs a separate profile.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: the same interpreter
    # The threads that NumPy starts for linear algebra are a third of the start time of a server.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A shell starts its background jobs with SIGINT ignored. Tests and the processes of tests handle it.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-profile", default=None):
        return
    if config.getoption("--full"):
        settings.load_profile("full")
    else:
        seeded = "-seeded" if config.getoption("--hypothesis-seed", default=None) else ""
        settings.load_profile(("ci" if os.environ.get("CI") else "dev") + seeded)


def _tier(path: Path, root: Path) -> int:
    parts = path.relative_to(root).parts
    if len(parts) < 3:  # tests/test_x.py
        return -1
    return TIERS.index(parts[1]) if parts[1] in TIERS else len(TIERS)


SPARK_PLACES = (
    "tests/spark/",
    "tests/integration/test_readme.py",
    "tests/integration/test_tutorial_spark.py",
)
"""Tests that start Java: they run one after the other, because two starts at once take longer."""


SPREAD_PLACES = ("tests/fuzz/", "tests/mutations/", "tests/simulation/", "tests/world/")
"""Tests whose files have many long parts in the full tier: the parts of a file run in all processes."""


def _shares_a_process(nodeid: str, *, full: bool) -> str:
    """Return the process group of a test: its file, or one group for all tests that start Java."""
    if nodeid.startswith(SPARK_PLACES):
        return "spark"
    return nodeid if full and nodeid.startswith(SPREAD_PLACES) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Group several files in one process, which no scheduler of pytest-xdist does with pytest 9.2."""
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = partial(_shares_a_process, full=bool(config.getoption("--full")))
    return scheduler


ALTERNATING_PLACES = ("tests/conformance/", "tests/faults/", "tests/integration/", "tests/spark/")
"""Tests with processes. CI of a commit has half of their files, and CI of the next commit the other half:
all of them take more than its 15 minutes on a slow machine."""
IN_EACH_COMMIT = frozenset(
    f"tests/integration/test_{name}.py"
    for name in ("getting_started", "promises", "readme", "startup_imports")
)


def _drop_other_half(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the alternating files that another commit runs. `script/test` without `CI` has all."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=config.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    if counted.returncode:
        return
    half = int(counted.stdout) % 2

    def is_other(item: pytest.Item) -> bool:
        file = item.nodeid.split("::", 1)[0]
        alternates = file.startswith(ALTERNATING_PLACES) and file not in IN_EACH_COMMIT
        return alternates and zlib.crc32(file.encode()) % 2 != half

    dropped = {item for item in items if is_other(item)}
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the full tier unless requested, and put fast tiers first, each in its shuffled order."""
    if os.environ.get("CI") and not config.getoption("--full"):
        _drop_other_half(config, items)
    if not config.getoption("--full"):
        dropped = [item for item in items if item.get_closest_marker("full")]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    for item in items:
        limit = item.get_closest_marker("timeout")
        if config.getoption("--full"):
            if limit is None or limit.args[0] < FULL_SECONDS_MAX:
                item.add_marker(pytest.mark.timeout(FULL_SECONDS_MAX), append=False)
        elif limit is None and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS_MAX))
    items.sort(
        key=lambda item: (
            item.get_closest_marker("spark") is not None,
            _tier(item.path, config.rootpath),
            item.get_closest_marker("slow") is not None,
        )
    )
    if config.getoption("dist", "no") != "no" or os.environ.get("PYTEST_XDIST_WORKER"):
        items.reverse()  # in parallel runs slow tests come first, or one of them runs alone at the end


def _filter_defects() -> tuple[int, str]:
    """The number of exceptions that filters contained, and the last one."""
    module = sys.modules.get("tickertape.filter.contained_errors")
    return (module.DEFECTS.count, module.DEFECTS.last) if module is not None else (0, "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test in which a filter raised: the product contains such exceptions, tests must not."""
    before, _ = _filter_defects()
    result = yield
    count, last = _filter_defects()
    if count != before and item.get_closest_marker("defects") is None:
        pytest.fail(f"a filter raised, and it was contained: {last}")
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze all collected tests, so that the garbage collector does not visit them each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Unfreeze all objects: some libraries report each of their objects that survives the exit."""
    gc.unfreeze()


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether the run uses the long counts (`script/test --full`)."""
    return bool(request.config.getoption("--full"))
