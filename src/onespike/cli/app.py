"""All commands, in the usual order of use, which is the order of the help."""

from importlib import import_module

from onespike.cli.commands import app as app

NAMES = "demo list convert run inspect evaluate generate search doctor report serve export push reproduce"

for _name in NAMES.split():
    import_module(f"onespike.cli.{_name}")
