"""Text of tokens, their hashes, and token files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.errors import BadName, BadOption
from tickertape.security.tokens import fits, hash_of, name_in, new_token, read_token


def test_new_token_matches_only_the_own_hash() -> None:
    one, other = new_token("spark.1-a"), new_token("spark.1-a")
    assert one.text.startswith("tickertape_spark.1-a_")
    assert len(one.text) == len("tickertape_spark.1-a_") + 52
    assert name_in(one.text) == "spark.1-a"
    assert one.text != other.text
    assert fits(one.text, bytes.fromhex(one.sha256))
    assert not fits(other.text, bytes.fromhex(one.sha256))
    assert hash_of(one.text).hex() == one.sha256


def test_token_text_is_hidden_in_repr_and_str() -> None:
    made = new_token("spark")
    assert made.text not in f"{made} {made!r}"


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a b", "ä", "a" * 65])
def test_invalid_token_name_is_refused(name: str) -> None:
    with pytest.raises(BadName, match="1 to 64 of a-z, 0-9"):
        new_token(name)


@pytest.mark.parametrize(
    "text", ["", "spark", "tickertape_spark_", "tickertape__" + "a" * 52, "tickertape_a_" + "1" * 52]
)
def test_malformed_token_has_no_name(text: str) -> None:
    assert name_in(text) is None


def test_token_file_is_read_only_with_owner_permissions(tmp_path: Path) -> None:
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
