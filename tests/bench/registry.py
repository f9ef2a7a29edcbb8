"""Owns what a bench is and the list of them; must never run or print one.

A bench is a function that takes a `Room` and returns what it measured, in the unit it was registered with:

    @bench("publish", "200 bytes, one at a time, until persisted", unit="msg/s", floor=400_000, aim=1_000_000)
    def publish_one_at_a_time(room: Room) -> Reading:
        ...
        return Reading(count / seconds, note="fdatasync in every commit")

It stands in any module of this package. It makes its own server and clients and leaves nothing running.
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
HIGHER_IS_BETTER = frozenset({"msg/s", "batches/s", "commits/s", "rows/s", "worlds/s", "MiB/s", "x"})


LOG_BYTES = 4 << 30
"""Bodies in the large log, unless told otherwise."""
LOG_BYTES_QUICK = 64 << 20


class Shared:
    """Directories that are costly to fill: each is filled once a run, by the first bench that wants it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._filled: set[str] = set()

    def get(self, name: str, fill: Callable[[Path], object]) -> Path:
        """The directory `name`, filled by `fill(directory)` when no bench has had it yet."""
        path = self.directory / name
        if name not in self._filled:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            fill(path)
            self._filled.add(name)
        return path


@dataclass(frozen=True)
class Room:
    """What one repetition gets: an empty directory of its own, and whether only a glance is wanted."""

    directory: Path
    quick: bool
    shared: Shared
    log_bytes: int = LOG_BYTES
    """Size of the large log, bodies only."""

    def count(self, full: int) -> int:
        """`full` repetitions of the measured step, a twentieth of them (at least 1) for a glance."""
        return max(1, full // 20) if self.quick else full


class Reading(NamedTuple):
    """What was measured; `note` says in a few words what it depends on (the last repetition's is shown)."""

    value: float
    note: str = ""


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
    """What it has to reach at least, where something was agreed."""
    aim: float | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.unit in HIGHER_IS_BETTER

    def met(self, value: float) -> str:
        """ "aim", "yes" (the floor) or "no"; empty where nothing was agreed."""
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
    """Register a function as a bench. `unit` must be known, `repeat` is how often it is measured.

    `floor` and `aim`: what it has to reach at least, and what is aimed at; both or neither."""
    if unit not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        raise ValueError(f"unit {unit!r} is not known; say in registry.py whether more of it is better")
    if (floor is None) != (aim is None):
        raise ValueError("a bench has a floor and an aim, or neither")

    def register(function: Function) -> Function:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if name in _benches:
            raise ValueError(f"there are two benches {name}")
        _benches[name] = Bench(name, group, title, unit, function, repeat, floor, aim)
        return function

    return register


def discover(package: str = "tests.bench") -> list[Bench]:
    """Import every module of `package` and return the benches in the order they were written."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("__"):
            importlib.import_module(f"{package}.{module.name}")
    return list(_benches.values())
