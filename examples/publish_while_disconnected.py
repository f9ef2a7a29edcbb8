"""Publish store: messages published without a connection reach the server later, once.

python -m examples.publish_while_disconnected
"""

from __future__ import annotations

import os
import tempfile

import tickertape as tt

SERVER = os.environ.get("TICKERTAPE_SERVER", "tcp://127.0.0.1:9007")


def main() -> None:
    """Publish without a connection, then connect and wait until everything is persisted."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "publishes")
        with tt.FilePublishStore(path) as store:
            client = tt.HAClient("offline-publisher", servers=[SERVER], publish_store=store)
            for number in range(3):
                client.publish("events", {"number": number})
            print(client.unpersisted_count(), "messages wait in the publish store")

            client.connect_and_logon(timeout=10)
            client.publish_flush(timeout=10)
            print(client.unpersisted_count(), "messages wait after the flush")
            client.close()


if __name__ == "__main__":
    main()
