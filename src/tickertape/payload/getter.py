"""Value getter: a function that returns the values of the paths of a field reader from a decoded body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any


def value_getter(access: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that returns the value at one access (`FieldReader.access`), or the tuple of
    several."""
    if all(place.startswith(".") and "[" not in place for place in access):
        return attrgetter(*[place[1:] for place in access])
    if all(place.startswith("[") and place.count("[") == 1 for place in access):
        return itemgetter(*[int(place[1:-1]) for place in access])
    made: Callable[[Any], Any]
    if len(access) == 1:
        made = eval(f"lambda it: it{access[0]}")
    else:
        made = eval("lambda it: (" + "".join(f"it{place}," for place in access) + ")")
    return made


def values_getter(access: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the tuple of the values, as `value_getter`, also for one access or
    none."""
    if not access:
        return lambda _: ()
    getter = value_getter(access)
    return getter if len(access) > 1 else lambda it: (getter(it),)
