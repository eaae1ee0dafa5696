"""From the README to the line that fires a neuron: two links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_two_links_lead_from_the_readme_to_the_line_that_fires() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"\]\((docs/design\.md)#([\w-]+)\)", readme)
    assert first is not None
    page = (ROOT / first[1]).read_text(encoding="utf-8")
    headings = [
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
        for h in re.findall(r"^#+ (.*)$", page, re.M)
    ]
    assert first[2] in headings
    section = page[page.index("## From the README") :]
    second = re.search(r"\]\(\.\./(src/[\w/]+\.py)#L(\d+)\)", section)
    assert second is not None
    line = (ROOT / second[1]).read_text(encoding="utf-8").splitlines()[int(second[2]) - 1]
    assert line.strip() == "return with_sign(x, self._fire(magnitude(x, up, down) + 0.5), up, down)"
