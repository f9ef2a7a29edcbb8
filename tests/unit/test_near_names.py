"""Every closed set suggests a near name for a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.helpers.peer import frame
from tests.simulation.engine_world import EngineWorld
from tickertape.base.bookmarks import parse_bookmark
from tickertape.base.errors import TickertapeError
from tickertape.batch import batch_from_bodies
from tickertape.client.api.command import check_command
from tickertape.client.common.subscribe_arguments import make_request, merge_options
from tickertape.client.queues.settlements import action_of
from tickertape.client.subscriptions.message_buffer import StreamConflation
from tickertape.engine.subscriptions.options import subscribe_options
from tickertape.filter.functions.registry import unsupported_reason
from tickertape.payload.registry import message_type
from tickertape.server.access.tokens import tokens_in
from tickertape.server.config.config import load_config
from tickertape.spark.source.options import read_names
from tickertape.testing.fault_proxy import FaultProxy
from tickertape.wire.commands import PREFACE, Ack, Command, Subscribe
from tickertape.wire.connection import Connection, Violation

SOURCE = Path(tt.__file__).parent


def wire_error() -> None:
    class Unknown(Command, tag="flsh", frozen=True):
        """A command that no version has."""

    (event,) = Connection("server").feed(PREFACE + frame(Unknown()))
    assert isinstance(event, Violation)
    raise event.error


def unknown_function() -> None:
    raise ValueError(unsupported_reason("UPPR"))


def configuration(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "c.toml"
        file.write_text(text)
        load_config(file)


def spark(**options: str) -> None:
    read_names(options, ("servers", "topic", "startingBookmark"), {})


def fault() -> None:
    misspelt: Any = "resett"
    with FaultProxy("tcp://127.0.0.1:1") as proxy:
        proxy.to_server.after(1, misspelt)


def topic() -> None:
    world = EngineWorld(1, recorded=frozenset({"orders"}))
    peer = world.connect("c")
    peer.send(Subscribe(id=1, topic="odrers", bookmark="0", options="bookmark", credit=1 << 20, sub_id="s"))
    world.settle()
    answer = peer.answers[1]
    assert isinstance(answer, Ack)
    raise ValueError(answer.text)


SETS: dict[str, tuple[Callable[[], object], str]] = {
    "subscribe options of the client": (lambda: merge_options("conflaton=1s", {}), "conflation"),
    "subscribe options of the server": (lambda: subscribe_options("conflaton=1s", replay=True), "conflation"),
    "bookmark_not_found of the client": (
        lambda: make_request("t", "s", bookmark="0", given={"bookmark_not_found": "epock"}),
        "epoch",
    ),
    "bookmark_not_found of the server": (
        lambda: subscribe_options("bookmark_not_found=epock", replay=True),
        "epoch",
    ),
    "start points": (lambda: parse_bookmark("epock"), "epoch"),
    "acknowledgements": (lambda: action_of("cancl"), "cancel"),
    "lease extension": (lambda: action_of("lease_extention=60s"), "lease_extension"),
    "commands": (lambda: check_command(tt.Command("subscribee", topic="t")), "subscribe"),
    "commands of the wire": (wire_error, "flush"),
    "functions": (unknown_function, "UPPER"),
    "configuration keys": (lambda: configuration("[journal]\nsnyc = 'always'\n"), "sync"),
    "configuration sections": (lambda: configuration("[jornal]\n"), "journal"),
    "configuration values": (lambda: configuration("[journal]\nsync = 'alway'\n"), "always"),
    "keys of tokens": (lambda: tokens_in(b"[a]\nsha265 = ''\n", "f"), "sha256"),
    "message types": (lambda: message_type("jsn"), "json"),
    "columns": (lambda: batch_from_bodies("t", [b"1"]).to_arrow(["dat"]), "data"),
    "conflation keys": (lambda: StreamConflation("topc"), "topic"),
    "store policies": (lambda: tt.MemoryPublishStore(when_full="blok"), "block"),  # type: ignore[arg-type]
    "topics": (topic, "orders"),
    "Spark options": (lambda: spark(startingBokmark="epoch"), "startingBookmark"),
    "faults": (fault, "reset"),
}


@pytest.mark.parametrize("name", SETS)
def test_closed_set_suggests_a_near_name(name: str) -> None:
    call, near = SETS[name]
    with pytest.raises((TickertapeError, ValueError)) as caught:
        call()
    assert re.search(rf"Did you mean '?{near}'?\?", str(caught.value)), str(caught.value)


def test_public_names_get_the_suggestion_of_python() -> None:
    with pytest.raises(AttributeError) as caught:
        tt.Clint  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Clint", tt)


def test_one_function_finds_near_names() -> None:
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "get_close_matches" in path.read_text("utf-8")
    }
    assert users == {"base/text_format.py"}
