"""Archive configuration: the table `[archive]`, its defaults and bounds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from tickertape.base.errors import ConfigurationError
from tickertape.base.text_format import shown
from tickertape.server.config.document import ConfigNode, Section, flag_of, kind_of, seconds_of, text_of
from tickertape.server.limits import archive_refresh_seconds_default

REFRESH_SECONDS_MIN: Final = 0.1
_NEEDED: Final = "deltalake"


class ArchiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Location and options of the archive."""

    location: str
    """A path, or the URI of an object store location."""
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Options of the object store, with the names of delta-rs."""
    require: bool = True
    """Whether retention keeps segments until they are archived."""
    refresh: float = archive_refresh_seconds_default
    """Interval of the checks for the end of the archive, in seconds."""


def read_archive(section: Section, home: str) -> ArchiveConfig:
    """Read the table. `home`: file that a relative path is relative to, if the location is not from a
    file."""
    location = section.required("location", _location, "")
    found = section.values(storage_options=_options, require=flag_of, refresh=_refresh)
    section.finish()
    if find_spec(_NEEDED) is None:
        cure = "Run: pip install 'tickertape[spark]'"
        section.problem("location", f"Cannot use an archive: the package {_NEEDED} is missing. {cure}")
    if location and "://" not in location:
        source = section.location("location")
        home = source.file if source.line else home
        location = str(Path(home).parent / location) if home else location
    return ArchiveConfig(location=location, **found)


def _location(value: Any) -> str:
    location = text_of(value)
    if not location or "\0" in location:
        raise ConfigurationError(
            f'must be a path, or a URI such as "s3://bucket/archive", not {shown(location)}'
        )
    return location


def _options(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"must be a table of strings, not {kind_of(value)}")
    found: dict[str, str] = {}
    for key, node in value.items():
        assert isinstance(node, ConfigNode)
        try:
            found[key] = text_of(node.value)
        except ConfigurationError as error:
            raise ConfigurationError(f"must be a table of strings: {key} {error}") from None
    return found


def _refresh(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds < REFRESH_SECONDS_MIN:
        raise ConfigurationError(f"must be at least {REFRESH_SECONDS_MIN:g} seconds, not {kind_of(value)}")
    return seconds
