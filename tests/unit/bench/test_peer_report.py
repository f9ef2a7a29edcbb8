"""Report of the comparison with other brokers: rows, ratios, results of a run, pictures and page."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bench.peers import __main__ as program
from tests.bench.peers import installed, running
from tests.bench.peers.contenders import CONTENDERS, DISK, MACHINE, OURS, PROCESS, Contender
from tests.bench.peers.pictures import Chart, Line, draw, spread
from tests.bench.peers.report import (
    BEGIN,
    END,
    above_disk,
    between_markers,
    comparisons,
    page_part,
    pictures,
    ratios_of,
)
from tests.bench.peers.results import Measured, Results, load, resumed
from tests.bench.peers.rows import CURVES, PROOFS, ROWS, Row, choose
from tests.bench.peers.running import Plan, Run, rotated
from tests.bench.peers.serving import PeerServer


def row_of(name: str) -> Row:
    (row,) = (row for row in (*ROWS, *PROOFS, *CURVES) if row.name == name)
    return row


def some_results() -> Results:
    """Ours has half of the latency of Valkey, and a third of the rate of RabbitMQ."""
    results = Results(machine=["a machine"], versions={"Valkey": "Valkey 9"}, notes=["NATS is not measured."])
    single = {"tickertape/always": 200.0, "valkey/always": 400.0, "postgres/on": 500.0, "disk/": 150.0}
    for key, value in single.items():
        turns = {str(n): {"p50": value + n, "p99": 10 * value} for n in range(3)}
        results.rows.setdefault("one-in-flight", {})[key] = Measured(turns)
    for key, value in {"tickertape/always": 1_000.0, "rabbitmq/quorum": 3_000.0}.items():
        results.rows.setdefault("batches", {})[key] = Measured({"0": {"rate": value}})
    results.rows["batches"]["valkey/always"] = Measured({"0": {"rate": 1e9}}, failed="failed: a | b")
    for depth in (1, 256):
        results.rows[f"depth-{depth}"] = {
            "tickertape/always": Measured({"0": {"rate": 10.0 * depth, "p50": 50.0}}),
            "nats/always": Measured({"0": {"rate": 0.0, "p50": 70.0}}),
        }
    return results


# -- rows ---------------------------------------------------------------------------------------------


def test_rows_have_distinct_names_and_all_contenders_of_one_durability() -> None:
    assert max(Counter(row.name for row in (*ROWS, *PROOFS, *CURVES)).values()) == 1
    for row in (*ROWS, *PROOFS, *CURVES):
        assert {contender.survives for contender in row.contenders} == {row.survives}, row.name
        assert row.contenders[0].name == OURS, row.name
        if row.work != "native":
            assert len({c.name for c in row.contenders if c != DISK}) == 5, row.name


def test_each_run_has_synced_append_only_file_of_valkey_with_one_message_in_flight() -> None:
    row = row_of("one-in-flight")
    assert (row.depth, row.call, row.connections, row.survives) == (1, 1, 1, MACHINE)
    assert [c.setting for c in row.contenders if c.peer == "valkey"] == ["always"]


def test_contenders_have_one_setting_for_each_durability() -> None:
    assert len({contender.key for contender in CONTENDERS}) == len(CONTENDERS)
    settings = Counter((contender.name, contender.survives) for contender in CONTENDERS)
    assert set(settings.values()) == {1}
    assert {survives for _, survives in settings} == {MACHINE, PROCESS}


def test_rows_are_chosen_by_parts_of_names() -> None:
    assert choose([]) == [*ROWS, *PROOFS, *CURVES]
    assert [row.name for row in choose(["native-w", "sync-15"])] == ["native-window", "sync-15"]


# -- results ------------------------------------------------------------------------------------------


def test_results_are_saved_and_resumed_with_the_same_settings_only(tmp_path: Path) -> None:
    path = tmp_path / "build" / "peers.json"
    assert resumed(path, {"seconds": 60}) == Results(settings={"seconds": 60})
    results = some_results()
    results.settings = {"seconds": 60}
    results.save(path)
    assert resumed(path, {"seconds": 60}) == results
    with pytest.raises(ValueError, match="other settings"):
        resumed(path, {"seconds": 20})
    assert [entry.name for entry in path.parent.iterdir()] == ["peers.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 1}', '{"rows": {}, "unknown": 1}'])
def test_file_without_results_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="does not contain results"):
        load(tmp_path / "file")


def test_median_of_a_failed_contender_is_missing() -> None:
    assert Measured({"0": {"p50": 3.0}, "1": {"p50": 1.0}, "2": {"p50": 2.0}}).median("p50") == 2.0
    assert Measured({"0": {"p50": 3.0}}).median("rate") is None
    assert Measured({"0": {"p50": 3.0}}, failed="delivers 3 msg/s").median("p50") is None


# -- run ----------------------------------------------------------------------------------------------


class FakeServer(PeerServer):
    """A server without a process."""

    name = "Fake"
    events: list[str]

    @classmethod
    def missing(cls) -> str:
        return ""

    @classmethod
    def version(cls) -> str:
        return "Fake 1"

    def _start(self) -> None:
        raise AssertionError("start is replaced")

    def start(self) -> None:
        self.events.append(f"start {self.setting}")

    def pause(self) -> None:
        self.events.append(f"pause {self.setting}")

    def resume(self) -> None:
        self.events.append(f"resume {self.setting}")

    def stop(self) -> None:
        self.events.append(f"stop {self.setting}")


class FakeTurn:
    """A turn whose figure is its number."""

    def __init__(
        self, row: Row, contender: Contender, server: FakeServer, seconds: float, number: int
    ) -> None:
        del row
        self._server, self._setting, self._number, self._seconds = server, contender.setting, number, seconds

    def prepare(self) -> None:
        self._server.events.append(f"prepare {self._setting}")

    def measure(self) -> dict[str, float]:
        self._server.events.append(f"measure {self._setting} {self._number} {self._seconds:g}")
        if self._setting == "broken":
            raise RuntimeError("no answer")
        return {"p50": float(self._number)}


@pytest.fixture
def fake_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, list[str]]:
    """A plan with one row of two contenders, and the events of its servers."""
    events: list[str] = []
    FakeServer.events = events
    fakes = [Contender("fake", FakeServer, setting, setting, MACHINE) for setting in ("whole", "broken")]
    monkeypatch.setattr(Plan, "available", lambda _, __: (fakes, ["Kafka is not measured: no package."]))
    monkeypatch.setattr(running, "Turn", FakeTurn)
    monkeypatch.setattr("os.sync", lambda: events.append("sync"))
    plan = Plan([row_of("one-in-flight")], 6.0, 1.0, 3, tmp_path / "servers", tmp_path / "peers.json")
    return plan, events


def test_turns_alternate_paused_servers_and_a_failure_ends_only_one_contender(
    fake_run: tuple[Plan, list[str]],
) -> None:
    plan, events = fake_run
    said: list[str] = []
    results = Results()
    Run(plan, results, said.append).perform()
    assert sorted(events[:2]) == ["start broken", "start whole"]
    one = ["sync", "resume whole", "measure whole {} 2", "pause whole"]
    first = [one[0], one[1], "prepare whole", one[2].format(0), one[3]]
    broken = ["sync", "resume broken", "prepare broken", "measure broken 0 2", "pause broken"]
    rest = [event.format(number) for number in (1, 2) for event in one]
    assert events[2:] == ["pause whole", "pause broken", *first, *broken, *rest, "stop whole", "stop broken"]
    assert results.rows["one-in-flight"] == {
        "fake/whole": Measured({str(n): {"p50": float(n)} for n in range(3)}),
        "fake/broken": Measured(failed="failed: no answer"),
    }
    assert results.notes == ["Kafka is not measured: no package."]
    assert load(plan.file) == results
    assert any(text.startswith("1/1 one-in-flight, turn 3: Fake") for text in said)


def test_resumed_run_measures_the_missing_turns_only(fake_run: tuple[Plan, list[str]]) -> None:
    plan, events = fake_run
    results = Results()
    results.of("one-in-flight", "fake/whole").turns = {"0": {"p50": 9.0}, "2": {"p50": 9.0}}
    results.of("one-in-flight", "fake/broken").failed = "failed: no answer"
    Run(plan, results, lambda _: None).perform()
    assert [event for event in events if event.startswith("measure")] == ["measure whole 1 2"]
    events.clear()
    Run(plan, results, lambda _: None).perform()
    assert events == []


def test_machine_without_the_packages_measures_ours_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = (installed.packages_folder, installed.program_in_package, installed.package_version)
    with monkeypatch.context() as patched:
        patched.setattr(installed, "ENVIRONMENT", tmp_path)
        for cached in caches:
            cached.cache_clear()
        plan = Plan([], 1.0, 1.0, 1, tmp_path, tmp_path / "file")
        contenders, notes = plan.available(row_of("queue"))
    for cached in caches:
        cached.cache_clear()
    assert [contender.name for contender in contenders] == [OURS]
    assert notes == [
        f"{name} is not measured: {client} is not installed."
        for name, client in (
            ("Valkey", "redis"),
            ("NATS", "nats-py"),
            ("RabbitMQ", "pika"),
            ("PostgreSQL", "psycopg"),
        )
    ]


def test_each_turn_starts_with_another_contender() -> None:
    three = list(CONTENDERS[:3])
    assert [rotated(three, turn)[0] for turn in range(4)] == [*three, three[0]]
    assert set(rotated(three, 2)) == set(three)


def test_total_of_a_plan_has_all_contenders_and_turns(fake_run: tuple[Plan, list[str]]) -> None:
    plan, _ = fake_run
    expected = running.START_SECONDS + 2 * (6.0 + 3 * running.OVERHEAD_SECONDS)
    assert plan.total() == expected


# -- report -------------------------------------------------------------------------------------------


def test_comparisons_start_with_the_row_that_ours_loses_most() -> None:
    found = [(c.row.name, c.figure.key, c.peer, round(c.ratio, 2)) for c in comparisons(some_results())]
    assert found == [
        ("batches", "rate", "RabbitMQ", 0.33),
        ("one-in-flight", "p50", "Valkey", 2.0),
        ("one-in-flight", "p99", "Valkey", 2.0),
    ]


def test_comparison_without_a_peer_or_without_ours_is_left_out() -> None:
    results = some_results()
    del results.rows["batches"]["tickertape/always"]
    results.rows["one-in-flight"] = {"tickertape/always": results.rows["one-in-flight"]["tickertape/always"]}
    assert comparisons(results) == []


def test_time_above_the_disk_alone_is_sorted_and_needs_the_disk() -> None:
    results = some_results()
    assert above_disk(results) == [("Tickertape", 50.0), ("Valkey", 250.0), ("PostgreSQL", 350.0)]
    del results.rows["one-in-flight"]["disk/"]
    assert above_disk(results) == []


def test_page_shows_lost_rows_first_and_the_fault_that_acknowledgements_survive() -> None:
    part = page_part(some_results())
    headings = ("Rows that Tickertape loses", "Rows that Tickertape wins", "All figures")
    lost, won, details = (part.index(f"### {heading}") for heading in headings)
    assert lost < part.index("| RabbitMQ: 3,000 msg/s | 0.333 x |") < won
    assert won < part.index("| Valkey: 401 us | 2.00 x |") < details
    assert "| Valkey | `appendfsync always` | crash of the machine | 401 | 402 to 400 | 4,000 |" in part
    assert "| failed: a \\| b |" in part
    assert "* a machine\n* Valkey 9\n" in part
    assert "* NATS is not measured." in part
    assert "](pictures/peers-depth-rate.svg)" in part
    assert "| 256 | 2,560 |  | 0 |" in part
    assert max(map(len, (line for line in part.splitlines() if not line.startswith(("|", "!", "#"))))) <= 100


def test_page_without_a_lost_row_says_so() -> None:
    results = some_results()
    del results.rows["batches"]
    assert "### Rows that Tickertape loses\n\nNone in this run." in page_part(results)


def test_ratios_of_a_page_are_those_of_the_summary() -> None:
    page = between_markers(f"# Title\n| a | 9.99 x |\n{BEGIN}\nold\n{END}\nend\n", page_part(some_results()))
    assert ratios_of(page) == {"0.333", "2.00"}
    assert "old" not in page
    assert between_markers(page, page_part(some_results())) == page
    with pytest.raises(ValueError, match="these two lines"):
        between_markers(BEGIN, "")


def test_page_shows_which_acknowledgements_wait_for_a_slow_sync() -> None:
    results = some_results()
    results.rows["proof-synced"] = {"valkey/always": Measured({"0": {"p50": 20_100.0}})}
    results.rows["proof-written"] = {"valkey/everysec": Measured({"0": {"p50": 31.0}})}
    part = page_part(results)
    assert "| Valkey | `appendfsync always` | 20,100 | yes |" in part
    assert "| Valkey | `appendfsync everysec` | 31.0 | no |" in part
    assert "wait for a sync" not in page_part(some_results())


# -- pictures -----------------------------------------------------------------------------------------


def test_pictures_are_small_equal_svg_for_equal_figures() -> None:
    drawn = pictures(some_results())
    assert drawn == pictures(some_results())
    assert sorted(drawn) == ["peers-depth-p50.svg", "peers-depth-rate.svg"]
    for picture in drawn.values():
        assert ET.fromstring(picture).tag.endswith("svg")
        assert len(picture) < 20_000


def test_picture_leaves_out_missing_and_zero_points() -> None:
    picture = draw(
        Chart("a < b", "x", "y", [Line("one", [(1, 10.0), (4, None), (16, 1e3)]), Line("two", [(1, 0.0)])])
    )
    root = ET.fromstring(picture)
    assert len(root.findall(".//{*}circle")) == 2
    assert len(root.findall(".//{*}polyline")) == 1
    assert "two" not in picture
    assert draw(Chart("empty", "x", "y", [Line("one", [(1, None)])])) == ""


def test_picture_of_one_point_has_axes() -> None:
    assert "circle" in draw(Chart("t", "x", "y", [Line("one", [(6.0, 10.0)])]))


def test_labels_are_moved_apart() -> None:
    assert spread([10.0, 30.0, 11.0], 14.0) == [10.0, 38.0, 24.0]


# -- command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--write", "--quick"], "--write wants all rows"),
        (["--write", "--rows", "queue"], "--write wants all rows"),
        (["--write", "--contenders", "nats"], "--write wants all rows"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--contenders", "kafka"], "invalid choice"),
    ],
)
def test_contradicting_options_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_list_has_one_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS) + len(PROOFS) + len(CURVES)


def test_unknown_row_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--rows", "no-such-row"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_run_with_other_settings_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    Results(settings={"seconds": 1}).save(file)
    where = ["--file", str(file), "--directory", str(tmp_path / "servers")]
    arguments = ["--resume", *where, "--rows", "queue"]
    assert program.main(arguments) == 2
    assert "Cannot resume: peers.json has figures with other settings" in capsys.readouterr().err
    assert json.loads(file.read_text())["settings"] == {"seconds": 1}


def test_quick_run_has_one_turn_and_few_points() -> None:
    plan = program.make_plan(program.options(["--quick"]))
    assert plan.turns == 1
    assert {row.name for row in plan.rows} == {row.name for row in ROWS} | set(program.QUICK_POINTS)
    assert "about" in program.describe_plan(plan)
