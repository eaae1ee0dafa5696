"""Images: damaged, cut, of another depth, under a foreign name or suffix, and things that are no images at all."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import mutate
from commands import Words, copy_of, result_of, run
from damaged import Fault, half_written
from PIL import Image

EVALUATE: Words = ("evaluate", "run", "--data", "seen", "--json", "out.json")
CALIBRATE: Words = (
    "convert", "transformers:net", "--weights", "pretrained", "--calibrate", "seen", "--out", "new",
)  # fmt: skip
FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".bmp": "BMP", ".webp": "WEBP", ".tif": "TIFF", ".ppm": "PPM",
}  # fmt: skip
Picture = tuple[str, str, bytes, str]
"""What was done, the file's name, its contents, and the picture that it must equal where it is taken ("": any)."""


@cache
def drawn(seed: int, mode: str = "RGB") -> Image.Image:
    """A smooth picture: noise would not compress, and every format should have its say."""
    rng = Random(seed)  # noqa: S311 - no secret
    small = Image.frombytes("RGB", (5, 5), rng.randbytes(75))
    return small.resize((32, 32), Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _any(rng: Random) -> tuple[str, bytes]:
    suffix = rng.choice(list(FORMATS))
    return suffix, encoded(drawn(0), FORMATS[suffix])


def bytes_(rng: Random) -> Picture:
    """Damaged bytes; PNG alone has checksums over everything."""
    suffix, data = _any(rng)
    what, data = mutate.some_bytes(data, rng)
    return f"{suffix}: {what}", f"a{suffix}", data, "PNG" if suffix == ".png" else ""


def cut(rng: Random) -> Picture:
    suffix, data = _any(rng)
    kept = rng.randrange(len(data))
    what = f"{suffix}: cut after {kept} of {len(data)} bytes"
    return what, f"a{suffix}", data[:kept], FORMATS[suffix]


def other_suffix(rng: Random) -> Picture:
    suffix, data = _any(rng)
    other = rng.choice([*FORMATS, ".JPEG", ".Png"])
    return f"{suffix} named {other}", f"a{other}", data, FORMATS[suffix]


def deep(rng: Random) -> Picture:
    """More than 8 bits a channel: scaled to 8 bits, or refused; never black or saturated."""
    values = drawn(0, "L").tobytes()
    words = struct.pack(f"<{len(values)}H", *(257 * v for v in values))
    sixteen = Image.frombytes("I;16", (32, 32), words)
    whole = Image.frombytes("I", (32, 32), struct.pack(f"<{len(values)}i", *(257 * v for v in values)))
    real = [
        Image.frombytes("F", (32, 32), struct.pack(f"<{len(values)}f", *(v / unit for v in values)))
        for unit in (255, 1)
    ]
    forms: tuple[tuple[str, Callable[[], bytes]], ...] = (
        (".png", lambda: encoded(sixteen, "PNG")),
        (".tif", lambda: encoded(sixteen, "TIFF")),
        (".tiff", lambda: encoded(sixteen, "TIFF", compression="tiff_lzw")),
        (".tif", lambda: encoded(whole, "TIFF")),
        (".tif", lambda: encoded(real[0], "TIFF")),
        (".tif", lambda: encoded(real[1], "TIFF")),
        (".pgm", lambda: b"P5 32 32 65535\n" + struct.pack(f">{len(values)}H", *(257 * v for v in values))),
        (".pgm", lambda: b"P5 32 32 1023\n" + struct.pack(f">{len(values)}H", *(v * 1023 // 255 for v in values))),
        (".png", lambda: png(32, 32, 16, 2, b"".join(_row16(drawn(0), y) for y in range(32)))),
    )  # fmt: skip
    place = rng.randrange(len(forms))
    suffix, make = forms[place]
    equals = "" if place == 7 else "PNG" if place == 8 else "gray"  # 10 bits hold no 8-bit value exactly
    return f"depth {place} as {suffix}", f"a{suffix}", make(), equals


def _row16(image: Image.Image, y: int) -> bytes:
    return b"\0" + b"".join(struct.pack(">3H", *(257 * v for v in image.getpixel((x, y)))) for x in range(32))


def png(width: int, height: int, bits: int, kind: int, rows: bytes) -> bytes:
    """A PNG made by hand, its checksums right whatever it claims."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def claims(rng: Random) -> Picture:
    """A header that claims another size or kind than its data have."""
    side = rng.choice((0, 1, 31, 33, 65, 20_000, 60_000, 2**31 - 1))
    width, height = rng.choice(((side, 32), (32, side), (side, side)))
    bits, kind = rng.choice(((8, 2), (8, 2), (16, 6), (1, 0), (3, 2), (8, 3), (16, 3), (8, 7)))
    rows = b"".join(b"\0" + drawn(0).crop((0, y, 32, y + 1)).tobytes() for y in range(32))
    return (
        f"PNG of {width}×{height}, {bits} bits, kind {kind}",
        "a.png",
        png(width, height, bits, kind, rows),
        "",
    )


def foreign(rng: Random) -> Picture:
    """Other formats and no images under an image's name."""
    wide = [
        (k, o)
        for k, o in (("GIF", {}), ("ICO", {}), ("TGA", {}), ("AVIF", {}), ("DDS", {}), ("EPS", {}), ("PDF", {}),
                     ("JPEG2000", {}), ("SGI", {}), ("PCX", {}), ("IM", {}), ("XBM", {}), ("QOI", {}), ("BLP", {}))
        if k in Image.SAVE
    ]  # fmt: skip
    kind, options = rng.choice(wide)
    image = drawn(0, {"XBM": "1", "BLP": "P"}.get(kind, "RGB"))
    data = encoded(image, kind, **options)
    what = f"{kind} under another name"
    if rng.random() < 0.6:
        damage, data = mutate.some_bytes(data, rng)
        what += f", {damage}"
    if rng.random() < 0.1:
        what, data = "text", b"GIF89a is what this file begins with, and no more\n" * 3
    return what, f"a{rng.choice(list(FORMATS))}", data, ""


def names(rng: Random) -> Picture:
    """Whole images with names that are hard to print."""
    name = rng.choice(
        ("a\udcff.png", "\udc80\udcfe.png", "a\nb.png", "[bold]a[red].png", "\x1b[31ma.png", "ü.png",
         "a" * 251 + ".png", "a b.png", "-a.png", "$(touch canary).png", "{0}%s.png")
    )  # fmt: skip
    data = encoded(drawn(0), "PNG")
    damaged = rng.random() < 0.5
    return f"named {name!r:.40}", name, data[:90] if damaged else data, "" if damaged else "PNG"


def things(rng: Random) -> Picture:
    """What is no regular file: the contents say what to make."""
    thing = rng.choice((b"folder", b"pipe", b"zero", b"null", b"nowhere", b"loop"))
    return f"a.png is a {thing.decode()}", "a.png", thing, ""


KINDS = (bytes_, bytes_, bytes_, cut, cut, other_suffix, deep, claims, foreign, foreign, names, things)


@cache
def whole(stage: Path, kind: str, words: Words) -> Any:
    """The result with a whole picture of a format."""
    gray = kind == "gray"
    picture = drawn(0, "L") if gray else drawn(0)
    suffix = next((s for s, name in FORMATS.items() if name == kind), ".png")
    with tempfile.TemporaryDirectory(prefix="onespike-faults-") as place:
        folder = Path(place)
        _put(folder, f"a{suffix}", encoded(picture, "PNG" if gray else kind), words)
        return _seen(stage, folder, words)[1]


def _put(folder: Path, name: str, data: bytes, words: Words) -> None:
    seen = folder / "seen" / "0" if words is EVALUATE else folder / "seen"
    seen.mkdir(parents=True)
    (seen / "b.png").write_bytes(encoded(drawn(1), "PNG"))
    file = seen / name
    if data == b"folder":
        file.mkdir()
    elif data == b"pipe":
        os.mkfifo(file)
    elif data in (b"zero", b"null", b"nowhere", b"loop"):
        targets = {b"zero": "/dev/zero", b"null": "/dev/null", b"nowhere": "gone", b"loop": name}
        file.symlink_to(targets[data])
    else:
        Path(os.fsencode(str(file)).decode("utf-8", "surrogateescape")).write_bytes(data)


def _seen(stage: Path, folder: Path, words: Words) -> tuple[Any, Any]:
    copy_of(stage, folder, ("run", "net"))
    outcome = run(words, folder)
    place = "out.json" if words is EVALUATE else "new/run.json#sites"
    return outcome, result_of(folder, outcome, place) if outcome.code == 0 else None


def case(stage: Path, folder: Path, number: int, rng: Random) -> tuple[str, list[Fault]]:
    """One image among two, read by `evaluate` or by `convert`."""
    words = CALIBRATE if number % 5 == 4 else EVALUATE
    what, name, data, equals = KINDS[number % len(KINDS)](rng)
    _put(folder, name, data, words)
    outcome, found = _seen(stage, folder, words)
    kind = outcome.fault()
    if kind is None and outcome.code == 0 and equals and words is EVALUATE:
        kind = None if found == whole(stage, equals, words) else "corrupt"
    if (folder / "canary").exists():
        kind = "executed"
    if kind is None and outcome.code == 2 and half_written(folder):
        kind = "half-written"
    return what, [] if kind is None else [Fault(kind, what, words, outcome.tail)]
