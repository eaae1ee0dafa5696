"""Calibration: a network and unlabeled batches become thresholds."""
