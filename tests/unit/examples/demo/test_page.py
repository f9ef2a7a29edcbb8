"""Page of the demonstration: tables and plots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.demo.checking import SparkRow
from examples.demo.page import BY_CARRIER, BY_HOUR, plot, write_page

CARRIERS = [SparkRow("UA", 1200, 1100, 5500, 5.0), SparkRow("B&", 20, 10, 300, 30.0)]
HOURS = [
    SparkRow("10", 900, 900, 0, 0.25),
    SparkRow("5", 319, 210, 5800, 27.5),
    SparkRow("1", 1, 0, None, None),
]

pytestmark = pytest.mark.slow


def test_demo_page_has_every_row_in_order(tmp_path: Path) -> None:
    page = write_page(tmp_path, CARRIERS, HOURS)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<tr><td>(.*?)<td>(.*?)<td>(.*?)<td>(.*)", text) == [
        ("1", "1", "0", "-"),
        ("5", "319", "210", "27.50"),
        ("10", "900", "900", "0.25</table>"),
        ("B&amp;", "20", "10", "30.00"),
        ("UA", "1,200", "1,100", "5.00</table>"),
    ]
    assert "of 1,220 flights" in text
    assert "def delays_by(" in text
    for name in (BY_HOUR, BY_CARRIER):
        assert f"<img src={name} " in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")


def test_plot_bars_are_proportional_to_the_rows(tmp_path: Path) -> None:
    from matplotlib.image import imread

    bars = []
    for number, mean in enumerate((10.0, 20.0)):
        file = tmp_path / f"{number}.png"
        plot(file, [SparkRow("a", 1, 1, 40, 40.0), SparkRow("b", 1, 1, 1, mean)], "title")
        blue = imread(file)[:, :, 2] - imread(file)[:, :, 0] > 0.2
        bars.append(int(blue[:, blue.shape[1] // 2 :].sum()))
    assert 1.9 < bars[1] / bars[0] < 2.1
