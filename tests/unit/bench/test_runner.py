"""The bench runner: registration, repetition, table, page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import machine
from tests.bench.__main__ import main, measure
from tests.bench.registry import Bench, Reading, Room, bench
from tests.bench.report import BEGIN, END, Outcome, between_markers, cells, number, table


def a_bench(values: list[float], unit: str = "msg/s") -> Bench:
    left = iter(values)

    def run(room: Room) -> Reading:
        assert not list(room.directory.iterdir())
        (room.directory / "journal").write_bytes(b"x")
        return Reading(next(left), note="noted")

    return Bench("m.run", "group", "a title", unit, run, repeat=3)


def test_each_repetition_has_an_empty_directory_and_nothing_is_left(tmp_path: Path) -> None:
    outcome = measure(a_bench([3.0, 1.0, 2.0]), tmp_path / "room", repeat=3, quick=False)
    assert outcome.values == [3.0, 1.0, 2.0]
    assert outcome.note == "noted"
    assert not (tmp_path / "room").exists()


def test_what_a_bench_raises_is_its_outcome(tmp_path: Path) -> None:
    def run(room: Room) -> Reading:
        raise OSError(28, "no space", str(room.quick))

    outcome = measure(Bench("m.x", "g", "t", "us", run, 3), tmp_path / "room", repeat=3, quick=True)
    assert outcome.values == []
    assert cells(outcome)[1] == "failed"
    assert "no space" in cells(outcome)[3]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1_234_567.0, "1,230,000"),
        (999.6, "1,000"),
        (0.0, "0"),
        (3.0, "3.00"),
        (45.61, "45.6"),
        (0.12345, "0.123"),
        (1000.0, "1,000"),
        (20_000, "20,000"),
    ],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_worst_comes_first_whichever_way_is_better() -> None:
    assert cells(Outcome(a_bench([]), [3.0, 1.0, 2.0]))[1:3] == ("2.00 msg/s", "1.00 to 3.00")
    assert cells(Outcome(a_bench([], "us"), [3.0, 1.0, 2.0]))[1:3] == ("2.00 us", "3.00 to 1.00")


def test_the_table_goes_between_the_markers_and_nowhere_else() -> None:
    text = table([Outcome(a_bench([]), [5.0], "a|b")], ["a machine"])
    page = between_markers(f"# Title\n{BEGIN}\nold\n{END}\nend\n", text)
    assert page.startswith(f"# Title\n{BEGIN}\n\n* a machine\n")
    assert page.endswith(f"\n{END}\nend\n")
    assert "old" not in page
    assert "| a title | 5.00 msg/s | 5.00 to 5.00 | a\\|b |" in page
    assert between_markers(page, text) == page


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_its_markers_is_left_alone(page: str) -> None:
    with pytest.raises(ValueError, match="these two lines"):
        between_markers(page, "text")


def test_unknown_units_are_refused() -> None:
    with pytest.raises(ValueError, match="unit"):
        bench("group", "title", unit="furlongs")


def test_writing_wants_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--write", "--quick"])
    assert end.value.code == 2
    assert "--write wants the whole" in capsys.readouterr().err


def test_an_unknown_name_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such bench"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_machine_is_described_without_its_name(tmp_path: Path) -> None:
    lines = machine.describe(tmp_path)
    assert any("cores" in line for line in lines)
    assert any("fdatasync" in line for line in lines)
    assert str(tmp_path) not in "\n".join(lines)
    assert not list(tmp_path.iterdir())
