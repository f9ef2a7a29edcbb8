"""State of the world: the last position of each account and symbol, queried and followed.

    python -m examples.positions

The server needs the SOW topic of `examples/positions.toml`: tickertape serve examples/positions.toml
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")
TRADES = [("anna", "IBM", 100), ("anna", "MSFT", 40), ("bert", "IBM", 70), ("anna", "IBM", 120)]


def show(message: tt.Message) -> None:
    """Print a position, with the command of its message."""
    position = message.json()
    print(message.command, position["account"], position["symbol"], position["quantity"])


def main() -> None:
    """Publish positions, query the largest ones, and follow one account."""
    with tt.Client("positions", SERVER) as client:
        for account, symbol, quantity in TRADES:
            client.publish("positions", {"account": account, "symbol": symbol, "quantity": quantity})
        client.publish_flush(timeout=10)

        largest = client.sow("positions", order_by="/quantity DESC", top_n=2)
        for record in largest:
            show(record)
        print(largest.records_returned, "of", largest.topic_matches, "records")

        with client.sow_and_subscribe("positions", "/account = 'bert'") as stream:
            client.delta_publish("positions", {"account": "bert", "symbol": "IBM", "quantity": 75})
            show(stream.get(timeout=10))  # the record
            show(stream.get(timeout=10))  # the next message
        deleted = client.sow_delete("positions", filter="/account = 'bert'")
        print(deleted.records, "record deleted")


if __name__ == "__main__":
    main()
