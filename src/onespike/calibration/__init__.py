"""Calibration: a network and unlabeled batches become thresholds."""

from onespike.calibration.observers import Histogram as Histogram
from onespike.calibration.stream import calibrate as calibrate
from onespike.calibration.thresholds import SiteThreshold as SiteThreshold
from onespike.calibration.thresholds import Thresholds as Thresholds
