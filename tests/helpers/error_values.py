"""Names and values that the texts of provoked errors must have in quotes."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.provoked_errors import Place

Value = str | Callable[[Place], str]

VALUES: dict[str, Value] = {
    "bad_bookmark": "yesterday",
    "bad_option": "rat",
    "bad_topic": "a.*",
    "bad_name": "",
    "bad_path": "",
    "bad_order_by": "price DESC",
    "bad_body": "checked",
    "topic_not_recorded": "odrers",
    "bookmark_unknown": "1|2|",
    "not_a_queue": "orders",
    "subscription_exists": "s",
    "subscription_unknown": "nope",
    "publish_rejected": "checked",
    "publisher_taken_over": "mine",
    "wrong_journal": "second",
    "timed_out": "a-stream",
    "stream_ended": "a-stream",
    "transaction_busy": "t",
    "transaction_too_large": "t",
    "transaction_unknown": "t",
    "closed": "gone",
    "disconnected": "tcp://127.0.0.1:1",
    "tls_failed": lambda place: place.server.uri.replace("tcp", "tls"),
    "name_in_use": "taken",
    "link_refused": "server-1",
    "publisher_collision": "sink",
    "bad_version": "9",
    "bad_command": "boom",
    "logon_required": "flush",
    "already_logged_on": "logon",
    "not_a_journal": lambda place: str(place.path),
    "journal_locked": lambda place: str(place.server.data),
    "journal_version": lambda place: str(place.path),
    "journal_corrupt": "identity.json",
    "spill_failed": lambda place: str(place.path / "absent" / "below"),
    "staging_failed": "transactions/00000000000000000001.prepared",
    "journal_full": "t",
    "archive_failed": lambda place: str(place.path / "none"),
    "not_a_store": lambda place: str(place.path),
    "store_locked": lambda place: str(place.path / "s"),
    "store_owner_mismatch": "other",
    "store_version": lambda place: str(next((place.path / "s").glob("*.segment"))),
    "store_corrupt": lambda place: str(next((place.path / "s").glob("*.segment"))),
    "store_failed": lambda place: str(place.path / "file" / "s"),
    "bookmark_store_full": lambda place: str(place.path / "ring"),
}
"""The name or value that each row uses. The text of the error has it in quotes."""

WITHOUT_VALUE: dict[str, str] = {
    "usage": "the mistake is a missing argument",
    "limit_reached": "the count of the limit is measured",
    "bad_filter": "the excerpt below the text shows the filter",
    "bad_query": "the excerpt below the text shows the statement",
    "message_too_large": "the size is measured",
    "bad_message": "the type of the object is shown, not its value",
    "bad_configuration": "a mistake in a file starts with the file, its line and the key",
    "bookmark_expired": "the caller names and quotes the start",
    "forked": "the process id is measured",
    "store_full": "the sizes are measured",
    "heartbeat": "the intervals are those of the connection",
    "authentication_failed": "a token is a secret",
    "tls_required": "the server reports the error, and does not know the address that the client used",
    "not_ready": "the state of the server",
    "slow_client": "the size is measured",
    "not_tickertape": "the decoder reports the error, and does not know the address",
    "bad_frame": "damaged bytes",
    "frame_too_large": "the size is measured",
    "bad_batch": "damaged bytes",
    "bad_link": "the state of the link",
    "corrupt_batch": "damaged bytes",
    "logon_timeout": "the client sent nothing",
    "frame_stalled": "the state of the connection",
    "journal_failed": "an error of the disk",
    "staging_full": "the size is measured",
}
"""Codes whose text has no name or value of the caller, with the reason."""
