"""Order of the frames of a replication link: each rule, with the command that violates it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.helpers.link_frames import (
    DESTINATION,
    LOGS,
    OPEN,
    OPENED,
    ORIGIN,
    control_run,
    conversation,
    names,
    order_after,
    plain,
    run_of,
    started,
    take,
)
from tickertape.base.errors import BadLink
from tickertape.base.limits import link_name_frames_max, message_cost_bytes
from tickertape.batch import MessageBatch, merge
from tickertape.wire.commands import Goodbye, Heartbeat
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpened,
    LinkOrigin,
    LinkRequest,
    LinkRuns,
    SourceCommand,
    link_name_bytes,
)
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import encode_pairs, encode_positions


def refused(order: LinkOrder, command: SourceCommand, batch: MessageBatch | None = None) -> str:
    """Return the text of the refusal of a command of the source, which changes nothing."""
    before = state(order)
    with pytest.raises(BadLink) as caught:
        order.from_source(command, batch)
    assert state(order) == before
    return str(caught.value)


def refused_answer(order: LinkOrder, command: DestinationCommand) -> str:
    """Return the text of the refusal of a command of the destination, which changes nothing."""
    before = state(order)
    with pytest.raises(BadLink) as caught:
        order.from_destination(command)
    assert state(order) == before
    return str(caught.value)


def state(order: LinkOrder) -> dict[str, object]:
    return {name: repr(value) for name, value in vars(order).items()}


def request(*positions: int) -> LinkRequest:
    return LinkRequest(positions=encode_positions(positions))


def answers(end: int, *positions: int) -> LinkRuns:
    return LinkRuns(end=end, answers=encode_positions(positions))


def named(*ends: int, credit: int = 1 << 20) -> LinkOrder:
    """Return a link with two named rows for each end."""
    order = started(credit)
    for end in ends:
        order.from_source(LinkNames(end=end, rows=names((7, 1, 2), (7, 3, 4))))
    return order


# -- handshake and start ------------------------------------------------------------------------------


def test_whole_conversation_is_in_order() -> None:
    order = LinkOrder()
    for sent in conversation().values():
        take(order, sent)
    assert (order.end, order.durable, order.named, order.unanswered) == (700, 700, 2, 0)
    assert order.origins == {1: LOGS[2]}


def test_handshake_out_of_order_is_refused() -> None:
    refused_answer(LinkOrder(), OPENED)
    refused(order_after("link"), OPEN)
    refused(order_after("link", "linked"), OPEN)
    refused_answer(order_after("link", "linked"), OPENED)


@pytest.mark.parametrize("name", ["holes", "runs", "names", "answers"])
def test_source_before_the_answer_sends_only_heartbeats_and_goodbyes(name: str) -> None:
    _, command, batch = conversation()[name]
    order = order_after("link")
    refused(order, command, batch)  # type: ignore[arg-type]
    order.from_source(Heartbeat())
    order.from_source(Goodbye(code="closed", text=""))


@pytest.mark.parametrize("name", ["runs", "names", "answers"])
def test_runs_and_names_before_the_end_of_the_first_holes_are_refused(name: str) -> None:
    _, command, batch = conversation()[name]
    for order in (order_after("link", "linked"), order_after("link", "linked", "holes")):
        refused(order, command, batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [LinkAck(durable=0), LinkCredit(bytes=1), request(0)], ids=str)
def test_destination_before_the_start_of_the_stream_is_refused(command: DestinationCommand) -> None:
    for order in (order_after("link"), order_after("link", "linked")):
        refused_answer(order, command)
    if not isinstance(command, LinkCredit):
        refused_answer(order_after("link", "linked", "holes"), command)


def test_credit_of_first_holes_returns_before_the_start_of_the_stream() -> None:
    order = order_after("link")
    order.from_destination(msgspec.structs.replace(OPENED, credit=16))
    holes = [LinkHoles(position=600, behind=True, rows=encode_pairs([n], [1]), more=n < 9) for n in (7, 8, 9)]
    order.from_source(holes[0])
    refused(order, holes[1])
    refused_answer(order, LinkCredit(bytes=17))
    for command in holes[1:]:
        order.from_destination(LinkCredit(bytes=16))
        order.from_source(command)
    order.from_destination(LinkCredit(bytes=16))
    assert order.credit == 16


def test_first_holes_out_of_order_are_refused() -> None:
    order = order_after("link", "linked", "holes")
    refused(order, LinkHoles(position=601, behind=True, rows=encode_pairs([9], [1])))
    refused(order, LinkHoles(position=600, rows=encode_pairs([9], [1])))
    refused(order, LinkHoles(position=600, behind=True, rows=encode_pairs([8], [1])))
    refused(order, LinkHoles(position=600, behind=True, more=True))
    order.from_source(LinkHoles(position=600, behind=True))
    refused(order, LinkHoles(position=600, behind=True))


def test_first_holes_of_a_stream_that_is_not_behind_are_refused() -> None:
    refused(order_after("link", "linked"), LinkHoles(position=5, rows=encode_pairs([9], [1])))


def test_stream_starts_at_the_position_of_the_first_holes() -> None:
    order = started(position=600)
    assert order.end == 600
    refused(order, LinkRuns(end=599), run_of(7, 1))
    order.from_source(LinkRuns(end=600), run_of(7, 1))
    refused_answer(order, LinkAck(durable=601))
    order.from_destination(LinkAck(durable=600))


# -- runs and names -----------------------------------------------------------------------------------


def test_end_below_the_last_end_is_refused() -> None:
    order = started()
    order.from_source(LinkRuns(end=10), run_of(7, 1))
    assert "from 10 to 9" in refused(order, LinkRuns(end=9), run_of(7, 2))
    assert "from 10 to 9" in refused(order, LinkNames(end=9, rows=names((7, 1, 1))))
    order.from_source(LinkRuns(end=10), run_of(7, 2))
    order.from_source(LinkNames(end=10, rows=names((7, 1, 1))))


def test_names_without_rows_that_do_not_move_the_end_are_refused() -> None:
    order = started(position=5)
    refused(order, LinkNames(end=5))
    order.from_source(LinkNames(end=6))


def test_unknown_origin_number_is_refused_without_an_announcement() -> None:
    order = started()
    rows = names((7, 1, 1), origin=1)
    refused(order, LinkNames(end=1, rows=rows))
    refused(order, LinkRuns(end=1), run_of(7, 1, origin=1))
    order.from_source(LinkNames(end=1, rows=rows, origins=(ORIGIN,)))
    order.from_source(LinkRuns(end=2), run_of(7, 1, origin=1))
    refused(order, LinkRuns(end=3), run_of(7, 1, origin=2))


def test_known_origin_number_with_a_new_meaning_is_refused() -> None:
    order = started()
    order.from_source(LinkRuns(end=1, origins=(ORIGIN,)), run_of(7, 1, origin=1))
    refused(order, LinkRuns(end=2, origins=(ORIGIN,)), run_of(7, 2))
    refused(order, LinkNames(end=2, origins=(LinkOrigin(1, LOGS[5], "b", "b", (LOGS[5],)),)))


def test_batch_without_sequence_numbers_is_refused() -> None:
    order = started()
    refused(order, LinkRuns(end=1), plain())
    refused(order, LinkRuns(end=1), merge([run_of(7, 1), run_of(8, 0)]))


def test_foreign_control_record_without_origin_is_refused() -> None:
    order = started()
    refused(order, LinkRuns(end=1, origins=(ORIGIN,)), control_run(ORIGIN.log))
    order.from_source(LinkRuns(end=1, origins=(ORIGIN,)), control_run(ORIGIN.log, origin=1))
    order.from_source(LinkRuns(end=2), control_run(None))


def test_runs_without_a_batch_are_refused() -> None:
    refused(started(), LinkRuns(end=1))


# -- requests and answers -----------------------------------------------------------------------------


def test_request_of_a_row_that_is_not_named_is_refused() -> None:
    refused_answer(started(), request(0))
    order = named(5, 9)
    refused_answer(order, request(4))
    refused_answer(order, request(3, 4))
    order.from_destination(request(0, 3))
    assert order.unanswered == 2


def test_request_of_a_row_before_the_last_one_is_refused() -> None:
    order = named(5, 9)
    order.from_destination(request(1))
    refused_answer(order, request(0))
    refused_answer(order, request(1))
    order.from_destination(request(2))


def test_request_of_an_acknowledged_row_is_refused() -> None:
    order = named(5, 9)
    order.from_destination(LinkAck(durable=6))
    refused_answer(order, request(1))
    order.from_destination(request(2))


def test_request_of_a_row_crossing_an_acknowledgement_of_the_same_end_is_accepted() -> None:
    order = named(5)
    order.from_destination(LinkAck(durable=5))
    order.from_source(LinkNames(end=5, rows=names((8, 1, 1))))
    order.from_destination(LinkAck(durable=5))
    order.from_destination(request(2))


def test_answers_out_of_order_are_refused() -> None:
    order = named(5)
    refused(order, answers(5, 0), run_of(7, 1))
    order.from_destination(request(0, 1))
    two = merge([run_of(7, 1), run_of(7, 3)])
    for wrong in (answers(5, 1), answers(5, 0, 2), answers(4, 0), answers(6, 0), answers(5, 0, 1, 2)):
        refused(order, wrong, two if len(wrong.answers) > 8 else run_of(7, 1))
    refused(order, answers(5, 0), two)
    refused(order, answers(5, 0, 1), run_of(7, 1))
    refused(order, answers(5, 0), run_of(7, 1, origin=1))
    order.from_source(answers(5, 0), run_of(7, 1))
    refused(order, answers(5, 0), run_of(7, 1))
    order.from_source(answers(5, 1), run_of(7, 3))
    assert order.unanswered == 0


def test_answers_to_several_requests_may_share_a_frame() -> None:
    order = named(5)
    order.from_destination(request(0))
    order.from_destination(request(1))
    order.from_source(answers(5, 0, 1), merge([run_of(7, 1), run_of(7, 3)]))
    assert order.unanswered == 0


def test_acknowledgement_behind_a_requested_row_is_refused_until_the_answer() -> None:
    order = named(5, 9)
    order.from_destination(request(2))
    refused_answer(order, LinkAck(durable=9))
    order.from_destination(LinkAck(durable=8))
    order.from_source(answers(9, 2), run_of(7, 1))
    order.from_destination(LinkAck(durable=9))


def test_acknowledgement_out_of_range_is_refused() -> None:
    order = named(5)
    refused_answer(order, LinkAck(durable=6))
    order.from_destination(LinkAck(durable=3))
    refused_answer(order, LinkAck(durable=2))
    order.from_destination(LinkAck(durable=3))
    order.from_destination(LinkAck(durable=5))


# -- credit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "send",
    [
        lambda order, end, count: order.from_source(LinkRuns(end=end), run_of(7, 1, count)),
        lambda order, end, count: order.from_source(LinkNames(end=end, rows=names(*[(7, 1, 1)] * count))),
    ],
    ids=["runs", "names"],
)
def test_frame_above_the_credit_is_refused_except_for_a_single_row_without_others(
    send: Callable[[LinkOrder, int, int], None],
) -> None:
    order = started(credit=20)
    with pytest.raises(BadLink, match="credit"):
        send(order, 1, 2)
    send(order, 1, 1)
    assert order.credit < 0
    with pytest.raises(BadLink, match="credit"):
        send(order, 2, 1)
    order.from_destination(LinkCredit(bytes=20 - order.credit))
    send(order, 2, 1)


def test_frame_without_cost_needs_no_credit() -> None:
    order = started(credit=20)
    order.from_source(LinkRuns(end=1), run_of(7, 1))
    assert order.credit < 0
    order.from_source(LinkNames(end=2))
    assert order.end == 2


def test_credit_of_first_holes_is_returned_before_the_last_one() -> None:
    """Otherwise first holes above the window would never arrive."""
    order = LinkOrder()
    order.from_source(OPEN)
    order.from_destination(LinkOpened(side=DESTINATION, credit=16))
    refused_answer(order, LinkCredit(bytes=16))
    order.from_source(LinkHoles(position=5, behind=True, rows=encode_pairs([1], [1]), more=True))
    refused_answer(order, LinkAck(durable=5))
    order.from_destination(LinkCredit(bytes=16))
    order.from_source(LinkHoles(position=5, behind=True, rows=encode_pairs([2], [1])))
    order.from_destination(LinkAck(durable=5))


def test_frame_within_the_window_but_above_the_remaining_credit_is_refused() -> None:
    order = started(credit=100)
    order.from_source(LinkRuns(end=1), run_of(7, 1, 2))
    refused(order, LinkRuns(end=2), run_of(7, 3, 2))
    refused(order, LinkNames(end=2, rows=names((7, 1, 1))))
    order.from_destination(LinkCredit(bytes=32))
    order.from_source(LinkRuns(end=2), run_of(7, 3, 2))


def test_refused_frame_above_the_credit_announces_no_origins() -> None:
    order = started(credit=40)
    refused(order, LinkRuns(end=1, origins=(ORIGIN,)), run_of(7, 1, 2))
    refused(order, LinkNames(end=1, origins=(ORIGIN,), rows=names((7, 1, 1), (7, 2, 2))))
    order.from_source(LinkRuns(end=1, origins=(ORIGIN,)), run_of(7, 1))


def test_credit_counts_bodies_names_and_first_holes() -> None:
    order = order_after("link", "linked")
    order.from_source(LinkHoles(position=0, behind=True, rows=encode_pairs([1, 2], [1, 1])))
    order.from_source(LinkNames(end=1, rows=names((7, 1, 1))))
    order.from_source(LinkNames(end=2))
    order.from_source(LinkRuns(end=3), run_of(7, 1, 2))
    assert OPENED.credit - order.credit == 2 * 16 + link_name_bytes + 2 * (1 + message_cost_bytes)


def test_first_holes_above_the_credit_are_refused() -> None:
    order = LinkOrder()
    order.from_source(OPEN)
    order.from_destination(LinkOpened(side=DESTINATION, credit=31))
    refused(order, LinkHoles(position=0, behind=True, rows=encode_pairs([1, 2], [1, 1])))
    order.from_source(LinkHoles(position=0, behind=True, rows=encode_pairs([1], [1])))


def test_credit_above_the_spent_cost_is_refused() -> None:
    order = named(5)
    refused_answer(order, LinkCredit(bytes=73))
    order.from_destination(LinkCredit(bytes=70))
    refused_answer(order, LinkCredit(bytes=3))
    order.from_destination(LinkCredit(bytes=2))
    assert order.credit == 1 << 20


def test_credit_of_a_requested_row_is_refused_until_the_answer() -> None:
    order = named(5)
    order.from_destination(request(0))
    refused_answer(order, LinkCredit(bytes=37))
    order.from_destination(LinkCredit(bytes=36))
    refused_answer(order, request(1))
    order.from_source(answers(5, 0), run_of(7, 1))
    assert order.credit == (1 << 20) - 36, "answers cost no credit"
    order.from_destination(LinkCredit(bytes=36))


# -- memory -------------------------------------------------------------------------------------------


def test_remembered_frames_of_names_are_bounded() -> None:
    order = named(*range(1, link_name_frames_max + 101), credit=1 << 24)
    assert len(order._frames) == link_name_frames_max
    last = link_name_frames_max + 100
    order.from_destination(LinkAck(durable=last - 1))
    order.from_destination(request(2 * last - 1))
    refused_answer(order, LinkAck(durable=last))


def test_answered_and_acknowledged_rows_are_forgotten() -> None:
    order = named(5, 9)
    order.from_destination(request(0, 3))
    order.from_source(answers(9, 0, 3), merge([run_of(7, 1), run_of(7, 3)]))
    order.from_source(LinkNames(end=10))
    order.from_destination(LinkAck(durable=10))
    assert not order._frames
    assert not order._asked
