"""Bookmark subscription: replay the stored messages, then receive new ones without a gap.

python -m examples.replay_then_live
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Replay the log of a topic, wait until it has caught up, and read one live message."""
    with (
        tt.Client("gapless-subscriber", SERVER) as subscriber,
        tt.Client("gapless-publisher", SERVER) as publisher,
    ):
        publisher.publish_batch("trades", [{"id": 1}, {"id": 2}])
        publisher.publish_flush(timeout=10)

        stream = subscriber.bookmark_subscribe("trades", tt.EPOCH)
        stream.wait_caught_up(timeout=10)
        print("caught up")
        publisher.publish("trades", {"id": 3})
        for message in stream:
            print("trade", message.json()["id"])
            if message.json()["id"] == 3:
                break


if __name__ == "__main__":
    main()
