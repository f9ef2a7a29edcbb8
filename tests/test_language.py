"""Language check: findings in test names, and the files of its default run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import language

LONG = "test_" + "a" * (language.TEST_NAME_CHARACTERS_MAX - 4)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("test_queue_lease_expires", []),
        ("test_notice_stays_with_items", []),
        ("test_lease_comes_back_to_its_queue", ["word 'comes'", "word 'its'"]),
        (LONG[:-1], []),
        (LONG, ["over 90 characters"]),
    ],
)
def test_language_check_finds_words_and_length_of_test_names(
    tmp_path: Path, name: str, shapes: list[str]
) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(f"class TestIt:\n    async def {name}() -> None: ...\n")
    assert [(one.line, one.kind, one.shape) for one in language.check([path])] == [
        (2, "test name", shape) for shape in shapes
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The server recognises the behaviour of a labelled name.", 0),
        ("The server recognizes the behavior.", 2),
        ("Unsynchronized clocks were canceled.", 2),
        ("Run `normalize()`.", 0),
    ],
)
def test_language_check_finds_american_spelling(tmp_path: Path, text: str, found: int) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"{text}\n")
    assert [one.shape for one in language.check([path])] == ["American spelling"] * found


def test_language_check_of_tests_ignores_messages(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text('"""Owns it."""\nsent = "Owns it"\n')
    assert [one.kind for one in language.check([path])] == ["docstring", "message"]
    assert [one.kind for one in language.check([path], language.KINDS_OF_TESTS)] == ["docstring"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Cannot read {topic}: gone", "topic"),
        ("Cannot read {self.place.location}: gone", "self.place.location"),
        ("Cannot read {queue.name}, {disk.where}: gone", "disk.where"),
        ("Cannot read {topic!r}: gone", None),
        ("Cannot read '{topic}': gone", None),
        ("Cannot read {shown(topic)}: gone", None),
        ("Cannot read {where}: gone", None),
    ],
)
@pytest.mark.parametrize("call", ["BadTopic", "errors.BadTopic", "log"])
def test_language_check_finds_values_without_quotes_in_errors(
    tmp_path: Path, call: str, text: str, value: str | None
) -> None:
    path = tmp_path / "module.py"
    path.write_text(f'{call}(f"{text}")\n')
    expected = [] if value is None or call == "log" else [("value without quotes", value)]
    assert [(one.shape, one.found) for one in language.check([path])] == expected


def test_default_run_covers_all_tests() -> None:
    assert Path(__file__).resolve() in language.tests()
    assert language.ROOT / "tests" / "world" / "world.py" in language.tests()


def test_default_run_covers_templates_of_created_projects() -> None:
    assert language.PROJECTS / "delays/README.md.template" in language.pages()
    assert language.PROJECTS / "delays/tests/test_delays.py.template" in language.modules()


@pytest.mark.parametrize(
    ("name", "kind"), [("README.md.template", "page"), ("module.py.template", "comment")]
)
def test_language_check_reads_templates_by_the_type_of_the_created_file(
    tmp_path: Path, name: str, kind: str
) -> None:
    path = tmp_path / name
    path.write_text("# Telling of {{ name }}\n")
    assert [(one.kind, one.shape) for one in language.check([path])] == [(kind, "tell, told")]
