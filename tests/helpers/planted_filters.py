"""A filter function with a planted defect, and a server that has it.

`LENGTH` raises `Planted` for the text `boom`. `python -m tests.helpers.planted_filters` is the command line
of Tickertape with this defect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tickertape.filter.functions import registry
from tickertape.testing import RunningServer


class Planted(Exception):
    """An exception that no caller of a filter function expects."""


def defective(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but raising for the text `boom`."""

    def planted(*arguments: Any) -> Any:
        if "boom" in arguments:
            raise Planted("planted")
        return call(*arguments)

    return planted


def plant(calls: dict[str, Callable[..., Any]]) -> None:
    """Give the function `LENGTH` of `calls` the defect."""
    calls["LENGTH"] = defective(calls["LENGTH"])


class PlantedServer(RunningServer):
    """A server whose filter function `LENGTH` has the defect."""

    def _command(self) -> list[str]:
        command = super()._command()
        place = command.index("tickertape")
        return [*command[:place], "tests.helpers.planted_filters", *command[place + 1 :]]


if __name__ == "__main__":
    from tickertape.cli import main

    plant(registry._CALLS)
    main()
