"""A forked child of the test process, with a stack trace instead of an endless wait.

Must never let the child return into the test: it exits with the result of its work, or by its alarm.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Callable

child_seconds = 20


def exit_code_of_child(work: Callable[[], int]) -> int:
    """Fork and run `work` in the child. Return its result, or its signal as a negative number."""
    pid = os.fork()
    if not pid:
        # Objects of other tests, for example a Spark session, have threads that must not be collected here.
        gc.disable()
        code = 255
        try:
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(child_seconds)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
