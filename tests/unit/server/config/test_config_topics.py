"""`[[journal.topic]]`: topic names, patterns and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.filter.limits import recorded_patterns_max
from tickertape.server.config.config import examine, load_config


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_journal_topics_are_read_by_name_and_by_pattern(tmp_path: Path) -> None:
    text = "[[journal.topic]]\nname = 'orders'\n[[journal.topic]]\npattern = '^fx/.*/spot$'\n"
    assert load_config(write(tmp_path / "c.toml", text)).journal.topics == ["orders", "^fx/.*/spot$"]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "[[journal.topic]]\n[[journal.topic]]\npattern = '^a'\nname = 'b'\n",
            [
                "1: journal.topic.name: is missing here",
                "3: journal.topic.pattern: excludes name. Remove one of the two keys.",
            ],
        ),
        (
            "[[journal.topic]]\npattern = 'orders'\n",
            [
                (
                    "2: journal.topic.pattern: must be a pattern, but 'orders' has none of *+?[](){}^$\\|. "
                    "Write name = ... for a topic name, or a pattern such as ^orders "
                    "for topics with this prefix."
                )
            ],
        ),
        (
            "[[journal.topic]]\npattern = '(?=a)b'\n",
            [
                (
                    "2: journal.topic.pattern: Invalid topic pattern '(?=a)b' at position 0: look-ahead is "
                    "not supported, because it has no linear-time search. Remove it."
                )
            ],
        ),
        (
            "[[journal.topic]]\npattern = '^a'\n[[journal.topic]]\npattern = '^a'\n",
            ["4: journal.topic.pattern: duplicate pattern '^a'. Remove one of them."],
        ),
        (
            "".join(f"[[journal.topic]]\npattern = '^{n}'\n" for n in range(recorded_patterns_max + 2)),
            ["130: journal.topic.pattern: too many patterns (limit 64). Merge some."],
        ),
        (
            "[[journal.topic]]\npatern = '^a'\nname = 'a'\n",
            [
                (
                    "2: journal.topic.patern: unknown key. Did you mean 'pattern'? "
                    "[journal.topic] takes name, pattern"
                )
            ],
        ),
    ],
)
def test_invalid_journal_topics_and_patterns_are_refused(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    _, found = examine(write(tmp_path / "c.toml", text))
    assert [f"{problem.location.line}: {problem.key}: {problem.text}" for problem in found] == problems
