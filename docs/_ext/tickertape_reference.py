"""Reference parts of the documentation site, generated from the source while Sphinx reads a page.

A page contains a fenced block such as

    ```{tickertape} errors usage
    Text for a reader who sees the page outside of the site.
    ```

The block is replaced with Markdown before MyST parses the page. Diagrams in `mermaid` blocks become SVG, so
that the site needs no JavaScript and no network. Links out of `docs/` lead to the pages that include the
files, or to copies of the files.
"""

from __future__ import annotations

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol
from zlib import crc32

import click

import tickertape
import tickertape.testing
from tickertape.base.errors import TickertapeError
from tickertape.cli.commands.error import ErrorExplanation, explanations
from tickertape.cli.support.command_group import cli

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"

PROJECT_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/license.md",
    "docs/README.md": "index.md",
}
"""Files outside of the site, and the pages below `docs/` that have their content or replace them."""

_BLOCK: Final = re.compile(r"^```\{tickertape\} ([\w-]+) ?(.*)\n(?:(?!```).*\n)*```$", re.MULTILINE)
_DIAGRAM: Final = re.compile(r"^```mermaid\n((?:(?!```).*\n)*)```$", re.MULTILINE)
_DIAGRAM_FONT: Final = 'Arial,"Liberation Sans",Helvetica,sans-serif'
_LINK: Final = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_FOLDER_LINK: Final = re.compile(r"\[((?:`[^`]*`|[^\[\]`])*)\]\(([^)#\s]+)\)")
_SPECIAL: Final = re.compile(r"([\\*_<>\[\]|#$])")
_DEFAULT: Final = re.compile(r"\s*(?:\bDefault: (.*?)\.?|\[default: ([^\]]*)\])\s*$", re.DOTALL)


class UnknownBlockError(ValueError):
    """A page asks for a generated part that does not exist."""


class DiagramError(ValueError):
    """A Mermaid diagram has a syntax error."""


# -- pages --------------------------------------------------------------------------------------------


def expand(text: str, page: str) -> str:
    """Return the Markdown of a page with its generated parts. `page` is its path below `docs/`."""

    def generate(block: re.Match[str]) -> str:
        name, argument = block[1], block[2].strip()
        if name not in GENERATORS:
            raise UnknownBlockError(f"{page}: unknown block {name!r}. Use one of {', '.join(GENERATORS)}.")
        return GENERATORS[name](argument, page)

    text = _BLOCK.sub(generate, text)
    text = _DIAGRAM.sub(lambda block: diagram(block[1], page), text)
    folder, name = os.path.split(page)
    if folder and name == "README.md":
        rest = [path for path in site_pages([f"{folder}/*"]) if path != page]
        text += "\n\n" + toctree([os.path.relpath(path, folder) for path in rest], "hidden:")
    return site_links(text, page)


def site_pages(patterns: Iterable[str]) -> list[str]:
    """Return the pages that match `patterns`, in the order of the patterns, as paths below `docs/`."""
    found = [
        path.relative_to(DOCS).as_posix()
        for pattern in patterns
        for path in sorted(DOCS.glob(f"{pattern}.md"))
    ]
    return list(dict.fromkeys(found))


def toctree(pages: Iterable[str], *options: str) -> str:
    """Return a list of pages for the navigation."""
    lines = ["```{toctree}", ":maxdepth: 1", *(f":{option}" for option in options), "", *pages, "```"]
    return "\n".join(lines)


def contents(argument: str, _page: str) -> str:
    """Return a section of the home page: a title, and patterns of pages. Without pages it is left out."""
    title, _, patterns = argument.partition(":")
    pages = site_pages(patterns.split())
    if not pages:
        return ""
    return f"## {title}\n\n" + toctree(pages, f"caption: {title}")


def site_links(text: str, page: str) -> str:
    """Return `text` with links to files outside of the site replaced with links to pages that have them."""
    folder = os.path.dirname(page)

    def replace(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        place = os.path.normpath(os.path.join("docs", folder, target))
        inside = PROJECT_PAGES.get(place)
        if inside is None:
            return link[0]
        return f"{opening}{os.path.relpath(inside, folder or '.')}{anchor or ''}{closing}"

    return _LINK.sub(replace, _FOLDER_LINK.sub(partial(_without_folder, folder), text))


def follow(argument: str, page: str) -> str:
    """Return a sentence that leads to a page below `docs/`, or nothing while the page does not exist."""
    path = f"{argument}.md"
    if not (DOCS / path).is_file():
        return ""
    link = os.path.relpath(path, os.path.dirname(page) or ".")
    return f"Continue with [{title_of(path)}]({link})."


def _without_folder(folder: str, link: re.Match[str]) -> str:
    """Return the text of a link to a folder, which is not a page, and any other link as it is."""
    is_folder = (DOCS / folder / link[2]).is_dir() and not re.match(r"[a-z]+:", link[2])
    return link[1] if is_folder else link[0]


def include(argument: str, page: str) -> str:
    """Return a file of the project with its links as they are from `page`."""
    folder = os.path.dirname(page)
    text = (ROOT / argument).read_text(encoding="utf-8")
    if not argument.endswith(".md"):
        return f"# {argument.capitalize()}\n\n```text\n{text}\n```"

    def replace(link: re.Match[str]) -> str:
        opening, target, anchor, closing = link.groups()
        if re.match(r"[a-z]+:", target):
            return link[0]
        return f"{opening}{os.path.relpath(target, os.path.join('docs', folder))}{anchor or ''}{closing}"

    return _LINK.sub(replace, text)


def diagram(source: str, page: str) -> str:
    """Return a Mermaid diagram as SVG. Raises `DiagramError`."""
    try:
        svg: str = import_module("mmdr").render(source).svg()
    except (RuntimeError, ValueError) as error:
        first = source.strip().partition("\n")[0]
        raise DiagramError(f"{page}: cannot draw the diagram {first!r}: {error}") from error
    name = f"diagram-{crc32(source.encode()):08x}"
    svg = re.sub(r"\bmerman\b", name, svg).replace("\n", " ")
    svg = svg.replace('"Recursive Variable",arial,sans-serif', _DIAGRAM_FONT)
    return f'```{{raw}} html\n<div class="diagram">{svg}</div>\n```'


# -- errors -------------------------------------------------------------------------------------------


def error_entry(row: ErrorExplanation, page: str) -> str:
    """Return the section of an error code. Its anchor is the code."""
    lines = [
        f'<a id="{row.code}"></a>',
        "",
        f"### {row.code}",
        "",
        f"{{py:exc}}`tickertape.{row.name}`: {row.meaning}",
        "",
        f"**Cause.** {row.cause}",
        "",
        f"**Cure.** {row.cure}",
    ]
    if row.see:
        path, _, anchor = row.see.partition("#")
        link = os.path.relpath(path, os.path.dirname(page) or ".")
        lines += ["", f"**See** [{title_of(path)}]({link}{'#' + anchor if anchor else ''})."]
    return "\n".join(lines)


@cache
def title_of(path: str) -> str:
    """Return the title of a page below `docs/`."""
    text = (DOCS / path).read_text(encoding="utf-8")
    return text.partition("\n")[0].removeprefix("# ").strip()


def errors(family: str, page: str) -> str:
    """Return the sections of a family of errors."""
    rows = [row for row in explanations().values() if row.family == family]
    if not rows:
        raise UnknownBlockError(f"{page}: unknown family of errors {family!r}.")
    return "\n\n".join(error_entry(row, page) for row in rows)


# -- command line -------------------------------------------------------------------------------------


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all commands that are not groups, in the order of the help."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name)


def find_command(path: tuple[str, ...]) -> tuple[click.Command, click.Context]:
    """Return a command and the context of its help. Raises `UnknownBlockError`."""
    found: click.Command = cli
    context = click.Context(cli, info_name="tickertape")
    for name in path:
        inner = found.get_command(context, name) if isinstance(found, click.Group) else None
        if inner is None:
            raise UnknownBlockError(f"unknown command {' '.join(path)!r}")
        found = inner
        context = click.Context(found, info_name=name, parent=context)
    return found, context


def command(argument: str, _page: str) -> str:
    """Return usage, help and options of a command."""
    found, context = find_command(tuple(argument.split()))
    usage = " ".join(found.collect_usage_pieces(context))
    parts = [f"```text\n{context.command_path} {usage}\n```", help_text(found.help or "")]
    rows = [option_row(option, context) for option in found.params if isinstance(option, click.Option)]
    if rows:
        parts.append("\n".join(["| option | default | description |", "|---|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part)


def help_text(text: str) -> str:
    """Return the help of a command as Markdown. Paragraphs that click does not wrap become code."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            found.append("```text\n" + paragraph.removeprefix("\b").strip("\n") + "\n```")
        else:
            found.append(escaped(" ".join(paragraph.split())))
    return "\n\n".join(found)


def option_row(option: click.Option, context: click.Context) -> str:
    """Return an option as a row of a table: names, default, description."""
    names = sorted((*option.opts, *option.secondary_opts), key=len, reverse=True)
    value = "" if option.is_flag else f" {option.make_metavar(context)}"
    shown = ", ".join(f"`{name}`" for name in names[1:])
    first = f"`{names[0]}{value}`".replace("|", "\\|")
    text = " ".join((option.help or "").split())
    default = ""
    stated = _DEFAULT.search(text)
    if stated is not None:
        default, text = escaped(stated[1] or stated[2]), text[: stated.start()].strip()
    given = option.default
    if option.show_default and given is not None and not callable(given):
        default = f"`{given}`"
    if option.required:
        default = "required"
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    if variables:
        names_of = ", ".join(f"`{name}`" for name in variables)
        default = f"{names_of}, or {default}" if default else names_of
    text = escaped(text)
    if option.multiple and "more than once" not in text:
        text += " The option can be repeated."
    return f"| {first}{', ' + shown if shown else ''} | {default} | {text} |"


def escaped(text: str) -> str:
    """Return plain text as Markdown. Text in backticks stays as it is."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part.replace("|", "\\|") if number % 2 else _SPECIAL.sub(r"\\\1", part)
        for number, part in enumerate(parts)
    )


# -- configuration ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of the configuration, as `keys.toml` describes it."""

    table: str
    """As it is written in a file: `[journal]` or `[[queue]]`. Empty for the top of a file."""
    name: str
    text: str
    default: str = ""
    """As it is written in a file."""
    note: str = ""
    """The default in words."""
    required: bool = False
    example: str = ""
    """A value as it is written in a file."""

    @property
    def value(self) -> str:
        """The value for the example file, or an empty string."""
        return self.default or self.example


@cache
def config_keys() -> dict[str, tuple[ConfigKey, ...]]:
    """Return all keys of the configuration by table."""
    text = files("tickertape.server.config").joinpath("keys.toml").read_text("utf-8")
    return {
        table: tuple(ConfigKey(table, name, **fields) for name, fields in keys.items())
        for table, keys in tomllib.loads(text).items()
    }


def configuration(table: str, page: str) -> str:
    """Return the keys of a table of the configuration."""
    keys = config_keys().get(table)
    if keys is None:
        raise UnknownBlockError(f"{page}: unknown table {table!r} of the configuration.")
    rows = ["| key | default | description |", "|---|---|---|"]
    for key in keys:
        default = "required" if key.required else f"`{key.default}`" if key.default else key.note
        rows.append(f"| `{key.name}` | {cell(default)} | {cell(key.text)} |")
    return "\n".join(rows)


def configuration_example(_argument: str, _page: str) -> str:
    """Return a configuration file with all keys and their descriptions."""
    return f"```toml\n{example_file()}```"


def example_file() -> str:
    """Return a configuration file with each key in a comment, after its description."""
    lines = [
        "# Tickertape configuration with all keys. A value that is the default needs no line.",
        "# Remove the # in front of a key to set it.",
    ]
    for table, keys in config_keys().items():
        if table:
            lines += ["", f"#{table}"]
        for key in keys:
            text = plain(key.text)
            state = "Required." if key.required else f"Default: {plain(key.note)}." if key.note else ""
            lines += ["", *wrapped(f"{text} {state}".strip())]
            if key.value:
                lines.append(f"#{key.name} = {key.value}")
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return Markdown without links and backticks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("`", ""))


def wrapped(text: str, width: int = 96) -> list[str]:
    """Return text as lines of comments."""
    lines = ["#"]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("#")
        lines[-1] += f" {word}"
    return lines


def cell(text: str) -> str:
    """Return text for the cell of a table."""
    return text.replace("|", "\\|")


# -- Spark --------------------------------------------------------------------------------------------


@cache
def spark_options() -> dict[str, dict[str, dict[str, str]]]:
    """Return default and text of the options of Spark, by use (`log`, `queue`, `sink`) and name."""
    text = files("tickertape").joinpath("spark", "options.toml").read_text("utf-8")
    return tomllib.loads(text)


def spark(use: str, page: str) -> str:
    """Return the options of one use of Spark."""
    options = spark_options().get(use)
    if options is None:
        raise UnknownBlockError(f"{page}: unknown options of Spark {use!r}.")
    rows = ["| option | default | description |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {cell(option['default'])} | {cell(option['text'])} |"
        for name, option in options.items()
    ]
    return "\n".join(rows)


# -- Python -------------------------------------------------------------------------------------------

GROUPS: Final = (
    ("Blocking clients", ("tickertape.client.blocking",)),
    ("Asyncio clients", ("tickertape.client.aio",)),
    ("Commands, messages and start points", ("tickertape.client.api", "tickertape.batch", "tickertape.base")),
    ("Connection and handlers", ("tickertape.client.common", "tickertape.security")),
    ("Publish stores", ("tickertape.client.publish_store",)),
    ("Bookmark stores", ("tickertape.client.bookmark_store",)),
    ("Parts of an HA client", ("tickertape.client.ha",)),
    ("Transactions", ("tickertape.client.protocol",)),
)
"""Headings of the Python reference, and the packages whose names they have."""


def python_names() -> dict[str, list[str]]:
    """Return all public names by heading."""
    found: dict[str, list[str]] = {heading: [] for heading, _ in GROUPS}
    found["Errors"] = []
    for name in tickertape.__all__:
        value = getattr(tickertape, name)
        if isinstance(value, type) and issubclass(value, TickertapeError):
            found["Errors"].append(name)
            continue
        home = getattr(value, "__module__", None) or type(value).__module__
        heading = next((title for title, homes in GROUPS if home.startswith(homes)), GROUPS[2][0])
        found[heading].append(name)
    return found


def directive(module: str, name: str) -> str:
    """Return the autodoc directive of a public name."""
    value = getattr(import_module(module), name)
    if isinstance(value, type):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    else:
        kind = "autofunction" if callable(value) else "autodata"
    return f".. {kind}:: {module}.{name}"


def python(argument: str, _page: str) -> str:
    """Return the reference of the public names, or of the names of a module."""
    if argument:
        names = {"": list(import_module(argument).__all__)}
        return _autodoc(argument, names)
    return _autodoc("tickertape", python_names())


def _autodoc(module: str, headings: dict[str, list[str]]) -> str:
    parts = []
    for heading, names in headings.items():
        if heading:
            parts.append(f"## {heading}")
        for name in names:
            parts.append(f"{'###' if heading else '##'} {escaped(name)}")
            parts.append(f"```{{eval-rst}}\n{directive(module, name)}\n```")
    return "\n\n".join(parts)


_CODE: Final = re.compile(r"(?<!`)`([^`\n]+)`(?!`)(?!_)")
_WEB_LINK: Final = re.compile(r"\[([^\[\]]+)\]\((https?://[^)\s]+)\)")
_FENCE: Final = re.compile(r"^(\s*)```(\w*)\s*$")


def docstring_lines(lines: list[str]) -> None:
    """Turn Markdown in a docstring into reStructuredText: code, blocks of code and links to web pages."""
    found: list[str] = []
    margin: str | None = None
    for line in lines:
        fence = _FENCE.match(line)
        if fence is not None and margin is None:
            margin = fence[1]
            found += ["", f"{margin}.. code-block:: {fence[2] or 'text'}", ""]
        elif fence is not None:
            margin = None
            found.append("")
        elif margin is not None:
            found.append(f"   {line}" if line.strip() else "")
        elif line.lstrip().startswith((">>>", ".. ")):
            found.append(line)
        else:
            found.append(_WEB_LINK.sub(r"`\1 <\2>`__", _CODE.sub(_code, line)))
    lines[:] = found


def _code(found: re.Match[str]) -> str:
    """Return code of reStructuredText, which needs an escape between it and a letter."""
    after = found.string[found.end() : found.end() + 1]
    return f"``{found[1]}``" + ("\\ " if after.isalnum() else "")


# -- Sphinx -------------------------------------------------------------------------------------------

GENERATORS: Final[dict[str, Callable[[str, str], str]]] = {
    "contents": contents,
    "follow": follow,
    "errors": errors,
    "command": command,
    "configuration": configuration,
    "configuration-example": configuration_example,
    "python": python,
    "spark": spark,
    "include": include,
}
"""Names of the blocks of pages, and the functions that generate them."""


class Application(Protocol):
    """The part of a Sphinx application that is used here."""

    def connect(self, event: str, callback: Callable[..., Any], priority: int = 500) -> int:
        """Call `callback` at an event."""


def setup(app: Application) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(_app: object, page: str, source: list[str]) -> None:
    source[0] = expand(source[0], f"{page}.md")


def _docstring(
    _app: object, _what: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    docstring_lines(lines)
