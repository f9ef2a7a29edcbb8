"""Lazy attribute: a value of an instance that is computed at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Lazy(Generic[T]):
    """Attribute that is computed at its first use and then stored in the instance.

    It uses no lock, unlike `cached_property` of Python 3.11: a forked child would wait forever for a lock
    that another thread of its parent held. Threads may compute a value twice.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> T | Self:
        if instance is None:
            return self
        value = self._make(instance)
        instance.__dict__[self._name] = value
        return value
