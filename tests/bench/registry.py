"""Owns what a bench is and the list of them; must never run or print one.

A bench is a function that takes a `Room` and returns what it measured, in the unit it was registered with:

    @bench("publish", "200 bytes, one at a time, until persisted", unit="msg/s")
    def publish_one_at_a_time(room: Room) -> Reading:
        ...
        return Reading(count / seconds, note="fdatasync in every commit")

It stands in any module of this package. It makes its own server and clients and leaves nothing running.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LOWER_IS_BETTER = frozenset({"ns", "us", "ms", "s", "ns/msg", "us/msg", "MiB", "bytes"})
HIGHER_IS_BETTER = frozenset({"msg/s", "batches/s", "commits/s", "rows/s", "MiB/s", "x"})


@dataclass(frozen=True)
class Room:
    """What one repetition gets: an empty directory of its own, and whether only a glance is wanted."""

    directory: Path
    quick: bool

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

    @property
    def higher_is_better(self) -> bool:
        return self.unit in HIGHER_IS_BETTER


_benches: dict[str, Bench] = {}


def bench(group: str, title: str, *, unit: str, repeat: int = 3) -> Callable[[Function], Function]:
    """Register a function as a bench. `unit` must be known, `repeat` is how often it is measured."""
    if unit not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        raise ValueError(f"unit {unit!r} is not known; say in registry.py whether more of it is better")

    def register(function: Function) -> Function:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if name in _benches:
            raise ValueError(f"there are two benches {name}")
        _benches[name] = Bench(name, group, title, unit, function, repeat)
        return function

    return register


def discover(package: str = "tests.bench") -> list[Bench]:
    """Import every module of `package` and return the benches in the order they were written."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if not module.name.startswith("__"):
            importlib.import_module(f"{package}.{module.name}")
    return list(_benches.values())
