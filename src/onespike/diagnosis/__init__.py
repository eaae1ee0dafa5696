"""Why accuracy fell: first measurements of a run (`checkup`), then findings as a pure function of them."""

from onespike.diagnosis.findings import Finding, diagnose
from onespike.diagnosis.measurement import Checkup, checkup

__all__ = ["Checkup", "Finding", "checkup", "diagnose"]
