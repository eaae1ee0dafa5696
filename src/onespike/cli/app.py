"""All commands, in the usual order of use, which is the order of the help."""

from importlib import import_module

from onespike.cli.commands import app as app

NAMES = "demo list convert run inspect evaluate generate search doctor report serve export push reproduce"
MODULES = "convert inspect measure report reproduce"

for _module in MODULES.split():
    import_module(f"onespike.cli.{_module}")
app.registered_commands.sort(key=lambda command: NAMES.split().index(str(command.name)))
