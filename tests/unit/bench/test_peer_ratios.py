"""Ratios with other brokers in the documentation: only those that the generated tables show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.peers.report import BEGIN, END, ratios_of

ROOT = Path(__file__).resolve().parents[3]
PERFORMANCE = ROOT / "docs" / "performance.md"
PEER = re.compile(
    r"\b(?:Redis|Valkey|NATS|JetStream|RabbitMQ|Kafka|Postgres\w*|peers?|brokers?)\b", re.IGNORECASE
)
RATIO = re.compile(r"(\d[\d.,]*)[\s-]?(?:x\b|\u00d7|times\b|fold\b)", re.IGNORECASE)


def ratios_in(text: str) -> list[str]:
    """Return ratios in paragraphs that name a broker, outside the generated parts."""
    for begin, end in ((BEGIN, END), (report.BEGIN, report.END)):
        before, found, rest = text.partition(begin)
        text = before + (rest.partition(end)[2] if found else "")
    paragraphs = (part for part in re.split(r"\n\s*\n|\n(?=\s*[*|-] )", text) if PEER.search(part))
    return [ratio for part in paragraphs for ratio in RATIO.findall(part)]


@pytest.mark.parametrize(
    ("text", "ratios"),
    [
        ("Tickertape has 13x the rate of Redis.", ["13"]),
        ("It is 1.5 times as fast\nas RabbitMQ.", ["1.5"]),
        ("| NATS | 40-fold |", ["40"]),
        ("Redis is a server.\n\nReplay at 2x.", []),
        (f"* Redis\n{BEGIN}\n| Valkey | 2.00 x |\n{END}\n", []),
        (f"* Redis\n{report.BEGIN}\n| against Valkey | 0.50 x |\n{report.END}\n* NATS: 3x", ["3"]),
        ("Wait for 3 ms with Redis.", []),
    ],
)
def test_ratios_are_found_in_paragraphs_about_brokers(text: str, ratios: list[str]) -> None:
    assert ratios_in(text) == ratios


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_ratios_with_brokers_are_those_of_the_table(page: Path) -> None:
    shown = ratios_of(PERFORMANCE.read_text(encoding="utf-8"))
    assert [ratio for ratio in ratios_in(page.read_text(encoding="utf-8")) if ratio not in shown] == []
