"""Windowed consumer: processes messages out of order, for statistics over time windows.

    python -m examples.windowed_consumer --state state --servers tcp://127.0.0.1:9007

Each message is a trade: `{"minute": 3, "price": 10.5}`. A trade with `"last": true` closes its minute. Trades
of several minutes are mixed. When a minute closes, the program prints its average and then discards its
trades, also those behind trades of open minutes. After a restart or a reconnect the program receives the
trades of the open minutes again, and none of a closed minute.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from statistics import fmean

import tickertape as tt


class Windows:
    """The open minutes. The client calls `take` with each trade, on the receive thread."""

    def __init__(self, closing: int) -> None:
        self._open: dict[int, dict[str | None, tt.Message]] = {}
        """By minute and bookmark: after a reconnect, trades that were not discarded are redelivered."""
        self._left = closing
        self.done = threading.Event()
        """Set when the given number of windows were closed."""

    def take(self, trade: tt.Message) -> None:
        """Put a trade into its window, and close the window with its last one."""
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
    parser.add_argument("--closing", type=int, default=-1, help="end after this number of windows")
    given = parser.parse_args()
    given.state.mkdir(exist_ok=True)

    store = tt.LoggedBookmarkStore(given.state / "windows")
    store.on_resize(lambda resized, _size: resized.prune())  # whenever the file is about to grow
    with (
        store,
        tt.HAClient(
            "windowed-consumer", servers=given.servers, bookmark_store=store, reconnect_delay=0.1, heartbeat=3
        ) as client,
    ):
        windows = Windows(given.closing)
        client.connect_and_logon(timeout=30)
        # The client resubscribes a subscription with a callback after each reconnect, at its recovery point.
        client.bookmark_subscribe(given.topic, tt.MOST_RECENT, sub_id="windows", on_message=windows.take)
        windows.done.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
