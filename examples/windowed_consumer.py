"""A consumer that discards messages out of order: averages over time windows.

    python -m examples.windowed_consumer --state state --servers tcp://127.0.0.1:9007

Each message is a trade such as `{"minute": 3, "price": 10.5}`. A trade with `"last": true` closes its minute.
Trades of several minutes are interleaved. When a minute is closed, the program prints its average and then
discards its trades. After a restart or a reconnect, the server redelivers the trades of open minutes, and no
trade of a closed minute.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from statistics import fmean

import tickertape as tt


class Windows:
    """The open minutes. `take` is called with each trade, on the receive thread."""

    def __init__(self, closing: int) -> None:
        self._open: dict[int, dict[str | None, tt.Message]] = {}
        """Trades by minute and bookmark, because undiscarded trades are redelivered after a reconnect."""
        self._left = closing
        self.done = threading.Event()
        """Set after `closing` closed windows."""

    def take(self, trade: tt.Message) -> None:
        """Add a trade to its window, and close the window at its last trade."""
        if self.done.is_set():
            return  # not discarded, so it is redelivered
        body = trade.json()
        minute = body["minute"]
        self._open.setdefault(minute, {})[trade.bookmark] = trade
        if body.get("last"):
            self._close(minute)

    def _close(self, minute: int) -> None:
        trades = self._open.pop(minute).values()
        average = fmean(trade.json()["price"] for trade in trades)
        print(f"minute {minute}: {len(trades)} trades, average {average:.2f}", flush=True)
        for trade in trades:
            trade.discard()
        self._left -= 1
        if not self._left:
            self.done.set()


def main() -> int:
    """Print the average of each minute."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--servers", nargs="+", default=["tcp://127.0.0.1:9007"], help="tried in turn")
    parser.add_argument("--state", type=Path, default=Path("state"), help="directory of the bookmark store")
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--closing", type=int, default=-1, help="stop after CLOSING windows")
    given = parser.parse_args()
    given.state.mkdir(exist_ok=True)

    store = tt.LoggedBookmarkStore(given.state / "windows")
    store.on_resize(lambda resized, _size: resized.prune())  # compact the file instead of growing it
    with (
        store,
        tt.HAClient(
            "windowed-consumer", servers=given.servers, bookmark_store=store, reconnect_delay=0.1, heartbeat=3
        ) as client,
    ):
        windows = Windows(given.closing)
        client.connect_and_logon(timeout=30)
        # After a reconnect, the client resubscribes with the handler, at the recovery point of the store.
        client.bookmark_subscribe(given.topic, tt.MOST_RECENT, sub_id="windows", on_message=windows.take)
        windows.done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
