"""The owner of a stream that a test feeds by hand."""

from __future__ import annotations

from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request


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


def asked(sub_id: str = "s") -> SubscribeRequest:
    """The request of a stream."""
    return make_request("orders", sub_id)
