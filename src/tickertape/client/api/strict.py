"""Strict attributes: refuses to set an attribute that a public object does not have."""

from __future__ import annotations

from difflib import get_close_matches


class StrictAttributes:
    """Base of clients. A subclass of the application may have attributes of its own, except misspelt ones."""

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self)
        if not (name.startswith("_") or hasattr(kind, name)):
            near = get_close_matches(
                name, [one for one in dir(kind) if is_settable(kind, one)], n=1, cutoff=0.8
            )
            if near or kind.__module__.startswith("tickertape."):
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise AttributeError(f"Cannot set {name!r}: {kind.__name__} has no such attribute.{hint}")
        super().__setattr__(name, value)


def is_settable(kind: type, name: str) -> bool:
    """Whether objects of `kind` have a public property that can be set."""
    found = getattr(kind, name, None)
    return not name.startswith("_") and isinstance(found, property) and found.fset is not None
