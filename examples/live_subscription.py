"""Live subscription: receive messages that are published after the subscription started.

python -m examples.live_subscription
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Subscribe, publish three prices, and print them."""
    with (
        tt.Client("live-subscriber", SERVER) as subscriber,
        tt.Client("live-publisher", SERVER) as publisher,
    ):
        stream = subscriber.subscribe("prices")
        for price in (10.5, 11.0, 10.75):
            publisher.publish("prices", {"symbol": "IBM", "price": price})
        for _ in range(3):
            message = stream.get(timeout=10)
            print(message.topic, message.json()["price"])


if __name__ == "__main__":
    main()
