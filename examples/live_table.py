"""Table: a screen of the positions of one account, which shows each change.

    python -m examples.live_table

The server needs the SOW topic of `examples/positions.toml`: tickertape serve examples/positions.toml
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")
FILTER = "/account = 'carl'"


def publish(client: tt.HAClient, symbol: str, quantity: int) -> None:
    """Publish a position of the account."""
    client.publish("positions", {"account": "carl", "symbol": symbol, "quantity": quantity})
    client.publish_flush(timeout=10)


def show(table: tt.Table[None]) -> None:
    """Print the positions that changed since the last call."""
    changed = [table.get(key) for key in table.changed()]
    rows = [message.json() for message in changed if message is not None]
    for row in sorted(rows, key=lambda row: row["symbol"]):
        print(row["symbol"], row["quantity"])
    if None in changed:
        print(changed.count(None), "removed")


def main() -> None:
    """Follow the positions of one account through changes and a delete."""
    with tt.HAClient("live-table", servers=[SERVER]) as client:
        client.connect_and_logon(timeout=10)
        publish(client, "IBM", 100)
        publish(client, "MSFT", 40)
        with tt.Table(client, "positions", FILTER) as table:
            show(table)
            publish(client, "IBM", 120)
            table.wait(timeout=10)
            show(table)
            client.sow_delete("positions", filter="/account = 'carl' AND /symbol = 'MSFT'")
            table.refresh(timeout=10)  # removes deleted records
            show(table)
            print(len(table), "position left")
        client.sow_delete("positions", filter=FILTER)


if __name__ == "__main__":
    main()
