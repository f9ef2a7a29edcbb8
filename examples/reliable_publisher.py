"""Reliable publisher: loses no line when the server stops or the program itself is killed.

    python -m examples.reliable_publisher --state state --servers tcp://127.0.0.1:9007

Publishes each line of its standard input, once. When `publish` has returned, the line is in the publish store
on disk. Kill the program at any time and start it again with the same name and the same `--state`: it sends
the lines that the server does not have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import tickertape as tt


def report(error: tt.TickertapeError, batch: tt.MessageBatch | None) -> None:
    """Report rejected messages: the server does not store them, and the client does not resend them."""
    rejected = [] if batch is None else [message.data for message in batch]
    print(f"rejected ({error.code}): {error}: {rejected}", file=sys.stderr, flush=True)


def main() -> None:
    """Publish the lines of standard input, and wait until all are persisted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--state", type=Path, default=Path("state"), help="directory of the publish store")
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--name", default="reliable-publisher", help="client name, the same in every run")
    given = parser.parse_args()
    given.state.mkdir(exist_ok=True)

    with (
        tt.FilePublishStore(given.state / "publish") as store,
        tt.HAClient(
            given.name, servers=given.servers, publish_store=store, reconnect_delay=0.1, heartbeat=3
        ) as client,
    ):
        client.set_failed_write_handler(report)
        client.connect_and_logon(timeout=30)
        if store.unpersisted_count():
            print(f"{store.unpersisted_count()} lines of an earlier run are being sent", flush=True)
        count = 0
        for line in sys.stdin:
            client.publish(given.topic, line.rstrip("\n"))
            count += 1
        client.publish_flush(timeout=60)
        print(f"{count} lines published, {client.unpersisted_count()} not persisted", flush=True)


if __name__ == "__main__":
    main()
