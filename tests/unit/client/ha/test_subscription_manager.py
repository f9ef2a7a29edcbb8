"""Subscription managers in memory and on disk, and the checks for user managers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.ha_parts import FileManager
from tickertape.testing import check_subscription_manager


def test_subscription_managers_pass_check_subscription_manager(tmp_path: Path) -> None:
    check_subscription_manager(tt.MemorySubscriptionManager)
    numbers = itertools.count()
    handlers = dict.fromkeys("abc", print)
    check_subscription_manager(lambda: FileManager(tmp_path / f"{next(numbers)}", handlers))
    check_subscription_manager(lambda: FileManager(tmp_path / "one", handlers), survives=True)


class Forgetful(tt.MemorySubscriptionManager):
    """Keeps unsubscribed subscriptions."""

    def unsubscribed(self, sub_id: str) -> None:
        """Do nothing."""


class Reversed(tt.MemorySubscriptionManager):
    """Returns the last subscription first."""

    def stored(self) -> Sequence[tt.StoredSubscription]:
        return tuple(reversed(super().stored()))


def test_check_subscription_manager_rejects_broken_managers(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unsubscribed removes only its id"):
        check_subscription_manager(Forgetful)
    with pytest.raises(AssertionError, match="order"):
        check_subscription_manager(Reversed)
    with pytest.raises(AssertionError, match="subscriptions survive a restart"):
        check_subscription_manager(tt.MemorySubscriptionManager, survives=True)
    with pytest.raises(AssertionError, match="lacks methods"):
        check_subscription_manager(object)  # type: ignore[arg-type]
