"""Runs: folders that hold a converted network, and the verbs that make, load and search them."""

from onespike.passes import no_progress as no_progress
from onespike.passes.base import Progress as Progress
from onespike.runs.converting import check_forward as check_forward
from onespike.runs.converting import convert_network as convert_network
from onespike.runs.converting import estimate_of as estimate_of
from onespike.runs.converting import in_scope as in_scope
from onespike.runs.evaluating import evaluate_pair as evaluate_pair
from onespike.runs.evaluating import metric_for as metric_for
from onespike.runs.evaluating import verify_run as verify_run
from onespike.runs.inputs import Inputs as Inputs
from onespike.runs.inputs import choose as choose
from onespike.runs.inputs import choose_labeled as choose_labeled
from onespike.runs.inputs import overlap as overlap
from onespike.runs.inputs import without as without
from onespike.runs.pair import NetworkPair as NetworkPair
from onespike.runs.pair import with_recipe as with_recipe
from onespike.runs.repeated import draws as draws
from onespike.runs.repeated import evaluate_again as evaluate_again
from onespike.runs.saving import load_run as load_run
from onespike.runs.saving import save_run as save_run
