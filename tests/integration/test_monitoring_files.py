"""The Grafana dashboard and the Prometheus rules: they use metrics and labels that a real server exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing import running_server

pytestmark = pytest.mark.slow

CONFIG = (
    '[[queue]]\nname = "work"\nunderlying = "orders"\n'
    '[[sow]]\nname = "positions"\nkey = ["/id"]\ncheckpoint_interval = "1s"\n'
)
LINKED = (
    '[instance]\nname = "ny-1"\n'
    '[[replication.destination]]\nname = "ny-2"\naddresses = ["tcp://127.0.0.1:1"]\n'
    '[[replication.destination.topic]]\nname = "orders"\nsync = true\n'
)
"""A server with a link. SOW topics cannot be combined with links."""
DOCS = Path(__file__).parents[2] / "docs"
RUNBOOK = DOCS / "operations/runbook.md"
MONITORING = DOCS / "howto/monitoring.md"
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("monitoring")
    command = [sys.executable, "-m", "tickertape", "monitoring", str(directory / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=source_environment())
    assert sorted(done.stdout.split()) == sorted(str(path) for path in (directory / "new").iterdir())
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=source_environment())
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    subprocess.run([*command, "--force"], check=True, capture_output=True, env=source_environment())
    return directory / "new"


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels by metric of a server with a topic, a queue, a SOW topic and a rejected command, and
    of one with a link."""
    with running_server(config=CONFIG) as server, tt.Client("desk", server.uri) as client:
        client.publish("orders", b"1")
        client.publish("positions", {"id": 1})
        client.publish_flush(timeout=10)
        stream = client.subscribe("work")
        stream.get(timeout=10).ack()
        client.publish_flush(timeout=10)
        with pytest.raises(tt.BadFilter):
            client.subscribe("orders", filter="(")
        with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    with (
        running_server(config=LINKED) as server,
        urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=10) as answer,
    ):
        text += answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = labels | found.get(name, set())
    return found


def dashboard_expressions(path: Path) -> list[str]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def rules(path: Path) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def check(expression: str, exported: dict[str, set[str]]) -> None:
    names = re.findall(r"\btickertape_\w+", expression)
    assert names, expression
    for name in names:
        base = name if name in exported else re.sub("(?:_bucket|_sum|_count)$", "", name)
        assert base in exported, f"{name} in {expression}"
    for name, selector in re.findall(r"\b(tickertape_\w+)\{([^}]*)\}", expression):
        known = exported[name if name in exported else re.sub("(?:_bucket|_sum|_count)$", "", name)]
        # A metric without a sample has no labels yet. Prometheus itself adds `instance`.
        unknown = set(LABEL.findall(selector)) - known - {"instance"}
        assert not unknown or not known, f"{unknown} in {expression}"
    assert expression.count("(") == expression.count(")")


def test_dashboard_uses_exported_metrics(written: Path, exported: dict[str, set[str]]) -> None:
    expressions = dashboard_expressions(written / "grafana-dashboard.json")
    assert len(expressions) > 30
    for expression in expressions:
        check(expression, exported)


def test_rules_use_exported_metrics(written: Path, exported: dict[str, set[str]]) -> None:
    found = rules(written / "prometheus-rules.yml")
    assert len({rule["alert"] for rule in found}) == len(found) >= 15
    for rule in found:
        check(rule["expr"], exported)
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert {"summary", "description", "runbook"} == set(rule["annotations"])


def test_reasons_in_rules_are_reasons_of_queues(written: Path) -> None:
    text = (written / "prometheus-rules.yml").read_text(encoding="utf-8")
    named = {reason for group in re.findall(r'reason=~?"([\w|]+)"', text) for reason in group.split("|")}
    source = Path(tt.__file__).parent / "engine" / "queues"
    code = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert {reason for reason in named if reason not in code} == set()


def test_each_alert_has_a_section_in_the_runbook() -> None:
    found = rules(Path(tt.__file__).parent / "cli/monitoring/prometheus-rules.yml")
    headings = re.findall(r"^### (.*)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert [rule["alert"] for rule in found if rule["alert"] not in headings] == []
    for rule in found:
        assert rule["annotations"]["runbook"] == f"docs/operations/runbook.md#{rule['alert'].lower()}"


def test_each_expression_of_the_rules_is_in_the_monitoring_page() -> None:
    page = MONITORING.read_text(encoding="utf-8").replace(r"\|", "|")
    found = rules(Path(tt.__file__).parent / "cli/monitoring/prometheus-rules.yml")
    assert [rule["alert"] for rule in found if f"| `{rule['expr']}` |" not in page] == []


def test_not_ready_rule_covers_each_unreachable_target_of_the_documented_job() -> None:
    found = {
        rule["alert"]: rule
        for rule in rules(Path(tt.__file__).parent / "cli/monitoring/prometheus-rules.yml")
    }
    (config,) = re.findall(
        r"^```yaml\n(.*?)^```", MONITORING.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (job,) = yaml.safe_load(config)["scrape_configs"]
    # absent() alone is empty while another target answers.
    assert f'up{{job="{job["job_name"]}"}} == 0' in found["TickertapeNotReady"]["expr"]
