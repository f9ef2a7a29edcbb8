"""Frames of queries of records: direction, batches, and the limits of keys and records per frame."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.wire import batch_of, client_logged_on, joined, only_error, read_in, seen, server_logged_on
from tickertape.base.errors import BadCommand, BadFrame, FrameTooLarge
from tickertape.base.limits import (
    sow_keys_per_command_max,
    sow_records_per_frame_max,
    subscription_id_bytes_max,
)
from tickertape.wire.commands import Command, Deleted, GroupBegin, GroupEnd, Records, Sow
from tickertape.wire.connection import Connection
from tickertape.wire.frames import encode_frame
from tickertape.wire.sow_command import record_mark_bytes

QUERY = Sow(id=1, sub_id="q", topic="positions", credit=4096)
RECORDS = Records(sub_id="q", marks=bytes(record_mark_bytes))
ANSWERS = (
    GroupBegin(sub_id="q", topic="positions", as_of="0", position=0),
    GroupEnd(sub_id="q", matches=0, topic_matches=0, records=0),
    Deleted(frame=1, matches=0, topic_matches=0, deleted=0),
)


@pytest.mark.parametrize("command", [*ANSWERS, RECORDS], ids=lambda command: type(command).__name__)
def test_server_refuses_the_answers_to_a_query(command: Command) -> None:
    batch = batch_of() if command is RECORDS else None
    error = only_error(read_in(server_logged_on(), joined(encode_frame(command, batch))))
    assert isinstance(error, BadCommand)
    assert "only a server sends" in str(error)


def test_client_refuses_a_query() -> None:
    error = only_error(read_in(client_logged_on(), joined(encode_frame(QUERY))))
    assert isinstance(error, BadCommand)
    assert "only a client sends" in str(error)


def test_records_without_a_batch_are_refused_on_both_sides() -> None:
    with pytest.raises(BadCommand, match=r"Records \('rec'\) requires a batch"):
        Connection("server").send(RECORDS)
    error = only_error(read_in(client_logged_on(), joined(encode_frame(RECORDS))))
    assert isinstance(error, BadFrame)


@pytest.mark.parametrize("command", ANSWERS, ids=lambda command: type(command).__name__)
def test_other_answers_to_a_query_with_a_batch_are_refused(command: Command) -> None:
    with pytest.raises(BadCommand, match="must not have a batch"):
        Connection("server").send(command, batch_of())
    error = only_error(read_in(client_logged_on(), joined(encode_frame(command, batch_of()))))
    assert isinstance(error, BadFrame)


def test_query_of_a_negative_number_of_records_is_refused() -> None:
    for name in ("top_n", "skip_n", "batch_size", "credit"):
        data = joined(encode_frame(msgspec.structs.replace(QUERY, **{name: -1})))
        assert isinstance(only_error(read_in(server_logged_on(), data)), BadCommand)


@pytest.mark.parametrize("name", ["keys", "canonical"])
def test_query_with_too_many_keys_is_refused(name: str) -> None:
    key: str | bytes = "" if name == "keys" else b""
    most = msgspec.structs.replace(QUERY, **{name: (key,) * sow_keys_per_command_max})
    (event,) = read_in(server_logged_on(), joined(encode_frame(most)))
    assert seen(event).command == most
    more = msgspec.structs.replace(QUERY, **{name: (key,) * (sow_keys_per_command_max + 1)})
    error = only_error(read_in(server_logged_on(), joined(encode_frame(more))))
    assert isinstance(error, BadCommand)
    assert "length <= 100000" in str(error)


def test_most_records_of_one_frame_fit_the_header() -> None:
    count = sow_records_per_frame_max
    longest = "s" * subscription_id_bytes_max
    records = Records(sub_id=longest, marks=bytes(count * record_mark_bytes))
    (event,) = read_in(client_logged_on(), joined(encode_frame(records, batch_of(count, 8))))
    assert seen(event).command == records
    with pytest.raises(FrameTooLarge):
        encode_frame(Records(sub_id=longest, marks=bytes((count + 20) * record_mark_bytes)), batch_of())
