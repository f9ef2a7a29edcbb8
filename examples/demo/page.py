"""HTML page with the Spark queries, their code and plots of the results, like a notebook."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from examples.demo import spark_job
from examples.demo.checking import SparkRow

PAGE: Final = "delays.html"
BY_HOUR: Final = "delays-by-hour.png"
BY_CARRIER: Final = "delays-by-carrier.png"

_STYLE: Final = (
    "body{font:16px/1.5 sans-serif;max-width:54em;margin:2em auto;padding:0 1em}"
    "pre{background:#f4f4f4;padding:1em;overflow:auto}img{max-width:100%}"
    "td,th{padding:.1em 1em;text-align:right}td:first-child,th:first-child{text-align:left}"
)


def write_page(directory: Path, carriers: Sequence[SparkRow], hours: Sequence[SparkRow]) -> Path:
    """Write the page and its two plots to `directory`. Return the path of the page."""
    by_hour = sorted(hours, key=lambda row: int(row.name))
    by_mean = sorted(carriers, key=lambda row: -(row.mean_delay or 0.0))
    plot(directory / BY_HOUR, by_hour, "hour of scheduled departure")
    plot(directory / BY_CARRIER, by_mean, "carrier")
    flights = sum(row.flights for row in carriers)
    parts = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Departure delays</title>",
        f"<style>{_STYLE}</style><h1>Departure delays of {flights:,} flights from New York City</h1>",
        "<p>The flights are messages in the log of a server. Spark reads the log as a table:</p>",
        _code(spark_job.read_flights),
        "<p>and computes sums by carrier and by hour of the day:</p>",
        _code(spark_job.delays_by),
        f"<h2>By hour</h2><img src={BY_HOUR} alt='mean delay by hour'>",
        _table("hour", by_hour),
        f"<h2>By carrier</h2><img src={BY_CARRIER} alt='mean delay by carrier'>",
        _table("carrier", by_mean),
        "<p>Each of these numbers equals the sum of the source file in plain Python.</p></html>",
    )
    page = directory / PAGE
    page.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return page


def plot(file: Path, rows: Sequence[SparkRow], what: str) -> None:
    """Write a bar plot of the mean delays as a PNG. Rows without a departure have no bar."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row.mean_delay is not None]
    axes.bar([row.name for row in shown], [row.mean_delay or 0.0 for row in shown], color="#33658a")
    axes.set_xlabel(what)
    axes.set_ylabel("mean departure delay, minutes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)


def _code(function: Callable[..., Any]) -> str:
    return f"<pre>{html.escape(inspect.getsource(function))}</pre>"


def _table(name: str, rows: Sequence[SparkRow]) -> str:
    head = "".join(f"<th>{text}" for text in (name, "flights", "departed", "mean delay, minutes"))
    lines = [
        f"<tr><td>{html.escape(row.name)}<td>{row.flights:,}<td>{row.departed:,}"
        f"<td>{'-' if row.mean_delay is None else f'{row.mean_delay:.2f}'}"
        for row in rows
    ]
    return f"<table><tr>{head}\n" + "\n".join(lines) + "</table>"
