"""A server process that counts the Python functions of `tickertape` that it calls for each command.

Run: `python -m tests.helpers.counted_server COMMANDS_BEFORE COMMANDS ARGUMENT...`, with the arguments of
`tickertape serve`. At its end it prints the calls of the counted commands by function, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from tickertape.cli.commands.serve import serve
from tickertape.engine.broker import Broker

_RECEIVED = Broker.received.__code__


class CallCounter:
    """Profile function that counts calls from one command to another."""

    def __init__(self, first: int, last: int) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._first = first
        self._last = last
        self._commands = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is _RECEIVED:
            self._commands += 1
        if self._first <= self._commands < self._last:
            self.calls[code] += 1


def main() -> None:
    """Run the server, then print its calls."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    counter = CallCounter(first, first + count)
    sys.setprofile(counter)
    try:
        serve(sys.argv[3:], standalone_mode=False)
    finally:
        sys.setprofile(None)
        found = {
            f"{code.co_filename.rpartition('/tickertape/')[2]}:{code.co_qualname}": calls
            for code, calls in counter.calls.items()
            if "/tickertape/" in code.co_filename
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
