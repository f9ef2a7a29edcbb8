"""Client for our own tools: reads the log by position, and sends single commands of a transaction."""

from __future__ import annotations

from tickertape.batch import MessageBatch
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.common.subscribe_arguments import StartPoint, make_request, resolve_command, wire_text
from tickertape.client.common.waiting import DEFAULT, Timeout
from tickertape.client.protocol.transactions import ConnectionPin, Make
from tickertape.wire.commands import Resolved


class LogClient(Client):
    """A `Client` with the calls that the Spark source and sink, the archive job and the audit need."""

    def locate(
        self,
        topic: str,
        bookmark: StartPoint | None = None,
        *,
        filter: str | None = None,
        positions: tuple[int, int] | None = None,
        journal: str | None = None,
        messages_max: int = 0,
        bytes_max: int = 0,
        timeout: Timeout = DEFAULT,
    ) -> Resolved:
        """Return the log positions that a start point or range covers now, or limit a range of positions.

        `MOST_RECENT` is `EPOCH` here. With `positions` (start and end, exclusive, in the log `journal`)
        instead of `bookmark`, the result ends after at most `messages_max` messages of `topic` and
        `bytes_max` bytes of bodies (0: no limit), but after at least one message. `filter` is only validated.

        Raises the errors of `bookmark_subscribe`, and `WrongJournal` if the server has another log.
        """
        command = resolve_command(
            topic,
            bookmark="" if bookmark is None else wire_text(bookmark),
            filter=filter,
            positions=positions,
            journal=journal,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )
        core = self._driver.core
        answer = self._driver.call(lambda call: core.resolve(call, command), timeout, f"resolve {topic}")
        assert isinstance(answer, Resolved)
        return answer

    def read_positions(
        self,
        topic: str,
        start: int,
        end: int,
        journal: str,
        *,
        filter: str | None = None,
        numbered: bool = False,
        depth: int | str | None = None,
        timeout: Timeout = DEFAULT,
    ) -> MessageStream:
        """Read the log positions `[start, end)` of the log `journal`, and stop.

        Iteration raises an error that cuts the read short. `numbered` adds `positions` to the batches.

        Raises the errors of `subscribe`, `WrongJournal` if the server has another log, and `BookmarkExpired`
        if retention has removed some of the positions.
        """
        request = make_request(
            topic,
            self._sub_id(None),
            timestamp=True,
            filter=filter,
            depth=depth,
            positions=(start, end),
            journal=journal,
            numbered=numbered,
        )
        return self._open(request, timeout)

    def ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: ConnectionPin | None = None
    ) -> object:
        """Send a command of a transaction and wait for its answer. `same` requires the same connection."""
        return self._driver.ask(make, batch, timeout, same)
