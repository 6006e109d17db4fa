"""Formulas become MathML when the site is built, so that no page needs a network.

A hook of MkDocs.  `pymdownx.arithmatex` marks the formulas of pages and docstrings
alike; here LaTeX becomes MathML, which browsers draw by themselves.
"""

from __future__ import annotations

import html
import re

MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)

WORD = re.compile(r"_\{([a-z]{3,}|dm|dr|sn)\}")  # a subscript that is a word, not indices


def on_page_content(content: str, **_: object) -> str:
    """Replace every marked formula of a page."""
    return MARKED.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    block = found["tag"] == "div"
    return to_mathml(html.unescape(found["latex"]).strip(), block=block)


def to_mathml(latex: str, *, block: bool) -> str:
    """One formula as MathML; what the converter does not know is an error of the build."""
    from latex2mathml.converter import convert

    known = latex.replace(r"\Big", "").replace(r"\big", "").replace(r"\tfrac", r"\frac")
    known = WORD.sub(r"_{\\text{\1}}", known)
    mathml = convert(known, display="block" if block else "inline")
    unknown = re.findall(r"<m[a-z]+>(\\[A-Za-z]+)</m", mathml)
    if unknown:
        raise ValueError(f"no MathML for {', '.join(unknown)} in: {latex}")
    return f'<div class="formula">{mathml}</div>' if block else mathml
