"""Glyph masks from the fonts that ship with matplotlib, and how similar two glyphs look."""

import hashlib
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as nnf
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

SIZE = 64  # masks are drawn at twice the side of the final images
FONTS = (
    *(f"DejaVuSans{cut}" for cut in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{cut}" for cut in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{cut}" for cut in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{cut}" for cut in ("", "Bol", "Italic", "BolIta")),
)


def font_path(font: str) -> Path:
    """The file of a font in the installed matplotlib."""
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"


@cache
def fonts_hash() -> str:
    """Changes with any byte of any font in use, so that a new matplotlib cannot silently change the data."""
    digest = hashlib.sha256()
    for font in FONTS:
        digest.update(font_path(font).read_bytes())
    return digest.hexdigest()[:12]


@cache
def _covered(font: str) -> frozenset[int]:
    return frozenset(FT2Font(str(font_path(font))).get_charmap())


@cache
def _face(font: str) -> ImageFont.FreeTypeFont:
    # The basic layout engine is always compiled in; Raqm is not, and would make results depend on the machine.
    return ImageFont.truetype(font_path(font), SIZE, layout_engine=ImageFont.Layout.BASIC)


@cache
def mask(char: str, font: str) -> np.ndarray | None:
    """Float32 coverage of the glyph, cut to its ink, its longer side scaled to SIZE; None if the font lacks it."""
    if ord(char) not in _covered(font):
        return None
    left, top, right, bottom = (round(edge) for edge in _face(font).getbbox(char))
    picture = Image.new("L", (max(1, right - left), max(1, bottom - top)))
    ImageDraw.Draw(picture).text((-left, -top), char, fill=255, font=_face(font))
    box = picture.getbbox()
    if box is None:  # a space or a placeholder without ink
        return None
    picture = picture.crop(box)
    scale = SIZE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    canvas = Image.new("L", (SIZE, SIZE))
    canvas.paste(
        picture.resize((width, height), Image.Resampling.BILINEAR),
        ((SIZE - width) // 2, (SIZE - height) // 2),
    )
    return np.asarray(canvas, np.float32) / 255


def masks(char: str) -> np.ndarray:
    """All drawings of a character, (fonts that have it, SIZE, SIZE)."""
    drawings = (mask(char, font) for font in FONTS)
    return np.stack([drawing for drawing in drawings if drawing is not None])


def likeness(chars: str, others: str) -> torch.Tensor:
    """How similar characters look at the same size: (len(chars), len(others)), 1 for identical pictures.

    The correlation of softly blurred masks, maximised over the fonts that have both characters: 1 for Latin and
    Cyrillic A although their code points differ, and nearly 1 for O, o and Ο because size is normalised away.
    """
    best = torch.full((len(chars), len(others)), -1.0)
    for font in FONTS:
        rows, left = _signatures(chars, font)
        columns, right = _signatures(others, font)
        if rows and columns:
            index = torch.tensor(rows)[:, None], torch.tensor(columns)[None, :]
            best[index] = torch.maximum(best[index], left @ right.T)
    return best


def _signatures(chars: str, font: str) -> tuple[list[int], torch.Tensor]:
    """Which of ``chars`` the font has, and their blurred masks as unit vectors of mean zero."""
    drawings = {index: drawing for index, char in enumerate(chars) if (drawing := mask(char, font)) is not None}
    if not drawings:
        return [], torch.empty(0, 0)
    pictures = torch.from_numpy(np.stack(list(drawings.values())))
    soft = nnf.avg_pool2d(nnf.avg_pool2d(pictures[:, None], 8, 4, 2), 3, 1, 1).flatten(1)
    return list(drawings), nnf.normalize(soft - soft.mean(1, keepdim=True))
