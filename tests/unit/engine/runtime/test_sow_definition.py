"""`SowDefinition`: defaults, and the fingerprint over all that decides which records exist."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tickertape.engine.runtime.sow_definition import SowDefinition

FULL = SowDefinition(
    "positions",
    key=("/account", "/symbol"),
    key_domain="desk",
    pattern="^positions/",
    message_types=(("positions/fix", "fix"),),
    earlier_patterns=("^pos",),
)
COUNTED = {
    "name": replace(FULL, name="other"),
    "key": replace(FULL, key=("/symbol", "/account")),
    "key_domain": replace(FULL, key_domain="desks"),
    "pattern": replace(FULL, pattern=None),
    "missing_key": replace(FULL, missing_key="null"),
    "message_types": replace(FULL, message_types=()),
    "earlier_patterns": replace(FULL, earlier_patterns=()),
}
NOT_COUNTED = {
    "expiration": replace(FULL, expiration=1000),
    "index": replace(FULL, index=(("/symbol",),)),
    "checkpoint_interval": replace(FULL, checkpoint_interval=1.0),
}


def test_definition_with_only_a_name_has_defaults() -> None:
    definition = SowDefinition("positions")
    assert definition == SowDefinition("positions", key_domain="positions", checkpoint_interval=60.0)
    assert (definition.key, definition.index) == ((), ())
    assert (definition.pattern, definition.expiration) == (None, None)


def test_each_field_is_either_counted_in_the_fingerprint_or_not() -> None:
    assert {field.name for field in fields(SowDefinition)} == {*COUNTED, *NOT_COUNTED}


@pytest.mark.parametrize("field", COUNTED)
def test_fingerprint_differs_for_a_changed_field_that_decides_records(field: str) -> None:
    assert COUNTED[field].fingerprint() != FULL.fingerprint()


@pytest.mark.parametrize("field", NOT_COUNTED)
def test_fingerprint_is_equal_for_a_changed_field_that_decides_no_record(field: str) -> None:
    assert NOT_COUNTED[field] != FULL
    assert NOT_COUNTED[field].fingerprint() == FULL.fingerprint()


@pytest.mark.parametrize("field", ["key", "pattern", "message_types"])
def test_key_fingerprint_differs_for_a_changed_field_that_decides_keys(field: str) -> None:
    assert COUNTED[field].key_fingerprint() != FULL.key_fingerprint()


@pytest.mark.parametrize("field", sorted({*COUNTED, *NOT_COUNTED} - {"key", "pattern", "message_types"}))
def test_key_fingerprint_is_equal_for_a_changed_field_that_decides_no_key(field: str) -> None:
    assert (COUNTED | NOT_COUNTED)[field].key_fingerprint() == FULL.key_fingerprint()


def test_key_fingerprint_is_equal_for_another_pattern() -> None:
    assert replace(FULL, pattern="^pos").key_fingerprint() == FULL.key_fingerprint()
    assert FULL.key_fingerprint().hex() == "94601ff3728198467e5f29c41db928c8"


def test_fingerprint_ignores_message_types_with_explicit_keys() -> None:
    explicit = replace(FULL, key=())
    assert replace(explicit, message_types=()).fingerprint() == explicit.fingerprint()


def test_fingerprint_distinguishes_texts_that_move_between_fields() -> None:
    one = SowDefinition("a", key=("/b", "/c"))
    assert one.fingerprint() != SowDefinition("a", key=("/b/c",)).fingerprint()
    assert replace(one, pattern="^x").fingerprint() != replace(one, earlier_patterns=("^x",)).fingerprint()


def test_fingerprint_bytes_stay_because_checkpoints_have_fingerprints() -> None:
    assert FULL.fingerprint().hex() == "8650f519201dfa32e1ec7a5838bd5d73"
    assert SowDefinition("positions").fingerprint().hex() == "1c7d6d3f8619b4d477b0b3b66e9e0f20"
