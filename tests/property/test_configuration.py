"""Mutated configuration files: every accepted TOML value has a line, and no file causes a crash."""

from __future__ import annotations

import tomllib
from pathlib import Path
from random import Random

import pytest

from tests.unit.server.config.test_config import FULL
from tests.unit.server.config.test_toml_lines import DOCUMENT, every_path
from tickertape.server.config.config import examine
from tickertape.server.config.toml_lines import find_lines

PIECES = (
    '"', "'", '"' * 3, "'" * 3, "\\", "#", "\n", "=", "[", "]", "[[", "]]", "{", "}", ",", ".", " ", "\t",
    "a", "b.c", "1", "true", "2020-01-01 00:00:00", "${A}", "${", "$", "x = 1\n", "[t]\n", "[[t]]\n", "é",
    "\x00", "include",
)  # fmt: skip
MUTATIONS = 1500


def mutated(text: str, rng: Random) -> str:
    """Return `text` with a few pieces inserted, removed or repeated."""
    for _ in range(rng.randrange(1, 4)):
        at, size = rng.randrange(len(text) + 1), rng.randrange(12)
        choice = rng.random()
        if choice < 0.5:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif choice < 0.8:
            text = text[:at] + text[at + size :]
        else:
            text = text[:at] + text[at : at + size] + text[at:]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_configuration_accepted_by_toml_has_a_line_for_every_value(seed: int) -> None:
    rng = Random(seed)
    accepted = 0
    for _ in range(MUTATIONS):
        text = mutated(DOCUMENT, rng)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        accepted += 1
        lines = find_lines(text)
        assert lines.keys() == every_path(document), text
        assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    assert accepted > MUTATIONS // 20


@pytest.mark.parametrize("seed", range(2))
def test_configuration_with_mutations_is_valid_or_a_list_of_problems(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    file = tmp_path / "c.toml"
    good = bad = 0
    for _ in range(300):
        file.write_text(mutated(FULL, rng), encoding="utf-8")
        config, problems = examine(file, environment={"A": "x"})
        assert (config is None) == bool(problems)
        assert all(str(problem).startswith(f"{file}:") for problem in problems)
        good += config is not None
        bad += config is None
    assert good > 10
    assert bad > 100
