"""onespike: any pretrained PyTorch network as a single-timestep spiking network."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onespike.calibration.stream import calibrate as calibrate
    from onespike.calibration.thresholds import Thresholds as Thresholds
    from onespike.conversion.firing import named_neurons as named_neurons
    from onespike.conversion.network import revert_ as revert_
    from onespike.conversion.network import set_scale_ as set_scale_
    from onespike.conversion.network import table as table
    from onespike.deploy.exports.base import export as export
    from onespike.deploy.integer import optimize as optimize
    from onespike.diagnosis.findings import doctor as doctor
    from onespike.energy.ledger import Ledger as Ledger
    from onespike.energy.metering import metered as metered
    from onespike.errors import OnespikeError as OnespikeError
    from onespike.evaluation.participation import verify as verify
    from onespike.evaluation.side_by_side import Evaluation as Evaluation
    from onespike.evaluation.side_by_side import evaluate as evaluate
    from onespike.neurons import NEURONS as NEURONS
    from onespike.recipe import Recipe as Recipe
    from onespike.recipe import preset as preset
    from onespike.reports.card import push_to_hub as push_to_hub
    from onespike.reports.pages import report as report
    from onespike.runs.pair import convert as convert
    from onespike.runs.pair import convert_ as convert_
    from onespike.runs.pair import from_pretrained as from_pretrained
    from onespike.runs.pair import load as load
    from onespike.runs.pair import save as save
    from onespike.runs.pipeline import spike as spike
    from onespike.runs.searching import search as search
    from onespike.sites import Site as Site
    from onespike.sites import Visitor as Visitor
    from onespike.sites import discover as discover
    from onespike.sites import synaptic as synaptic
    from onespike.sites import visiting as visiting

__version__ = "0.1.0"

_NAMES = {
    "calibration.stream": ("calibrate",),
    "calibration.thresholds": ("Thresholds",),
    "conversion.firing": ("named_neurons",),
    "conversion.network": ("revert_", "set_scale_", "table"),
    "deploy.exports": ("export",),
    "deploy.integer": ("optimize",),
    "diagnosis.findings": ("doctor",),
    "energy.ledger": ("Ledger",),
    "energy.metering": ("metered",),
    "errors": ("OnespikeError",),
    "evaluation.participation": ("verify",),
    "evaluation.side_by_side": ("Evaluation", "evaluate"),
    "neurons": ("NEURONS",),
    "recipe": ("Recipe", "preset"),
    "reports.card": ("push_to_hub",),
    "reports.pages": ("report",),
    "runs.pair": ("convert", "convert_", "from_pretrained", "load", "save"),
    "runs.pipeline": ("spike",),
    "runs.searching": ("search",),
    "sites": ("Site", "Visitor", "discover", "synaptic", "visiting"),
}
_PACKAGES = frozenset(
    (
        "adapters", "calibration", "conversion", "deploy", "diagnosis", "energy", "evaluation", "kernels", "neurons",
        "passes", "reports", "runs", "runtime", "scale_search", "sites", "studies", "tasks",
    )
)  # fmt: skip
_HOMES = {name: f"onespike.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that the command line answers Ctrl-C before torch is loaded."""
    if name in _PACKAGES:
        return import_module(f"onespike.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'onespike' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PACKAGES})
