"""Query arguments: validation, and construction of the request.

Invariant: an option that is not implemented raises, and is never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tickertape.base.errors import BadCommand, BadOption, NotBuilt, UsageError
from tickertape.base.limits import KIB, header_bytes_max
from tickertape.base.options import format_options, parse_options
from tickertape.base.text_format import is_utf8, listed, shown, wrong_type
from tickertape.client.common.request import RecordQuery, SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request, merge_options
from tickertape.wire.sow_command import check_keys

_OPTIONS: Final = ("select", "timestamp")
"""Options of each query. One that follows also has `replace`."""
_LARGEST: Final = 1 << 53
_KEYS_BYTES_MAX: Final = header_bytes_max - 32 * KIB
"""Size of keys that fit into the header of a frame, beside the other fields."""
_KEY_HEADER_BYTES: Final = 2
"""Bytes before each key in the frame."""


def make_query(
    topic: str,
    sub_id: str,
    *,
    follow: bool,
    filter: str | None = None,
    keys: Sequence[str] | None = None,
    order_by: str | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
    batch_size: int = 0,
    bookmark: object = None,
    timestamp: bool = False,
    groups: bool = False,
    renewed: bool = False,
    options: str | None = None,
    depth: int | str | None = None,
) -> SubscribeRequest:
    """Return the request of a query. With `follow` the messages after the result follow it.

    `renewed`: see `RecordQuery`.

    Raises `BadTopic`, `BadOption`, `BadCommand` for too many keys, and `NotBuilt` for a bookmark.
    """
    if bookmark is not None:
        raise NotBuilt(
            f"Cannot query {topic!r} as of bookmark {shown(str(bookmark))}: this version keeps no history of "
            "records. Query without bookmark=, or read the messages with replay()."
        )
    if order_by is not None and not isinstance(order_by, str):
        raise BadOption(wrong_type("order_by", order_by, "str"))
    if order_by is not None and not is_utf8(order_by):
        raise BadOption(
            f"Invalid order_by {shown(order_by)}: it is not valid Unicode. Use valid Unicode text."
        )
    wire, counts = _options(
        options, {"timestamp": timestamp, "top_n": top_n, "skip_n": skip_n}, follow=follow
    )
    if counts["skip_n"] is not None and counts["top_n"] is None:
        raise BadOption("skip_n requires top_n. Pass top_n= or remove skip_n.")
    query = RecordQuery(
        keys=_keys(keys),
        order_by=order_by or "",
        top_n=counts["top_n"],
        skip_n=counts["skip_n"] or 0,
        batch_size=_count("batch_size", batch_size) or 0,
        follow=follow,
        groups=groups,
        renewed=renewed,
    )
    return make_request(topic, sub_id, filter=filter, options=wire, depth=depth, query=query)


def _options(text: str | None, given: dict[str, Any], *, follow: bool) -> tuple[str, dict[str, int | None]]:
    """Return the options on the wire, and the counts, which may be options or keywords."""
    if text is not None and not isinstance(text, str):
        raise BadOption(wrong_type("options", text, "str"))
    parsed = parse_options(text or "")
    counts: dict[str, int | None] = {}
    for name in ("top_n", "skip_n"):
        value = given.pop(name)
        if name in parsed and value is not None:
            raise BadOption(
                f"Cannot set option {name!r} twice: as {name}={value!r} and in options={shown(text or '')}. "
                "Remove one of them."
            )
        if name in parsed and parsed[name] is None:
            raise BadOption(f"Invalid option {name!r}: it requires a value. Use {name}=VALUE.")
        value = parsed.pop(name, value)
        counts[name] = None if value is None else _count(name, value)
    options = merge_options(format_options(parsed), given)
    allowed = (*_OPTIONS, "replace") if follow else _OPTIONS
    for name in options:
        if name not in allowed:
            raise BadOption(f"Option {name!r} does not apply to a query. Use {listed((*allowed, *counts))}.")
    return format_options(options), counts


def _count(name: str, value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise BadOption(f"Invalid {name} {value!r}. Use a number of records, 0 or more.")
    return value


def _keys(keys: object) -> tuple[str, ...]:
    if keys is None:
        return ()
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise UsageError(wrong_type("keys", keys, "a list of str"))
    if not keys:
        raise UsageError("Cannot query with an empty list of keys. Pass at least one key, or omit keys=.")
    text = "".join(keys)
    if not is_utf8(text):
        wrong = next(key for key in keys if not is_utf8(key))
        raise UsageError(f"Invalid key {shown(wrong)}: it is not valid Unicode. Use keys of records.")
    check_keys(tuple(keys), ())
    size = len(text.encode()) + _KEY_HEADER_BYTES * len(keys)
    if size > _KEYS_BYTES_MAX:
        raise BadCommand(
            f"Cannot query by {len(keys):,} keys: they need {size:,} bytes. "
            f"Use at most {_KEYS_BYTES_MAX:,} bytes of keys in one query."
        )
    return tuple(keys)
