"""The layout: folders are stages, and no name hides a module."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import onespike

ROOT = Path(onespike.__file__).parent


def test_the_root_holds_few_files() -> None:
    assert {path.name for path in ROOT.glob("*.py")} <= {
        "__init__.py",
        "__main__.py",
        "errors.py",
        "recipe.py",
    }


def test_no_name_hides_a_module() -> None:
    optional = {"onespike.__main__"}  # runs when it is imported
    for found in pkgutil.walk_packages([str(ROOT)], "onespike."):
        if found.name in optional:
            continue
        importlib.import_module(found.name)
        parent, _, name = found.name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(parent), name), ModuleType), found.name


def test_packages_say_what_they_are_for() -> None:
    for package in ROOT.iterdir():
        if (package / "__init__.py").is_file():
            first = importlib.import_module(f"onespike.{package.name}").__doc__ or ""
            assert len(first) > 30, package.name


def test_names_are_found_where_one_looks_for_them() -> None:
    import onespike.neurons

    assert onespike.calibration.Thresholds is onespike.Thresholds
    assert onespike.neurons.ScaleFire.__module__ == "onespike.neurons.scale_and_fire"
