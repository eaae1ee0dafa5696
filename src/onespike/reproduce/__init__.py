"""The paper by command: every table and figure measured again, beside the numbers it prints."""

from onespike.reproduce import detectors as detectors
from onespike.reproduce import distributions as distributions
from onespike.reproduce import equivalence as equivalence
from onespike.reproduce import sweeps as sweeps
from onespike.reproduce import tables as tables
from onespike.reproduce.bench import Bench as Bench
from onespike.reproduce.study import STUDIES as STUDIES
from onespike.reproduce.study import Study as Study
from onespike.reproduce.study import run_study as run_study
