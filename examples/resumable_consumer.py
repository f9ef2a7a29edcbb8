"""Resumable consumer: continues where it stopped, without skipping a message.

    python -m examples.resumable_consumer --state state --servers tcp://127.0.0.1:9007

Prints and then discards each message of a topic. That moves the recovery point in the bookmark store on disk.
Kill it at any time and start it again with the same `--state`. At most one message is redelivered: one that
was printed and not discarded. To act on each message exactly once, store its bookmark together with the
effect, in one transaction of your database.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import tickertape as tt


def trades(client: tt.HAClient, topic: str) -> Iterator[tt.Message]:
    """Yield messages without an end. A stream ends with its connection. Subscribing again with the same id
    and MOST_RECENT continues at the recovery point of the bookmark store."""
    while True:
        try:
            yield from client.bookmark_subscribe(topic, tt.MOST_RECENT, sub_id="printer")
        except tt.Disconnected:
            client.connect_and_logon(timeout=30)  # waits for the reconnect in progress


def main() -> None:
    """Print the messages of a topic."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--state", type=Path, default=Path("state"), help="directory of the bookmark store")
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--count", type=int, help="end after this number of messages")
    given = parser.parse_args()
    given.state.mkdir(exist_ok=True)

    with (
        tt.LoggedBookmarkStore(given.state / "bookmarks") as store,
        tt.HAClient(
            "resumable-consumer",
            servers=given.servers,
            bookmark_store=store,
            reconnect_delay=0.1,
            heartbeat=3,
        ) as client,
    ):
        client.connect_and_logon(timeout=30)
        for message in islice(trades(client, given.topic), given.count):
            print(message.bookmark, message.data.decode(), flush=True)
            message.discard()
        store.prune()  # keeps the next start fast


if __name__ == "__main__":
    main()
