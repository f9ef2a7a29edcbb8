"""Delete arguments: validation, and construction of the body of a delete of records."""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.base.client_limits import check_filter, filter_bytes_most
from tickertape.base.errors import BadFilter, UsageError
from tickertape.base.names import check_topic
from tickertape.base.text_format import listed, shown, wrong_type
from tickertape.payload.bodies import encode
from tickertape.wire.sow_command import SowDelete, encode_delete


def check_selection(**given: object) -> None:
    """Raise `UsageError` unless exactly one of the arguments of `sow_delete` is given."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) == 1:
        return
    which = f"with {', '.join(names)} together" if names else "without a selection"
    raise UsageError(f"Cannot delete {which}. Pass exactly one of {listed(tuple(given))}.")


def check_delete_filter(filter: object) -> str:
    """Return `filter` if it is a condition of a valid length. Raises `BadFilter`."""
    if not isinstance(filter, str):
        raise BadFilter(wrong_type("filter of sow_delete", filter, "str"))
    if not filter.strip():
        raise BadFilter(f"Invalid filter of sow_delete {shown(filter)}: it is empty. Use a condition.")
    check_filter(filter, filter_bytes_most)
    return filter


def delete_body(
    topic: str, filter: str | None, keys: Sequence[str] | None, data: object, options: str | None
) -> bytes:
    """Return the body of a delete of the records of `topic`, for which exactly one argument is given.

    Raises `BadTopic`, `BadFilter`, `BadCommand`, `BadMessage`, `UsageError`.
    """
    check_topic(topic)
    if options is not None:
        raise UsageError(
            f"Cannot delete records with options={shown(options)}: options are for messages of a queue. "
            "Remove options."
        )
    delete = SowDelete(
        topic=topic,
        keys=() if keys is None else _keys(keys),
        filter=None if filter is None else check_delete_filter(filter),
        data=None if data is None else _encoded(data),
    )
    return encode_delete(delete)


def _keys(keys: object) -> tuple[str, ...]:
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise UsageError(wrong_type("keys", keys, "a list of str"))
    if not keys:
        raise UsageError("Cannot delete with an empty list of keys. Pass at least one key.")
    return tuple(keys)


def _encoded(data: object) -> bytes:
    return data if type(data) is bytes else encode(data)
