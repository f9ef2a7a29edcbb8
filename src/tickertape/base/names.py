"""Names of topics, clients and transactions, and publisher ids derived from names.

A client name gives the same publisher id on every machine and in every run. A topic name is a pattern if it
has one of `* + ? [ ] ( ) { } ^ $ \\ |`.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from tickertape.base.errors import BadName, BadOption, BadTopic
from tickertape.base.limits import client_name_bytes_max, topic_bytes_max, transaction_name_bytes_max
from tickertape.base.text_format import shown

PATTERN_CHARACTERS: Final = "*+?[](){}^$\\|"
"""A topic with one of these is a regular expression; without, a literal. A lone dot is literal."""

_PATTERN: Final = re.compile(r"[*+?\[\](){}^$\\|]")
_NUMBER_DIGITS_MAX: Final = 18
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def publisher_id(client_name: str) -> int:
    """Return the publisher id of `client_name`, 1 to 2**64 - 1, for messages with the client's own
    sequences."""
    return _hash(client_name.encode("utf-8"))


def derived_publisher_id(client_name: str, instance: str) -> int:
    """Return the publisher id, 1 to 2**64 - 1, for messages of `client_name` that `instance` numbers.

    Other than `publisher_id`, because two instances number them apart from each other and from the client.
    """
    return _hash(client_name.encode("utf-8") + b"\x00" + instance.encode("utf-8"))


def is_pattern(topic: str) -> bool:
    """Return whether `topic` is a regular expression rather than a literal name."""
    return _PATTERN.search(topic) is not None


def check_topic(topic: str) -> None:
    """Raise `BadTopic` unless `topic` can be published to: literal, 1 to `topic_bytes_max` UTF-8 bytes."""
    if not isinstance(topic, str):
        raise BadTopic(f"a topic name is text, not {type(topic).__name__}")
    pattern = _PATTERN.search(topic)
    if pattern is not None:
        raise BadTopic(
            f"{pattern[0]!r} makes {shown(topic)} a pattern; "
            f"publish to a name without any of {PATTERN_CHARACTERS}"
        )
    problem = _problem(topic, topic_bytes_max)
    if problem:
        raise BadTopic(f"a topic name {problem}")


def check_client_name(name: str) -> None:
    """Raise `BadName` unless `name` can be a client's: 1 to `client_name_bytes_max` bytes of UTF-8."""
    if not isinstance(name, str):
        raise BadName(f"a client name is text, not {type(name).__name__}")
    problem = _problem(name, client_name_bytes_max)
    if problem:
        raise BadName(f"a client name {problem}")


def check_transaction(space: str, name: str) -> None:
    """Raise `BadOption` unless `space` and `name` can name a transaction: at most
    `transaction_name_bytes_max` bytes of UTF-8 each, and in a space a number."""
    for what, text in (("space", space), ("name", name)):
        if not isinstance(text, str):
            raise BadOption(f"the {what} of a transaction is text, not {type(text).__name__}")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise BadOption(
                f"the {what} of a transaction must be text that UTF-8 can write; {shown(text)} is not"
            ) from None
        if size > transaction_name_bytes_max:
            raise BadOption(f"the {what} of a transaction has at most {transaction_name_bytes_max} bytes")
    if not name:
        raise BadOption("a transaction without a name")
    if space and (not (name.isascii() and name.isdecimal()) or len(name) > _NUMBER_DIGITS_MAX):
        raise BadOption(
            f"transactions of a space are named by numbers of up to {_NUMBER_DIGITS_MAX} digits, and "
            f"{shown(name)} is none"
        )


def _problem(name: str, bytes_max: int) -> str:
    if not name:
        return "must not be empty"
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return f"must be text that UTF-8 can write; {shown(name)} is not"
    if size > bytes_max:
        return f"has at most {bytes_max} bytes of UTF-8; {shown(name)} has {size}"
    control = _CONTROL.search(name)
    if control is not None:
        return f"has no control characters; {shown(name)} has one at position {control.start()}"
    return ""


def _hash(data: bytes) -> int:
    # 0 means "no publisher" in a batch, so the one name in 2**64 that hashes to it gets 1
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") or 1
