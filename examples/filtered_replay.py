"""Filter and projection: receive only matching messages and only some of their fields.

python -m examples.filtered_replay
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Store four orders, then replay the expensive ones from two topics with one pattern."""
    with tt.Client("filter-example", SERVER) as client:
        client.publish("sales/books", {"id": 1, "item": "atlas", "price": 60})
        client.publish("sales/books", {"id": 2, "item": "novel", "price": 12})
        client.publish("sales/tools", {"id": 3, "item": "drill", "price": 95})
        client.publish("sales/tools", {"id": 4, "item": "ruler", "price": 3})
        client.publish_flush(timeout=10)

        expensive = client.replay("^sales/", filter="/price > 50", select=["-/", "+/item"])
        for message in expensive:
            print(message.topic, message.json())


if __name__ == "__main__":
    main()
