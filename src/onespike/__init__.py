"""onespike: any pretrained PyTorch network as a single-timestep spiking network."""

from onespike.attach import neurons as neurons
from onespike.calibrate import Thresholds as Thresholds
from onespike.calibrate import calibrate as calibrate
from onespike.convert import convert as convert
from onespike.convert import convert_ as convert_
from onespike.convert import revert_ as revert_
from onespike.convert import set_scale_ as set_scale_
from onespike.convert import table as table
from onespike.energy import Ledger as Ledger
from onespike.energy import metered as metered
from onespike.errors import OnespikeError as OnespikeError
from onespike.evaluate import Evaluation as Evaluation
from onespike.evaluate import evaluate as evaluate
from onespike.integer import optimize as optimize
from onespike.neurons import NEURONS as NEURONS
from onespike.recipe import Recipe as Recipe
from onespike.recipe import preset as preset
from onespike.sites import Site as Site
from onespike.sites import synaptic as synaptic
from onespike.trace import discover as discover
from onespike.verify import verify as verify

__version__ = "0.1.0"
