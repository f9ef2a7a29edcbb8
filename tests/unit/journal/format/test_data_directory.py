"""Names in a data directory are known to `journal verify` and documented."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.journal.written import Written
from tickertape.journal.format.retired_state import RETIRED_FILE
from tickertape.journal.offline.verify import DATA_NAMES, verify

DOCUMENT = Path(__file__).parents[4] / "docs/formats/journal.md"


def test_verify_notes_foreign_names_only() -> None:
    written = Written()
    written.publish()
    written.stop()
    for name in (*DATA_NAMES - {*written.disk.names("."), RETIRED_FILE}, "notes.txt", "transactions.old"):
        if "." in name or name == "lock":
            written.disk.close(written.disk.open(name, create=True))
        else:
            written.disk.make_directory(name)
    foreign = "not a Tickertape file, ignored by the server"
    notes = [(note.file, note.what) for note in verify(written.disk).notes if note.what == foreign]
    assert notes == [("notes.txt", foreign), ("transactions.old", foreign)]


def test_the_names_of_a_data_directory_are_documented() -> None:
    table = DOCUMENT.read_text().partition("A data directory:")[2].partition("Any other name")[0]
    documented = {name.partition("/")[0] for name in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)}
    written_first = {name for name in DATA_NAMES if name.endswith(".new")}
    assert documented == DATA_NAMES - written_first - {"lost+found"}
