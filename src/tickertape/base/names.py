"""Names of topics, clients and transactions, and publisher ids derived from names.

A client name gives the same publisher id on every machine and in every run. A topic name with one of
`* + ? [ ] ( ) { } ^ $ \\ |` is a pattern.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from tickertape.base.errors import BadName, BadOption, BadTopic
from tickertape.base.limits import client_name_bytes_max, topic_bytes_max, transaction_name_bytes_max
from tickertape.base.text_format import shown, wrong_type

LINK_TOPIC: Final = "$link"
"""Internal topic of the places of other logs. Links never send it."""

PATTERN_CHARACTERS: Final = "*+?[](){}^$\\|"
"""Characters that make a topic a regular expression. A topic without them is literal. A dot is literal."""

_PATTERN: Final = re.compile(r"[*+?\[\](){}^$\\|]")
_NUMBER_DIGITS_MAX: Final = 18
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def publisher_id(client_name: str) -> int:
    """Return the publisher id (1 to 2**64 - 1) for messages that the client numbers itself."""
    return _hash(client_name.encode("utf-8"))


def derived_publisher_id(client_name: str, instance: str) -> int:
    """Return the publisher id (1 to 2**64 - 1) for messages of `client_name` that `instance` numbers.

    It differs from `publisher_id` and per server, because each of them numbers messages independently.
    """
    return _hash(client_name.encode("utf-8") + b"\x00" + instance.encode("utf-8"))


def place_id(log: bytes, start: int) -> int:
    """Return the publisher id of the bookmarks of places in the log `log`, in the server start `start`."""
    return _hash(b"\x00place" + log + start.to_bytes(8, "little"))


def is_pattern(topic: str) -> bool:
    """Return whether `topic` is a regular expression rather than a literal name."""
    return _PATTERN.search(topic) is not None


def check_topic(topic: str) -> None:
    """Raise `BadTopic` unless `topic` is a literal name of 1 to `topic_bytes_max` bytes in UTF-8."""
    if not isinstance(topic, str):
        raise BadTopic(wrong_type("topic", topic, "str"))
    pattern = _PATTERN.search(topic)
    if pattern is not None:
        raise BadTopic(
            f"Invalid topic {shown(topic)}: {pattern[0]!r} makes it a pattern. "
            f"Use a name without pattern characters ({PATTERN_CHARACTERS})."
        )
    problem = _problem(topic, topic_bytes_max)
    if problem:
        raise BadTopic(f"Invalid topic {shown(topic)}: it {problem}. Use another name.")


def check_client_name(name: str) -> None:
    """Raise `BadName` unless `name` is a valid client name of 1 to `client_name_bytes_max` bytes in UTF-8."""
    if not isinstance(name, str):
        raise BadName(wrong_type("client name", name, "str"))
    problem = _problem(name, client_name_bytes_max)
    if problem:
        raise BadName(f"Invalid client name {shown(name)}: it {problem}. Use another name.")


def check_transaction(space: str, name: str) -> None:
    """Raise `BadOption` unless `space` and `name` are a valid transaction name.

    Each has at most `transaction_name_bytes_max` bytes in UTF-8. In a space the name is a number.
    """
    for what, text in (("space", space), ("name", name)):
        if not isinstance(text, str):
            raise BadOption(wrong_type(f"transaction {what}", text, "str"))
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise BadOption(
                f"Invalid {what} of a transaction {shown(text)}: it is not valid Unicode. Use another {what}."
            ) from None
        if size > transaction_name_bytes_max:
            raise BadOption(
                f"Invalid {what} of a transaction {shown(text)}: it has {size} bytes in UTF-8. "
                f"Use at most {transaction_name_bytes_max} bytes."
            )
    if not name:
        raise BadOption("Invalid name of a transaction '': it must not be empty. Use another name.")
    if space and (not (name.isascii() and name.isdecimal()) or len(name) > _NUMBER_DIGITS_MAX):
        raise BadOption(
            f"Invalid name of a transaction in space {shown(space)}: {shown(name)}. "
            f"Use a number of up to {_NUMBER_DIGITS_MAX} digits."
        )


def _problem(name: str, bytes_max: int) -> str:
    if not name:
        return "must not be empty"
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > bytes_max:
        return f"must have at most {bytes_max} bytes in UTF-8, but has {size}"
    control = _CONTROL.search(name)
    if control is not None:
        return f"must not contain control characters (at position {control.start()})"
    return ""


def _hash(data: bytes) -> int:
    # 0 means "no publisher" in a batch, so a name that hashes to 0 gets 1.
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") or 1
