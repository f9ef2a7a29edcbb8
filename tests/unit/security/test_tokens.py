"""The text of tokens, their hashes, and files that hold one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.errors import BadName, BadOption
from tickertape.security.tokens import fits, hash_of, name_in, new_token, read_token


def test_a_new_token_fits_its_hash_and_no_other() -> None:
    one, other = new_token("spark.1-a"), new_token("spark.1-a")
    assert one.text.startswith("tickertape_spark.1-a_")
    assert len(one.text) == len("tickertape_spark.1-a_") + 52
    assert name_in(one.text) == "spark.1-a"
    assert one.text != other.text
    assert fits(one.text, bytes.fromhex(one.sha256))
    assert not fits(other.text, bytes.fromhex(one.sha256))
    assert hash_of(one.text).hex() == one.sha256


def test_a_token_is_not_shown() -> None:
    made = new_token("spark")
    assert made.text not in f"{made} {made!r}"


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a b", "ä", "a" * 65])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(BadName, match="1 to 64 of a-z, 0-9"):
        new_token(name)


@pytest.mark.parametrize(
    "text", ["", "spark", "tickertape_spark_", "tickertape__" + "a" * 52, "tickertape_a_" + "1" * 52]
)
def test_what_has_not_the_form_is_no_token(text: str) -> None:
    assert name_in(text) is None


def test_a_token_is_read_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    made = new_token("spark")
    path = tmp_path / "spark.token"
    path.touch(mode=0o600)
    path.write_text(f"{made.text}\n")
    assert read_token(path, BadOption) == made.text
    path.chmod(0o644)
    with pytest.raises(BadOption, match="chmod 600"):
        read_token(path, BadOption)
    path.chmod(0o600)
    path.write_text(f"{made.text} and more\n")
    with pytest.raises(BadOption, match="does not contain a token") as caught:
        read_token(path, BadOption)
    assert made.text not in str(caught.value)
    path.write_bytes(b"a" * (2 << 20))
    with pytest.raises(BadOption, match="is larger than"):
        read_token(path, BadOption)
    with pytest.raises(BadOption, match="No such file"):
        read_token(tmp_path / "none", BadOption)
