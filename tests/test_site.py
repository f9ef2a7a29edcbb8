"""Generated parts of the documentation site: errors, commands, configuration, Python and Spark."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import click
import pytest

import tickertape
import tickertape.testing
from docs._ext import tickertape_reference as reference
from tickertape.base.errors import all_codes
from tickertape.cli.commands.error import explanations
from tickertape.server.config.config import examine
from tickertape.spark.queues import options as queue_options
from tickertape.spark.sink import options as sink_options
from tickertape.spark.source import options as source_options

ROOT: Final = reference.ROOT
DOCS: Final = reference.DOCS


class Drawing:
    """Replacement for `mmdr`: a diagram whose picture is its source."""

    def __init__(self, source: str) -> None:
        self._source = source

    def svg(self) -> str:
        if "((" in self._source:
            raise ValueError("unexpected end")
        return f'<svg id="merman">{self._source}</svg>'


@pytest.fixture(autouse=True)
def drawn_without_mmdr(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mmdr")
    module.render = Drawing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mmdr", module)


def page(name: str) -> str:
    """A page of the site, generated parts included."""
    return reference.expand((DOCS / name).read_text(encoding="utf-8"), name)


def pages() -> list[str]:
    skipped = {"README.md"}
    found = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    return [name for name in found if name not in skipped]


# -- errors -------------------------------------------------------------------------------------------


def test_error_page_has_class_meaning_cause_and_cure_of_each_code() -> None:
    text = page("reference/errors.md")
    for code, kind in all_codes().items():
        row = explanations()[code]
        assert text.count(f'<a id="{code}"></a>') == 1, code
        section = text.partition(f'<a id="{code}"></a>')[2].partition("<a id=")[0]
        assert section.startswith(f"\n\n### {code}\n")
        assert f"`tickertape.{kind.__name__}`" in section
        assert row.meaning
        assert row.meaning in section
        assert f"**Cause.** {row.cause}\n" in section
        assert f"**Cure.** {row.cure}" in section


def test_error_page_links_lead_to_headings_that_exist() -> None:
    for row in explanations().values():
        path, _, anchor = row.see.partition("#")
        if path:
            assert (DOCS / path).is_file(), row.code
        if anchor:
            assert anchor in anchors(page(path)), row.code


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


# -- command line -------------------------------------------------------------------------------------

COMMANDS: Final = list(reference.commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_command_page_has_usage_help_and_each_option_of_a_command(path: tuple[str, ...]) -> None:
    found, context = reference.find_command(path)
    text = page("reference/command-line.md")
    name = " ".join(path)
    match = re.search(rf"^## `tickertape {name}\b.*\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    assert match is not None, f"{name} has no section"
    section = match[1]
    assert f"```text\ntickertape {name} {' '.join(found.collect_usage_pieces(context))}\n```" in section
    assert reference.help_text(found.help or "") in section
    for option in found.params:
        if isinstance(option, click.Option):
            row = next(line for line in section.splitlines() if line.startswith(f"| `{longest(option)}"))
            if option.show_default and isinstance(option.default, str):
                variable = f"`{option.envvar}`, or " if option.envvar else ""
                assert f"| {variable}`{option.default}` |" in row


def longest(option: click.Option) -> str:
    return max(option.opts, key=len)


def test_command_page_has_no_other_sections() -> None:
    headings = re.findall(
        r"^## `tickertape ((?:[a-z-]+ ?)+)", page("reference/command-line.md"), re.MULTILINE
    )
    assert [tuple(heading.split()) for heading in headings] == COMMANDS


def test_option_row_has_default_environment_and_repetition() -> None:
    option = click.Option(
        ["-t", "--to"], envvar="TO", multiple=True, help="Where, a|b. Default: none.", metavar="X|Y"
    )
    row = reference.option_row(option, click.Context(click.Command("c")))
    assert row == "| `--to X\\|Y`, `-t` | `TO`, or none | Where, a\\|b. The option can be repeated. |"


def test_help_text_keeps_lines_that_click_does_not_wrap() -> None:
    assert reference.help_text("One\ntwo <x>.\n\n\b\na  b\nc") == "One two \\<x\\>.\n\n```text\na  b\nc\n```"


# -- configuration ------------------------------------------------------------------------------------

CONTEXT: Final = {
    "[[transport]]": 'listen = "tcp://127.0.0.1:9007"\n',
    "[[topic]]": 'name = "orders"\n',
    "[[queue]]": 'name = "work"\nunderlying = "orders"\n',
    "[[sow]]": 'name = "positions"\n',
    "[archive]": 'location = "archive"\n',
    "[authentication]": "",
    "[[replication.destination]]": 'name = "b"\naddresses = ["tls://b:9107"]\n',
    "[[replication.destination.topic]]": 'name = "orders"\nsync = false\n',
}
"""Keys that a table must have."""
SPECIAL: Final = {
    "certificate": 'listen = "tls://127.0.0.1:9007"\nkey = "k"\n',
    "[[transport]].key": 'listen = "tls://127.0.0.1:9007"\ncertificate = "c"\n',
    "client_ca": 'listen = "tls://127.0.0.1:9007"\ncertificate = "c"\nkey = "k"\n',
    "sync_interval": 'sync = "interval"\n',
    "listen": "",
    "location": "",
    "name": "",
    "underlying": 'name = "work"\n',
    "key_domain": 'name = "positions"\nkey = ["/id"]\n',
    "missing_key": 'name = "positions"\nkey = ["/id"]\n',
    "[instance].group": 'name = "ny-1"\n',
    "[[replication.destination]].name": 'addresses = ["tls://b:9107"]\n',
    "[[replication.destination]].addresses": 'name = "ny-2"\n',
    "[[replication.destination.topic]].name": "sync = false\n",
    "[[replication.destination.topic]].pattern": "sync = false\n",
    "[[replication.destination.topic]].sync": 'name = "orders"\n',
}
"""Keys beside a key, where they differ from those of its table. A key of one table has its name before it."""
NAMED: Final = '[instance]\nname = "ny-1"\n'
DESTINATION: Final = f"[[replication.destination]]\n{CONTEXT['[[replication.destination]]']}"
RULE: Final = f"[[replication.destination.topic]]\n{CONTEXT['[[replication.destination.topic]]']}"
BEFORE: Final = {
    "[[replication.destination]]": NAMED,
    "[replication]": NAMED,
    "[[replication.destination.topic]]": NAMED + DESTINATION,
    "[[queue]].replication": NAMED + DESTINATION + RULE,
}
"""Tables before the one of a key."""
SYNC_RULE: Final = RULE.replace("false", "true")
DOWNGRADES: Final = 'downgrade_after = "5m"\n'
SPECIAL.update(
    {
        "downgrade_grace": CONTEXT["[[replication.destination]]"] + DOWNGRADES,
        "upgrade_below": CONTEXT["[[replication.destination]]"] + DOWNGRADES,
    }
)
AFTER: Final = {
    "[[replication.destination]]": RULE,
    "[[replication.destination]].downgrade_after": SYNC_RULE,
    "[[replication.destination]].downgrade_grace": SYNC_RULE,
    "[[replication.destination]].upgrade_below": SYNC_RULE,
    "[replication].ready": DESTINATION + SYNC_RULE,
    "[replication].peak_rate": DESTINATION + DOWNGRADES + SYNC_RULE,
    "[instance].group": DESTINATION + RULE,
    "[replication]": DESTINATION + RULE,
}
"""Tables after the one of a key."""
TABLES: Final = [table for table in reference.config_keys() if table]


def taken_keys(file: Path, table: str) -> set[str]:
    """Keys that the server takes in a table, from its message about an unknown one."""
    file.write_text(f"{BEFORE.get(table, '')}{table}\nunknown_key = 1\n")
    _, problems = examine(file)
    message = next(problem.text for problem in problems if problem.key.endswith("unknown_key"))
    return set(message.rpartition(" takes ")[2].split(", "))


@pytest.mark.parametrize("table", TABLES)
def test_each_key_of_the_configuration_is_described(tmp_path: Path, table: str) -> None:
    described = [key.name for key in reference.config_keys()[table]]
    assert set(described) == taken_keys(tmp_path / "c.toml", table)
    heading = f"# `{table}`\n"
    section = page("reference/configuration.md").partition(heading)[2].partition("\n#")[0]
    assert [name for name in described if f"| `{name}` |" not in section] == []


def test_each_table_of_the_configuration_is_described(tmp_path: Path) -> None:
    top = {table.strip("[]").partition(".")[0] for table in TABLES}
    assert top | {key.name for key in reference.config_keys()[""]} == taken_keys(tmp_path / "c.toml", "")


@pytest.mark.parametrize(
    ("table", "name"),
    [(table, key.name) for table, keys in reference.config_keys().items() for key in keys if key.value],
)
def test_value_of_the_example_file_is_allowed_and_a_default_is_the_default(
    tmp_path: Path, table: str, name: str
) -> None:
    key = next(key for key in reference.config_keys()[table] if key.name == name)
    (tmp_path / "topics.toml").write_text("")
    file = tmp_path / "c.toml"
    special = SPECIAL.get(f"{table}.{name}", SPECIAL.get(name))
    before = CONTEXT.get(table, "") if special is None else special
    above, below = (tables.get(f"{table}.{name}", tables.get(table, "")) for tables in (BEFORE, AFTER))
    (tmp_path / "ny-2.token").touch(mode=0o600)
    file.write_text(f"{above}{table}\n{before}{name} = {key.value}\n{below}")
    config, problems = examine(file)
    assert problems == []
    if key.default:
        file.write_text(f"{above}{table}\n{before or CONTEXT.get(table, '')}{below}")
        assert config == examine(file)[0], "the default of the server is another one"


def test_example_file_has_each_key_and_is_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    text = reference.example_file()
    file.write_text(text)
    config, problems = examine(file)
    assert problems == []
    assert config is not None
    file.write_text("")
    assert config == examine(file)[0]
    lines = text.splitlines()
    for table, keys in reference.config_keys().items():
        assert not table or f"#{table}" in lines
        for key in keys:
            assert not key.value or f"#{key.name} = {key.value}" in lines
    assert max(map(len, lines)) <= 110


# -- Python and Spark ---------------------------------------------------------------------------------


def test_python_page_has_each_public_name_once() -> None:
    named = re.findall(r"^\.\. auto\w+:: tickertape\.(\w+)$", page("reference/python.md"), re.MULTILINE)
    assert sorted(named) == sorted(tickertape.__all__)


def test_testing_page_has_each_public_name_once() -> None:
    named = re.findall(
        r"^\.\. auto\w+:: tickertape\.testing\.(\w+)$", page("reference/testing.md"), re.MULTILINE
    )
    assert sorted(named) == sorted(tickertape.testing.__all__)


def test_directive_names_the_kind_of_a_name() -> None:
    kinds = {
        name: reference.directive("tickertape", name).split("::")[0] for name in ("Client", "Closed", "NOW")
    }
    assert kinds == {"Client": ".. autoclass", "Closed": ".. autoexception", "NOW": ".. autodata"}
    assert reference.directive("tickertape.testing", "wait_until").startswith(".. autofunction")


def test_spark_options_are_those_of_the_code() -> None:
    described = {use: set(options) for use, options in reference.spark_options().items()}
    assert described == {
        "log": {*source_options.OF_BOTH, *source_options.OF_BATCH, *source_options.OF_STREAM},
        "queue": set(queue_options._NAMES),
        "sink": {*sink_options.OF_BOTH, *sink_options.OF_BATCH},
    }
    text = page("howto/spark.md")
    for options in reference.spark_options().values():
        assert [name for name in options if f"| `{name}` |" not in text] == []


def test_docstring_code_is_code_of_restructured_text() -> None:
    lines = ["Use `a|b`s, ``c`` and `:py:class:`.", ">>> `x`", ".. note:: `y`"]
    reference.docstring_lines(lines)
    assert lines == ["Use ``a|b``\\ s, ``c`` and ``:py:class:``.", ">>> `x`", ".. note:: `y`"]


def test_docstring_blocks_and_links_are_those_of_restructured_text() -> None:
    lines = [
        "Example:",
        "    ```python",
        "    x = `a`",
        "",
        "        y",
        "    ```",
        "    [Re](https://a.b/c).",
    ]
    reference.docstring_lines(lines)
    assert lines == [
        "Example:",
        "",
        "    .. code-block:: python",
        "",
        "       x = `a`",
        "",
        "           y",
        "",
        "    `Re <https://a.b/c>`__.",
    ]


# -- pages --------------------------------------------------------------------------------------------


def test_each_page_is_in_the_navigation() -> None:
    text = page("index.md")
    named = set(re.findall(r"^([\w/.-]+\.md)$", text, re.MULTILINE))
    folders = {Path(name).parent.as_posix() for name in named if Path(name).name == "README.md"}
    missing = [
        name
        for name in pages()
        if name not in named and name != "index.md" and Path(name).parent.as_posix() not in folders
    ]
    assert missing == []


def test_links_to_files_outside_docs_become_links_to_site_pages() -> None:
    link = reference.site_links
    assert link("[c](../CHANGELOG.md#x) [e](../examples/worker.py)", "index.md") == (
        "[c](project/changelog.md#x) [e](../examples/worker.py)"
    )
    assert link("[r](../../README.md) [a](https://a.b/c.md)", "howto/ha.md") == (
        "[r](../index.md) [a](https://a.b/c.md)"
    )
    assert link("[the `ex`](../examples), [h](howto/ha.md)", "index.md") == "the `ex`, [h](howto/ha.md)"


@pytest.mark.parametrize("source", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"])
def test_files_of_the_project_are_pages_with_links_that_work(source: str) -> None:
    name = reference.PROJECT_PAGES[source]
    text = page(name)
    assert text.startswith("# ")
    for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
        assert ((DOCS / name).parent / target).exists(), target


def test_diagram_becomes_a_picture_with_a_unique_id() -> None:
    one, other = (reference.diagram(f"flowchart LR\n a --> {name}\n", "p.md") for name in "bc")
    assert one.startswith("```{raw} html\n")
    assert re.search(r'<svg id="diagram-[0-9a-f]{8}">flowchart LR  a --> b', one)
    assert re.findall("diagram-[0-9a-f]+", one) != re.findall("diagram-[0-9a-f]+", other)


def test_mistake_in_a_diagram_names_the_page() -> None:
    with pytest.raises(reference.DiagramError, match=r"a/b\.md: cannot draw .*flowchart LR.*unexpected end"):
        reference.expand("```mermaid\nflowchart LR\n a --> ((\n```\n", "a/b.md")


@pytest.mark.parametrize("name", ["command-line", "configuration", "errors", "python", "testing"])
def test_generated_reference_page_names_the_command_that_builds_the_site(name: str) -> None:
    """The page is also read outside of the site, without the generated parts."""
    top = (DOCS / f"reference/{name}.md").read_text(encoding="utf-8").partition("```{tickertape}")[0]
    assert "is generated" in top or "are generated" in top
    assert "documentation site" in top
    assert "`script/docs`" in top


def test_generated_reference_pages_are_complete() -> None:
    found = [name for name in pages() if "```{tickertape}" in (DOCS / name).read_text(encoding="utf-8")]
    reference_pages = [Path(name).stem for name in found if name.startswith("reference/")]
    assert reference_pages == ["command-line", "configuration", "errors", "python", "testing"]


def test_unknown_block_is_an_error() -> None:
    for block in ("nothing x", "errors x", "command x", "configuration [x]", "spark x"):
        with pytest.raises(reference.UnknownBlockError):
            reference.expand(f"```{{tickertape}} {block}\ntext\n```\n", "index.md")


def test_section_without_pages_is_left_out() -> None:
    assert reference.contents("Nothing: no-such-folder/*", "index.md") == ""
    assert "howto/ha.md" in reference.contents("Guides: howto/*", "index.md")


def test_sentence_to_a_missing_page_is_left_out() -> None:
    assert reference.follow("no-such-page", "index.md") == ""
    assert reference.follow("howto/ha", "reference/client.md").endswith("](../howto/ha.md).")


def test_configuration_of_sphinx_names_the_generator() -> None:
    found: dict[str, object] = {}

    class Recorder:
        def connect(self, event: str, callback: object, priority: int = 500) -> int:
            found[event] = callback
            return priority

    import_module("docs._ext.tickertape_reference").setup(Recorder())
    assert set(found) == {"source-read", "autodoc-process-docstring"}
    assert '"tickertape_reference"' in (DOCS / "conf.py").read_text(encoding="utf-8")
