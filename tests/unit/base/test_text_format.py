"""Foreign texts in messages: one line, bounded, escaped."""

from __future__ import annotations

from tickertape.base.text_format import said, said_characters_max, shown, shown_characters_max


def test_library_error_text_is_one_line_without_colours() -> None:
    error = OSError("Generic S3 error \x1b[31m↳\x1b[0m refused\n\n  (os error 111)\x07")
    assert said(error) == "Generic S3 error ↳ refused (os error 111)"


def test_shown_text_is_bounded_and_escaped() -> None:
    assert len(said(OSError("x" * 10_000))) == said_characters_max
    assert len(shown("x" * 10_000)) == shown_characters_max + len("''")
    assert shown("a\x1b[31m") == r"'a\x1b[31m'"
