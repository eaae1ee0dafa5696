"""Notebooks: run from top to bottom, their outputs kept in them, and shown as pages.

`python docs/notebooks.py` runs those in `examples/notebooks` again; `{{ notebook: NAME }}` on a page becomes one.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run one after the other."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = list(_outputs("".join(cell["source"]), names, number))
            cell = {**cell, "execution_count": number, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], number: int) -> Any:
    """What a cell prints, and the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102 - our own notebooks
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    if printed.getvalue():
        yield {
            "output_type": "stream",
            "name": "stdout",
            "text": printed.getvalue().splitlines(keepends=True),
        }
    if value is not None:
        yield {
            "output_type": "execute_result",
            "execution_count": number,
            "metadata": {},
            "data": _data(value),
        }


def _data(value: Any) -> dict[str, Any]:
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=80)
        return {"text/plain": [repr(value)], "image/png": base64.b64encode(buffer.getvalue()).decode()}
    return {"text/plain": repr(value).splitlines(keepends=True)}


def read(name: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return notebook


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook as a page."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell))


def _parts(cell: dict[str, Any]) -> Any:
    source = "".join(cell["source"]).rstrip()
    if cell["cell_type"] != "code":
        yield re.sub(r"^#", "##", source, flags=re.MULTILINE)  # one page has several of them
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            yield f"![what the cell draws](data:image/png;base64,{data['image/png']})"
        else:
            text = "".join(output.get("text", data.get("text/plain", []))).rstrip()
            yield f"```text\n{text}\n```"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return re.sub(r"\{\{ notebook: ([\w-]+) \}\}", lambda found: as_markdown(read(found[1])), markdown)


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.ipynb")):
        done = execute(json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
