"""General form of a command: the argument of `execute` and `execute_async`.

Invariant: no field is ignored. A field that the command does not use raises.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final

import msgspec

from tickertape.base.errors import BadOption, UsageError
from tickertape.base.options import parse_options
from tickertape.base.text_format import not_one_of, shown, wrong_type
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import StartPoint, check_sub_ids, make_request
from tickertape.client.sow.query_arguments import make_query

_QUERY: Final = ("topic", "filter", "order_by", "top_n", "skip_n", "batch_size", "options", "depth")
BUILT: Final = {
    "publish": ("topic", "data", "expiration", "correlation_id", "sow_key"),
    "subscribe": ("topic", "bookmark", "filter", "options", "sub_id", "depth", "until_caught_up"),
    "unsubscribe": ("sub_id",),
    "pause": ("sub_id",),
    "resume": ("sub_id",),
    "flush": ("level",),
    "sow": (*_QUERY, "keys", "query_id"),
    "sow_and_subscribe": (*_QUERY, "sub_id"),
    "sow_delete": ("topic", "filter", "keys", "data", "bookmark", "options"),
    "delta_publish": ("topic", "data", "expiration", "correlation_id", "sow_key"),
}
"""Commands, and the fields that each command uses."""
NOT_BUILT: Final = (
    "sow_and_delta_subscribe", "delta_subscribe", "ack",
)  # fmt: skip


class _Head(msgspec.Struct, frozen=True):
    command: str
    """`publish`, `subscribe`, `sow`, `sow_and_subscribe`, `unsubscribe`, `pause`, `resume` or `flush`."""
    topic: str = ""


class Command(_Head, frozen=True, kw_only=True):
    """A command as an object, for `execute` and `execute_async`.

    A command does the same as the client method of the same name (`flush`: `publish_flush`). The client
    validates it at execution, and raises `BadOption` for a field that the command does not use.

    The fields of `publish` also apply to `delta_publish`. A query is `sow` or `sow_and_subscribe`.

    Args:
        command: `publish`, `delta_publish`, `subscribe`, `sow`, `sow_and_subscribe`, `sow_delete`,
            `unsubscribe`, `pause`, `resume` or `flush`.
        topic: Topic of the command. `subscribe` and queries also accept a pattern.
        data: `publish`: the body (bytes unchanged, str as UTF-8, any other object as JSON). `sow_delete`:
            selects the record that a publish of this body would replace.
        expiration: `publish`: lifetime in seconds or text, as in `Client.publish`.
        correlation_id: `publish`: text that subscribers receive with the message.
        sow_key: `publish`: message key.
        bookmark: `subscribe`: start point, which makes it a bookmark subscription. `sow_delete`: bookmarks
            of queue messages to acknowledge.
        filter: `subscribe`, queries and `sow_delete`: only messages or records whose content matches this
            expression.
        options: `subscribe` and queries: options as one string, such as
            `"timestamp,rate=2x,select=[-/,+/b]"`. `sow_delete` with bookmarks: the `option` of
            `Client.ack`. `subscribe` with a `sub_id` and only the option `pause` pauses existing
            subscriptions. Only the option `resume` resumes them.
        sub_id: `subscribe` and `sow_and_subscribe`: id of the subscription (None: a generated id).
            `unsubscribe`, `pause` and `resume`: one or more ids. A pause or resume by `options` also accepts
            text with ids separated by commas.
        depth: `subscribe` and queries: flow-control credit, in bytes or text (`"2MB"`).
        until_caught_up: `subscribe` with a bookmark: end the stream at the last message that the server had
            accepted at the call.
        level: `flush`: `"persisted"` (default) or `"processed"`.
        keys: `sow` and `sow_delete`: only records with one of these keys.
        order_by: Queries: fields to sort by, as in `Client.sow`.
        top_n: Queries: largest number of records.
        skip_n: Queries: number of records to skip at the start of the result.
        batch_size: Queries: number of records per frame.
        query_id: `sow`: id of the query (None: a generated id).

    Example:
        >>> command = tt.Command("subscribe", "orders", bookmark=tt.EPOCH, options="timestamp")
        >>> with client.execute(command) as stream:
        ...     client.publish("orders", {"id": 1})
        ...     stream.get(timeout=5).json()
        {'id': 1}
    """

    data: object = msgspec.UNSET
    expiration: float | str | None = None
    correlation_id: str | None = None
    sow_key: str | None = None
    bookmark: StartPoint | None = None
    filter: str | None = None
    options: str | None = None
    sub_id: str | tuple[str, ...] | None = None
    depth: int | str | None = None
    until_caught_up: bool = False
    level: str | None = None
    keys: Sequence[str] | None = None
    order_by: str | None = None
    top_n: int | None = None
    skip_n: int | None = None
    batch_size: int = 0
    query_id: str | None = None


_DEFAULTS: Final = {
    field.encode_name: field.default
    for field in msgspec.structs.fields(Command)
    if field.default is not msgspec.NODEFAULT
}


def check_command(command: Command) -> None:
    """Raise `BadOption` for a command that does not exist or a field that it does not use."""
    if not isinstance(command, Command):
        raise UsageError(wrong_type("command", command, "a Command"))
    if not isinstance(command.command, str):
        raise BadOption(wrong_type("command name", command.command, "str"))
    used = BUILT.get(command.command)
    if used is None:
        kind = "Unsupported" if command.command in NOT_BUILT else "Unknown"
        raise BadOption(not_one_of(f"{kind} command", command.command, BUILT))
    for name, default in _DEFAULTS.items():
        value = getattr(command, name)
        if name not in used and value is not default and (name == "data" or value != default):
            raise BadOption(f"Command '{command.command}' does not use {name}={value!r}. Remove it.")
    if command.command in ("publish", "delta_publish") and command.data is msgspec.UNSET:
        raise UsageError(f"Command {command.command!r} requires data. Pass data=.")


def request_of(command: Command, sub_id: str) -> SubscribeRequest:
    """Return the subscription request of a subscribe."""
    if not isinstance(command.until_caught_up, bool):
        raise BadOption(wrong_type("until_caught_up", command.until_caught_up, "True or False"))
    if command.until_caught_up and command.bookmark is None:
        raise BadOption("until_caught_up requires a bookmark. Pass bookmark= or remove until_caught_up.")
    return make_request(
        command.topic,
        sub_id,
        bookmark=command.bookmark,
        filter=command.filter,
        options=command.options,
        depth=command.depth,
        until_caught_up=command.until_caught_up,
    )


def query_of(command: Command, sub_id: str) -> SubscribeRequest:
    """Return the request of a query."""
    return make_query(
        command.topic,
        sub_id,
        follow=command.command == "sow_and_subscribe",
        filter=command.filter,
        keys=command.keys,
        order_by=command.order_by,
        top_n=command.top_n,
        skip_n=command.skip_n,
        batch_size=command.batch_size,
        options=command.options,
        depth=command.depth,
    )


def selection_of(command: Command) -> dict[str, Any]:
    """Return the arguments of a delete."""
    return {
        "filter": command.filter,
        "keys": command.keys,
        "data": None if command.data is msgspec.UNSET else command.data,
        "bookmark": command.bookmark,
        "options": command.options,
    }


def naming(command: Command, running: Container[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the action and the subscription ids of a command on existing subscriptions, otherwise None.

    Such a command is `unsubscribe`, `pause` or `resume`, or a subscribe with the only option `pause` or
    `resume`, as in AMPS. A subscribe with `pause` whose id is not in `running` starts a paused
    subscription instead. Raises `UsageError`, `BadOption`.
    """
    if command.command in ("unsubscribe", "pause", "resume"):
        return command.command, _sub_ids(command.command, command.sub_id)
    if command.command != "subscribe" or not isinstance(command.options, str):
        return None
    options = parse_options(command.options)
    if "resume" not in options and ("pause" not in options or not _names(command.sub_id, running)):
        return None
    what = "resume" if "resume" in options else "pause"
    if options != {what: None}:
        raise BadOption(
            f"Cannot {what} subscriptions: options={shown(command.options)} also has other options. "
            f"Use options='{what}' alone."
        )
    for name in ("topic", "bookmark", "filter", "depth", "until_caught_up"):
        if getattr(command, name):
            raise BadOption(f"Cannot {what} subscriptions: {what} does not use {name}. Remove {name}.")
    sub_ids = command.sub_id
    if isinstance(sub_ids, str) and sub_ids not in running:
        sub_ids = tuple([sub_id.strip() for sub_id in sub_ids.split(",")])
    return what, _sub_ids(what, sub_ids)


def _names(sub_id: object, running: Container[str]) -> bool:
    """Return whether `sub_id` names running subscriptions, or is a list (a new subscription has one id)."""
    if not isinstance(sub_id, str):
        return sub_id is not None
    return sub_id in running or ("," in sub_id and all(part.strip() in running for part in sub_id.split(",")))


def _sub_ids(what: str, sub_id: object) -> tuple[str, ...]:
    return check_sub_ids(what, (sub_id,) if isinstance(sub_id, str) and sub_id else sub_id)


def one_sub_id(command: Command) -> str | None:
    """Return the id for a new subscription or query, or None."""
    if command.command == "sow":
        return command.query_id
    if isinstance(command.sub_id, tuple | list):
        raise UsageError(f"Cannot subscribe with several ids {command.sub_id!r}. Pass one sub_id.")
    return command.sub_id
