"""Tables on a terminal: aligned, and harmless whatever a name holds."""

from __future__ import annotations

import pytest

from tickertape.cli.support.tables import echo_table, number, safe


def test_names_go_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("topic", "messages"), [("a", "1"), ("longer name", "1,000,000")])
    assert capsys.readouterr().out == (
        "topic         messages\n"
        "a                    1\n"
        "longer name  1,000,000\n"
    )  # fmt: skip


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\x9b2J", "\u202eabc", "\u2028", "\x00"])
def test_no_character_is_a_command(text: str) -> None:
    assert safe(text).isprintable()
    assert len(safe(text)) > len(text)


def test_names_are_shown_as_they_are_and_cut() -> None:
    assert safe("orders/é.日本") == "orders/é.日本"
    assert safe("x" * 500) == "x" * 57 + "..."


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0"), (1234567, "1,234,567"), (0.25, "0.25"), (12345.6, "12,346")]
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text
