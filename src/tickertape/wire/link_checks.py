"""Contents of link commands: names, origins, and the runs of a batch, independent of earlier frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from tickertape.base.errors import BadLink, BadName
from tickertape.base.limits import (
    client_name_bytes_max,
    filter_bytes_max,
    link_text_bytes_max,
    topic_bytes_max,
)
from tickertape.base.names import LINK_TOPIC, check_client_name, derived_publisher_id, publisher_id
from tickertape.base.text_format import shown
from tickertape.batch import KIND_CONTROL, KIND_RESTATED, MessageBatch
from tickertape.batch.format import U8, Bools
from tickertape.wire.commands import Goodbye
from tickertape.wire.link import LinkOpen, LinkOpened, LinkOrigin, LinkRule, LinkSide, LinkTopics
from tickertape.wire.link_rows import decode_places, decode_starts

CONTROL_TOPIC: Final = "$control"
SOURCE_LOG: Final = 0
"""Origin number of the log of the source itself."""
_OWN_CONTROL: Final = publisher_id(CONTROL_TOPIC)


def control_publisher(log: bytes) -> int:
    """Return the publisher id of the control records of the log `log` in all other logs.

    In its own log they have the publisher id of `$control`."""
    return derived_publisher_id(CONTROL_TOPIC, log.hex())


def check_open(command: LinkOpen) -> None:
    """Raise `BadLink` for an invalid `LinkOpen`."""
    _check_side(command.side)
    if command.token is not None:
        _check_text(command.token, link_text_bytes_max, "token", secret=True)


def check_opened(command: LinkOpened, versions: tuple[int, ...]) -> None:
    """Raise `BadLink` for an invalid answer to a link that offers `versions`."""
    _check_side(command.side)
    if command.version not in versions or command.version not in command.side.versions:
        raise _bad(f"version {command.version} of the answer is not one that both sides support")
    places = decode_places(command.places)
    last = (int(places.starts[-1]), int(places.positions[-1])) if len(places.starts) else None
    if last != command.place:
        raise _bad("the place of the destination is not the last of its places")


def check_goodbye(command: Goodbye) -> None:
    """Raise `BadLink` for too long texts."""
    for mismatch in command.mismatches:
        _check_text(mismatch.text, link_text_bytes_max, "text of a mismatch")


def check_origins(origins: Iterable[LinkOrigin], known: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the logs of new origins by number. Raises `BadLink` for a known number or an invalid path."""
    found: dict[int, bytes] = {}
    for origin in origins:
        number = origin.number
        if number in known or number in found:
            raise _bad(f"origin number {number} has a meaning already")
        if origin.path[0] != origin.log or len(set(origin.path)) < len(origin.path):
            raise _bad(f"the path of origin {number} does not start with its log, or has a log twice")
        _check_name(origin.instance, "instance")
        _check_name(origin.group, "group")
        found[number] = origin.log
    return found


def check_runs(batch: MessageBatch, origins: Mapping[int, bytes]) -> None:
    """Raise `BadLink` unless a batch has only runs that a link may send.

    `origins` has the logs of all known origin numbers but 0."""
    runs = batch.runs
    if not (runs["publisher"].all() and runs["first_sequence"].all()):
        raise _bad("a run has no publisher or no sequence numbers")
    check_origin_numbers(np.unique(runs["origin"]).tolist(), origins)
    if batch.message_flags is not None and batch.message_flags.any():
        raise _bad("a batch has message flags, which belong to one log")
    if batch.kinds is not None and (batch.kinds == KIND_RESTATED).any():
        raise _bad("a batch has restated records, which belong to one log")
    if LINK_TOPIC in batch.topics:
        raise _bad(f"a batch has topic {LINK_TOPIC!r}, which belongs to one log")
    if CONTROL_TOPIC in batch.topics:
        _check_control(batch, origins)


def check_origin_numbers(numbers: Iterable[int], origins: Mapping[int, bytes]) -> None:
    """Raise `BadLink` for an origin number without a meaning."""
    for number in numbers:
        if number != SOURCE_LOG and number not in origins:
            raise _bad(f"origin number {number} is unknown")


def _check_control(batch: MessageBatch, origins: Mapping[int, bytes]) -> None:
    """Raise `BadLink` for control records by another publisher than their origin has.

    A control record of another log without its origin would change the state of the wrong log."""
    control = _control_messages(batch)
    if batch.kinds is None or (batch.kinds[control] != KIND_CONTROL).any():
        raise _bad(f"a message in topic {CONTROL_TOPIC!r} is not a control record")
    counts = np.add.reduceat(control, batch.run_starts[:-1], dtype=np.int64)
    runs = batch.runs
    if ((counts > 0) & (counts < runs["count"])).any():
        raise _bad("a run has control records and messages together")
    chosen = runs[counts > 0]
    pairs = np.unique(np.column_stack((chosen["publisher"], chosen["origin"].astype(U8))), axis=0)
    for publisher, number in pairs.tolist():
        expected = _OWN_CONTROL if number == SOURCE_LOG else control_publisher(origins[number])
        if publisher != expected:
            raise _bad(f"control records of publisher {publisher} are not from origin {number}")


def _control_messages(batch: MessageBatch) -> Bools:
    if batch.topic_index is None:
        return np.ones(batch.count, bool)
    control: Bools = batch.topic_index == batch.topics.index(CONTROL_TOPIC)
    return control


def _check_side(side: LinkSide) -> None:
    _check_name(side.instance, "instance")
    _check_name(side.group, "group")
    if side.destination:
        _check_name(side.destination, "destination")
    _check_text(side.software, link_text_bytes_max, "software name")
    _check_text(side.pass_through, topic_bytes_max, "pass-through pattern")
    decode_starts(side.starts)
    _check_rules(side.rules)
    _check_topics(side.topics)
    for link in side.sources:
        _check_name(link.instance, "instance")
        _check_rules(link.rules)
        for origin in link.origins:
            _check_name(origin.instance, "instance")
            _check_name(origin.group, "group")
            for name in origin.path:
                _check_name(name, "instance")


def _check_topics(topics: LinkTopics) -> None:
    names = (*(topics.recorded or ()), *topics.types, *topics.validated, *topics.derived)
    for name in names:
        _check_text(name, topic_bytes_max, "topic")
    for sow in topics.sow:
        for text in (sow.name, sow.pattern or "", sow.key_domain, *sow.key):
            _check_text(text, topic_bytes_max, "text of a SOW topic")


def _check_rules(rules: Iterable[LinkRule]) -> None:
    for rule in rules:
        if not rule.topic:
            raise _bad("a rule has no topic")
        _check_text(rule.topic, topic_bytes_max, "topic of a rule")
        _check_text(rule.filter or "", filter_bytes_max, "filter of a rule")


def _check_name(name: str, noun: str) -> None:
    try:
        check_client_name(name)
    except BadName:
        raise _bad(
            f"the {noun} name {shown(name)} has control characters or not 1 to {client_name_bytes_max} bytes"
        ) from None


def _check_text(text: str, bytes_max: int, noun: str, *, secret: bool = False) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        found = "" if secret else f" {shown(text)}"
        raise _bad(
            f"the {noun}{found} of {size:,} bytes is too long, at most {bytes_max:,} bytes are allowed"
        )


def _bad(cause: str) -> BadLink:
    return BadLink(f"Invalid link frame: {cause}. Report the defect of its sender.")
