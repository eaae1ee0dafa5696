"""Why did accuracy fall? Measurements of a run first (`checkup`), findings as a pure function of them second."""

from onespike.doctor.findings import Finding, diagnose
from onespike.doctor.measurement import Checkup, checkup

__all__ = ["Checkup", "Finding", "checkup", "diagnose"]
