"""Tables on a terminal: alignment, and escapes in names."""

from __future__ import annotations

import pytest

from tickertape.cli.support.tables import echo_table, number, safe


def test_table_aligns_names_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("topic", "messages"), [("a", "1"), ("longer name", "1,000,000")])
    assert capsys.readouterr().out == (
        "topic         messages\n"
        "a                    1\n"
        "longer name  1,000,000\n"
    )  # fmt: skip


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\x9b2J", "\u202eabc", "\u2028", "\x00"])
def test_control_characters_are_escaped_in_tables(text: str) -> None:
    assert safe(text).isprintable()
    assert len(safe(text)) > len(text)


def test_table_names_keep_letters_and_are_truncated() -> None:
    assert safe("orders/é.日本") == "orders/é.日本"
    assert safe("x" * 500) == "x" * 57 + "..."


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0"), (1234567, "1,234,567"), (0.25, "0.25"), (12345.6, "12,346")]
)
def test_numbers_have_separators_or_a_dash(value: float | None, text: str) -> None:
    assert number(value) == text
