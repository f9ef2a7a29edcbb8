from __future__ import annotations

from typing import get_args

import pytest

from tests.helpers.wire import client_logged_on, joined, read_in, seen, server_logged_on
from tests.helpers.wire_golden import GOLDEN, examples, golden_path
from tickertape.wire.commands import PREFACE, ClientCommand, LoggedOn, Logon, ServerCommand
from tickertape.wire.connection import Connection
from tickertape.wire.frames import encode_frame

EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_encoded_frames_equal_the_golden_files(name: str) -> None:
    _, command, batch = EXAMPLES[name]
    assert joined(encode_frame(command, batch)) == golden_path(name).read_bytes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_frames_decode_to_the_same_commands(name: str) -> None:
    role, command, batch = EXAMPLES[name]
    if isinstance(command, Logon):
        reader = Connection("server")
        assert read_in(reader, PREFACE) == []
    elif isinstance(command, LoggedOn):
        reader = Connection("client")
    else:
        reader = server_logged_on() if role == "client" else client_logged_on()
    (event,) = read_in(reader, golden_path(name).read_bytes())
    assert seen(event).command == command
    assert seen(event).batch == (None if batch is None else batch.encode())


def test_every_command_has_an_example_and_every_file_is_used() -> None:
    commands = {type(command) for _, command, _ in EXAMPLES.values()}
    assert commands == set(get_args(ClientCommand)) | set(get_args(ServerCommand))
    assert golden_path("preface").read_bytes() == PREFACE
    assert {path.name for path in GOLDEN.glob("wire-*.bin")} == {
        golden_path(name).name for name in [*EXAMPLES, "preface"]
    }
