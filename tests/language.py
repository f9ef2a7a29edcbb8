"""Language check: forbidden shapes in pages, docstrings, comments, messages and test names.

In errors also names and places without quotes.

python -m tests.language          check pages, modules, and the texts and names of tests
python -m tests.language PATH...  check these files and folders, messages of tests too
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tickertape.base.errors import all_codes

ROOT: Final = Path(__file__).resolve().parent.parent

SHAPES: Final[dict[str, str]] = {
    "what as a noun": r"\bwhat(?:ever)?\b(?![^.]*\?)",
    "who as a noun": (
        r"(?:^|[.:;,(]\s*"
        r"|\b(?:of|to|for|by|with|from|than|and|or|that|as|at|in|say|says|knows?|is|are|all)\s+)"
        r"who(?:ever)?\b(?![^.]*\?)"
    ),
    "where as a noun": (
        r"\b(?:from|to|of|about|say|says|said|knows?|knew|known|is|was|behind|beyond|until|up)\s+where\b"
        r"(?![^.]*\?)"
    ),
    "tell, told": r"\b(?:tells?|told|telling)\b",
    "stand": r"\b(?:stands?|stood|standing)\b",
    "comes again": r"\b(?:com(?:es?|ing)|came|go(?:es|ing)?|went|gone|taken?|took) again\b",
    "is no": r"\b(?:is|are|was|were|be|been|it's) no\b(?! (?:longer|more|less|fewer|later))",
    "of which, that of, is of": r"\b(?:of which|that of|is of|are of|was of|were of)\b",
    "there is": r"\bthere(?:'s| (?:is|are|was|were|be|may be|can be|will be))\b",
    "begin as a noun": r"\b(?:the|its|a|each|their|whose) begin\b",
    "a moment": r"\b(?:a|the|that|this|each|any|every|one|same) moments?\b",
    "so far, so many": r"\bso (?:far|many|much|long)\b",
    "metaphor": (
        r"\b(?:cohorts?|convoys?|errands?|counsels?|strangers?|crowds?|crowded|rooms?|lanes?|dooms?|doomed"
        r"|bury|buried|burying|sieves?|nobody|somebody|everybody|whoever)\b"
        r"|(?<!state of the )(?<!state-of-the-)\bworlds?\b"
    ),
    "owns": r"^Owns\b",
    "semicolon": r";(?=\s|$)",
    "American spelling": (
        r"\b(?:recogniz|summariz|normaliz|synchroniz|unsynchroniz|prioritiz|authoriz)\w+"
        r"|\b(?:behaviors?|honor(?:s|ed|ing)?|favor(?:s|ed|ing)?|label(?:ed|ing)|cancel(?:ed|ing))\b"
    ),
}
PATTERNS: Final = {
    name: re.compile(pattern, re.IGNORECASE | re.MULTILINE) for name, pattern in SHAPES.items()
}
CODE: Final = re.compile(r"`+[^`]*`+|<[^<>\s][^<>]*>|\]\([^)]*\)|\b\w*_\w+\b|\b\w+\.(?:py|md|toml)\b")
EXCEPTION: Final = re.compile(r"(?:#|<!--) language: \S.{9,}")
WORDS: Final = re.compile(r"[A-Za-z]{2,}[,:;]? [A-Za-z]")
FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
LINE_CHARACTERS_MAX: Final = 100
TEMPLATE: Final = ".template"
PROJECTS: Final = ROOT / "src/tickertape/spark/project"
"""Templates of the projects that `tickertape pipeline init` creates."""

# fmt: off
TEST_NAME_WORDS: Final = frozenset({
    "what", "who", "whose", "whom", "whoever", "whatever", "it", "its", "itself", "they", "them",
    "their", "he", "his", "him", "nobody", "somebody", "everybody", "anybody", "told", "tell", "tells",
    "telling", "stand", "stands", "stood", "there", "again", "come", "comes", "came", "goes", "gone",
    "went",
})
# fmt: on
TEST_NAME_CHARACTERS_MAX: Final = 90
ERRORS: Final = frozenset(kind.__name__ for kind in all_codes().values()) | {
    "BadParameter", "ClickException", "Failure", "UserMistake",
}  # fmt: skip
"""Classes of errors that a user reads."""
QUOTED: Final = frozenset({
    "bookmark", "client", "directory", "file", "host", "identity", "instance", "journal", "location", "path",
    "queue", "sub_id", "topic", "uri", "user",
})  # fmt: skip
"""Variables and attributes whose value an error has in quotes."""
QUOTED_ATTRIBUTES: Final = QUOTED | {"column", "owner", "recovery_point", "transaction", "where"}
"""Attributes whose value an error has in quotes. As variables they are parts of a text."""
# Most messages of tests are data. The default run leaves them out.
KINDS_OF_TESTS: Final = frozenset({"docstring", "comment", "test name"})


class Text(NamedTuple):
    """A piece of text, and where it is."""

    path: Path
    line: int
    kind: str
    text: str


class Finding(NamedTuple):
    """A forbidden shape."""

    path: Path
    line: int
    kind: str
    shape: str
    found: str


def python_texts(path: Path) -> Iterator[Text]:
    """Yield docstrings, comments, messages and test names of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docs: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    docs.add(id(statement.value))
                    yield Text(path, statement.lineno, "docstring", value)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(path, node.lineno, "test name", node.name)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
            and WORDS.search(node.value)
        ):
            yield Text(path, node.lineno, "message", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("# type:", "# noqa", "#!", "# language:")
        ):
            yield Text(path, token.start[0], "comment", token.string.lstrip("#! "))


def unquoted_values(path: Path) -> Iterator[Finding]:
    """Yield the names and places that an error has without quotes."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call) or _last_name(call.func) not in ERRORS:
            continue
        for text in ast.walk(call):
            if not isinstance(text, ast.JoinedStr):
                continue
            before = ""
            for part in text.values:
                if isinstance(part, ast.FormattedValue):
                    names = QUOTED_ATTRIBUTES if isinstance(part.value, ast.Attribute) else QUOTED
                    plain = part.conversion == -1 and not before.endswith(("'", '"', "`"))
                    if plain and _last_name(part.value) in names:
                        yield Finding(
                            path, part.lineno, "message", "value without quotes", ast.unparse(part.value)
                        )
                before = str(part.value) if isinstance(part, ast.Constant) else ""


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def markdown_texts(path: Path) -> Iterator[Text]:
    """Yield the lines of a page outside of blocks of code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.strip() and not line.startswith("    "):
            yield Text(path, number, "page", line)


def name_findings(text: Text) -> Iterator[Finding]:
    """Yield the forbidden words of a test name, and its excess length."""
    for word in text.text.split("_"):
        if word in TEST_NAME_WORDS:
            yield Finding(text.path, text.line, text.kind, f"word {word!r}", text.text)
    if len(text.text) > TEST_NAME_CHARACTERS_MAX:
        yield Finding(
            text.path, text.line, text.kind, f"over {TEST_NAME_CHARACTERS_MAX} characters", text.text
        )


def findings(text: Text, lines: list[str]) -> Iterator[Finding]:
    """Yield the forbidden shapes of a text."""
    if text.kind == "test name":
        yield from name_findings(text)
        return
    plain = CODE.sub(
        lambda found: "`" + "x" * (len(found[0]) - 2) + "`" if len(found[0]) > 2 else "`", text.text
    )
    table = text.kind == "page" and plain.lstrip().startswith("|")
    if text.kind == "page" and len(text.text) > LINE_CHARACTERS_MAX and not table and "](" not in text.text:
        yield Finding(text.path, text.line, text.kind, "long line", text.text[:70])
    for shape, pattern in PATTERNS.items():
        for match in () if table and shape == "semicolon" else pattern.finditer(plain):
            line = text.line + plain.count("\n", 0, match.start())
            if EXCEPTION.search(lines[min(line, len(lines)) - 1]) or EXCEPTION.search(
                lines[min(text.line, len(lines)) - 1]
            ):
                continue
            around = " ".join(text.text[max(0, match.start() - 30) : match.end() + 40].split())
            yield Finding(text.path, line, text.kind, shape, around)


def pages() -> list[Path]:
    """Return all pages, with those of created projects."""
    created = PROJECTS.rglob(f"*.md{TEMPLATE}")
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *created])


def modules() -> list[Path]:
    """Return all files of Python that users read, with those of created projects."""
    created = PROJECTS.rglob(f"*.py{TEMPLATE}")
    return sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *created])


def tests() -> list[Path]:
    """Return all files of tests."""
    return sorted((ROOT / "tests").rglob("*.py"))


def check(paths: list[Path], kinds: frozenset[str] | None = None) -> list[Finding]:
    """Return the findings in files, of some kinds or of all."""
    found: list[Finding] = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        kind = Path(path.name.removesuffix(TEMPLATE)).suffix
        texts = markdown_texts(path) if kind == ".md" else python_texts(path)
        for text in texts:
            if kinds is None or text.kind in kinds:
                found += findings(text, lines)
        if kind == ".py" and (kinds is None or "message" in kinds):
            found += unquoted_values(path)
    return found


def check_all() -> list[Finding]:
    """Return the findings in pages, modules and tests."""
    return check([*pages(), *modules()]) + check(tests(), KINDS_OF_TESTS)


def expand(names: list[str]) -> list[Path]:
    """Return the files of folders and files."""
    found: list[Path] = []
    for name in names:
        path = Path(name).resolve()
        found += sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path]
    return found


def main(names: list[str]) -> int:
    """Report the findings, and return the exit code."""
    found = check(expand(names)) if names else check_all()
    for one in found:
        print(f"{one.path.relative_to(ROOT)}:{one.line}: {one.kind}: {one.shape}: {one.found}")
    counts = Counter(one.kind for one in found)
    print(
        f"language: {len(found)} forbidden shapes"
        + "".join(f", {n} in {kind}s" for kind, n in sorted(counts.items()))
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
