from __future__ import annotations

from typing import get_args

import pytest

from tests.helpers.link_frames import conversation
from tests.helpers.link_golden import link_path
from tests.helpers.wire import joined, read_in, seen
from tests.helpers.wire_golden import GOLDEN
from tickertape.wire.commands import PREFACE
from tickertape.wire.frames import encode_frame
from tickertape.wire.link import DestinationCommand, SourceCommand
from tickertape.wire.link_connection import LinkConnection

CONVERSATION = conversation()


@pytest.mark.parametrize("name", CONVERSATION)
def test_encoded_link_frames_equal_the_golden_files(name: str) -> None:
    _, command, batch = CONVERSATION[name]
    assert joined(encode_frame(command, batch)) == link_path(name).read_bytes()


def test_golden_link_frames_decode_to_the_same_commands_at_both_ends() -> None:
    source, destination = LinkConnection("source"), LinkConnection("destination")
    assert read_in(destination, source.preface()) == []
    for name, (sender, command, batch) in CONVERSATION.items():
        here, there = (source, destination) if sender == "source" else (destination, source)
        assert joined(here.send(command, batch)) == link_path(name).read_bytes()
        (event,) = read_in(there, link_path(name).read_bytes())
        assert seen(event).command == command
        assert seen(event).batch == (None if batch is None else batch.encode())
    assert source.preface() == PREFACE
    assert destination.preface() == b""


def test_every_link_command_has_an_example_and_every_file_is_used() -> None:
    commands = {type(command) for _, command, _ in CONVERSATION.values()}
    assert commands == set(get_args(SourceCommand)) | set(get_args(DestinationCommand))
    assert {path.name for path in GOLDEN.glob("link-*.bin")} == {
        link_path(name).name for name in CONVERSATION
    }
