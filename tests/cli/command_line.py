"""What the tests of the command line share: its words, its result, and the records that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onespike.runtime.validated import sealed

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


def stored(file: Path) -> Any:
    return json.loads(file.read_text())


def reseal(file: Path, **changes: Any) -> None:
    """Change a record as anyone can: a seal protects from damage, not from intent."""
    record = {name: value for name, value in stored(file).items() if name != "sha256"}
    file.write_text(sealed(record | changes))
