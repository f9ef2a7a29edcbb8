"""Bench runner: registration, repetition, table and page."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import machine
from tests.bench.__main__ import PAGE, main, measure
from tests.bench.registry import Bench, Reading, Room, Shared, Skipped, bench, discover
from tests.bench.report import BEGIN, END, Outcome, between_markers, cells, number, table


def a_bench(values: list[float], unit: str = "msg/s") -> Bench:
    left = iter(values)

    def run(room: Room) -> Reading:
        assert not list(room.directory.iterdir())
        (room.directory / "journal").write_bytes(b"x")
        return Reading(next(left), note="noted")

    return Bench("m.run", "group", "a title", unit, run, repeat=3)


def a_room(path: Path, *, quick: bool = False) -> Room:
    return Room(path / "room", quick, Shared(path / "shared"))


def test_each_repetition_has_an_empty_directory_that_is_removed(tmp_path: Path) -> None:
    outcome = measure(a_bench([3.0, 1.0, 2.0]), a_room(tmp_path), repeat=3)
    assert outcome.values == [3.0, 1.0, 2.0]
    assert outcome.note == "noted"
    assert not (tmp_path / "room").exists()


def test_exception_of_a_bench_becomes_a_failed_outcome(tmp_path: Path) -> None:
    def run(room: Room) -> Reading:
        raise OSError(28, "no space", str(room.quick))

    outcome = measure(Bench("m.x", "g", "t", "us", run, 3), a_room(tmp_path, quick=True), repeat=3)
    assert outcome.values == []
    assert cells(outcome)[1] == "failed"
    assert "no space" in cells(outcome)[-1]


def test_skipped_bench_shows_the_reason_and_does_not_fail(tmp_path: Path) -> None:
    def run(room: Room) -> Reading:
        raise Skipped(f"no program, quick {room.quick}")

    outcome = measure(Bench("m.x", "g", "t", "us", run, 3), a_room(tmp_path), repeat=3)
    assert (outcome.values, outcome.error) == ([], "")
    assert cells(outcome) == ("t", "skipped", "", "", "", "", "no program, quick False")


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


def test_range_shows_the_worst_value_first() -> None:
    assert cells(Outcome(a_bench([]), [3.0, 1.0, 2.0]))[1::4] == ("2.00 msg/s", "1.00 to 3.00")
    assert cells(Outcome(a_bench([], "us"), [3.0, 1.0, 2.0]))[1::4] == ("2.00 us", "3.00 to 1.00")


@pytest.mark.parametrize(
    ("unit", "floor", "aim", "met"),
    [
        ("msg/s", 1.0, 2.0, "aim"),
        ("msg/s", 2.0, 2.1, "yes"),
        ("msg/s", 2.1, 9.0, "no"),
        ("us", 3.0, 2.0, "aim"),
        ("us", 2.0, 1.9, "yes"),
        ("us", 1.9, 1.0, "no"),
        ("us", None, None, ""),
    ],
)
def test_table_compares_the_median_with_floor_and_aim(
    unit: str, floor: float | None, aim: float | None, met: str
) -> None:
    agreed = replace(a_bench([], unit), floor=floor, aim=aim)
    assert cells(Outcome(agreed, [5.0, 2.0, 1.0]))[4] == met


def test_bench_with_a_floor_but_no_aim_is_refused() -> None:
    with pytest.raises(ValueError, match="a floor and an aim"):
        bench("group", "title", unit="us", floor=1)


def test_shared_directory_is_filled_once(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "left over").touch()
    shared, calls = Shared(tmp_path), []

    def fill(path: Path) -> None:
        assert not list(path.iterdir())
        calls.append(path)

    assert shared.get("log", fill) == shared.get("log", fill) == tmp_path / "log"
    assert calls == [tmp_path / "log"]


def test_shared_directory_after_a_failed_fill_is_filled_from_scratch(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        (path / "half").mkdir()
        raise OSError(28, "no space")

    shared = Shared(tmp_path)
    with pytest.raises(OSError, match="no space"):
        shared.get("log", fail)
    shared.get("log", lambda path: (path / "whole").mkdir())
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["whole"]


def test_table_replaces_only_the_text_between_the_markers() -> None:
    text = table([Outcome(a_bench([]), [5.0], "a|b")], ["a machine"])
    page = between_markers(f"# Title\n{BEGIN}\nold\n{END}\nend\n", text)
    assert page.startswith(f"# Title\n{BEGIN}\n\n* a machine\n")
    assert page.endswith(f"\n{END}\nend\n")
    assert "old" not in page
    assert "| a title | 5.00 msg/s |  |  |  | measured once | a\\|b |" in page
    assert between_markers(page, text) == page


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="these two lines"):
        between_markers(page, "text")


def test_unknown_units_are_refused() -> None:
    with pytest.raises(ValueError, match="unit"):
        bench("group", "title", unit="furlongs")


def test_write_option_with_quick_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--write", "--quick"])
    assert end.value.code == 2
    assert "--write wants the whole" in capsys.readouterr().err


def test_unknown_bench_name_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such bench"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_machine_description_contains_no_path_and_leaves_no_file(tmp_path: Path) -> None:
    lines = machine.describe(tmp_path)
    assert any("cores" in line for line in lines)
    assert any("fdatasync" in line for line in lines)
    assert re.fullmatch(r"commit \S+, measured on \d{4}-\d\d-\d\d", lines[-1])
    assert str(tmp_path) not in "\n".join(lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "packaged", "processor", "build"),
    [
        ("'--enable-shared' '--enable-optimizations' '--with-lto'", False, "riscv64", "PGO"),
        ("'--enable-shared'", False, "x86_64", "no PGO"),
        ("'--enable-shared' '--prefix=/usr'", True, "x86_64", "PGO of the distribution"),
        ("'--enable-shared' '--prefix=/usr'", True, "riscv64", "no PGO"),
    ],
)
def test_interpreter_build_follows_configure_arguments_or_the_package(
    arguments: str, packaged: bool, processor: str, build: str
) -> None:
    assert machine.interpreter_build(arguments, packaged=packaged, machine=processor) == build


def test_interpreter_belongs_to_a_package_with_the_path_in_a_list(tmp_path: Path) -> None:
    (tmp_path / "python3.11-minimal.list").write_text("/.\n/usr/bin\n/usr/bin/python3.11\n")
    assert machine.belongs_to_package(Path("/usr/bin/python3.11"), tmp_path)
    assert not machine.belongs_to_package(Path("/usr/bin/python3"), tmp_path)
    assert not machine.belongs_to_package(Path("/usr/bin/python3.11"), tmp_path / "none")


def test_machine_description_has_the_build_of_the_interpreter(tmp_path: Path) -> None:
    line = machine.describe(tmp_path)[2]
    version = ".".join(map(str, sys.version_info[:3]))
    assert re.match(rf"Python {re.escape(version)} \((PGO|PGO of the distribution|no PGO)\), uvloop", line)


def test_each_row_of_the_page_belongs_to_a_bench() -> None:
    known = {(found.group, found.title) for found in discover()}
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [
        (group, row.split(" | ")[0].removeprefix("| "))
        for group, *lines in (section.splitlines() for section in written.split("\n### ")[1:])
        for row in lines
        if row.startswith("| ") and not row.startswith("| measurement ")
    ]
    assert len(rows) > 40
    assert [row for row in rows if row not in known] == []
