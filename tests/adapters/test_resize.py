"""Other sizes than the library's: the same pixels as torchvision, kept in a run, asked for where files do not say."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from PIL import Image

from onespike import runs
from onespike.adapters import Reading, load_model, resized
from onespike.errors import UsageError
from onespike.recipe import preset
from onespike.runs.pipeline import convert_network
from onespike.runs.recipe_text import convert_command

DOUBT = "IMAGENET1K_V1 resize=256 crop=224, IMAGENET1K_V2 resize=232 crop=224"


def photo(width: int, height: int) -> Image.Image:
    generator = torch.Generator().manual_seed(width)
    pixels = torch.randint(256, (height // 8, width // 8, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(pixels.numpy()).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(300, 200), (211, 347), (256, 256)])
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (64, 33)])
def test_pixels_are_those_of_torchvision(size, resize, crop):
    transforms = pytest.importorskip("torchvision.transforms")
    loaded = load_model("torchvision:resnet18", random_weights=True)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    theirs = transforms.Compose([
        transforms.Resize(resize), transforms.CenterCrop(crop), transforms.ToTensor(),
        transforms.Normalize(mean, std),
    ])  # fmt: skip
    ours = resized(loaded, resize, crop).reading
    torch.testing.assert_close(ours.transform(photo(*size)), theirs(photo(*size)), atol=1e-4, rtol=0)
    assert ours.size == (resize, crop)
    assert f"resize {resize} bilinear, center crop {crop}" in ours.preprocessing


def test_what_is_not_given_is_the_networks_own():
    loaded = load_model("bundled:cifar10-vit")
    given, usual = resized(loaded, 40, None).reading, resized(loaded, None, None).reading
    assert (given.size, usual.size) == ((40, 32), (32, 32))
    assert given.transform(photo(64, 48)).shape == (3, 32, 32)
    for pair in ((16, 32), (0, 0), (10**6, 8)):
        with pytest.raises(UsageError, match="Give for example resize=256 crop=224"):
            resized(loaded, *pair)
    with pytest.raises(UsageError, match="Leave out resize="):
        resized(dataclasses.replace(loaded, reading=Reading(lambda image: {"pixels": 1}, "")), 8, 8)


def test_a_run_keeps_its_size(tmp_path):
    loaded = resized(load_model("bundled:cifar10-vit"), 40, 32)
    items = runs.choose("bundled:cifar10-calibration", 4)
    pair = convert_network(loaded, items, preset("sformer"))
    runs.save(tmp_path / "run", pair)
    again = runs.load(tmp_path / "run")
    read, image = again.loaded.reading, photo(64, 48)
    assert torch.equal(read.transform(image), loaded.reading.transform(image)) and read.size == (40, 32)
    assert "--preprocess resize=40 --preprocess crop=32" in convert_command(again, "out")


def test_files_for_networks_with_several_preprocessings(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    from safetensors.torch import save_file

    for name, doubted in (("mobilenet_v3_large", DOUBT), ("resnet18", "")):
        save_file(torchvision.models.get_model(name).state_dict(), tmp_path / f"{name}.safetensors")
        loaded = load_model(f"torchvision:{name}", weights=tmp_path / f"{name}.safetensors")
        assert loaded.reading.doubt == doubted
