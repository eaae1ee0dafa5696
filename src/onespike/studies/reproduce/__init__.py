"""The paper by command: every table and figure measured again, beside the printed numbers."""

from onespike.studies.reproduce import sweeps as sweeps
from onespike.studies.reproduce import tables as tables
from onespike.studies.reproduce.bench import Bench as Bench
from onespike.studies.reproduce.study import STUDIES as STUDIES
from onespike.studies.reproduce.study import run_study as run_study
