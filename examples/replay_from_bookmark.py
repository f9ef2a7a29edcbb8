"""Replay: read the log from its first message, and from a bookmark.

python -m examples.replay_from_bookmark
"""

from __future__ import annotations

import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Store four readings, then replay all of them and those after the second one."""
    with tt.Client("replay-example", SERVER) as client:
        for celsius in (20, 21, 22, 23):
            client.publish("temperatures", {"celsius": celsius})
        client.publish_flush(timeout=10)

        stored = list(client.replay("temperatures", tt.EPOCH))
        print("the log ends with", [message.json()["celsius"] for message in stored][-4:])

        bookmark = stored[-3].bookmark  # of the second reading of this run
        assert bookmark is not None  # replayed messages always have one
        after = client.replay("temperatures", bookmark)
        print("after the bookmark", [message.json()["celsius"] for message in after])


if __name__ == "__main__":
    main()
