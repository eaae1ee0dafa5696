"""Whether an installed wheel has its kernels, without a compiler: run where onespike is installed from a wheel."""

from __future__ import annotations

import sys

import torch

from onespike import kernels
from onespike.neurons import ScaleFire

if __name__ == "__main__":
    with torch.inference_mode():
        fired = ScaleFire(0.5, 0.25, levels=(1, 2, 3))(torch.tensor([-1.0, 0.2, 0.8])).tolist()
    paths = ", ".join(path.name for path in kernels.paths())  # each has passed its self-test
    print(f"kernels: {kernels.note()}; exact: {paths or 'none'}; fired {fired}")
    sys.exit(kernels.note() != "native" or fired != [-0.75, 0.0, 1.0])
