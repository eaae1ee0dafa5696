"""All commands, in the usual order of use."""

# ruff: noqa: I001 (the order in which commands are registered is the order in which the help lists them)
from onespike.cli.commands import app as app
from onespike.cli import demo as demo
from onespike.cli import list as list
from onespike.cli import run as run
from onespike.cli import convert as convert
from onespike.cli import inspect as inspect
from onespike.cli import evaluate as evaluate
from onespike.cli import generate as generate
from onespike.cli import search as search
from onespike.cli import doctor as doctor
from onespike.cli import report as report
from onespike.cli import serve as serve
from onespike.cli import export as export
from onespike.cli import push as push
from onespike.cli import reproduce as reproduce
