"""Log of clients: connections, lost connections, attempts to reconnect, and exceptions without a caller.

Python prints warnings and errors on standard error when the program configures no logging. Silence them with
`logging.getLogger("tickertape.client").setLevel(logging.CRITICAL)`.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("tickertape.client")
