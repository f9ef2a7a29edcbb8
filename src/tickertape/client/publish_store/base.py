"""Options that all publish stores share, and the error for a store of another client name."""

from __future__ import annotations

from tickertape.base.errors import BadOption, StoreOfAnother
from tickertape.base.units import parse_size
from tickertape.client.publish_store.protocol import WhenFull


class StoreOptions:
    """What every publish store is told of its bound; see `PublishStore`. Raises `BadOption`."""

    def __init__(self, bytes_max: int | str, when_full: WhenFull) -> None:
        self._bytes_max = checked_size(bytes_max, when_full)
        self._when_full = when_full

    @property
    def bytes_max(self) -> int:
        """Bytes of encoded batches that the store holds at most."""
        return self._bytes_max

    @property
    def when_full(self) -> WhenFull:
        """What a publish does that finds no room."""
        return self._when_full


def checked_size(bytes_max: int | str, when_full: str, option: str = "bytes_max") -> int:
    """`bytes_max` in bytes. Raises `BadOption` for a size that holds nothing, and another `when_full`."""
    size = parse_size(bytes_max) if isinstance(bytes_max, str) else bytes_max
    if size <= 0:
        raise BadOption(f"{option}={bytes_max!r}: a publish store needs room for at least one message")
    if when_full not in ("block", "raise"):
        raise BadOption(f"when_full={when_full!r}: use 'block' or 'raise'")
    return size


def another(what: str, owner: str, name: str) -> StoreOfAnother:
    """The error of a client that is not the owner."""
    return StoreOfAnother(
        f"{what} belongs to the client name {owner!r}, not {name!r}: its messages have sequences of that "
        "name. Use that name, or another store"
    )
