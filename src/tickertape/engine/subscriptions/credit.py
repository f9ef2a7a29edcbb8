"""Owns how much a subscription may still be sent.

Must never be changed but by who sends, who is granted more, and a replacement that begins anew.
"""

from __future__ import annotations


class CreditWindow:
    """The credit of one subscription, whatever parts it has, in bytes of cost."""

    __slots__ = ("credit", "window")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.window = credit
        """Credit when nothing is outstanding."""

    def renew(self, credit: int) -> None:
        """Begin anew: what was outstanding is not granted again."""
        self.credit = self.window = credit
