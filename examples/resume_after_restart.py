"""Bookmark store: a subscriber continues where its previous process stopped.

python -m examples.resume_after_restart
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def read(state: Path, count: int) -> list[int]:
    """Process `count` messages as one process of the subscriber, and return their numbers."""
    with (
        tt.LoggedBookmarkStore(state / "bookmarks") as store,
        tt.Client("resume-subscriber", SERVER, bookmark_store=store) as client,
    ):
        stream = client.bookmark_subscribe("meters", tt.MOST_RECENT, sub_id="meters")
        numbers = []
        for _ in range(count):
            message = stream.get(timeout=10)
            numbers.append(message.json()["number"])
            message.discard()  # processed: the next process does not receive it
        return numbers


def main() -> None:
    """Store five messages and read them with two processes of one subscriber."""
    with tt.Client("resume-publisher", SERVER) as publisher:
        publisher.publish_batch("meters", [{"number": number} for number in range(1, 6)])
        publisher.publish_flush(timeout=10)
    with tempfile.TemporaryDirectory() as directory:
        print("first process", read(Path(directory), 2))
        print("second process", read(Path(directory), 3))


if __name__ == "__main__":
    main()
