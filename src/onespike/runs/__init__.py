"""Runs: folders that hold a converted network, and the verbs that make, load, measure and search them."""

from onespike.calibration.inputs import Inputs as Inputs
from onespike.runs.inputs import calibration_images as calibration_images
from onespike.runs.inputs import choose as choose
from onespike.runs.inputs import choose_labeled as choose_labeled
from onespike.runs.inputs import draws as draws
from onespike.runs.inputs import overlap as overlap
from onespike.runs.inputs import without as without
from onespike.runs.pair import NetworkPair as NetworkPair
from onespike.runs.pair import load as load
from onespike.runs.pair import save as save
from onespike.runs.pipeline import check_forward as check_forward
from onespike.runs.pipeline import convert_network as convert_network
from onespike.runs.pipeline import evaluate_pair as evaluate_pair
from onespike.runs.pipeline import note_blocks as note_blocks
