"""The thread that notifies a blocking client about written frames."""

from __future__ import annotations

import threading

from tickertape.client.blocking.sender import WriteNotifier
from tickertape.testing.server import wait_until


def test_write_notifier_reports_the_newest_frame_once() -> None:
    notified: list[int] = []
    notifier = WriteNotifier(notified.append, "notifier-newest")
    for frame in (1, 1, 2, 3, 3):
        notifier.report(frame)
    notifier.start()
    wait_until(lambda: notified == [3])
    notifier.report(3)
    notifier.report(4)
    wait_until(lambda: notified == [3, 4])
    notifier.end()
    wait_until(lambda: not _runs("notifier-newest"))


def test_end_of_write_notifier_drops_waiting_reports() -> None:
    notified: list[int] = []
    notifier = WriteNotifier(notified.append, "notifier-end")
    notifier.report(1)
    notifier.end()
    notifier.start()
    wait_until(lambda: not _runs("notifier-end"))
    assert not notified


def _runs(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())
