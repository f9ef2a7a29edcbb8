"""CRC-32C: the function of the package `crc32c`, however it is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import crc32c as package
import pytest

from tests.helpers.processes import source_environment
from tickertape.base import checksum


def test_checksum_is_the_function_of_the_package() -> None:
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(b"456789", checksum.crc32c(b"123")) == 0xE3069283
    assert checksum.crc32c is package.crc32c


@pytest.mark.parametrize("first", ["crc32c", "tickertape.base.checksum"])
def test_package_and_checksum_share_one_function_in_either_order(first: str) -> None:
    program = (
        f"import {first}, crc32c, tickertape.base.checksum as checksum\n"
        "assert checksum.crc32c is crc32c.crc32c\n"
        "assert crc32c.CRC32CHash(b'123456789').hexdigest() == 'e3069283'\n"
    )
    subprocess.run([sys.executable, "-c", program], env=source_environment(), check=True, timeout=30)


@pytest.mark.parametrize("file", ["crc32c.py", "crc32c/__init__.py"])
def test_package_without_the_extension_module_is_imported_whole(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("def crc32c(data, value=0): return 7\n")
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import tickertape.base.checksum as checksum\n"
        "assert checksum.crc32c(b'123456789') == 7\n"
    )
    subprocess.run([sys.executable, "-c", program], env=source_environment(), check=True, timeout=30)
