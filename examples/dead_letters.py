"""Dead letters: a rejected message moves to a topic of its own, together with the reason.

    python -m examples.dead_letters

The server needs the queues of `examples/queues.toml`: tickertape serve examples/queues.toml
"""

from __future__ import annotations

import json
import os

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Reject one message, let another one fail twice, and read both dead letters."""
    with tt.Client("mail-worker", SERVER) as client:
        letters = client.subscribe("mail-failed")
        client.publish_batch("mail", [{"to": "unknown@example.com"}, {"to": "anna@example.com"}])
        client.publish_flush(timeout=10)

        stream = client.subscribe("mail-queue")
        stream.get(timeout=10).expire()  # reject: no consumer can process it
        for _ in range(2):  # max_deliveries = 2
            stream.get(timeout=10).cancel()  # release: not now
        client.publish_flush(timeout=10)

        for _ in range(2):
            letter = letters.get(timeout=10)
            print(letter.json()["to"], json.loads(letter.correlation_id or "{}")["reason"])


if __name__ == "__main__":
    main()
