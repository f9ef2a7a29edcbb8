"""Logon with tokens: valid, wrong, missing, expired and restricted ones, and the tokens file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.base.errors import AuthenticationFailed, ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.security.tokens import Token, new_token
from tickertape.server.access.tokens import Tokens, read_tokens, tokens_in
from tickertape.wire.commands import Logon

NOW = Now(0.0, 1_800_000_000_000_000)
"""In January 2027."""


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tokens.toml"
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


@pytest.fixture
def token() -> Token:
    return new_token("spark")


@pytest.fixture
def tokens(tmp_path: Path, token: Token) -> Tokens:
    return known(tmp_path, token)


def known(tmp_path: Path, token: Token, more: str = "") -> Tokens:
    other = new_token("other")
    return read_tokens(
        file_of(tmp_path, f'[spark]\nsha256 = "{token.sha256}"\n{more}\n[other]\nsha256 = "{other.sha256}"\n')
    )


def refusal(tokens: Tokens, logon: Logon, now: Now = NOW) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        tokens.user_of(logon, now)
    assert not logon.password or logon.password not in str(caught.value)
    return str(caught.value)


def test_valid_token_logs_on_as_the_user_of_the_token(tokens: Tokens, token: Token) -> None:
    assert tokens.user_of(Logon(name="any", password=token.text), NOW) == "spark"
    assert tokens.user_of(Logon(name="any", password=token.text, user="spark"), NOW) == "spark"


def test_logon_without_token_is_refused_with_the_missing_option(tokens: Tokens) -> None:
    assert (
        refusal(tokens, Logon(name="any"))
        == "Authentication failed: this server requires a token (--token-file)."
    )


def test_every_wrong_token_is_refused_with_the_same_text(tokens: Tokens, token: Token) -> None:
    last = "a" if token.text[-1] != "a" else "b"
    wrong = [
        "",
        "secret",
        token.sha256,
        token.text[:-1] + last,
        token.text + "a",
        token.text + "\n",
        token.text.replace("spark", "other"),
        token.text.replace("spark", "nobody"),
        new_token("spark").text,
        "\ud800",
    ]
    assert {refusal(tokens, Logon(name="any", password=text)) for text in wrong} == {
        "Authentication failed: unknown token. Check the token."
    }


def test_token_is_valid_until_expiry(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token, "expires = 2027-01-15T09:00:00+01:00")  # that is NOW
    logon = Logon(name="any", password=token.text)
    before = Now(0.0, NOW.wall - 1)
    assert tokens.user_of(logon, before) == "spark"
    assert tokens.still_good("spark", "any", before)
    assert refusal(tokens, logon) == "Authentication failed: token 'spark' has expired. Ask for a new token."
    assert not tokens.still_good("spark", "any", NOW)


@pytest.mark.parametrize(
    ("expires", "good"),
    [
        ("9999-12-31T23:59:59-05:00", True),
        ("9999-12-31T23:59:59.999999-23:59", True),
        ("0001-01-01T00:00:00+14:00", False),
    ],
)
def test_token_expiry_outside_the_years_of_utc_is_accepted(
    tmp_path: Path, token: Token, expires: str, good: bool
) -> None:
    tokens = known(tmp_path, token, f"expires = {expires}")
    assert tokens.still_good("spark", "any", NOW) is good


@pytest.mark.parametrize("text", ["9" * 5_000, "[" * 5_000, "9999-99-99T00:00:00Z"])
def test_tokens_file_that_tomllib_cannot_parse_is_refused(tmp_path: Path, token: Token, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"tokens\.toml': not TOML"):
        known(tmp_path, token, f"expires = {text}")


def test_session_of_unknown_token_is_not_valid(tokens: Tokens) -> None:
    assert tokens.still_good("other", "any", NOW)
    assert not tokens.still_good("gone", "any", NOW)
    assert not tokens.still_good(None, "any", NOW)


def test_token_is_restricted_to_matching_client_names(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token, "clients = '^spark-'")
    assert tokens.user_of(Logon(name="spark-1", password=token.text), NOW) == "spark"
    assert refusal(tokens, Logon(name="x-spark-1", password=token.text)) == (
        "Authentication failed: the token 'spark' is for clients with names like '^spark-', "
        "not for 'x-spark-1'. Use such a name, or another token."
    )
    assert tokens.still_good("spark", "spark-1", NOW)
    assert not tokens.still_good("spark", "x-spark-1", NOW), "a session older than the restriction"
    tokens.check_name("spark", "spark-sink")
    tokens.check_name("other", "x-spark-1")
    with pytest.raises(AuthenticationFailed, match="names like '\\^spark-', not for 'billing'"):
        tokens.check_name("spark", "billing")
    for user in ("gone", None):
        with pytest.raises(AuthenticationFailed, match="was revoked"):
            tokens.check_name(user, "spark-1")


def test_reloaded_tokens_report_names_with_a_new_hash() -> None:
    before = tokens_in(b"[a]\nsha256 = '%s'\n[b]\nsha256 = '%s'\n" % (b"0" * 64, b"1" * 64), "before")
    text = b"[a]\nsha256 = '%s'\nclients = 'x'\n[b]\nsha256 = '%s'\n[c]\nsha256 = '%s'\n"
    later = tokens_in(text % (b"0" * 64, b"2" * 64, b"1" * 64), "later")
    assert before.replaced_by(later) == {"b"}
    assert before.replaced_by(before) == later.replaced_by(later) == frozenset()


def test_logon_with_another_user_than_the_token_is_refused(tokens: Tokens, token: Token) -> None:
    text = refusal(tokens, Logon(name="any", user="boss", password=token.text))
    assert text == (
        "Authentication failed: the user must be the name of the token, 'spark', not 'boss'. Remove the user."
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a", "not TOML"),
        ("a = 1\n", r"\[a\] must be a table with the key sha256"),
        ("[A_B]\n", "invalid token name 'A_B'"),
        ("[a]\n", r"\[a\] sha256 must be 64 hexadecimal digits"),
        ("[a]\nsha256 = 'tickertape_a_secret'\n", r"\[a\] sha256 must be 64 hexadecimal digits"),
        ("[tickertape_a_secretsecretsecret]\n", "invalid token name a key of 31 characters"),
        ("[a]\ntickertape_a_secretsecretsecret = 1\n", "unknown key a key of 31 characters"),
        (f"[a]\nsha256 = '{'g' * 64}'\n", r"\[a\] sha256 must be 64 hexadecimal digits"),
        (f"[a]\nsha256 = '{'0' * 64}'\nexpires = 2027-01-01\n", "must be a time with a time zone"),
        (f"[a]\nsha256 = '{'0' * 64}'\nexpires = 2027-01-01T00:00:00\n", "must be a time with a time zone"),
        (f"[a]\nsha256 = '{'0' * 64}'\nclients = 1\n", "must be a regular expression in quotes"),
        (
            f"[a]\nsha256 = '{'0' * 64}'\nclients = '('\n",
            r"clients '\(': invalid regular expression: missing \) in '\('\. ",
        ),
        (
            f"[a]\nsha256 = '{'0' * 64}'\ntopics = []\n",
            "unknown key 'topics'. Use sha256, expires, clients or links",
        ),
    ],
)
def test_invalid_tokens_file_is_refused_without_printing_secrets(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        read_tokens(file_of(tmp_path, text))
    assert "secret" not in str(caught.value)


def test_tokens_file_readable_by_other_users_is_refused(tmp_path: Path) -> None:
    path = Path(file_of(tmp_path, ""))
    path.chmod(0o640)
    read_tokens(str(path))
    path.chmod(0o644)
    with pytest.raises(
        ConfigurationError, match=r"is accessible to other users \(mode 0644\)\. Run: chmod 600"
    ):
        read_tokens(str(path))
    with pytest.raises(ConfigurationError, match=r"Cannot read tokens_file .*: No such file"):
        read_tokens(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigurationError, match="is not a regular file"):
        read_tokens(str(tmp_path))


# -- tokens of replication links --------------------------------------------------------------------------


def link_refusal(tokens: Tokens, instance: str, text: str | None, now: Now = NOW) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        tokens.admit_link(instance, text, now)
    assert not text or text not in str(caught.value)
    return str(caught.value)


def test_token_of_links_admits_instances_of_the_pattern_only(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token, 'links = "^ny-"')
    tokens.admit_link("ny-1", token.text, NOW)
    assert tokens.link_still_good("spark", "ny-1", NOW)
    assert "is for links of instances with names like '^ny-', not of 'ldn'" in link_refusal(
        tokens, "ldn", token.text
    )
    assert not tokens.link_still_good("spark", "ldn", NOW)
    assert "requires a token for links" in link_refusal(tokens, "ny-1", None)
    assert "unknown token" in link_refusal(tokens, "ny-1", new_token("spark").text)


def test_token_of_links_expires(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token, 'links = "^ny-"\nexpires = 2027-01-31T00:00:00Z')
    tokens.admit_link("ny-1", token.text, NOW)
    late = Now(0.0, NOW.wall + 60 * 86_400_000_000)
    assert "has expired" in link_refusal(tokens, "ny-1", token.text, late)
    assert not tokens.link_still_good("spark", "ny-1", late)


def test_tokens_of_links_and_clients_do_not_replace_each_other(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token)
    assert "is for clients, not for replication links" in link_refusal(tokens, "ny-1", token.text)
    assert not tokens.link_still_good("spark", "ny-1", NOW)
    tokens = known(tmp_path, token, 'links = "."')
    assert "is for replication links, not for clients" in refusal(
        tokens, Logon(name="any", password=token.text)
    )
    assert not tokens.still_good("spark", "any", NOW)
    assert tokens.for_any_client() == ["other"]


def test_entry_for_clients_and_links_is_refused(tmp_path: Path, token: Token) -> None:
    with pytest.raises(ConfigurationError, match=r"\[spark\] has clients and links. Remove one"):
        known(tmp_path, token, 'links = "a"\nclients = "b"')
    with pytest.raises(ConfigurationError, match="links must be a regular expression in quotes"):
        known(tmp_path, token, "links = 1")


# -- commands of operators --------------------------------------------------------------------------------


def operator_refusal(tokens: Tokens, text: str | None, now: Now = NOW) -> str:
    with pytest.raises(AuthenticationFailed) as caught:
        tokens.admit_operator(text, now)
    assert not text or text not in str(caught.value)
    return str(caught.value)


def test_commands_require_a_valid_token_of_clients(tmp_path: Path, token: Token) -> None:
    tokens = known(tmp_path, token, "expires = 2027-01-31T00:00:00Z")
    tokens.admit_operator(token.text, NOW)
    assert "requires a token for commands" in operator_refusal(tokens, None)
    assert "unknown token" in operator_refusal(tokens, new_token("spark").text)
    late = Now(0.0, NOW.wall + 60 * 86_400_000_000)
    assert "has expired" in operator_refusal(tokens, token.text, late)
    tokens = known(tmp_path, token, 'links = "."')
    assert "is for replication links, not for commands" in operator_refusal(tokens, token.text)
