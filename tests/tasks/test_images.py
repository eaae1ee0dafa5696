"""Folders, strips and batches."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from PIL import Image, features

from onespike.errors import DataError, UsageError
from onespike.tasks import Item, Items, batches, limit, list_images, read_image
from onespike.tasks.images import SUFFIXES


def put(path: Path, color="teal", size=(8, 6), mode="RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).convert(mode).save(path)
    return path


def to_tensor(image) -> torch.Tensor:
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)


def refusal(call, *arguments) -> str:
    with pytest.raises(DataError) as error:
        call(*arguments)
    return str(error.value)


def read(path: Path) -> Image.Image:
    return read_image(Item("a", None, path))


BOTH = "images stand beside class folders"
NOT_READ = "the image cannot be read ({}). Replace or remove it."


def colored(tmp_path, count) -> Items:
    for i in range(count):
        put(tmp_path / f"{i % 3}" / f"{i:03d}.png", color=(i, 0, 0))
    return list_images(tmp_path)


def test_numbered_folders_give_their_number(tmp_path):
    for name in ("007/b.png", "007/a.JPEG", "10/deep/er/c.webp", "2/d.bmp"):
        put(tmp_path / name)
    put(tmp_path / ".hidden" / "x.png")
    put(tmp_path / "2" / ".x.png")
    (tmp_path / "2" / "notes.txt").write_text("no image")
    items = list_images(tmp_path)
    assert items.names == ("007/a.JPEG", "007/b.png", "10/deep/er/c.webp", "2/d.bmp")
    assert [i.label for i in items] == [7, 7, 10, 2]
    assert (items.class_names, items.labeled, items.source) == (None, True, str(tmp_path))


def test_named_folders_give_their_place_and_empty_ones_keep_theirs(tmp_path):
    for name in ("wasp/b.png", "wasp/a.png", "ant/a.png"):
        put(tmp_path / name)
    (tmp_path / "bee").mkdir()
    items = list_images(str(tmp_path))
    assert [(i.name, i.label) for i in items] == [("ant/a.png", 0), ("wasp/a.png", 2), ("wasp/b.png", 2)]
    assert items.class_names == ("ant", "bee", "wasp")
    flat = list_images(tmp_path / "wasp")
    assert (flat.names, flat.labeled) == (("a.png", "b.png"), False)


def test_folders_that_cannot_be_used(tmp_path):
    file = put(tmp_path / "a.png")
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    put(tmp_path / "class" / "b.png")
    for name in ("7", "07"):
        put(tmp_path / "twice" / name / "a.png")
    for folder, message in (
        (tmp_path / "none", "no such folder. Check the path, or use bundled:cifar10-test."),
        (file, "this is a file. Give the folder that holds the images."),
        (tmp_path / "empty", f"no images in it. Give one with files that end in {', '.join(SUFFIXES)}."),
        (tmp_path, f"{BOTH}, first a.png. Move them away."),
        (tmp_path / "twice", "the folders 07 and 7 name the same class. Merge them."),
    ):
        assert refusal(list_images, folder) == f"{folder}: {message}"


def test_counts_and_names_are_checked(tmp_path):
    message = "Did you mean 'bundled:cifar10-test' or .*Known: bundled:cifar10-calibration"
    with pytest.raises(UsageError, match=message):
        list_images("bundled:cifar10")
    with pytest.raises(UsageError, match=r"at least 1, not -3\. Leave it out for all 2 images"):
        limit(Items("two", (Item("a", 0, Path()), Item("b", 0, Path()))), -3)
    with pytest.raises(UsageError, match=r"batch size must be at least 1, not 0\. Try 32"):
        next(batches(colored(tmp_path, 1), to_tensor, 0))


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", ".png"), ("1", ".png"), ("P", ".png"), ("RGBA", ".png"), ("LA", ".png"), ("CMYK", ".tif")],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, mode, suffix):
    path = put(tmp_path / f"a{suffix}", color=(255, 255, 255), mode=mode)
    image = read(path)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (8, 6), (255, 255, 255))


def test_a_palette_with_transparency_gives_its_colors(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    image = read(tmp_path / "a.png")
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [(10, 20, 30), (40, 50, 60)]


RAMP = torch.arange(64) * 1040  # from 0 to 65520, as 16-bit gray
HIGH = [value >> 8 for value in RAMP.tolist()]


def gray(mode: str, dtype: torch.dtype, scale: float = 1) -> Image.Image:
    return Image.frombytes(mode, (8, 8), (RAMP * scale).to(dtype).numpy().tobytes())


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_16_bit_gray_keeps_its_high_byte(tmp_path, name):
    gray("I;16", torch.uint16).save(tmp_path / name)
    image = read(tmp_path / name)
    assert (image.mode, list(image.getchannel("G").tobytes())) == ("RGB", HIGH)


@pytest.mark.parametrize("largest", [65535, 4095])
def test_pgm_of_more_than_8_bits_is_rescaled(tmp_path, largest):
    pixels = b"".join(round(v * largest / 65535).to_bytes(2, "big") for v in RAMP.tolist())
    (tmp_path / "a.pgm").write_bytes(b"P5 8 8 %d\n" % largest + pixels)
    values = read(tmp_path / "a.pgm").getchannel("R").tobytes()
    differences = [abs(a - b) for a, b in zip(values, HIGH, strict=True)]
    assert max(differences) <= 1  # 4095 levels are not those of 65535


FRAMES = [Image.new("RGB", (8, 8), color) for color in ("red", "blue", "lime")]
NO_WHITE = "the image holds {} of unknown range. Save 8 or 16 bits per channel."
ANIMATED = "the image has 3 frames. Save the one that is meant by itself."
FOREIGN = NOT_READ.format("it is no BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP")


@pytest.mark.parametrize(
    ("name", "image", "kind", "message"),
    [
        ("a.tif", gray("I", torch.int32), "TIFF", NO_WHITE.format("32-bit integers")),
        ("a.tif", gray("F", torch.float32, 1 / 65535), "TIFF", NO_WHITE.format("floating-point numbers")),
        *(("a.png", FRAMES, kind, ANIMATED) for kind in ("PNG", "WEBP", "TIFF", "GIF")),
        *(("a.png", FRAMES[0], kind, FOREIGN) for kind in ("AVIF", "DDS", "ICO", "TGA")),
        ("a.png", b"no image", None, FOREIGN),
        ("a.png", b"", None, NOT_READ.format("the file is empty")),
    ],
)
def test_what_is_not_one_image_of_8_or_16_bits_is_refused(tmp_path, name, image, kind, message):
    """Also under the name of another format; nothing is cut to its first frame."""
    path = tmp_path / name
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow writes no AVIF")
    if isinstance(image, bytes):
        path.write_bytes(image)
    elif isinstance(image, list):
        image[0].save(path, format=kind, save_all=True, append_images=image[1:])
    else:
        image.save(path, format=kind)
    assert refusal(read, path) == f"{path}: {message}"


def test_the_preview_of_a_photograph_is_no_animation(tmp_path):
    FRAMES[0].save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=FRAMES[1:])
    assert read(tmp_path / "a.jpg").getpixel((4, 4))[0] > 250


def test_links_are_followed_unless_they_lead_nowhere_or_round_and_round(tmp_path):
    put(tmp_path / "elsewhere" / "a.png")
    data = tmp_path / "data"
    (data / "1").mkdir(parents=True)
    (data / "0").symlink_to(tmp_path / "elsewhere")
    link, again = data / "1" / "b.png", data / "1" / "again"
    link.symlink_to(tmp_path / "elsewhere" / "a.png")
    assert [(i.name, i.label) for i in list_images(data)] == [("0/a.png", 0), ("1/b.png", 1)]
    for target in ("absent.png", "b.png"):
        link.unlink()
        link.symlink_to(target)
        assert refusal(list_images, data) == f"{link}: this link leads nowhere. Remove or mend it."
    again.symlink_to(data)
    message = f"{again}: this link leads back to a folder that holds it. Remove it."
    assert refusal(list_images, data) == message


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_names_that_are_not_utf_8(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/0/\xff\xfe.png"))
    put(path)
    assert refusal(list_images, tmp_path) == (
        f"{tmp_path}/0/\\udcff\\udcfe.png: the name is not UTF-8. Rename it."
    )


def test_exif_does_not_turn_the_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", exif=exif)
    assert read(tmp_path / "a.jpg").size == (8, 6)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's, before it gives up
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".webp", ".tif", ".ppm"])
def test_images_that_are_damaged(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    Image.effect_noise((64, 64), 80).convert("RGB").save(path)
    whole = path.read_bytes()
    damaged = [whole[:0], whole[:10], whole[: int(0.6 * len(whole))]]
    if suffix == ".png":  # which has checksums
        place = whole.index(b"IDAT") + 8
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        message = refusal(read, path)
        assert message.startswith(f"{path}: the image cannot be read (")
        assert message.endswith("). Replace or remove it.")


@pytest.mark.parametrize("batch_size", [1, 7, 50])
def test_batches_keep_the_order_however_long_reading_takes(tmp_path, batch_size):
    items = colored(tmp_path, 20)

    def slow_when_even(image):
        time.sleep(0.002 * (image.getpixel((0, 0))[0] % 2 == 0))
        return to_tensor(image)

    inputs, labels = zip(*batches(items, slow_when_even, batch_size, threads=4), strict=True)
    assert [i.name for i in items] == [f"{v % 3}/{v:03d}.png" for v in torch.cat(inputs)[:, 0, 0, 0].tolist()]
    assert torch.cat(labels).tolist() == [i.label for i in items]
    assert {len(x) for x in inputs[:-1]} <= {batch_size}


def test_batches_without_labels_and_of_unlike_sizes(tmp_path):
    put(tmp_path / "a.png")
    items = list_images(tmp_path)
    assert next(batches(items, to_tensor, 4))[1] is None
    put(tmp_path / "b.png", size=(9, 6))
    assert refusal(list, batches(list_images(tmp_path), to_tensor, 4)) == (
        "b.png: its input has shape (6, 9, 3), and that of a.png (6, 8, 3). "
        "Use a transform that gives all images one size."
    )


def test_reading_stops_when_the_caller_does_and_names_a_corrupt_image(tmp_path):
    items = colored(tmp_path, 6)
    reading = batches(items, to_tensor, 2)
    next(reading)
    reading.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("onespike-images")]
    items[4].path.write_bytes(b"")
    assert str(items[4].path) in refusal(list, batches(items, to_tensor, 2))


def test_the_bundled_images():
    test, calibration = list_images("bundled:cifar10-test"), list_images("bundled:cifar10-calibration")
    assert (len(test), len(calibration)) == (1000, 256)
    assert [sum(i.label == c for i in test) for c in range(10)] == [100] * 10
    assert (test.class_names[3], test[0].name, test[0].label) == ("cat", "cifar10-test/00000", 3)
    assert len({*test.names, *calibration.names}) == 1256
    assert len({read_image(i).tobytes() for i in (*test, *calibration)}) == 1256
    assert read_image(test[5]).size == (32, 32)
