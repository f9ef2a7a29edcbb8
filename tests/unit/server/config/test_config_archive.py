"""Configuration of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.server.config import archive as archive_config
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.config.config import examine, load_config


def archive_of(home: Path, text: str, **environment: str) -> ArchiveConfig | None:
    file = home / "tickertape.toml"
    file.write_text(text)
    return load_config(file, environment=environment).archive


def problems(home: Path, text: str) -> list[str]:
    file = home / "tickertape.toml"
    file.write_text(text)
    return [str(problem).removeprefix(f"{file}:") for problem in examine(file)[1]]


def test_file_without_archive_table_has_no_archive(tmp_path: Path) -> None:
    assert archive_of(tmp_path, "") is None


def test_archive_location_is_relative_to_the_file(tmp_path: Path) -> None:
    found = archive_of(tmp_path, '[archive]\nlocation = "old"\n')
    assert found == ArchiveConfig(location=str(tmp_path / "old"))
    assert (found.require, found.refresh) == (True, 30.0)
    found = archive_of(tmp_path, '[archive]\nlocation = "/srv/old"\n')
    assert found is not None
    assert found.location == "/srv/old"


def test_full_archive_table_sets_every_key(tmp_path: Path) -> None:
    text = """
[archive]
location = "s3://bucket/old"
require = false
refresh = "500ms"
[archive.storage_options]
AWS_REGION = "eu"
AWS_SECRET_ACCESS_KEY = "${SECRET}"
"""
    assert archive_of(tmp_path, text, SECRET="x y") == ArchiveConfig(
        location="s3://bucket/old",
        require=False,
        refresh=0.5,
        storage_options={"AWS_REGION": "eu", "AWS_SECRET_ACCESS_KEY": "x y"},
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[archive]", "1: archive.location: is missing here"),
        (
            '[archive]\nlocation = ""',
            "2: archive.location: must be a path, or a URI such as \"s3://bucket/archive\", not ''",
        ),
        ("[archive]\nlocation = 1", "2: archive.location: must be a string in quotes, not 1"),
        (
            '[archive]\nlocation = "a"\nrefresh = "10ms"',
            "3: archive.refresh: must be at least 0.1 seconds, not '10ms'",
        ),
        ('[archive]\nlocation = "a"\nrequire = 1', "3: archive.require: must be true or false, not 1"),
        (
            '[archive]\nlocation = "a"\nstorage_options = "x"',
            "3: archive.storage_options: must be a table of strings, not 'x'",
        ),
        (
            '[archive]\nlocation = "a"\nstorage_options = {b = 1}',
            "3: archive.storage_options: must be a table of strings: b must be a string in quotes, not 1",
        ),
        (
            '[archive]\nlocation = "a"\nlocaton = "b"',
            "3: archive.localton: unknown",
        ),
    ],
)
def test_invalid_archive_keys_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text + "\n")
    assert len(found) == 1
    if "unknown" in problem:
        assert "Did you mean 'location'?" in found[0]
    else:
        assert found[0] == problem


def test_archive_without_the_library_is_refused_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_config, "_NEEDED", "no_such_library")
    (problem,) = problems(tmp_path, '[archive]\nlocation = "a"\n')
    assert problem == (
        "2: archive.location: Cannot use an archive: the package no_such_library is "
        "missing. Run: pip install 'tickertape[spark]'"
    )
