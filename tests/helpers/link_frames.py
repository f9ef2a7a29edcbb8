"""Examples of the commands of a replication link, one valid conversation, and batches of a link.

Must never judge: tests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tests.helpers.reserved_batches import with_reserved
from tickertape.base.names import publisher_id
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies, merge
from tickertape.wire.commands import Goodbye, Heartbeat, LinkMismatch
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkedOrigin,
    LinkedSource,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkOrigin,
    LinkPlace,
    LinkRequest,
    LinkRule,
    LinkRuns,
    LinkSide,
    LinkSowTopic,
    LinkTopics,
    SourceCommand,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import NameRows, encode_names, encode_pairs, encode_positions

Sent = tuple[Literal["source", "destination"], SourceCommand | DestinationCommand, MessageBatch | None]

LOGS = tuple(bytes([number]) * 16 for number in range(1, 21))
"""Ids of logs: of the source, of the destination, and of others."""
SOURCE = LinkSide(
    software="golden",
    features=("names",),
    instance="ny-1",
    group="ny",
    log=LOGS[0],
    starts=encode_pairs([11, 12], [0, 500]),
    destination="ny-2",
    rules=(
        LinkRule(topic="orders", sync=True),
        LinkRule(topic="^trades/", filter="/size > 5", sync=False),
    ),
    pass_through=".*",
    digests=(bytes(range(16)),),
    excluded=("replicate",),
    topics=LinkTopics(
        recorded=("orders", "^trades/"),
        types={"trades/fix": "fix"},
        validated=("orders",),
        derived=("totals",),
        sow=(LinkSowTopic(name="orders", key=("/id",), missing_key="refuse"),),
    ),
    sources=(
        LinkedSource(
            instance="ldn-1",
            log=LOGS[2],
            start=31,
            rules=(LinkRule(topic=".*", sync=False),),
            origins=(LinkedOrigin(instance="ldn-1", group="ldn", log=LOGS[2], digests=(bytes(16),)),),
        ),
    ),
    replaced=(LOGS[3],),
)
DESTINATION = LinkSide(
    instance="ny-2", group="ny", log=LOGS[1], starts=encode_pairs([21], [0]), software="golden"
)
OPEN = LinkOpen(side=SOURCE, token="t-1", heartbeat_ms=3000)
OPENED = LinkOpened(
    side=DESTINATION,
    place=LinkPlace(12, 600),
    places=encode_pairs([11, 12], [480, 600]),
    holes=2,
    credit=1 << 20,
)
ORIGIN = LinkOrigin(1, LOGS[2], "ldn-1", "ldn", (LOGS[2], LOGS[4]))


def run_of(
    publisher: int,
    first: int,
    count: int = 1,
    *,
    origin: int = 0,
    topic: str = "orders",
    kind: int = 0,
    order_stamp: int | None = None,
) -> MessageBatch:
    """Return a batch of one run as it is in a log."""
    builder = BatchBuilder()
    for number in range(count):
        builder.add(topic, b"%d" % (first + number), kind=kind)
    batch = builder.build(publisher=publisher, first_sequence=first, timestamp=1_700_000_000_000_000)
    stamps = None if order_stamp is None else [order_stamp]
    return with_reserved(batch, origins=[origin], order_stamps=stamps)


def control_run(log: bytes | None, origin: int = 0) -> MessageBatch:
    """Return a control record that another log wrote, or with None the log of the source."""
    publisher = publisher_id("$control") if log is None else control_publisher(log)
    return run_of(publisher, 1, topic="$control", kind=1, origin=origin)


def names(*rows: tuple[int, int, int], origin: int = 0, stamp: int = 1_700_000_000_000_000) -> bytes:
    """Return the rows of publisher, first and last sequence number."""
    publishers, firsts, lasts = (np.array(column, np.uint64) for column in zip(*rows, strict=True))
    count = len(rows)
    return encode_names(
        NameRows(
            publishers, firsts, lasts, np.full(count, origin, np.uint32), np.full(count, stamp, np.int64)
        )
    )


def conversation() -> dict[str, Sent]:
    """Return one valid link, command by command. The names are those of the golden files."""
    runs = merge([run_of(7, 42, 2), run_of(8, 5, origin=1, order_stamp=1_699_999_999_000_000)])
    answer = run_of(9, 1, 3, origin=1)
    return {
        "link": ("source", OPEN, None),
        "linked": ("destination", OPENED, None),
        "holes": (
            "source",
            LinkHoles(position=600, behind=True, rows=encode_pairs([7, 8], [41, 4]), more=True),
            None,
        ),
        "holes-end": ("source", LinkHoles(position=600, behind=True, rows=encode_pairs([9], [70])), None),
        "runs": ("source", LinkRuns(end=603, origins=(ORIGIN,)), runs),
        "runs-control": ("source", LinkRuns(end=604), control_run(LOGS[2], origin=1)),
        "names": ("source", LinkNames(end=610, rows=names((9, 1, 3), (9, 5, 6), origin=1)), None),
        "names-end": ("source", LinkNames(end=700), None),
        "request": ("destination", LinkRequest(positions=encode_positions([0])), None),
        "answers": ("source", LinkRuns(end=700, answers=encode_positions([0])), answer),
        "durable": ("destination", LinkAck(durable=700), None),
        "durable-written": ("destination", LinkAck(durable=700, level="written"), None),
        "credit": ("destination", LinkCredit(bytes=100), None),
        "heartbeat": ("source", Heartbeat(), None),
        "goodbye": (
            "destination",
            Goodbye(code="link_refused", text="no", mismatches=(LinkMismatch("txlog", "Cannot replicate."),)),
            None,
        ),
    }


def take(order: LinkOrder, sent: Sent) -> None:
    """Pass one command to an order check."""
    sender, command, batch = sent
    if sender == "source":
        order.from_source(command, batch)  # type: ignore[arg-type]
    else:
        order.from_destination(command)  # type: ignore[arg-type]


def order_after(*names: str) -> LinkOrder:
    """Return an order check after these commands of the conversation."""
    order, found = LinkOrder(), conversation()
    for name in names:
        take(order, found[name])
    return order


def started(credit: int = 1 << 20, position: int = 0) -> LinkOrder:
    """Return an order check after a handshake and an empty start of the stream."""
    order = LinkOrder()
    order.from_source(OPEN)
    order.from_destination(LinkOpened(side=DESTINATION, credit=credit))
    order.from_source(LinkHoles(position=position))
    return order


def plain(bodies: Sequence[bytes] = (b"1",)) -> MessageBatch:
    """Return a batch without publisher and sequence numbers."""
    return batch_from_bodies("orders", bodies)
