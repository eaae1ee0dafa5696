"""What the tests of the command line share: its result, and images of noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

VIT = "bundled:cifar10-vit"
CALIBRATION = "bundled:cifar10-calibration"
TEST = "bundled:cifar10-test"
CONVERT = f"convert {VIT} --preset sformer --calibrate {CALIBRATION}"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def good(self) -> Result:
        """The result of a command that ended well."""
        assert self.code == 0, self.err
        return self

    def message(self) -> str:
        """The one message of a command that was refused: exit code 2, and no traceback."""
        assert self.code == 2, self
        assert "Traceback" not in self.out + self.err
        lines = [line for line in self.err.splitlines() if not line.endswith(" s left")]
        assert len(lines) == 1, self.err
        start, _, message = lines[0].partition(": ")
        assert start == "onespike"
        return message


Command = Callable[..., Result]
