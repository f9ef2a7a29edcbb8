"""A forked child of the test process, which shows where it stands instead of never ending.

Must never let the child come back into the test: it ends with what its work says, or by its alarm.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Callable

child_seconds = 20


def exit_code_of_child(work: Callable[[], int]) -> int:
    """Fork and do `work` in the child; its result, or minus the number of the signal that ended it."""
    pid = os.fork()
    if not pid:
        # What other tests left behind (a session of Spark, say) has threads to be collected, but not here.
        gc.disable()
        code = 255
        try:
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(child_seconds)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
