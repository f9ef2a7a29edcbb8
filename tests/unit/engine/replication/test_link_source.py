"""Source machine of a link: start, contents of frames, credit, requests, pins and errors."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
import numpy as np
import pytest

from tests.helpers.link_frames import DESTINATION, OPEN
from tests.helpers.reserved_batches import header_entries, with_reserved
from tests.helpers.source_log import LOG, START, JournalOfSource
from tickertape.base.errors import BadLink, BookmarkExpired, JournalCorrupt, JournalFailed
from tickertape.base.limits import link_origins_per_frame_max, link_rows_max
from tickertape.batch import KIND_RESTATED, RUN_BY_SERVER, RUN_LATE, RUN_MERGED, BatchBuilder, MessageBatch
from tickertape.batch.format import FLAG_SUPERSEDED
from tickertape.engine.limits import link_step_answers_max, link_step_bytes, link_step_frames_max
from tickertape.engine.replication.origins import Origin
from tickertape.engine.replication.places import LinkStart, LogStart, StartRefused
from tickertape.engine.replication.routes import DestinationRoutes, PassThrough, ReplicationRule, RuleSet
from tickertape.engine.replication.source.first_holes import FirstHoles, missing_at
from tickertape.engine.replication.source.link_frames import LinkFrame
from tickertape.engine.replication.source.link_source import LinkSource
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.journal.format.retired_state import HighestSequences
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpened,
    LinkPlace,
    LinkRequest,
    LinkRuns,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import decode_names, decode_positions, encode_pairs, encode_positions

THERE: Final = DESTINATION.log
OTHER: Final = b"o" * 16
WINDOW: Final = 1 << 20
ABROAD: Final = Origin(OTHER, "other", "north", (OTHER,))
RETURNED: Final = Origin(OTHER, "other", "north", (OTHER, THERE))


def made_log(*, segment_bytes: int = 8_192, tail_bytes: int = 1) -> JournalOfSource:
    return JournalOfSource(Random(1), segment_bytes=segment_bytes, tail_bytes=tail_bytes)


def run_of(
    publisher: int,
    first: int,
    bodies: Sequence[bytes] = (b"1",),
    *,
    topic: str = "orders",
    kind: int = 0,
    origin: int = 0,
    flags: int = 0,
    order_stamp: int | None = None,
) -> MessageBatch:
    """Return a run as this log stores it, without its timestamp."""
    builder = BatchBuilder()
    for body in bodies:
        builder.add(topic, body, kind=kind)
    batch = builder.build(publisher, first)
    stamps = None if order_stamp is None else [order_stamp]
    return with_reserved(batch, origins=[origin], run_flags=[flags], order_stamps=stamps)


class SourceOfTest:
    """A source machine whose frames and commands pass the check of order."""

    def __init__(
        self,
        log: JournalOfSource,
        *rules: ReplicationRule,
        pass_through: str = ".*",
        window: int = WINDOW,
        places: Sequence[LinkPlace] = (),
        reporters: frozenset[bytes] = frozenset(),
    ) -> None:
        self.log = log
        self.order = LinkOrder()
        self.order.from_source(OPEN)
        rule_set = RuleSet(rules or [ReplicationRule(topic=".*", sync=False)])
        routes = DestinationRoutes(rule_set, PassThrough(pass_through), THERE, TopicCatalog())
        self.machine = LinkSource(log.facts, routes, reporters)
        opened = LinkOpened(
            side=DESTINATION,
            credit=window,
            place=places[-1] if places else None,
            places=encode_pairs(*zip(*places, strict=True)) if places else b"",
        )
        self.order.from_destination(opened)
        self.start = self.machine.opened(opened)

    def step(self) -> list[LinkFrame]:
        """Do one step, and check its frames."""
        frames = self.machine.step()
        for frame in frames:
            self.order.from_source(frame.command, frame.batch)
        return frames

    def run(self) -> list[LinkFrame]:
        """Work to the end, with answered reads. Return all frames."""
        frames = []
        while self.machine.has_work or self.log.reads_outstanding:
            frames += self.step() if self.machine.has_work else []
            self.log.read()
        return frames

    def run_stream(self) -> list[LinkFrame]:
        """Return the frames after the first holes."""
        return [frame for frame in self.run() if not isinstance(frame.command, LinkHoles)]

    def waits(self) -> bool:
        """Whether the machine needs an input."""
        return not self.machine.has_work

    def take(self, command: LinkRequest | LinkAck | LinkCredit) -> None:
        self.order.from_destination(command)
        self.machine.received(command)


def batches(frames: list[LinkFrame]) -> list[MessageBatch]:
    return [frame.batch for frame in frames if frame.batch is not None]


def streamed(frames: list[LinkFrame]) -> list[LinkNames | LinkRuns]:
    """Return the commands after the first holes."""
    return [frame.command for frame in frames if not isinstance(frame.command, LinkHoles)]


def request(*rows: int) -> LinkRequest:
    return LinkRequest(positions=encode_positions(rows))


def record(kind: str, log: bytes | None = None) -> bytes:
    return msgspec.msgpack.encode({"type": kind, "latest_of": "x"} | ({"log": log} if log else {}))


def append_runs(log: JournalOfSource, *runs: MessageBatch) -> None:
    """Append runs, each in a commit of its own."""
    for run in runs:
        log.append(run)
        log.settle()


# -- start --------------------------------------------------------------------------------------------


def test_link_of_an_empty_log_starts_and_is_resynced() -> None:
    link = SourceOfTest(made_log())
    assert link.start == LinkStart(0, None, False)
    assert [frame.command for frame in link.run()] == [LinkHoles(position=0)]
    assert link.machine.resynced
    assert not link.machine.has_work
    assert link.machine.step() == []
    assert link.machine.level is None


def test_link_before_the_handshake_does_nothing_and_pins_nothing() -> None:
    log = made_log()
    routes = DestinationRoutes(RuleSet([]), PassThrough(""), THERE, TopicCatalog())
    machine = LinkSource(log.facts, routes, frozenset())
    assert not machine.has_work
    assert machine.step() == []
    assert machine.oldest_needed() is None
    assert (machine.behind, machine.unsent, machine.resynced) == (0, 0, False)
    machine.stop()


def test_newest_known_place_decides_the_start() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, [b"1", b"2"]), run_of(7, 3, [b"3", b"4"]))
    log.starts.add(LogStart(78, 2))
    link = SourceOfTest(log, places=[LinkPlace(START, 1), LinkPlace(78, 3)])
    assert link.start == LinkStart(3, None, False)
    (holes, runs) = link.run()
    assert holes.command == LinkHoles(position=3)
    assert runs.command == LinkRuns(end=4)
    assert batches([runs])[0].sequences.tolist() == [4]


def test_place_beyond_the_end_of_the_log_starts_at_the_end_and_reports_lost_rows() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, [b"1", b"2"]))
    link = SourceOfTest(log, places=[LinkPlace(START, 9)])
    assert link.start == LinkStart(2, 7, False)
    assert link.run_stream() == []


def test_unknown_newest_place_starts_at_an_older_one_and_reports_lost_rows() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, [b"1", b"2"]))
    link = SourceOfTest(log, places=[LinkPlace(START, 1), LinkPlace(99, 9)])
    assert link.start == LinkStart(1, 8, False)


def pruned_log() -> JournalOfSource:
    """Return a log whose first segments are removed."""
    log = made_log()
    for number in range(40):
        append_runs(log, run_of(7 + number % 3, 1 + number // 3, [b"x" * 900]))
    assert log.prune(None)
    return log


def test_place_below_the_first_row_is_refused() -> None:
    log = pruned_log()
    first = log.view.first_position
    link = SourceOfTest(log, places=[LinkPlace(START, first - 1)])
    assert link.start == StartRefused(first - 1, first)
    assert not link.machine.has_work
    assert link.machine.oldest_needed() is None
    assert isinstance(SourceOfTest(log, reporters=frozenset([THERE])).start, StartRefused)


def test_link_behind_removed_rows_sends_the_highest_removed_sequences() -> None:
    log = pruned_log()
    first = log.view.first_position
    link = SourceOfTest(log)
    assert link.start == LinkStart(first, None, True)
    removed = {7 + number % 3: 1 + number // 3 for number in range(first)}
    (holes, *frames) = link.run()
    rows = encode_pairs(sorted(removed), [removed[publisher] for publisher in sorted(removed)])
    assert holes.command == LinkHoles(position=first, behind=True, rows=rows)
    assert sum(batch.count for batch in batches(frames)) == log.end - first


def test_first_holes_are_cut_by_rows_and_credit() -> None:
    count = link_rows_max + 1
    columns = np.arange(1, count + 1, dtype=np.uint64)
    holes = FirstHoles(5, HighestSequences(columns, columns))
    first = holes.cut(1 << 20, alone=True)
    assert first is not None
    assert first.frame.command == LinkHoles(
        position=5, behind=True, rows=encode_pairs(columns[:-1], columns[:-1]), more=True
    )
    assert first.cost == 16 * link_rows_max
    assert holes.cut(15, alone=False) is None
    last = holes.cut(1, alone=True)
    assert last is not None
    assert last.frame.command == LinkHoles(position=5, behind=True, rows=encode_pairs([count], [count]))
    assert holes.over


def test_first_holes_have_the_control_records_of_the_source_under_a_derived_publisher() -> None:
    own, derived = control_publisher(THERE), control_publisher(LOG)
    columns = sorted({3: 9, 4: 0, CONTROL_PUBLISHER: 5, own: 8, derived: 2}.items())
    publishers, sequences = (np.array(column, np.uint64) for column in zip(*columns, strict=True))
    found = missing_at(THERE, LOG, HighestSequences(publishers, sequences))
    assert found.as_dict() == {3: 9, derived: 5}
    assert sorted(found.publishers.tolist()) == found.publishers.tolist()


# -- contents -----------------------------------------------------------------------------------------


def test_sent_runs_keep_columns_checksums_and_order_stamps() -> None:
    log = made_log()
    builder = BatchBuilder()
    builder.add("a", b"1", key="k", correlation_id="c", expiration_ms=5, headers=b"h", sequence=3)
    builder.add("b", b"2", sequence=9)
    plain = builder.build(7)
    stamped = with_reserved(plain, order_stamps=[123], run_flags=[RUN_BY_SERVER | RUN_MERGED])
    append_runs(log, plain, stamped)
    frames = SourceOfTest(log).run_stream()
    (batch,) = batches(frames)
    (first, second) = (batch.run(0), batch.run(1))
    stored = log.view.tail[-1].batch.run(0)
    assert first[:2] == second[:2] == (7, 3)
    assert first.timestamp < second.timestamp == stored.timestamp
    assert first.crc == second.crc == plain.first_run.crc
    assert (first.flags, second.flags) == (0, RUN_BY_SERVER | RUN_MERGED)
    assert batch.order_stamps is not None
    assert batch.order_stamps.tolist() == [first.timestamp, 123]
    assert batch.sequences.tolist() == [3, 9, 3, 9]
    assert [(batch.key(row), batch.correlation_id(row), batch.expiration(row)) for row in (2, 3)] == [
        ("k", "c", 5),
        (None, None, None),
    ]
    assert header_entries(batch)[2:] == [b"h", b""]


def test_flags_of_one_log_and_restated_rows_stay_in_the_log() -> None:
    log = made_log()
    run = run_of(7, 1, [b"1", b"2", b"3"], flags=RUN_LATE | RUN_BY_SERVER)
    run = with_reserved(run, kinds=[0, KIND_RESTATED, 0], message_flags=[FLAG_SUPERSEDED, 0, 0])
    append_runs(log, run)
    (batch,) = batches(SourceOfTest(log).run_stream())
    assert batch.sequences.tolist() == [1, 3]
    assert batch.kinds is None
    assert batch.message_flags is None
    assert batch.first_run.flags == RUN_BY_SERVER
    batch.verify()


def test_foreign_control_records_have_the_publisher_derived_from_the_other_log() -> None:
    log = made_log()
    log.add_origin(ABROAD)
    append_runs(
        log,
        run_of(CONTROL_PUBLISHER, 5, [record("after")], topic="$control", kind=1),
        run_of(control_publisher(OTHER), 6, [record("after", OTHER)], topic="$control", kind=1, origin=1),
        run_of(CONTROL_PUBLISHER, 7, [record("after", OTHER)], topic="$control", kind=1, origin=1),
    )
    (batch,) = batches(SourceOfTest(log).run_stream())
    derived = control_publisher(OTHER)
    assert [(run["publisher"], run["origin"]) for run in batch.runs] == [
        (CONTROL_PUBLISHER, 0), (derived, 1), (derived, 1),
    ]  # fmt: skip


def test_control_record_of_another_log_without_origin_is_an_error() -> None:
    log = made_log()
    append_runs(log, run_of(CONTROL_PUBLISHER, 5, [record("after", OTHER)], topic="$control", kind=1))
    with pytest.raises(JournalCorrupt, match="its log id is not the one of this log"):
        SourceOfTest(log).run()


def test_own_control_record_may_have_the_id_of_this_log() -> None:
    log = made_log()
    append_runs(log, run_of(CONTROL_PUBLISHER, 5, [record("after", LOG)], topic="$control", kind=1))
    assert len(batches(SourceOfTest(log).run_stream())) == 1


def test_origin_number_without_a_record_is_an_error() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, origin=3))
    with pytest.raises(JournalCorrupt, match="no record of server number 3"):
        SourceOfTest(log).run()


def test_first_frame_that_uses_an_origin_has_the_meaning_of_the_number() -> None:
    log = made_log()
    for origin in (ABROAD, RETURNED, Origin(OTHER, "other", "south", (OTHER, b"p" * 16))):
        log.add_origin(origin)
    runs = [run_of(20 + number, 1 + at, origin=number) for at, number in enumerate((2, 1, 2, 1, 3))]
    append_runs(log, *runs)
    frames = SourceOfTest(log, pass_through="north").run_stream()
    found = [[(one.number, *one.path) for one in command.origins] for command in streamed(frames)]
    assert [type(command).__name__ for command in streamed(frames)] == ["LinkNames", "LinkRuns"] * 2
    assert found == [[(2, OTHER, THERE)], [(1, OTHER)], [], []]


@pytest.mark.parametrize("path", [(OTHER,), (OTHER, THERE)])
def test_frame_introduces_a_limited_number_of_origins(path: tuple[bytes, ...]) -> None:
    log = made_log(segment_bytes=1 << 20)
    count = link_origins_per_frame_max + 2
    for number in range(1, count + 1):
        log.add_origin(Origin(OTHER, f"{number}", "north", path))
    log.settle()
    for number in range(1, count + 1):
        log.append(run_of(20, 1 + 2 * number, [b"1", b"2"], origin=number))
    log.append(run_of(20, 1000, origin=1))
    log.settle()
    frames = SourceOfTest(log).run_stream()
    commands = streamed(frames)
    introduced = [[origin.number for origin in command.origins] for command in commands]
    assert [len(numbers) for numbers in introduced] == [link_origins_per_frame_max, 2]
    assert [*introduced[0], *introduced[1]] == list(range(1, count + 1))
    assert commands[0].end == log.end - 5


def test_name_covers_messages_of_one_run_with_consecutive_sequences_and_positions() -> None:
    log = made_log()
    log.add_origin(RETURNED)
    builder = BatchBuilder()
    for topic, sequence in (("a", 1), ("a", 2), ("b", 3), ("a", 4), ("a", 7), ("a", 8)):
        builder.add(topic, b"1", sequence=sequence)
    append_runs(log, with_reserved(builder.build(20), origins=[1], order_stamps=[55]))
    append_runs(log, run_of(20, 9, origin=1))
    (frame,) = SourceOfTest(
        log, ReplicationRule(topic="a", sync=False), ReplicationRule(topic="orders", sync=True)
    ).run_stream()
    assert isinstance(frame.command, LinkNames)
    rows = decode_names(frame.command.rows)
    assert list(zip(rows.firsts.tolist(), rows.lasts.tolist(), strict=True)) == [
        (1, 2),
        (4, 4),
        (7, 8),
        (9, 9),
    ]
    assert rows.publishers.tolist() == [20] * 4
    assert rows.origins.tolist() == [1] * 4
    assert rows.stamps.tolist() == [55] * 3 + [log.view.tail[-1].batch.first_run.timestamp]
    assert frame.command.end == log.end


def test_frame_has_a_limited_number_of_names() -> None:
    log = made_log(segment_bytes=1 << 20)
    log.add_origin(RETURNED)
    builder = BatchBuilder()
    for sequence in range(1, 2 * link_rows_max + 20, 2):
        builder.add("a", b"", sequence=sequence)
    append_runs(log, with_reserved(builder.build(20), origins=[1]))
    names = [f.command for f in SourceOfTest(log).run_stream() if isinstance(f.command, LinkNames)]
    sizes = [len(command.rows) // 36 for command in names]
    assert sizes == [link_rows_max, 10]
    assert [command.end for command in names] == [log.end - 10, log.end]


# -- end ----------------------------------------------------------------------------------------------


def test_rows_that_are_not_for_the_link_move_the_end_once_for_each_step() -> None:
    log = made_log()
    for number in range(9):
        append_runs(log, run_of(7, 1 + number, topic="other"))
    link = SourceOfTest(log, ReplicationRule(topic="orders", sync=False))
    (frame,) = link.run_stream()
    assert frame.command == LinkNames(end=9)
    link.take(LinkAck(durable=9))
    assert link.machine.resynced


def test_places_alone_cause_no_frame_and_no_lag() -> None:
    log = made_log()
    append_runs(log, run_of(CONTROL_PUBLISHER, 1, [b"p", b"p"], topic="$link", kind=1))
    link = SourceOfTest(log)
    assert link.run_stream() == []
    assert link.machine.resynced
    assert (link.machine.behind, link.machine.unsent) == (0, 0)
    assert link.machine.oldest_needed() == 0
    append_runs(
        log, run_of(7, 1, topic="$queue"), run_of(CONTROL_PUBLISHER, 3, [b"p"], topic="$link", kind=1)
    )
    assert [frame.command for frame in link.run_stream()] == [LinkNames(end=4)]
    append_runs(log, run_of(7, 2))
    (command,) = streamed(link.run())
    assert command.end == 5


# -- credit -------------------------------------------------------------------------------------------


def test_nothing_is_read_without_credit() -> None:
    log = made_log()
    append_runs(log, *(run_of(7, number, [b"x" * 500]) for number in range(1, 30)))
    link = SourceOfTest(log, window=532)
    assert len(batches(link.run())) == 1
    link.machine.step()
    assert not link.machine.has_work
    assert not log.reads_outstanding
    assert link.order.credit == 0


def test_message_above_the_credit_is_sent_only_while_nothing_is_outstanding() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, [b"x" * 10, b"y" * 500, b"z"]))
    link = SourceOfTest(log, window=100)
    assert [batch.sequences.tolist() for batch in batches(link.run())] == [[1]]
    link.take(LinkCredit(bytes=41))
    assert link.run() == []
    link.take(LinkCredit(bytes=1))
    assert [batch.sequences.tolist() for batch in batches(link.run())] == [[2]]
    assert link.order.credit < 0
    link.take(LinkCredit(bytes=532))
    assert [batch.sequences.tolist() for batch in batches(link.run())] == [[3]]


def test_step_examines_a_limited_part_of_a_large_commit() -> None:
    log = made_log(segment_bytes=8 << 20)
    body = b"x" * 1_000
    append_runs(log, run_of(7, 1, [body] * 2_000), run_of(7, 2_001, [b"y" * 2 * link_step_bytes]))
    link = SourceOfTest(log, window=16 << 20)
    costs = [batch.cost for batch in batches(link.run())]
    assert sum(costs) == 2_000 * 1_032 + 2 * link_step_bytes + 32
    assert all(cost <= link_step_bytes for cost in costs[:-1])
    assert len(costs) == 9


def test_step_cuts_a_limited_number_of_frames() -> None:
    log = made_log(segment_bytes=1 << 20)
    log.add_origin(RETURNED)
    for number in range(1, 41):
        log.append(run_of(7, number))
        log.append(run_of(20, number, origin=1))
    log.settle()
    link = SourceOfTest(log)
    sizes = []
    while link.machine.has_work or log.reads_outstanding:
        sizes.append(len(link.step()))
        log.read()
    assert [size for size in sizes if size > 1] == [link_step_frames_max, link_step_frames_max, 16]


# -- requests -----------------------------------------------------------------------------------------


def named_link(count: int = 6, segment_bytes: int = 4_096, window: int = WINDOW) -> SourceOfTest:
    """Return a link that has named `count` runs of two messages, each in a commit of its own."""
    log = made_log(segment_bytes=segment_bytes)
    log.add_origin(RETURNED)
    for number in range(count):
        append_runs(log, run_of(20, 1 + 3 * number, [b"%d" % number, b"x" * 300], origin=1, flags=RUN_LATE))
    link = SourceOfTest(log, window=window)
    link.run()
    return link


def test_requested_rows_are_answered_in_order_at_the_end_of_the_stream() -> None:
    link = named_link()
    link.take(request(1, 4))
    link.take(request(5))
    (frame,) = link.run()
    command = frame.command
    assert isinstance(command, LinkRuns)
    assert (command.end, decode_positions(command.answers).tolist()) == (link.log.end, [1, 4, 5])
    assert frame.batch is not None
    assert frame.batch.run_count == 3
    assert frame.batch.sequences.tolist() == [4, 5, 13, 14, 16, 17]
    assert frame.batch.bodies_list()[::2] == [b"1", b"4", b"5"]
    assert not (frame.batch.runs["flags"] & np.uint32(RUN_LATE)).any()
    assert link.log.reads.budgets.log.held_bytes == 0


def test_step_answers_a_limited_number_of_rows() -> None:
    count = 2 * link_step_answers_max + 5
    log = made_log(segment_bytes=1 << 20, tail_bytes=1 << 20)
    log.add_origin(RETURNED)
    for sequence in range(1, count + 1):
        log.append(run_of(20, sequence, origin=1))
    log.settle()
    link = SourceOfTest(log)
    link.run()
    assert link.order.named == count
    link.take(request(*range(count)))
    sizes = [batch.run_count for batch in batches(link.run())]
    assert sizes == [link_step_answers_max, link_step_answers_max, 5]


def test_answers_need_no_credit() -> None:
    link = named_link(window=36)
    assert link.order.named == 1
    link.take(request(0))
    (frame,) = link.run()
    assert batches([frame])[0].sequences.tolist() == [1, 2]
    link.take(LinkCredit(bytes=36))
    assert [type(frame.command) for frame in link.run()] == [LinkNames]


def test_row_of_a_frame_with_returned_credit_cannot_be_requested() -> None:
    link = named_link(window=72)
    link.take(LinkCredit(bytes=72))
    link.run()
    assert link.order.named == 4
    with pytest.raises(BadLink, match="row 1 was requested"):
        link.machine.received(request(1))
    link.take(request(3))
    with pytest.raises(BadLink, match="row 4 was requested"):
        link.machine.received(request(4))


def test_names_below_the_durable_position_are_forgotten() -> None:
    link = named_link(window=72)
    first_end = link.order.end
    link.take(LinkCredit(bytes=71))
    link.run()
    assert link.order.end > first_end
    link.take(LinkAck(durable=first_end))
    assert link.machine.oldest_needed() == 1
    link.take(LinkAck(durable=first_end + 1))
    assert link.machine.oldest_needed() == first_end
    with pytest.raises(BadLink, match="row 1 was requested"):
        link.machine.received(request(1))


# -- pins ---------------------------------------------------------------------------------------------


def test_pin_is_the_durable_position_and_not_the_sent_one() -> None:
    log = made_log()
    append_runs(log, run_of(7, 1, [b"1", b"2", b"3", b"4"]))
    link = SourceOfTest(log)
    link.run()
    assert link.order.end == 4
    assert link.machine.oldest_needed() == 0
    assert (link.machine.behind, link.machine.unsent) == (4, 0)
    link.take(LinkAck(durable=3, level="written"))
    assert (link.machine.durable, link.machine.level) == (3, "written")
    assert link.machine.oldest_needed() == 3
    assert not link.machine.resynced
    link.take(LinkAck(durable=4))
    assert (link.machine.level, link.machine.behind, link.machine.resynced) == ("local", 0, True)
    append_runs(log, run_of(7, 5))
    assert (link.machine.behind, link.machine.unsent, link.machine.resynced) == (1, 1, True)


def test_pin_holds_rows_that_were_or_may_be_requested() -> None:
    link = named_link(segment_bytes=1 << 20)
    end = link.order.end
    link.take(LinkAck(durable=end - 1))
    assert link.machine.oldest_needed() == 1
    link.take(request(3))
    assert link.machine.oldest_needed() == 7
    link.run()
    link.take(LinkCredit(bytes=6 * 36))
    assert link.machine.oldest_needed() == end - 1


def test_removed_rows_that_were_not_sent_are_an_error() -> None:
    log = made_log(segment_bytes=4_096)
    append_runs(log, *(run_of(7, number, [b"x" * 900]) for number in range(1, 20)))
    link = SourceOfTest(log, window=1)
    link.run()
    assert log.prune(None)
    link.machine.received(LinkCredit(bytes=932))
    for _ in range(3):  # rows of the last read
        link.machine.received(LinkCredit(bytes=932))
        link.machine.step()
    log.read()
    with pytest.raises(BookmarkExpired, match="retention removed"):
        link.machine.step()


def test_requested_rows_that_were_removed_are_an_error() -> None:
    link = named_link(count=30)
    link.take(request(0))
    assert link.log.prune(None)
    with pytest.raises(BookmarkExpired, match="retention removed"):
        link.run()


# -- reads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requested", [False, True])
def test_damaged_segment_is_an_error(requested: bool) -> None:
    link = named_link()
    if requested:
        link.take(request(0))
    else:
        link = SourceOfTest(link.log)
        link.step()
    assert link.step() == []
    assert link.waits()
    assert link.log.read(damage=True) == 1
    assert not link.waits()
    with pytest.raises(JournalCorrupt):
        link.step()


@pytest.mark.parametrize("requested", [False, True])
def test_segment_removed_during_a_read_is_an_error(requested: bool) -> None:
    link = named_link(count=30)
    if requested:
        link.take(request(0))
    else:
        link = SourceOfTest(link.log)
        link.step()
    assert link.step() == []
    assert link.log.reads_outstanding == 1
    assert link.log.prune(None)
    link.log.fail_reads(JournalFailed("Cannot read the segment: it is gone."))
    with pytest.raises(BookmarkExpired, match="retention removed"):
        link.run()


def test_stopped_link_ignores_answers_of_reads() -> None:
    link = named_link()
    link.take(request(0))
    link.step()
    assert link.log.reads_outstanding == 1
    link.machine.stop()
    assert link.log.read() == 1
    assert link.log.reads.budgets.log.held_bytes == 0


def test_requests_far_apart_skip_the_rows_between() -> None:
    log = made_log(segment_bytes=1 << 20)
    log.add_origin(RETURNED)
    for number in range(40):
        append_runs(log, run_of(20, 1 + number, [b"x" * 60_000], origin=1))
    link = SourceOfTest(log)
    link.run()
    link.take(request(0, 39))
    frames, reads = [], 0
    while link.machine.has_work or log.reads_outstanding:
        frames += link.step()
        reads += log.read()
    assert [batch.sequences.tolist() for batch in batches(frames)] in ([[1], [40]], [[1, 40]])
    assert reads <= 3
