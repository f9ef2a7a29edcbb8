"""Data directory of a real server after the use of every feature that writes files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.peer import Peer, frame
from tests.helpers.queues import SECONDS, queue, take
from tickertape.batch import batch_from_bodies
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import Ack, Prepare, Stage, Staged, Transaction

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "3MB"
sync = "interval"
[[journal.topic]]
pattern = "^(orders|jobs|dead)$"
""" + queue("jobs", dead_letter="dead", file_backed_metadata=True)

pytestmark = pytest.mark.slow


def stage(uri: str) -> None:
    """Prepare a part of a transaction without a commit."""
    key = Transaction(publisher="stager", name="later")
    batch = batch_from_bodies("orders", [b"{}"])
    with Peer(uri, "stager") as peer:
        peer.send(frame(Stage(id=1, transaction=key, part="0"), batch))
        peer.until(Ack)
        peer.send(frame(Prepare(id=2, transaction=key, part="0")))
        peer.until(Staged)


def use(server: RunningServer) -> None:
    """Publish beyond the retention size, commit and stage transactions, and reject a job."""
    with tt.Client("user", server.uri, timeout=SECONDS) as client:
        for _ in range(12):
            for _ in range(20):
                client.publish("orders", b"x" * 20_000)
            client.publish("unrecorded", b"x")
            client.publish_flush(timeout=SECONDS)
        wait_until(lambda: stats_of(server).journal.retention.retired_segments > 0, SECONDS)
        with client.transaction("now") as transaction:
            transaction.publish("jobs", b"1")
            transaction.publish("jobs", b"2")
        stream = client.subscribe("jobs", max_backlog=2)
        done, undone = take(stream, 2)
        done.ack()
        undone.expire()
        client.publish_flush(timeout=SECONDS)
    stage(server.uri)


def test_verify_has_no_note_after_every_feature_was_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data, CONFIG) as server:
        use(server)
    with running_server(data, CONFIG):
        names = {path.name for path in data.iterdir()}
    assert names >= {"end.json", "identity.json", "journal", "lock", "retired.bin", "spill", "transactions"}
    assert "queues.bin" in names
    result = CliRunner().invoke(cli, ["journal", "verify", str(data), "--output", "json"])
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["damage"] == []
    notes = [note["what"] for note in report["notes"]]
    assert notes == [report["retired"]["text"]], "no more than the line about removed segments"
    (part,) = (data / "transactions").iterdir()
    assert part.suffix == ".prepared"
