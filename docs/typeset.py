"""How pages look: TeX becomes MathML, which browsers draw by themselves, and doctests are told from programs."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


def on_page_markdown(text: str, **_: Any) -> str:
    """Called by mkdocs with the source of each page: prompts are marked, so that copying leaves them out."""
    return re.sub(r"^```python\n(?=>>> )", "```pycon\n", text, flags=re.MULTILINE)


def on_page_content(text: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""

    def typeset(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return str(convert(html.unescape(found[2]).strip(), display=display))

    return MARKED.sub(typeset, text)
