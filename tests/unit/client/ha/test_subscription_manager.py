"""Subscription managers: the one in memory, one on disk, and the checks for others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.ha_parts import FileManager
from tickertape.testing import check_subscription_manager


def test_both_pass_the_checks(tmp_path: Path) -> None:
    check_subscription_manager(tt.MemorySubscriptionManager)
    numbers = itertools.count()
    handlers = dict.fromkeys("abc", print)
    check_subscription_manager(lambda: FileManager(tmp_path / f"{next(numbers)}", handlers))
    check_subscription_manager(lambda: FileManager(tmp_path / "one", handlers), survives=True)


class Forgetful(tt.MemorySubscriptionManager):
    """Does not forget."""

    def unsubscribed(self, sub_id: str) -> None:
        """Nothing."""


class Reversed(tt.MemorySubscriptionManager):
    """Gives the last one first."""

    def stored(self) -> Sequence[tt.StoredSubscription]:
        return tuple(reversed(super().stored()))


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unsubscribed removes only its id"):
        check_subscription_manager(Forgetful)
    with pytest.raises(AssertionError, match="order"):
        check_subscription_manager(Reversed)
    with pytest.raises(AssertionError, match="subscriptions survive a restart"):
        check_subscription_manager(tt.MemorySubscriptionManager, survives=True)
    with pytest.raises(AssertionError, match="lacks methods"):
        check_subscription_manager(object)  # type: ignore[arg-type]
