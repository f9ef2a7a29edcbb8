"""Owns the general form of what an application may ask a server: a command as data.

Must never send it, and never drop a field: one that the command does not use raises.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.errors import BadOption, UsageError
from tickertape.client.requests import StartPoint, make_request, refuse_not_built
from tickertape.client.subscriptions import Request

BUILT: Final = {
    "publish": ("topic", "data", "expiration", "correlation_id", "sow_key"),
    "subscribe": ("topic", "bookmark", "filter", "options", "sub_id", "depth", "until_caught_up"),
    "unsubscribe": ("sub_id",),
    "flush": ("level",),
}
"""The commands there are, and the fields that each uses."""
NOT_BUILT: Final = (
    "sow", "sow_and_subscribe", "sow_and_delta_subscribe", "sow_delete", "delta_publish", "delta_subscribe",
    "ack", "pause", "resume",
)  # fmt: skip


class _Head(msgspec.Struct, frozen=True):
    command: str
    """`publish`, `subscribe`, `unsubscribe` or `flush`."""
    topic: str = ""


class Command(_Head, frozen=True, kw_only=True):
    """What `execute` and `execute_async` of both clients take; every other method is a short form of it.

    `command`: `publish`, `subscribe`, `unsubscribe` or `flush`. Others of the reference are not built yet.
    `topic`: of a publish or subscribe. A pattern is not built yet: `BadTopic`.
    publish: `data` (bytes as they are, str as UTF-8, anything else as JSON), `expiration` (seconds or text),
    `correlation_id`, `sow_key`.
    subscribe: `bookmark` makes it a bookmark subscription; with `until_caught_up` that one ends at the last
    message accepted when it was asked for. `options`: the option string of the reference, such as
    `"timestamp,bookmark_not_found=now"`. `sub_id`: its id; one is made up when it is None. `depth`: its
    credit, in bytes or text (`"2MB"`). `filter` is not built yet.
    unsubscribe: `sub_id`, one or several.
    flush: `level`, `persisted` (default) or `processed`.

    Nothing is checked before it is executed; then `BadOption` names what does not exist, is not built yet, or
    is not used by this command.
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


_DEFAULTS: Final = {
    field.encode_name: field.default
    for field in msgspec.structs.fields(Command)
    if field.default is not msgspec.NODEFAULT
}


def check_command(command: Command) -> None:
    """Raise `BadOption` for a command that does not exist or a field that it does not use."""
    if not isinstance(command, Command):
        raise UsageError(f"execute takes a Command, not {type(command).__name__}")
    if not isinstance(command.command, str):
        raise BadOption(f"command is text, not {type(command.command).__name__}")
    used = BUILT.get(command.command)
    if used is None:
        why = "is not built yet" if command.command in NOT_BUILT else "does not exist"
        raise BadOption(f"command {command.command!r} {why}; there are {', '.join(BUILT)}")
    for name, default in _DEFAULTS.items():
        value = getattr(command, name)
        if name not in used and value is not default and (name == "data" or value != default):
            raise BadOption(f"{command.command} does not use {name}={value!r}; leave it out")
    if command.command == "publish" and command.data is msgspec.UNSET:
        raise UsageError("a publish needs data")


def request_of(command: Command, sub_id: str) -> tuple[Request, bool]:
    """The subscription that a subscribe asks for, and whether it is a limited reading."""
    refuse_not_built({"filter": command.filter})
    bookmark = command.bookmark
    if not isinstance(command.until_caught_up, bool):
        raise BadOption(f"until_caught_up is True or False, not {type(command.until_caught_up).__name__}")
    if command.until_caught_up and bookmark is None:
        raise BadOption("until_caught_up needs a bookmark: it says where a replay stops")
    limited = command.until_caught_up
    request = make_request(
        command.topic,
        sub_id,
        bookmark=bookmark,
        options=command.options,
        depth=command.depth,
        until_caught_up=limited,
    )
    return request, limited


def sub_ids_of(command: Command) -> tuple[str, ...]:
    """The subscriptions that an unsubscribe names."""
    named = (command.sub_id,) if isinstance(command.sub_id, str) else command.sub_id
    if not named or not isinstance(named, list | tuple):
        raise UsageError("an unsubscribe needs the sub_id of a subscription, or several")
    if not all(isinstance(sub_id, str) for sub_id in named):
        raise UsageError("the sub_id of a subscription is text")
    return tuple(named)


def one_sub_id(command: Command) -> str | None:
    """The id that a subscribe asks for."""
    if isinstance(command.sub_id, tuple):
        raise UsageError(f"a subscribe has one sub_id, not {command.sub_id!r}")
    return command.sub_id
