"""Evaluation: the original and the spiking network side by side, and whether every neuron takes part."""

from onespike.evaluation.participation import Verification as Verification
from onespike.evaluation.participation import verify as verify
from onespike.evaluation.side_by_side import Evaluation as Evaluation
from onespike.evaluation.side_by_side import evaluate as evaluate
