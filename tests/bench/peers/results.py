"""Figures of all turns, in a file that an interrupted run continues from."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.bench.peers.loading import Result


@dataclass
class Measured:
    """All turns of a contender in a row, or the reason why it has none."""

    turns: dict[str, Result] = field(default_factory=dict)
    """Figures by the number of the turn."""
    failed: str = ""

    def values(self, key: str) -> list[float]:
        return [turn[key] for turn in self.turns.values() if key in turn]

    def median(self, key: str) -> float | None:
        values = self.values(key)
        return statistics.median(values) if values and not self.failed else None


@dataclass
class Results:
    """All figures of a run."""

    settings: dict[str, object] = field(default_factory=dict)
    """A run continues only with the same settings."""
    machine: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, Measured]] = field(default_factory=dict)
    """Figures by the names of row and contender."""
    notes: list[str] = field(default_factory=list)
    """Rows and contenders that this machine does not measure, with the reason."""

    def of(self, row: str, contender: str) -> Measured:
        return self.rows.setdefault(row, {}).setdefault(contender, Measured())

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def save(self, path: Path) -> None:
        """Replace the file at once, so that an interrupted run leaves a whole one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        unfinished.replace(path)


def load(path: Path) -> Results:
    """Return the figures in a file. Raises `ValueError` if it is not such a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = {
            row: {contender: Measured(**measured) for contender, measured in contenders.items()}
            for row, contenders in found.pop("rows").items()
        }
        return Results(rows=rows, **found)
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name} does not contain results: {error}") from None


def resumed(path: Path, settings: dict[str, object]) -> Results:
    """Return the figures to continue from. Raises `ValueError` if they have other settings."""
    if not path.exists():
        return Results(settings=settings)
    found = load(path)
    if found.settings != settings:
        raise ValueError(
            f"{path.name} has figures with other settings: {found.settings}. Run without --resume"
        )
    return found
