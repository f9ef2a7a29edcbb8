"""Many filters of one client: other clients are served between them."""

from __future__ import annotations

import tickertape as tt
from tests.helpers.peer import Peer, frame
from tests.helpers.wire import batch_of
from tickertape.testing import running_server
from tickertape.wire.commands import Ack, Flush, Publish, Subscribe

FILTERS = 60


def _subscribe(number: int) -> bytes:
    text = " OR ".join(f"/f{number}_{field} = 1" for field in range(60))
    return frame(Subscribe(id=number, sub_id=f"s{number}", topic="t", filter=text, credit=1000))


def _ids(said: list[object]) -> list[int]:
    return [command.id for command in said if isinstance(command, Ack) and not command.code]


def test_other_clients_are_served_between_the_filters_of_one_client() -> None:
    with running_server() as server, Peer(server.uri, "many") as many, Peer(server.uri, "other") as other:
        many.send(b"".join(map(_subscribe, range(1, FILTERS + 1))) + frame(Flush(id=1_000)))
        answered = _ids([*many.until(Ack)])
        other.send(frame(Flush(id=7)))
        assert _ids([*other.until(Ack)]) == [7]
        answered += _ids([*many.heard()])
        assert 0 < len(answered) < FILTERS, "the other client waited for all filters"
        while answered[-1] != 1_000:
            answered += _ids([*many.until(Ack)])
        assert answered == [*range(1, FILTERS + 1), 1_000]


def test_publishes_behind_filters_are_stored_after_the_connection_closed() -> None:
    with running_server() as server:
        with Peer(server.uri, "hasty") as hasty:
            frames = [_subscribe(number) for number in range(1, 11)]
            frames += [frame(Publish(frame=number), batch_of()) for number in (1, 2)]
            hasty.send(b"".join(frames))
        with tt.Client("reader", server.uri) as client:
            stream = client.bookmark_subscribe("orders", tt.EPOCH)
            assert [len(stream.get(timeout=30).data) for _ in range(2)] == [20, 20]
