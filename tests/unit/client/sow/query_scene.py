"""A protocol machine that queries a scripted server. Tests give every answer.

Must never decide anything by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.unit.client.peer import Named
from tests.unit.client.subscriptions.test_resubscribe import Scene
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import Message
from tickertape.client.common.effects import DeliverBatch
from tickertape.client.sow.query_arguments import make_query
from tickertape.wire.commands import Ack, Command, Completed, GroupBegin, GroupEnd, LoggedOn, Records, Sow
from tickertape.wire.sow_command import encode_marks


class QueryScene(Scene):
    """A client that queries `orders`, and the server with one group."""

    def query(
        self,
        sub_id: str = "q",
        topic: str = "orders",
        *,
        handled: bool = False,
        follow: bool = True,
        **more: Any,
    ) -> Sow:
        """Query with a positive answer and return the command."""
        request = make_query(topic, sub_id, follow=follow, **more)
        request = msgspec.structs.replace(request, handled=handled)
        self.request = request
        self.core.subscribe(Named(f"call-{sub_id}"), request, Named(sub_id))
        command: Sow = self.answered()
        return command

    def answered(self, code: str = "") -> Any:
        """Answer the only command since the last call, and return it."""
        command: Any
        ((command, _),) = self.sent()
        self.say(Ack(id=command.id, code=code, text=code))
        return command

    def begin(self, sub_id: str = "q", as_of: str = "3|7|", topic: str = "orders", **more: Any) -> None:
        """Start the result."""
        fields: dict[str, Any] = {"key": ("/id",), "domain": "orders", "position": 7} | more
        self.say(GroupBegin(sub_id=sub_id, topic=topic, as_of=as_of, **fields))

    def records(self, *ids: object, sub_id: str = "q", first: int = 1) -> None:
        """Send records with these ids. Their sequences start at `first`."""
        bodies = [msgspec.json.encode({"id": one}) for one in ids]
        count = len(bodies)
        marks = encode_marks([3] * count, range(first, first + count), [5] * count)
        self.say(Records(sub_id=sub_id, marks=marks), batch_from_bodies("orders", bodies))

    def end(self, records: int, sub_id: str = "q", **more: int) -> None:
        """End the result."""
        fields = {"matches": records, "topic_matches": records} | more
        self.say(GroupEnd(sub_id=sub_id, records=records, **fields))
        self.say(Completed(sub_id=sub_id, next=7))

    def whole(self, *ids: object, sub_id: str = "q", **more: Any) -> None:
        """Send a whole result."""
        self.begin(sub_id, **more)
        if ids:
            self.records(*ids, sub_id=sub_id)
        self.end(len(ids), sub_id)

    def messages(self) -> list[Message]:
        """Return the delivered messages since the last call."""
        return [message for effect in self.took(DeliverBatch) for message in effect.batch]

    def again(self, journal: str = "j1", code: str = "") -> list[Command]:
        """Lose the connection, reconnect to a server with this log, and return the answered commands."""
        self.lose()
        self.open()
        logged_on = LoggedOn(
            version=0, software="t", instance="i", journal=journal, epoch=1, publisher=7, last_persisted=0
        )
        self.say(logged_on)
        self.core.resubscribe(Named("round"))
        return self.answer_all(code)

    def answer_all(self, code: str = "") -> list[Command]:
        """Answer all commands since the last call, and return them."""
        commands = [command for command, _ in self.sent()]
        for command in commands:
            if (call_id := getattr(command, "id", None)) is not None:
                self.say(Ack(id=call_id, code=code, text=code))
        return commands


def kinds(commands: Sequence[object]) -> list[str]:
    """Return the names of the classes of commands."""
    return [type(command).__name__ for command in commands]
