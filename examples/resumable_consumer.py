"""A consumer that resumes where it stopped, without skipping or repeating processed messages.

    python -m examples.resumable_consumer --state state --servers tcp://127.0.0.1:9007

The program prints each message of a topic, then discards it. Discarding moves the recovery point in the
bookmark store on disk. You can kill the program at any time and start it again with the same `--state`. A
message that was printed but not discarded (at most one) is redelivered. To process each message exactly once,
store its bookmark and its effect in one transaction of your database.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tickertape as tt


class Consumer:
    """Consumer that prints messages and stops after `count` of them."""

    def __init__(self, client: tt.HAClient, topic: str, count: int | None) -> None:
        self._client = client
        self._topic = topic
        self._left = count

    def run(self) -> None:
        """Consume messages.

        A stream ends with its connection, so subscribe again after a reconnect. With the same id and
        MOST_RECENT the subscription resumes at the recovery point in the bookmark store."""
        while self._left is None or self._left > 0:
            try:
                stream = self._client.bookmark_subscribe(self._topic, tt.MOST_RECENT, sub_id="printer")
            except tt.Disconnected:
                self._client.connect_and_logon(timeout=30)  # waits for the automatic reconnect
                continue
            for message in stream:
                print(message.bookmark, message.data.decode(), flush=True)
                message.discard()
                if self._left is not None:
                    self._left -= 1
                    if not self._left:
                        return


def main() -> int:
    """Print messages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--state", type=Path, default=Path("state"), help="directory of the bookmark store")
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--count", type=int, help="stop after COUNT messages")
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
        Consumer(client, given.topic, given.count).run()
        store.prune()  # compact the store when the program ends
    return 0


if __name__ == "__main__":
    sys.exit(main())
