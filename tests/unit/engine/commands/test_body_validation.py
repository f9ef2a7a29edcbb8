"""Validated topics: rejected bodies, stored neighbours, and no loss or duplicates."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.helpers.engine_parts import make_validation
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies
from tickertape.engine.limits import refused_per_command_messages_max
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.wire.commands import Ack, Flush, Persisted, Processed, Publish, Rejected

JSON = {"t": "json"}

GOOD = [
    b"{}", b"[]", b"0", b"-1.5e3", b'""', b"null", b"true", b' {"a" : [1, 2, {"b": null}]}\n',
    '{"ä": "€ 😀"}'.encode(), b'"\\u00e4\\ud83d\\ude00"', b"[" * 500 + b"]" * 500,
]  # fmt: skip
BAD = [
    b"", b" ", b"{", b'{"a":1,}', b'{"a":1}x', b"1 2", b"01", b"NaN", b"nul", b"'a'", b'"a\nb"', b'"\\x"',
    b'"\\ud800"', b"{1:2}", b'"\xff"', b'{"a":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", b"[" * 100_000, b"\x00",
]  # fmt: skip


def split(
    bodies: list[bytes], *, sequenced: bool = True, topics: list[str] | None = None
) -> list[int] | None:
    """Return the indices of rejected bodies, or None when all are valid."""
    builder = BatchBuilder()
    for topic, body in zip(topics or ["t"] * len(bodies), bodies, strict=True):
        builder.add(topic, body)
    batch = builder.build(publisher=7, first_sequence=100 if sequenced else 0)
    found = make_validation(JSON).split(Publish(frame=1, sequenced=sequenced), batch)
    if found is None:
        return None
    refused = [number for rejection in found.rejections for number in rejection.refused]
    if found.rest is None:
        assert not refused
        return list(range(len(bodies)))
    found.rest.verify()
    names = [number - (100 if sequenced else 0) for number in refused]
    kept = [body for i, body in enumerate(bodies) if i not in set(names)]
    assert found.rest.bodies_list() == kept
    return names


@pytest.mark.parametrize("body", GOOD, ids=lambda body: repr(body[:20]))
def test_valid_json_body_is_accepted(body: bytes) -> None:
    assert split([body]) is None


@pytest.mark.parametrize("body", BAD, ids=lambda body: repr(body[:20]))
def test_invalid_json_body_is_rejected_without_the_neighbours(body: bytes) -> None:
    assert split([b"{}", body, b"[]"]) == [1]
    assert split([b"{}", body, b"[]"], sequenced=False) == [1]
    assert split([body]) == [0]


def test_utf_8_character_split_between_bodies_is_rejected() -> None:
    assert split([b'"\xc3', b'\xa4"', b'"\xc3\xa4"']) == [0, 1]


def test_only_bodies_of_validated_topics_are_checked() -> None:
    assert split([b"x", b"x", b"{}"], topics=["u", "u", "t"]) is None
    assert split([b"x", b"x", b"{}", b"y"], topics=["u", "t", "t", "v"]) == [1]
    binary = make_validation({"t": "binary"})
    assert not TopicCatalog(validated={"t": "binary"}).validated
    assert binary.split(Publish(frame=1), batch_from_bodies("t", [b"\xff"])) is None


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("messagepack", b"\x81\xa1a\x01", b"\x81\xa1a"),
        ("bson", b"\x05\x00\x00\x00\x00", b"{}"),
        ("fix", b"35=D\x01", b"MsgType=D\x01"),
        ("nvfix", b"MsgType=D\x01", b"MsgType\x01"),
    ],
)
def test_body_of_another_message_type_is_rejected(kind: str, good: bytes, bad: bytes) -> None:
    validation = make_validation({"t": kind})
    assert list(TopicCatalog(validated={"t": kind}).validated) == ["t"]
    batch = batch_from_bodies("t", [good, bad, good], publisher=7, first_sequence=41)
    found = validation.split(Publish(frame=1, sequenced=True), batch)
    assert found is not None
    assert found.rejections[0].refused == (42,)
    assert f"for 't' is not {kind}: " in found.rejections[0].text
    assert found.rest is not None
    assert found.rest.bodies_list() == [good, good]


def test_topics_of_several_types_in_one_frame_are_validated_by_type() -> None:
    validation = make_validation({"j": "json", "f": "fix", "k": "json", "b": "binary"})
    builder = BatchBuilder()
    for topic, body in [("f", b"1=2"), ("b", b"x"), ("f", b"{}"), ("j", b"1=2"), ("k", b"{}"), ("j", b"{}"),
                        ("u", b"x"), ("k", b"1=2")]:  # fmt: skip
        builder.add(topic, body)
    batch = builder.build(publisher=7, first_sequence=0)
    found = validation.split(Publish(frame=1), batch)
    assert found is not None
    assert found.rejections[0].refused == (2, 3, 7)
    assert "The first is the one number 2: a body of 2 bytes for 'f' is not fix: " in found.rejections[0].text
    assert found.rest is not None
    assert found.rest.bodies_list() == [b"1=2", b"x", b"{}", b"{}", b"x"]


def test_json_validation_agrees_with_the_standard_json_module() -> None:
    rng = Random(5)
    sample = json.dumps({"id": 1, "text": 'a\\u00e4"b', "list": [1.5e3, None, True, {}]}).encode()
    refused = 0
    for _ in range(3000):
        at = rng.randrange(len(sample))
        body = sample[:at] + bytes([rng.choice(b'{}[]",:\\ 0a\xc3')]) + sample[at + rng.randrange(2) :]
        try:
            json.loads(body.decode())
            good = b"\\ud" not in body  # the standard module accepts half a surrogate pair
        except ValueError:
            good = False
        assert (split([body]) is None) is good, body
        refused += not good
    assert 300 < refused < 2900


def test_many_rejections_of_one_frame_are_split_into_commands() -> None:
    count = refused_per_command_messages_max + 5
    batch = batch_from_bodies("t", [b"{}"] + [b"x"] * count, publisher=7, first_sequence=1)
    found = make_validation(JSON).split(Publish(frame=3, sequenced=True), batch)
    assert found is not None
    assert [len(rejection.refused) for rejection in found.rejections] == [count - 5, 5]
    assert {rejection.frame for rejection in found.rejections} == {3}
    assert found.rest is not None
    assert found.rest.count == 1


def test_rejection_text_is_bounded_and_names_sequence_and_reason() -> None:
    batch = batch_from_bodies("t", [b"{}", b"x" * 100_000], publisher=7, first_sequence=41)
    found = make_validation(JSON).split(Publish(frame=1, sequenced=True), batch)
    assert found is not None
    assert len(found.rejections[0].text) < 300
    assert (
        "the one with sequence 42: a body of 100000 bytes for 't' is not json: " in found.rejections[0].text
    )


# -- through the engine -------------------------------------------------------------------------------


def rejections(peer: Peer) -> list[Rejected]:
    return [command for command, _ in peer.received if isinstance(command, Rejected)]


def bodies(log: list[Heard]) -> list[bytes]:
    return [message.body for message in log]


@pytest.mark.parametrize("sequenced", [True, False])
def test_valid_messages_of_a_frame_are_stored_and_invalid_ones_are_named(sequenced: bool) -> None:
    world = EngineWorld(1, validated=JSON)
    peer, other = world.connect("p"), world.connect("other")
    peer.publish("t", [b"1", b"x", b"3", b"y", b"5"], sequenced=sequenced)
    peer.publish("t", [b"6"], sequenced=sequenced)
    other.publish("t", [b"7"], sequenced=sequenced)
    world.settle()
    (rejected,) = rejections(peer)
    assert (rejected.frame, rejected.code) == (1, "bad_body")
    assert rejected.refused == ((2, 4) if sequenced else (1, 3))
    assert bodies(world.log("t")) == [b"1", b"3", b"5", b"6", b"7"]
    sequences = [message.sequence for message in world.log("t")][:4]
    if sequenced:
        assert sequences == [1, 3, 5, 6]
    else:
        assert [number - sequences[0] for number in sequences] == [0, 1, 2, 3], (
            "sequences of the server have no gaps"
        )
    assert (peer.acked_frame, peer.goodbye, other.goodbye) == (2, None, None)
    assert peer.acked_sequence == (6 if sequenced else 0)
    assert rejections(other) == []


def test_frame_with_only_invalid_bodies_is_rejected_and_the_next_is_stored() -> None:
    world = EngineWorld(2, validated=JSON)
    peer = world.connect("p")
    peer.publish("t", [b"x", b"y"])
    peer.publish("t", [b"3"])
    world.settle()
    (rejected,) = rejections(peer)
    assert (rejected.frame, rejected.sequence, rejected.refused) == (1, 2, ())
    assert [(m.sequence, m.body) for m in world.log("t")] == [(3, b"3")]
    assert peer.acked_sequence == 3


def test_rejection_is_sent_before_acknowledgements_of_the_frame() -> None:
    world = EngineWorld(3, validated=JSON)
    peer = world.connect("p")
    peer.publish("t", [b"1", b"x"])
    peer.send(Flush(id=9))
    world.settle()
    kinds = [type(c) for c, _ in peer.received if isinstance(c, Rejected | Persisted | Ack)]
    assert kinds == [Rejected, Persisted, Ack]


def test_resent_frame_is_rejected_equally_and_stored_once() -> None:
    world = EngineWorld(4, validated=JSON)
    peer = world.connect("p")
    peer.publish("t", [b"1", b"x", b"3"])
    world.settle()
    again = world.connect("p")
    assert again.logged_on is not None
    assert (again.logged_on.last_persisted, again.logged_on.validated) == (3, ("t",))
    again.next_sequence = 1
    again.publish("t", [b"1", b"x", b"3", b"4"])
    world.settle()
    assert [rejected.refused for rejected in rejections(again)] == [(2,)]
    assert bodies(world.log("t")) == [b"1", b"3", b"4"]
    assert again.acked_sequence == 4


def test_non_persistent_topic_can_be_validated() -> None:
    world = EngineWorld(5, recorded=frozenset({"u"}), validated=JSON)
    peer, reader = world.connect("p"), world.connect("r")
    reader.subscribe("s", "t")
    peer.publish("t", [b"1", b"x", b"3"], sequenced=False)
    world.settle()
    assert [message.body for message in reader.heard["s"]] == [b"1", b"3"]
    assert [rejected.refused for rejected in rejections(peer)] == [(1,)]
    assert [c.frame for c, _ in peer.received if isinstance(c, Processed)] == [1]


def test_a_topic_that_is_not_validated_is_stored_byte_for_byte() -> None:
    world = EngineWorld(6, validated=JSON)
    peer = world.connect("p")
    peer.publish("u", [b"x", b"\xff", b""])
    world.settle()
    assert bodies(world.log("u")) == [b"x", b"\xff", b""]
    assert rejections(peer) == []


def test_valid_rest_of_a_frame_does_not_share_memory_with_the_frame() -> None:
    frame = memoryview(
        bytearray(batch_from_bodies("t", [b"1", b"x"], publisher=7, first_sequence=1).encode())
    )
    found = make_validation(JSON).split(Publish(frame=1, sequenced=True), MessageBatch.parse(frame))
    assert found is not None
    assert found.rest is not None
    before = found.rest.encode()
    frame[:] = bytes(len(frame))
    assert found.rest.encode() == before
