"""Wording: documentation, docstrings and messages follow the rule of CONTRIBUTING.md.

The subject of a sentence is a thing in the code and the verb is what it does.  The test
finds words and openings that almost always break the rule, each with a replacement.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "VISION.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "changelog.d").glob("*.md")),
)
MODULES = (
    *sorted((ROOT / "src" / "poolwise").rglob("*.py")),
    *sorted((ROOT / "reproduction").glob("*.py")),
    *sorted((ROOT / "docs" / "examples").glob("*.py")),
)
COMPARATIVE = r"longer|more|less|fewer|greater|larger|smaller|higher|lower|worse|better"
BANNED = {
    r"nobody|somebody": "name the thing: no logger, another process",
    r"who|whom|whoever": "name the thing: the caller, users",
    r"bears?": "has, supports",
    r"speaks?|spoke": "shows, indicates",
    r"(?<!can't )tells?|told": "reports, says, distinguishes",
    r"(?<!-)(?:stands?|stood)(?!-)": "is, means, represents",
    r"hangs?|hung": "depends on",
    r"beside": "next to, in addition to",
    r"beyond": "outside, above, more than",
    r"luck|lucky|luckier|luckiest|surer": "sampling error, more precise",
    rf"(?<!there )(?:is|are|was|were) no (?!(?:{COMPARATIVE})\b)": "is not a, has no",
    r"are worth [\d.,]+ rows": "the effective sample size is",
}
WORDS = [(re.compile(rf"\b(?:{p})\b", re.IGNORECASE), advice) for p, advice in BANNED.items()]
OPENING = re.compile(r"(?:^|(?<=[.!?] )|(?<=[.!?]  ))(?:What|Whether|How|Who)\b[^.!?]*[.!]")
LITERAL = re.compile(
    r"^ *```.*?^ *```$|\$\$.*?\$\$|``.*?``|`[^`]*`|^ *>>>.*?(?:\n\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
MARKUP = re.compile(r"^#+ .*$|<!--.*?-->|\]\([^)]*\)", re.MULTILINE)


class Text(NamedTuple):
    """A text of a file, with its first line."""

    file: Path
    line: int
    words: str


def prose(text: str) -> str:
    """Blank out code, formulas, headings and links; lines keep their numbers.

    >>> prose("A `who` is\\nfine.")
    'A … is\\nfine.'
    """

    def blank(match: re.Match[str]) -> str:
        return "…" + "\n" * match.group().count("\n")

    return MARKUP.sub(blank, LITERAL.sub(blank, text))


def texts_of(module: Path) -> Iterator[Text]:
    """Every string of a module with a space in it: docstrings, messages and help."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if " " in node.value.strip():
            yield Text(module, node.lineno, node.value)


def faults(text: Text) -> list[str]:
    """Banned words and openings of a text, each with its line and a replacement."""
    words = prose(text.words)
    matches = [(m, advice) for word, advice in WORDS for m in word.finditer(words)]
    paragraph = re.compile(r"[^\n]+(?:\n[^\n]+)*")
    for part in paragraph.finditer(words):
        sentence = OPENING.search(part.group().strip().replace("\n", " "))
        if sentence:
            matches.append((part, f"start with the subject, not {sentence.group()[:40]!r}"))
    return [
        f"{text.file.relative_to(ROOT)}:{text.line + words[: m.start()].count(chr(10))}: "
        f"{' '.join(m.group().split())[:60]!r}: {advice}"
        for m, advice in matches
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_follows_the_rule(page: Path) -> None:
    offences = faults(Text(page, 1, page.read_text("utf-8")))
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize("module", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_docstrings_and_messages_follow_the_rule(module: Path) -> None:
    offences = [fault for text in texts_of(module) for fault in faults(text)]
    assert not offences, "\n".join(offences)


@pytest.mark.parametrize(
    "text",
    [
        "a log that nobody wrote",
        "the caller, who asked",
        "the value is no number",
        "the estimate hangs on single rows",
        "see the table beside it",
        "Whether the rows are read.",
        "Counts rows.  What is infinite is refused.",
        "One line.\nHow it is\nread.",
    ],
)
def test_a_banned_text_is_recognised(text: str) -> None:
    assert len(faults(Text(ROOT / "x", 1, text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "there is no column 'x'",
        "the error is no larger than that of `who`",
        "the mean is no longer biased",
        "a stand-in for infinity; we understand besides",
        "Which rows? What would it have earned?",
        "True if rows are read.",
        "# What you get\n\nNumbers.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert faults(Text(ROOT / "x", 1, text)) == []
