"""A server process that counts the Python functions of the package that it calls for each command.

Run: `python -m tests.helpers.counted_server KIND FIRST LAST ARGUMENT...`, with arguments of `tickertape
serve`. It counts from command FIRST to command LAST of its clients. With `any` as KIND these are all
commands, otherwise those of the class KIND after the signal SIGUSR2: NumPy cannot resize arrays while calls
are counted. At its end it prints a `CountedCalls` as JSON.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import msgspec

from tickertape.cli.commands.serve import serve
from tickertape.engine.broker import Broker

_RECEIVED = Broker.received.__code__
_PACKAGE = "/tickertape/"


class CountedCalls(msgspec.Struct):
    """Calls of functions of the package on the event loop."""

    of_commands: list[int]
    """Calls from each command to the next one."""
    of_functions: dict[str, int]
    """All these calls, by function."""


class CallCounter:
    """Profile function that counts calls from command `first` to command `last`."""

    def __init__(self, kind: str, first: int, last: int) -> None:
        self._kind = kind
        self.calls: Counter[CodeType] = Counter()
        self.of_commands: list[int] = []
        self._first = first
        self._last = last
        self._commands = 0
        self._since = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code is _RECEIVED and self._kind in ("any", type(frame.f_locals["command"]).__name__):
            self._commands += 1
            if self._first < self._commands <= self._last:
                self.of_commands.append(self._since)
            self._since = 0
        if self._first <= self._commands < self._last and _PACKAGE in code.co_filename:
            self._since += 1
            self.calls[code] += 1

    def counted(self) -> CountedCalls:
        """Return the calls."""
        named = {
            f"{code.co_filename.rpartition(_PACKAGE)[2]}:{code.co_qualname}": calls
            for code, calls in self.calls.most_common()
        }
        return CountedCalls(self.of_commands, named)


def main() -> None:
    """Run the server, then print its calls."""
    counter = CallCounter(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    if sys.argv[1] == "any":
        sys.setprofile(counter)
    else:
        signal.signal(signal.SIGUSR2, lambda *_: sys.setprofile(counter))
    try:
        serve(sys.argv[4:], standalone_mode=False)
    finally:
        sys.setprofile(None)
        print(msgspec.json.encode(counter.counted()).decode(), flush=True)


if __name__ == "__main__":
    main()
