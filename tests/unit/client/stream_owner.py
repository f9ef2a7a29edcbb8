"""The owner of a stream that a test feeds by hand."""

from __future__ import annotations

from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of


class Owner:
    """Keeps what its streams report; `costs` may be the list of the test."""

    def __init__(self, costs: list[int] | None = None) -> None:
        self.costs: list[int] = [] if costs is None else costs
        self.left: list[str] = []

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """The application is done with that much."""
        self.costs.append(cost)

    def leave(self, request: SubscribeRequest) -> None:
        """Nobody reads the stream any more."""
        self.left.append(request.context.sub_id)

    def seconds(self, timeout: Timeout) -> float | None:
        """Wait for ever, unless a call says how long."""
        return None if timeout is DEFAULT else seconds_of(timeout)


def asked(sub_id: str = "s", *, limited: bool = False) -> SubscribeRequest:
    """The request of a stream."""
    return make_request("orders", sub_id, positions=(0, 9) if limited else None)
