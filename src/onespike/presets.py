"""Named starting points of recipes: `presets.toml` as Python reads it."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Preset:
    """What a preset is, its measured loss and energy with the page that states them, and the fields that it sets."""

    about: str
    measured: str = ""
    page: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def _with_tuples(value: Any) -> Any:
    """Return a value with tuples in place of lists, as recipes have them."""
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
PRESETS = {name: Preset(**_with_tuples(entry)) for name, entry in tomllib.loads(_TEXT).items()}
FAST: tuple[str, ...] = PRESETS["fast"].settings["passes"]
DEFAULT = "fast"  # of `onespike convert` and `onespike.spike`; a bare `Recipe()` is the paper's
