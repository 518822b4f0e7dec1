"""From image files to uint8 arrays."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from fedprompt.core.untrusted import open_plain

ImageFile = Path | zipfile.Path  # in a folder or in an archive
TOO_DARK = "16-bit pixels below 4096, as in 12-bit data, would come out black; scale the image to 8 or 16 bits"
DEFAULT_SIZE = 224  # for sets whose images differ in size
BROKEN_ARCHIVE = (  # encrypted members are RuntimeErrors, unknown kinds of compression NotImplementedErrors
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
)
UNREADABLE = (*BROKEN_ARCHIVE, SyntaxError, KeyError, Image.DecompressionBombError)  # Pillow raises any of these


def open_image(file: ImageFile) -> IO[bytes]:
    """The bytes of an image file; OSError for what only has the name of one, such as a FIFO, which would block."""
    return open_plain(file) if isinstance(file, Path) else file.open("rb")


def read_image(file: ImageFile) -> Image.Image:
    """Decode to RGB, upright. Transparency becomes white; grey, palette, CMYK and 16-bit images are converted.

    Raises ValueError for pixels without a known range, which would come out black or white, and any of ``UNREADABLE``
    for a damaged file.
    """
    with open_image(file) as stream:
        image: Image.Image = Image.open(stream)
        file_format, is_deep = image.format, ";16" in str(getattr(image, "tile", ""))
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode == "F":
            return Image.fromarray(_from_float(np.asarray(image))).convert("RGB")
        if image.mode.startswith("I"):
            if image.mode == "I" and file_format not in ("PNG", "PPM"):  # whose "I" may hold 16 bits
                raise ValueError("32-bit integer pixels have no fixed range; convert the image to 8 or 16 bits")
            return Image.fromarray(_from_16_bits(np.asarray(image))).convert("RGB")
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        image = image.convert("RGB")
        if is_deep and 0 < np.asarray(image).max() < 16:
            raise ValueError(TOO_DARK)
        return image


def _from_16_bits(pixels: np.ndarray) -> np.ndarray:
    """8 bits of 16; convert() would clip instead of scale."""
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError("the pixels are not in the range of 16 bits; convert the image to 8 or 16 bits")
    if 0 < pixels.max() < 4096:
        raise ValueError(TOO_DARK)
    return (pixels.astype(np.uint32) >> 8).astype(np.uint8)


def _from_float(pixels: np.ndarray) -> np.ndarray:
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # also false for NaN
        raise ValueError("floating-point pixels must lie between 0 and 1; convert the image to 8 bits")
    return np.round(pixels * 255).astype(np.uint8)


def to_array(image: Image.Image, size: int) -> np.ndarray:
    """The image as uint8 (3, size, size), resized bilinearly with antialiasing.

    Pillow's integer arithmetic gives the same pixels on every machine.
    """
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.moveaxis(np.asarray(image), -1, 0)


def common_size(files: Iterable[ImageFile]) -> int:
    """The side of all images if they are equal squares of at most 224 pixels, else 224; reads headers only."""
    sizes = set()
    for file in files:
        try:
            with open_image(file) as stream, Image.open(stream) as image:
                sizes.add(image.size)
        except UNREADABLE:
            continue  # will be reported when it is decoded
        if len(sizes) > 1:
            return DEFAULT_SIZE
    width, height = sizes.pop() if sizes else (DEFAULT_SIZE, DEFAULT_SIZE)
    return width if width == height <= DEFAULT_SIZE else DEFAULT_SIZE
