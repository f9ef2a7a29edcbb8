"""Failover: an HA client moves to the next server of its list and resubscribes.

python -m examples.failover_subscriber
"""

from __future__ import annotations

import os
import queue
import tempfile

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Connect to the second address, because the first one does not answer."""
    received: queue.Queue[int] = queue.Queue()

    def on_quote(message: tt.Message) -> None:
        received.put(message.json()["number"])
        message.discard()

    with tempfile.TemporaryDirectory() as directory:
        client = tt.HAClient.file_backed(
            "failover-subscriber",
            publish_path=os.path.join(directory, "publishes"),
            bookmark_path=os.path.join(directory, "bookmarks"),
            servers=["tcp://127.0.0.1:1", SERVER],
            reconnect_delay=tt.ExponentialDelayStrategy(initial=0.1, maximum=5, give_up_after=30),
            heartbeat=3,
        )
        client.add_connection_state_listener(lambda state: print("connection:", state))
        client.connect_and_logon(timeout=30)
        client.bookmark_subscribe("quotes", tt.NOW, sub_id="quotes", on_message=on_quote)
        client.publish_batch("quotes", [{"number": 1}, {"number": 2}])
        print("received", [received.get(timeout=10) for _ in range(2)])
        client.close()


if __name__ == "__main__":
    main()
