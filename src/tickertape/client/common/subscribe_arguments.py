"""Owns what an application may ask of a subscription: the request made of it, its parts checked.

Must never send a request whose options this version does not carry out: what is not built yet raises.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import Final

from tickertape.base.bookmarks import EPOCH, MOST_RECENT, Bookmark, bookmark_text, parse_bookmark
from tickertape.base.errors import BadOption, BadTopic, SubscriptionUnknown, UsageError
from tickertape.base.limits import (
    credit_bytes_default,
    credit_bytes_max,
    message_cost_bytes,
    subscription_id_bytes_max,
)
from tickertape.base.options import format_options
from tickertape.base.units import parse_size
from tickertape.client.common.option_string import merge_options
from tickertape.client.subscriptions.subscription import SubscribeRequest, SubscriptionContext
from tickertape.wire.commands import Resolve

StartPoint = str | datetime | Bookmark | Sequence[str | Bookmark]
_Given = dict[str, object]
NOT_FOUND: Final = ("fail", "now", "epoch")


class MadeUpId(str):
    """The id of a subscription that the application gave none."""

    __slots__ = ()


def start_text(bookmark: StartPoint) -> str:
    """The text of a start point: as it goes on the wire, or `MOST_RECENT`. Raises `BadBookmark`."""
    text = bookmark_text(bookmark)
    if text != MOST_RECENT:
        parse_bookmark(text)
    return text


def wire_text(bookmark: StartPoint) -> str:
    """As `start_text`, where no subscription is asked about: `MOST_RECENT` is EPOCH then."""
    text = start_text(bookmark)
    return EPOCH if text == MOST_RECENT else text


def make_request(
    topic: str,
    sub_id: str,
    *,
    bookmark: StartPoint | None = None,
    filter: str | None = None,
    timestamp: bool = False,
    bookmark_not_found: str = "fail",
    options: str | None = None,
    depth: int | str | None = None,
    until_caught_up: bool = False,
    positions: tuple[int, int] | None = None,
    journal: str | None = None,
    numbered: bool = False,
    given: Mapping[str, object] | None = None,
) -> SubscribeRequest:
    """The request of a subscription. Raises `BadTopic`, `BadBookmark`, `BadOption`.

    `options` is the option string of the reference, `given` are keywords named like options: what is in both
    is refused. `timestamp` and `bookmark_not_found` are what holds where neither says anything else.
    """
    _check_kinds(
        topic, positions, {"sub_id": sub_id, "filter": filter, "options": options, "journal": journal}
    )
    if not 0 < len(sub_id.encode()) <= subscription_id_bytes_max:
        raise BadOption(f"sub_id={sub_id!r}: a subscription id has 1 to {subscription_id_bytes_max} bytes")
    asked = merge_options(options or "", given or {})
    wire: dict[str, str | None] = {}
    if bookmark is not None or positions is not None or "bookmark" in asked:
        wire["bookmark"] = None
    if timestamp or "timestamp" in asked:
        wire["timestamp"] = None
    not_found = asked.pop("bookmark_not_found", None)
    if bookmark is not None:
        wire["bookmark_not_found"] = not_found = not_found or bookmark_not_found
        if not_found not in NOT_FOUND:
            raise BadOption(f"bookmark_not_found={not_found!r}: use one of {', '.join(NOT_FOUND)}")
    elif not_found is not None:
        raise BadOption("bookmark_not_found needs a bookmark")
    if bookmark is not None or positions is not None:
        _check_no_queue(asked)
    return SubscribeRequest(
        topic=topic,
        context=SubscriptionContext(
            sub_id=str(sub_id), with_bookmark="bookmark" in wire, with_timestamp="timestamp" in wire
        ),
        bookmark=None if bookmark is None else start_text(bookmark),
        filter=filter,
        options=format_options(wire | asked),
        replace="replace" in asked,
        depth_bytes=_depth_bytes(depth),
        until_caught_up=until_caught_up,
        positions=positions,
        journal=journal,
        numbered=numbered,
        named=not isinstance(sub_id, MadeUpId),
    )


def pace_given(rate: object, rate_max_gap: object, conflation: object, conflation_key: object) -> _Given:
    """The keywords of a call that say how fast and how much."""
    return {
        "rate": rate,
        "rate_max_gap": rate_max_gap,
        "conflation": conflation,
        "conflation_key": conflation_key,
    }


def manner_given(*, pause: bool, live: bool, fully_durable: bool) -> _Given:
    """The keywords of a call that say when messages are delivered."""
    return {"pause": pause, "live": live, "fully_durable": fully_durable}


def resolve_command(
    topic: str,
    *,
    bookmark: str = "",
    filter: str | None = None,
    positions: tuple[int, int] | None = None,
    journal: str | None = None,
    messages_max: int = 0,
    bytes_max: int = 0,
) -> Resolve:
    """The question of what a start point or a part of the log covers. Raises `BadTopic`, `BadOption`.

    A bookmark that the log does not hold is an error: where the positions begin would be a guess.
    """
    _check_kinds(topic, positions, {"filter": filter, "journal": journal})
    return Resolve(
        id=0,
        topic=topic,
        bookmark=bookmark,
        options="bookmark_not_found=fail",
        filter=filter,
        positions=positions,
        journal=journal,
        messages_max=messages_max,
        bytes_max=bytes_max,
    )


def _depth_bytes(depth: int | str | None) -> int:
    depth_bytes = credit_bytes_default if depth is None else parse_size(depth)
    if not message_cost_bytes <= depth_bytes <= credit_bytes_max:
        raise BadOption(
            f"depth={depth!r}: a stream's depth is {message_cost_bytes} to {credit_bytes_max:,} bytes"
        )
    return depth_bytes


def _check_no_queue(asked: Mapping[str, object]) -> None:
    for name in ("max_backlog", "browse"):
        if name in asked:
            raise BadOption(
                f"{name} is for subscriptions to queues: one with a bookmark replays what was published"
            )


def not_found_given(bookmark_not_found: str) -> str | None:
    """The keyword `bookmark_not_found` of a call, None where it is as it is by itself."""
    return None if bookmark_not_found == "fail" else bookmark_not_found


def _check_kinds(topic: str, positions: tuple[int, int] | None, texts: Mapping[str, str | None]) -> None:
    if not isinstance(topic, str):
        raise BadTopic(f"a topic name is text, not {type(topic).__name__}")
    if not topic:
        raise BadTopic("a subscription needs a topic; this one is empty")
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise BadOption(f"{name} is text, not {type(text).__name__}")
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise BadOption(f"{name} cannot be sent, it is no Unicode text: {error}") from None
    if positions is not None and not all(type(position) is int and position >= 0 for position in positions):
        raise UsageError("positions in a log are numbers from 0 on")


def check_sub_ids(what: str, sub_ids: object) -> tuple[str, ...]:
    """`sub_ids`, which are ids of subscriptions for the command `what`. Raises `UsageError`."""
    if not sub_ids or not isinstance(sub_ids, list | tuple):
        raise UsageError(f"{what} needs the sub_id of a subscription, or several")
    for sub_id in sub_ids:
        if not isinstance(sub_id, str):
            raise UsageError(f"the sub_id of a subscription is text, not {type(sub_id).__name__}")
    return tuple(sub_ids)


def check_known(sub_ids: Sequence[str], running: Container[str], consequence: str) -> None:
    """Raise `SubscriptionUnknown` unless all of them are running."""
    for sub_id in sub_ids:
        if sub_id not in running:
            where = "on this connection" + (", and each id is given by itself" if "," in sub_id else "")
            raise SubscriptionUnknown(f"no subscription {sub_id!r} {where}; {consequence}")
