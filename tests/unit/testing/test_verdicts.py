"""The checks of stores and strategies also work under `python -O`."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.processes import source_environment

CODE = """
import tickertape as tt
from tickertape import testing

class Hasty(tt.MemoryPublishStore):
    def discard(self, sequence):
        super().discard(sequence + 1)

class Deaf(tt.MemoryBookmarkStore):
    def discard(self, sub_id, publisher, sequence):
        return True

broken = {
    testing.check_publish_store: Hasty,
    testing.check_bookmark_store: lambda name: Deaf(),
    testing.check_server_chooser: tt.DefaultServerChooser,
    testing.check_delay_strategy: lambda: tt.FixedDelayStrategy(1, give_up_after=1),
    testing.check_subscription_manager: object,
}
for check, make in broken.items():
    try:
        check(make)
    except AssertionError as error:
        print(error)
"""


def test_checks_report_errors_under_python_without_asserts() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", CODE],
        env=source_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    publish, bookmark, chooser, delay, manager = done.stdout.splitlines()
    assert publish.startswith("discard keeps unsettled messages: [")
    assert bookmark == "the second discard of a message returns False: True instead of False"
    assert chooser == "a new chooser has no server"
    assert delay == "it gives up"
    assert manager == "it lacks methods of SubscriptionManager"
