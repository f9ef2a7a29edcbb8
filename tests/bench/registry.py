"""Benches and their registry. Must never run or print one.

A bench is a function of a `Room` that returns its measurement, in the unit of its registration: see `bench`,
and `publishing.py` for examples. It is in any module of this package, creates its own server and clients, and
leaves nothing running. It raises `Skipped` if this machine lacks a program.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LOWER_IS_BETTER = frozenset({"ns", "us", "ms", "s", "ns/msg", "us/msg", "MB", "MiB", "bytes", "%"})
HIGHER_IS_BETTER = frozenset({"msg/s", "batches/s", "commits/s", "rows/s", "runs/s", "MiB/s", "x"})


LOG_BYTES = 4 << 30
"""Bytes of bodies in the large log, by default."""
LOG_BYTES_QUICK = 64 << 20


class Shared:
    """Directories that are costly to fill: each is filled once a run, by the first bench that wants it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._filled: set[str] = set()

    def get(self, name: str, fill: Callable[[Path], object]) -> Path:
        """Return the directory `name`, filled by `fill(directory)` at its first use."""
        path = self.directory / name
        if name not in self._filled:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            fill(path)
            self._filled.add(name)
        return path


@dataclass(frozen=True)
class Room:
    """The environment of one repetition: an empty directory, and whether a quick measurement is enough."""

    directory: Path
    quick: bool
    shared: Shared
    log_bytes: int = LOG_BYTES
    """Size of the large log, bodies only."""

    def count(self, full: int) -> int:
        """Return `full` repetitions of the measured step, or a twentieth (at least 1) for a quick run."""
        return max(1, full // 20) if self.quick else full


class Reading(NamedTuple):
    """A measurement. `note` describes its conditions briefly. The last repetition's note is shown."""

    value: float
    note: str = ""


class Skipped(Exception):
    """A bench that cannot run on this machine. The text gives the reason."""


Function = Callable[[Room], Reading]


@dataclass(frozen=True)
class Bench:
    """One registered bench."""

    name: str
    group: str
    title: str
    unit: str
    run: Function
    repeat: int
    floor: float | None = None
    """The minimum agreed value, if any."""
    aim: float | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.unit in HIGHER_IS_BETTER

    def met(self, value: float) -> str:
        """Return "aim", "yes" (the floor) or "no", or an empty text without an agreed value."""
        if self.floor is None or self.aim is None:
            return ""
        sign = 1 if self.higher_is_better else -1
        return (
            "aim" if sign * value >= sign * self.aim else "yes" if sign * value >= sign * self.floor else "no"
        )


_benches: dict[str, Bench] = {}


def bench(
    group: str,
    title: str,
    *,
    unit: str,
    repeat: int = 3,
    floor: float | None = None,
    aim: float | None = None,
) -> Callable[[Function], Function]:
    """Register a function as a bench. `unit` must be known, `repeat` is the number of measurements.

    `floor` and `aim` are the minimum and the target, both or neither.
    """
    if unit not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        raise ValueError(f"Unknown unit '{unit}'. Add it to registry.py.")
    if (floor is None) != (aim is None):
        raise ValueError("a bench has a floor and an aim, or neither")

    def register(function: Function) -> Function:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if name in _benches:
            raise ValueError(f"duplicate bench {name}")
        _benches[name] = Bench(name, group, title, unit, function, repeat, floor, aim)
        return function

    return register


def discover(package: str = "tests.bench") -> list[Bench]:
    """Import every module of `package` and return the benches in the order they were written."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("__"):
            importlib.import_module(f"{package}.{module.name}")
    return list(_benches.values())
