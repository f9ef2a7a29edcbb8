"""The positions of a start point in the log."""

from __future__ import annotations

from tickertape.client.blocking.log_client import LogClient
from tickertape.client.common.subscribe_arguments import StartPoint


def resolve(client: LogClient, topic: str, start: StartPoint) -> tuple[str, int, int]:
    """Return the id of the log, the first position and the end position of a start point."""
    found = client.locate(topic, start)
    return found.journal, found.start, found.end
