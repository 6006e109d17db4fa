"""Make docs/llms.txt and skills/poolwise/SKILL.md from the documentation.

`llms.txt` lists every page with its first sentence, for programs that look for the right one.
`SKILL.md` is what an agent needs to answer a question with poolwise: sections of the README and
of the guide, copied, so that nothing is written twice.

Run: python scripts/make_llms.py
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX, SKILLS = DOCS / "llms.txt", ROOT / "skills" / "poolwise"
SECTIONS = (  # page and heading of what SKILL.md repeats, under a heading of its own
    ("Which call fits the log", "README.md", "Start from your log"),
    ("What a log must record", "docs/your-logs.md", "What to record"),
    ("Exit statuses", "docs/recipes.md", "Exit statuses"),
    ("Verdicts", "docs/decide.md", "What the words mean"),
)


def read_pages() -> list[tuple[str, str, str]]:
    """Return part, title and path of each page of the navigation, in order."""
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    nav = yaml.safe_load(settings[settings.index("\nnav:") : settings.index("\nvalidation:")])
    pages = []
    for entry in nav["nav"]:
        ((part, listed),) = entry.items()
        found = [(part, part, listed)] if isinstance(listed, str) else []
        found += [
            (part, *item)
            for each in listed
            if not isinstance(listed, str)
            for item in each.items()
        ]
        pages += found
    return pages


def first_sentence(text: str) -> str:
    r"""Return the first sentence of a page's prose, without links and marks.

    >>> first_sentence("# Title\n\n*A* [page](x.md) of\nwords. More.\n")
    'A page of words.'
    """
    shown = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    parts = (" ".join(part.split()) for part in shown.split("\n\n"))
    paragraph = next(part for part in parts if re.match(r"[\w*`\[]", part))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).replace("*", "")
    return re.split(r"(?<=[.?:])\s", plain, maxsplit=1)[0].rstrip(":")


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of its level."""
    text = (ROOT / page).read_text("utf-8")
    found = re.search(
        rf"^(##+) {re.escape(heading)}\n(.*?)(?=^##? |\Z)", text, re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise SystemExit(f"{page} has no section {heading!r}")
    prefix = "docs/" if page.startswith("docs/") else ""
    body = re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"](../../{prefix}\1)", found[2])
    return re.sub(r"\]\(#[^)]*\)", f"](../../{page})", body).strip()


def index_text() -> str:
    """Return the content of llms.txt."""
    home = (DOCS / "index.md").read_text("utf-8")
    lines = ["# poolwise", "", f"> {first_sentence(home)}", ""]
    part = ""
    for name, title, path in read_pages():
        if name != part:
            part = name
            lines += [*([""] if lines[-1] else []), f"## {part}", ""]
        lines.append(f"- [{title}]({path}): {first_sentence((DOCS / path).read_text('utf-8'))}")
    lines += ["", "## Schemas", ""]
    lines += [
        f"- [{p.name}](schema/{p.name})" for p in sorted((DOCS / "schema").glob("*.json"))
    ]
    return "\n".join(lines) + "\n"


def skill_text() -> str:
    """Return the content of SKILL.md."""
    parts = [f"## {title}\n\n{section(page, heading)}" for title, page, heading in SECTIONS]
    return (SKILLS / "head.md").read_text("utf-8") + "\n" + "\n\n".join(parts) + "\n"


def main() -> None:
    """Write both files."""
    INDEX.write_text(index_text(), "utf-8")
    (SKILLS / "SKILL.md").write_text(skill_text(), "utf-8")


if __name__ == "__main__":
    main()
