"""The owner of a stream in tests."""

from __future__ import annotations

from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of


class Owner:
    """Records the reports of streams. A test may pass the list `costs`."""

    def __init__(self, costs: list[int] | None = None) -> None:
        self.costs: list[int] = [] if costs is None else costs
        self.left: list[str] = []

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Record the cost of processed messages."""
        self.costs.append(cost)

    def leave(self, request: SubscribeRequest) -> None:
        """Record the end of the stream."""
        self.left.append(request.context.sub_id)

    def seconds(self, timeout: Timeout) -> float | None:
        """Return the timeout, which is unlimited by default."""
        return None if timeout is DEFAULT else seconds_of(timeout)


def asked(sub_id: str = "s", *, limited: bool = False) -> SubscribeRequest:
    """Return the request of a stream."""
    return make_request("orders", sub_id, positions=(0, 9) if limited else None)
