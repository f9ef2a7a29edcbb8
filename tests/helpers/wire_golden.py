"""One example of each command of the wire, and the files with its bytes.

Must never be run just to make a failing test pass: other programs rely on the files, and a new version
requires a line in an ADR. `python -m tests.helpers.wire_golden` writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.helpers.wire import joined
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies, slice_batch
from tickertape.wire.commands import (
    PREFACE,
    Abort,
    Ack,
    Command,
    Commit,
    Committed,
    Completed,
    Credit,
    Credits,
    Deleted,
    Deliver,
    Ended,
    Flush,
    Goodbye,
    GroupBegin,
    GroupEnd,
    Heartbeat,
    LoggedOn,
    Logon,
    LogonReplication,
    Pause,
    Persisted,
    PersistedNotice,
    Prepare,
    Processed,
    Publish,
    Records,
    Rejected,
    Resolve,
    Resolved,
    Resume,
    Sow,
    Stage,
    Staged,
    Subscribe,
    Transaction,
    Unsubscribe,
)
from tickertape.wire.frames import encode_frame
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement, runs_of
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, encode_delete, encode_marks

GOLDEN: Final = Path(__file__).parent.parent / "golden"


def _wide() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("orders", b'{"id":1}', expiration_ms=5000, correlation_id="c-1", key="k-1")
    builder.add("fills", b"")
    return builder.build(publisher=12472216704108904515, first_sequence=42, timestamp=1623783153126619)


def settlements() -> list[Settlement]:
    """Return one settlement of each action, by bookmarks and by a filter."""
    runs = runs_of([12472216704108904515] * 3 + [7], [42, 43, 44, 1])
    return [
        Settlement(queue="work", action="ack", runs=runs),
        Settlement(queue="work", action="cancel", runs=runs_of([7], [2])),
        Settlement(queue="work", action="expire", filter="/id = 3"),
        Settlement(queue="work", action="extend", runs=runs_of([7], [4]), extend_ms=60_000),
    ]


def _settlements() -> MessageBatch:
    builder = BatchBuilder()
    for settlement in settlements():
        builder.add(QUEUE_TOPIC, encode_settlement(settlement))
    return builder.build(publisher=12472216704108904515, first_sequence=44)


def deletes() -> list[SowDelete]:
    """Return one delete of records of each form."""
    return [
        SowDelete(topic="positions", keys=("NbXHQCJdGp0mUfhIuVbnPA", "k-2")),
        SowDelete(topic="positions", canonical=(b"\x92\xa3IBM\x07",)),
        SowDelete(topic="positions", filter="/quantity = 0"),
        SowDelete(topic="positions", data=b'{"account":7,"symbol":"IBM"}'),
    ]


def _deletes() -> MessageBatch:
    builder = BatchBuilder()
    for delete in deletes():
        builder.add(SOW_TOPIC, encode_delete(delete))
    return builder.build(publisher=12472216704108904515, first_sequence=48)


def _records() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("positions", b'{"account":7,"symbol":"IBM","quantity":5}', correlation_id="c-1", key="k-1")
    builder.add("positions", b'{"account":8,"symbol":"MSFT","quantity":1}', key="k-2")
    builder.add("positions", b"")
    return slice_batch(builder.build(), 0, 2)


def examples() -> dict[str, tuple[str, Command, MessageBatch | None]]:
    """File name to (role that sends it, command, batch)."""
    client = {name: ("client", *sent) for name, sent in (_from_clients() | _queries()).items()}
    return client | {name: ("server", *sent) for name, sent in (_from_servers() | _results()).items()}


def _client_logons() -> dict[str, tuple[Command, MessageBatch | None]]:
    return {
        "logon": (Logon(name="pricing-1", versions=(0,), user="anna", software="golden"), None),
        "logon-heartbeat": (Logon(name="pricing-1", heartbeat_ms=3000), None),
        "logon-claim": (Logon(name="pricing-1", persisted=41, session=1_760_000_000_000_000), None),
    }


def _from_clients() -> dict[str, tuple[Command, MessageBatch | None]]:
    one = batch_from_bodies("orders", [b'{"id": 1}'], publisher=7, first_sequence=42)
    staged = batch_from_bodies("orders", [b"1", b"2"])
    return {
        **_client_logons(),
        "publish": (Publish(frame=1), one),
        "publish-sequenced": (Publish(frame=2, sequenced=True), _wide()),
        "publish-settlements": (Publish(frame=3, sequenced=True), _settlements()),
        "subscribe": (
            Subscribe(id=1, sub_id="s", topic="^orders", bookmark="0", options="rate=2x", credit=2097152),
            None,
        ),
        "subscribe-positions": (
            Subscribe(id=2, sub_id="t", topic="orders", credit=1, positions=(5, 2**40), journal="j-1"),
            None,
        ),
        "subscribe-numbered": (
            Subscribe(
                id=2, sub_id="t", topic="orders", credit=1, positions=(5, 9), journal="j-1", numbered=True
            ),
            None,
        ),
        "subscribe-filter": (
            Subscribe(
                id=6, sub_id="u", topic="orders", filter="/symbol = 'IBM'", options="replace", credit=2097152
            ),
            None,
        ),
        "subscribe-queue": (
            Subscribe(id=9, sub_id="v", topic="work", options="max_backlog=10", credit=2097152),
            None,
        ),
        "pause": (Pause(id=7, sub_ids=("s", "t")), None),
        "resume": (Resume(id=8, sub_ids=("s", "t")), None),
        "unsubscribe": (Unsubscribe(id=3, sub_ids=("s", "t")), None),
        "credit": (Credit(sub_id="s", bytes=131072), None),
        "credits": (Credits(sub_ids=("s", "t"), bytes=(131072, 70)), None),
        "flush": (Flush(id=4), None),
        "resolve": (Resolve(id=5, topic="orders", bookmark="[0:1|2|)"), None),
        "stage": (Stage(id=10, transaction=_TRANSACTION, part="0"), staged),
        "prepare": (Prepare(id=11, transaction=_TRANSACTION, part="0"), None),
        "commit": (Commit(id=12, transaction=_TRANSACTION, parts=("0", "1")), None),
        "abort": (Abort(id=13, transaction=Transaction(publisher="billing", name="invoice-1")), None),
        "resolve-positions": (
            Resolve(
                id=5,
                topic="orders",
                bookmark="",
                filter="/id > 3",
                positions=(5, 2**40),
                journal="j-1",
                messages_max=20_000,
                bytes_max=2**26,
            ),
            None,
        ),
        "heartbeat": (Heartbeat(), None),
        "heartbeat-interval": (Heartbeat(interval_ms=3000), None),
    }


def _queries() -> dict[str, tuple[Command, MessageBatch | None]]:
    return {
        "sow": (
            Sow(
                id=14,
                sub_id="q",
                topic="positions",
                filter="/quantity > 0",
                keys=("NbXHQCJdGp0mUfhIuVbnPA", "k-2"),
                order_by="/quantity DESC",
                top_n=0,
                skip_n=20,
                batch_size=100,
                options="timestamp",
                credit=2097152,
            ),
            None,
        ),
        "sow-follow": (
            Sow(
                id=15,
                sub_id="f",
                topic="^positions/",
                canonical=(b"\x92\xa3IBM\x07",),
                credit=2097152,
                follow=True,
                bookmark="12472216704108904515|42|",
            ),
            None,
        ),
        "publish-deletes": (Publish(frame=4, sequenced=True), _deletes()),
    }


_TRANSACTION: Final = Transaction(publisher="billing", space="nightly", name="7")


def _logons() -> dict[str, tuple[Command, MessageBatch | None]]:
    return {
        "logged-on": (
            LoggedOn(
                version=0,
                software="golden",
                instance="ny-1",
                journal="j-1",
                epoch=1,
                publisher=12472216704108904515,
                last_persisted=41,
                recorded=("orders",),
            ),
            None,
        ),
        "logged-on-limits": (
            LoggedOn(
                version=0,
                software="golden",
                instance="ny-1",
                journal="j-1",
                epoch=1,
                publisher=12472216704108904515,
                last_persisted=41,
                message_bytes_max=1 << 20,
                filter_bytes_max=512,
                subscriptions_per_connection_max=100,
            ),
            None,
        ),
        "logged-on-replication": (
            LoggedOn(
                version=0,
                software="golden",
                instance="ny-1",
                journal="j-1",
                epoch=1,
                publisher=12472216704108904515,
                last_persisted=38,
                replication=LogonReplication(start=0x0123456789ABCDEF, group="ny", behind=True),
            ),
            None,
        ),
    }


def _from_servers() -> dict[str, tuple[Command, MessageBatch | None]]:
    return {
        **_logons(),
        "ack": (Ack(id=1, start=0, found=False), None),
        "ack-after": (Ack(id=1, start=7, after="12472216704108904515|42|"), None),
        "ack-queue": (Ack(id=9, backlog=10), None),
        "ack-error": (Ack(id=1, code="bad_bookmark", text="no"), None),
        "resolved": (Resolved(id=5, journal="j-1", start=0, end=100), None),
        "staged": (Staged(id=11, messages=2), None),
        "committed": (Committed(id=12, messages=2, publisher=7, sequence=43), None),
        "committed-before": (Committed(id=12, repeated=True), None),
        "resolved-types": (
            Resolved(
                id=5, journal="j-1", start=5, end=90, topic="orders", types={"fix": ("orders", "fills")}
            ),
            None,
        ),
        "persisted": (Persisted(frame=2, sequence=43), None),
        "processed": (Processed(frame=1), None),
        "rejected": (Rejected(frame=3, sequence=44, code="bad_topic", text="no"), None),
        "rejected-some": (
            Rejected(frame=4, sequence=47, code="bad_body", text="no", refused=(45, 47)),
            None,
        ),
        "deliver": (Deliver(sub_id="s", next=2), _wide()),
        "deliver-several": (
            Deliver(
                next=2,
                sub_ids=("s", "t"),
                counts=b"\1\0\0\0\2\0\0\0",
                indices=b"\1\0\0\0\0\0\0\0\1\0\0\0",
            ),
            _wide(),
        ),
        "deliver-queue": (Deliver(sub_id="v", queue="work", lease=1623783183126619), _wide()),
        "deliver-numbered": (
            Deliver(sub_id="t", next=9, positions=b"\5\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0"),
            _wide(),
        ),
        "deliver-once": (Deliver(sub_id="v", queue="work", once=True), _wide()),
        "completed": (Completed(sub_id="s", next=2), None),
        "ended": (Ended(sub_id="s"), None),
        "persisted_notice": (PersistedNotice(sub_ids=("a", "b"), publisher=7, sequence=9), None),
        "goodbye": (Goodbye(code="bad_frame", text="no"), None),
    }


def _results() -> dict[str, tuple[Command, MessageBatch | None]]:
    marks = encode_marks([12472216704108904515, 7], [42, 1], [1623783153126619, 1623783153126620])
    return {
        "group-begin": (
            GroupBegin(
                sub_id="q",
                topic="positions",
                as_of="12472216704108904515|47|",
                position=2**40,
                key=("/symbol", "/account"),
                domain="positions",
            ),
            None,
        ),
        "group-begin-pattern": (
            GroupBegin(
                sub_id="f",
                topic="positions",
                as_of="0",
                position=0,
                explicit=True,
                pattern="^positions/",
                types={"fix": ("positions/fix",)},
            ),
            None,
        ),
        "records": (Records(sub_id="q", marks=marks), _records()),
        "group-end": (GroupEnd(sub_id="q", matches=3, topic_matches=5, records=2), None),
        "deleted": (Deleted(frame=4, sequence=50, matches=2, topic_matches=5, deleted=2), None),
        "deleted-more": (
            Deleted(frame=5, matches=300_000, topic_matches=400_000, deleted=250_000, more=True),
            None,
        ),
        "deleted-position": (
            Deleted(frame=6, sequence=51, matches=2, topic_matches=5, deleted=2, position=1_000),
            None,
        ),
        "deleted-unknown": (
            Deleted(frame=7, sequence=52, matches=0, topic_matches=0, deleted=0, counted=False),
            None,
        ),
    }


def golden_path(name: str) -> Path:
    return GOLDEN / f"wire-{name}.bin"


def write() -> None:
    """Write every golden file of the wire."""
    GOLDEN.mkdir(exist_ok=True)
    golden_path("preface").write_bytes(PREFACE)
    for name, (_, command, batch) in examples().items():
        golden_path(name).write_bytes(joined(encode_frame(command, batch)))


if __name__ == "__main__":
    write()
