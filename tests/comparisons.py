"""What tests of several folders compare."""

from __future__ import annotations

from dataclasses import fields

import torch

from onespike import Thresholds
from onespike.calibration.thresholds import SiteThreshold


def same_thresholds(one: Thresholds, other: Thresholds) -> None:
    """The same sites in the same order, and every field of each equal to the bit."""
    assert list(one) == list(other)
    for site in one:
        for field in fields(SiteThreshold):
            ours, theirs = getattr(one[site], field.name), getattr(other[site], field.name)
            assert type(ours) is type(theirs)
            same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
            assert same, (site, field.name)
