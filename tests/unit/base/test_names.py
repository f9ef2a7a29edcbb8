from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.processes import source_environment
from tickertape.base.errors import BadName, BadOption, BadTopic
from tickertape.base.limits import client_name_bytes_max, topic_bytes_max
from tickertape.base.names import (
    PATTERN_CHARACTERS,
    check_client_name,
    check_topic,
    check_transaction,
    derived_publisher_id,
    is_pattern,
    publisher_id,
)


@pytest.mark.behaviour(4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pricing-1", 12472216704108904515),
        ("risk-1", 3944750886843645904),
        ("é", 3394012004367669963),
    ],
)
def test_publisher_ids_never_change(name: str, expected: int) -> None:
    assert publisher_id(name) == expected


@pytest.mark.behaviour(4)
def test_publisher_id_is_the_same_in_another_process() -> None:
    code = "from tickertape.base.names import publisher_id; print(publisher_id('pricing-1'))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=source_environment()
    )
    assert int(run.stdout) == publisher_id("pricing-1")


def test_derived_publisher_ids_differ_by_instance_and_from_the_client_id() -> None:
    ids = {
        publisher_id("a"),
        derived_publisher_id("a", "x"),
        derived_publisher_id("a", "y"),
        derived_publisher_id("b", "x"),
    }
    assert len(ids) == 4
    assert all(1 <= number < 2**64 for number in ids)
    assert derived_publisher_id("ab", "c") != derived_publisher_id("a", "bc")


def test_publisher_id_of_a_zero_hash_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr("tickertape.base.names.blake2b", lambda _data, **_: Zero())
    assert publisher_id("any") == 1
    assert derived_publisher_id("any", "where") == 1


@pytest.mark.parametrize("topic", ["orders", "a.b.c", ".", "/orders/new", "a b", "a-b_c:d", "日本", "a,b"])
def test_topic_without_pattern_characters_is_a_literal(topic: str) -> None:
    assert not is_pattern(topic)
    check_topic(topic)


@pytest.mark.parametrize("character", PATTERN_CHARACTERS)
def test_each_pattern_character_makes_a_pattern(character: str) -> None:
    assert is_pattern(f"orders{character}x")
    with pytest.raises(BadTopic, match="a pattern"):
        check_topic(f"orders{character}x")


def test_only_documented_characters_make_a_pattern() -> None:
    assert {chr(code) for code in range(0x110000) if is_pattern(chr(code))} == set("*+?[](){}^$\\|")


@pytest.mark.parametrize(
    ("topic", "match"),
    [
        ("", "not be empty"),
        ("é" * (topic_bytes_max // 2) + "a", "at most 1024 bytes"),
        ("a\nb", "control character"),
        ("a\x00", "control character"),
        ("\ud800", "is not valid Unicode"),
    ],
)
def test_invalid_topic_is_refused(topic: str, match: str) -> None:
    with pytest.raises(BadTopic, match=match):
        check_topic(topic)


def test_longest_topic_and_client_name_are_allowed() -> None:
    check_topic("é" * (topic_bytes_max // 2))
    check_client_name("x" * client_name_bytes_max)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("", "not be empty"),
        ("x" * (client_name_bytes_max + 1), "at most 256 bytes"),
        ("a\tb", "control character"),
        ("\udfff", "is not valid Unicode"),
    ],
)
def test_invalid_client_name_is_refused(name: str, match: str) -> None:
    with pytest.raises(BadName, match=match):
        check_client_name(name)


@pytest.mark.parametrize("name", ["pricing-1", "a", "*", "ü (1)", "a|b"])
def test_client_names_may_be_anything_printable(name: str) -> None:
    check_client_name(name)


@pytest.mark.parametrize(
    ("space", "name", "match"),
    [
        ("", "", "must not be empty"),
        ("", "ä" * 128, "Invalid name of a transaction .* Use at most 255 bytes"),
        ("ä" * 128, "1", "Invalid space of a transaction .* Use at most"),
        ("", "\ud800", "Invalid name of a transaction .* is not valid Unicode"),
        ("\udcff", "1", "Invalid space of a transaction .* is not valid Unicode"),
        ("", 5, "Invalid transaction name of type int. Use str"),
        (b"s", "1", "Invalid transaction space of type bytes. Use str"),
        *[
            ("s", name, "Use a number of up to 18 digits")
            for name in ("x", "-1", "1.0", "+1", " 1", "²", "1" * 19)
        ],
    ],
)
def test_invalid_transaction_name_or_space_is_refused(space: Any, name: Any, match: str) -> None:
    with pytest.raises(BadOption, match=match):
        check_transaction(space, name)


@pytest.mark.parametrize("name", ["0", "007", "9" * 18])
def test_number_in_a_transaction_space_is_accepted(name: str) -> None:
    check_transaction("s", name)
