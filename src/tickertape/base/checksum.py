"""The CRC-32C function, from the extension module of the package `crc32c` alone.

The package itself also imports its command line and, for its version, `importlib.metadata` with `email` and
`zipfile`. They would take a sixth of the import time of a client.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final

_EXTENSION: Final = "crc32c._crc32c"


def _extension() -> Any:
    """Return the extension module, or the package if it has another layout."""
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else PathFinder.find_spec(_EXTENSION, places)
    if _EXTENSION in sys.modules or found is None or found.loader is None:
        import crc32c as whole_package

        return whole_package
    module = module_from_spec(found)
    found.loader.exec_module(module)
    sys.modules[_EXTENSION] = module  # an import of the package uses the same one
    return module


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _extension().crc32c

__all__ = ["crc32c"]
