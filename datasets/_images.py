"""From image files to uint8 arrays."""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

ImageFile = Path | zipfile.Path  # in a folder or in an archive
DEFAULT_SIZE = 224  # for sets whose images differ in size
UNREADABLE = (
    *(OSError, EOFError, ValueError, SyntaxError, KeyError),  # Pillow raises all of these on broken files
    *(struct.error, zlib.error, zipfile.BadZipFile, Image.DecompressionBombError),
)


def read_image(file: ImageFile) -> Image.Image:
    """Decode to RGB, upright. Transparency becomes white; grey, palette, CMYK and 16-bit images are converted."""
    with file.open("rb") as stream:
        image: Image.Image = Image.open(stream)
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16-bit grey, which convert() would clip instead of scale
            return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)).convert("RGB")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("RGB")


def to_array(image: Image.Image, size: int) -> np.ndarray:
    """(3, size, size), bilinear with antialias; Pillow's integer arithmetic is the same on every machine."""
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.moveaxis(np.asarray(image), -1, 0)


def common_size(files: Iterable[ImageFile]) -> int:
    """The side of all images if they are equal squares of at most 224 pixels, else 224; reads headers only."""
    sizes = set()
    for file in files:
        try:
            with file.open("rb") as stream, Image.open(stream) as image:
                sizes.add(image.size)
        except UNREADABLE:
            continue  # will be reported when it is decoded
        if len(sizes) > 1:
            return DEFAULT_SIZE
    width, height = sizes.pop() if sizes else (DEFAULT_SIZE, DEFAULT_SIZE)
    return width if width == height <= DEFAULT_SIZE else DEFAULT_SIZE
