"""Archives that cannot be read as a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tickertape.base.errors import ArchiveFailed
from tickertape.spark.archive.archive_frame import read_archive


def test_unreadable_table_asks_to_check_location_and_access(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("damaged\n")
    spark: Any = Mock()
    with pytest.raises(ArchiveFailed, match=r"Cannot read archive '.*Check the location and its access\.$"):
        read_archive(spark, str(tmp_path))
