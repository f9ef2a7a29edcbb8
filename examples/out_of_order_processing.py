"""Recovery point: messages processed out of order stay processed after a restart.

python -m examples.out_of_order_processing
"""

from __future__ import annotations

import os
import tempfile

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def subscribe(client: tt.Client) -> tt.MessageStream:
    """Continue the subscription at its recovery point."""
    return client.bookmark_subscribe("jobs", tt.MOST_RECENT, sub_id="jobs")


def main() -> None:
    """Process messages 1 and 3 in one process. The next one receives 2 and 4."""
    with tt.Client("jobs-publisher", SERVER) as publisher:
        publisher.publish_batch("jobs", [{"number": number} for number in range(1, 5)])
        publisher.publish_flush(timeout=10)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "bookmarks")
        with (
            tt.LoggedBookmarkStore(path) as store,
            tt.Client("jobs", SERVER, bookmark_store=store) as client,
        ):
            stream = subscribe(client)
            messages = [stream.get(timeout=10) for _ in range(4)]
            messages[0].discard()
            messages[2].discard()  # the recovery point stays before message 2
        with (
            tt.LoggedBookmarkStore(path) as store,
            tt.Client("jobs", SERVER, bookmark_store=store) as client,
        ):
            stream = subscribe(client)
            print("redelivered", [stream.get(timeout=10).json()["number"] for _ in range(2)])


if __name__ == "__main__":
    main()
