"""Report of a comparison: rows that Tickertape loses first, then the others, details, and curves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.bench.peers.contenders import DISK, OURS, Contender
from tests.bench.peers.pictures import Chart, Line, draw
from tests.bench.peers.results import Measured, Results
from tests.bench.peers.rows import CURVES, PROOF_MILLISECONDS, PROOFS, ROWS, Figure, Row
from tests.bench.report import number

BEGIN: Final = "<!-- script/bench peers writes below this line -->"
END: Final = "<!-- script/bench peers writes above this line -->"
PICTURES: Final = "pictures"
"""Folder of the pictures, beside the page."""
SUMMARY: Final = ("row", OURS, "best peer", "ratio")
LINE_CHARACTERS_MAX: Final = 100


@dataclass(frozen=True)
class Comparison:
    """One figure of a row: ours, and the best one of the peers."""

    row: Row
    figure: Figure
    ours: float
    best: float
    peer: str

    @property
    def ratio(self) -> float:
        """How many times ours is better. Below 1 we lose."""
        return self.ours / self.best if self.figure.higher_is_better else self.best / self.ours

    @property
    def title(self) -> str:
        kind = "native loaders, " if self.row.work == "native" else ""
        return f"{kind}{self.row.title}: {self.figure.title}"


def measured_peers(row: Row, results: Results) -> Iterator[tuple[Contender, str]]:
    """Yield the contenders that have figures in a row, with their key."""
    for contender in row.contenders:
        if contender.key in results.rows.get(row.name, {}):
            yield contender, contender.key


def comparisons(results: Results) -> list[Comparison]:
    """Return all figures that ours and a peer have, the lowest ratio first."""
    found = []
    for row in ROWS:
        for figure in row.figures:
            values: list[tuple[float, str]] = []
            ours: float | None = None
            for contender, key in measured_peers(row, results):
                median = results.of(row.name, key).median(figure.key)
                if median is None or contender == DISK:
                    continue
                if contender.name == OURS:
                    ours = median
                else:
                    values.append((median, contender.name))
            if ours and values:
                best, peer = max(values) if figure.higher_is_better else min(values)
                found.append(Comparison(row, figure, ours, best, peer))
    return sorted(found, key=lambda comparison: (comparison.ratio, comparison.title))


def above_disk(results: Results) -> list[tuple[str, float]]:
    """Return the p50 of one synced message less the p50 of the disk alone, in microseconds, fastest first."""
    (row,) = (row for row in ROWS if row.with_disk)
    alone = results.rows.get(row.name, {}).get(DISK.key, Measured()).median("p50")
    if alone is None:
        return []
    found = []
    for contender, key in measured_peers(row, results):
        median = results.of(row.name, key).median("p50")
        if median is not None and contender != DISK:
            found.append((contender.name, median - alone))
    return sorted(found, key=lambda item: item[1])


def ratio_text(value: float) -> str:
    return f"{number(value)} x"


def with_unit(value: float, figure: Figure) -> str:
    return f"{number(value)} {figure.unit}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _summary(chosen: list[Comparison]) -> list[str]:
    return _table(
        SUMMARY,
        [
            (
                comparison.title,
                with_unit(comparison.ours, comparison.figure),
                f"{comparison.peer}: {with_unit(comparison.best, comparison.figure)}",
                ratio_text(comparison.ratio),
            )
            for comparison in chosen
        ],
    )


def _bullet(text: str) -> str:
    return textwrap.fill(f"* {text}", LINE_CHARACTERS_MAX, subsequent_indent="  ", break_on_hyphens=False)


def _details(row: Row, results: Results) -> list[str]:
    """Return heading, conditions and table of a row."""
    head = ["contender", "setting"]
    head += ["an acknowledgement survives"] if row.acknowledged else []
    for figure in row.figures:
        head += [f"{figure.title}, {figure.unit}", "worst to best"]
    rows = []
    for contender, key in measured_peers(row, results):
        measured = results.of(row.name, key)
        cells = [contender.name, contender.label]
        cells += [contender.survives] if row.acknowledged else []
        for figure in row.figures:
            median = measured.median(figure.key)
            if median is None:
                cells += [measured.failed or "not measured", ""]
            else:
                ordered = sorted(measured.values(figure.key), reverse=not figure.higher_is_better)
                extent = f"{number(ordered[0])} to {number(ordered[-1])}"
                cells += [number(median), extent if len(ordered) > 1 else "measured once"]
        rows.append(tuple(cells))
    if not rows:
        return []
    kind = "Native loaders: " if row.work == "native" else "Python clients: "
    depth = f"Depth {row.depth:,}, {row.connections} connection{'s' if row.connections > 1 else ''}."
    return [
        "",
        f"#### {kind}{row.title}",
        "",
        *textwrap.wrap(row.note, LINE_CHARACTERS_MAX),
        depth,
        "",
        *_table(tuple(head), rows),
    ]


CURVE_TITLES: Final = {
    "depth": ("Messages without an acknowledgement", "messages without an acknowledgement"),
    "sync": ("Time of a sync, depth 256", "additional time of a sync of the disk, ms"),
}


def charts(results: Results) -> dict[str, Chart]:
    """Return the charts of all curves with a figure, by the name of their file."""
    found = {}
    for curve, (title, x_title) in CURVE_TITLES.items():
        points = [row for row in CURVES if row.curve == curve and row.name in results.rows]
        if not points:
            continue
        for figure in points[0].figures:
            lines = [
                Line(
                    contender.name,
                    [(row.place, results.of(row.name, contender.key).median(figure.key)) for row in points],
                )
                for contender in points[0].contenders
            ]
            y_title = f"{figure.title}, {figure.unit}"
            found[f"peers-{curve}-{figure.key}.svg"] = Chart(
                f"{title}: {figure.title}", x_title, y_title, lines
            )
    return found


def pictures(results: Results) -> dict[str, str]:
    """Return the pictures by the name of their file."""
    drawn = {name: draw(chart) for name, chart in charts(results).items()}
    return {name: picture for name, picture in drawn.items() if picture}


def _proofs(results: Results) -> list[str]:
    """Return the table of the times of acknowledgements on a disk with slow syncs."""
    rows: list[tuple[str, ...]] = []
    for row in PROOFS:
        for contender, key in measured_peers(row, results):
            median = results.of(row.name, key).median("p50")
            if median is not None:
                waits = "yes" if median >= PROOF_MILLISECONDS * 1e3 else "no"
                rows.append((contender.name, contender.label, number(median), waits))
    if not rows:
        return []
    time = f"p50 on a disk with syncs of {PROOF_MILLISECONDS:g} ms, us"
    head = ("contender", "setting", time, "waits for a sync")
    return ["", "### Acknowledgements that wait for a sync", "", *_table(head, rows)]


def _curves(results: Results) -> list[str]:
    lines = []
    for name, chart in charts(results).items():
        drawn = draw(chart)
        if not drawn:
            continue
        lines += ["", f"#### {chart.title}", "", f"![{chart.title}, {chart.y_title}]({PICTURES}/{name})", ""]
        places = sorted({x for line in chart.lines for x, _ in line.points})
        head = (chart.x_title, *(line.label for line in chart.lines))
        rows = [
            (
                f"{place:g}",
                *(
                    number(y) if (y := dict(line.points).get(place)) is not None else ""
                    for line in chart.lines
                ),
            )
            for place in places
        ]
        lines += _table(head, rows)
    return lines


def page_part(results: Results) -> str:
    """Return the Markdown between the markers."""
    lines = [_bullet(line) for line in results.machine]
    lines += [_bullet(version) for version in results.versions.values()]
    lines.append(_bullet("Whether the host of a virtual disk honours a flush is unknown."))
    lines += [_bullet(note) for note in results.notes]
    chosen = comparisons(results)
    lost = [comparison for comparison in chosen if comparison.ratio < 1]
    won = [comparison for comparison in chosen if comparison.ratio >= 1]
    for heading, part in (("Rows that Tickertape loses", lost), ("Rows that Tickertape wins", won)):
        lines += ["", f"### {heading}", ""]
        lines += _summary(part) if part else ["None in this run."]
    if above := above_disk(results):
        lines += ["", "### One message in flight above the disk alone, synced", ""]
        lines += _table(
            ("contender", "p50 less the p50 of the disk alone, us"), [(n, number(v)) for n, v in above]
        )
    lines += _proofs(results)
    lines += ["", "### All figures", *(line for row in ROWS for line in _details(row, results))]
    if curves := _curves(results):
        lines += ["", "### Curves", *curves]
    return "\n".join(lines)


def ratios_of(page: str) -> set[str]:
    """Return the ratios in the summary tables of a page."""
    part = page.partition(BEGIN)[2].partition(END)[0]
    return {found[1] for found in re.finditer(r"\| ([\d.,]+) x \|$", part, re.MULTILINE)}


def between_markers(page: str, text: str) -> str:
    """Return `page` with `text` between its two markers. Raises `ValueError` without them."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must hold these two lines once, in this order: {BEGIN} and {END}")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"
