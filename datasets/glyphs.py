"""The embedded data sets: glyphs drawn from matplotlib's fonts, 32 by 32, rendered once and cached.

``glyph-domains`` has 10 classes in 6 styles, ``glyph-100`` has 100 classes in one varied style, and ``glyph-pretrain``
has the classes that the micro-vit backbone was trained on, which are in neither of the other two.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as nnf

from fedprompt.core.errors import UserError
from fedprompt.core.files import cache_dir
from fedprompt.core.progress import track
from fedprompt.core.rng import torch_rng
from fedprompt.datasets import _glyph_classes as classes
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._glyph_styles import STYLES, Style, blend, uniform
from fedprompt.datasets._store import open_store, write_store
from fedprompt.datasets.glyph_fonts import SIZE, fonts_hash, masks

VERSION = 2  # raise it when the drawing code changes, so that old caches are not mistaken for new ones
SEEN_STYLES = ("print",)  # what micro-vit was pretrained on; all other styles are shifts for it


@dataclass(frozen=True)
class GlyphSet:
    """The recipe of a set: with VERSION and the fonts, everything that its pixels depend on."""

    name: str
    chars: str
    styles: tuple[str, ...]
    train: int  # images per class and style
    test: int
    seed: int = 0


def colour(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """The style of glyph-100: a random colour on a lighter one, with noise."""
    ink = uniform(0, 0.5, len(mask), 3, 1, 1, rng=rng)
    scene = blend(mask, ink, ink + uniform(0.3, 0.5, len(mask), 3, 1, 1, rng=rng))
    return scene + 0.08 * torch.randn(scene.shape, generator=rng)


DRAW: dict[str, Style] = {**STYLES, "colour": colour}
DOMAINS = GlyphSet("glyph-domains", classes.DOMAINS, tuple(STYLES), train=60, test=30, seed=1)
HUNDRED = GlyphSet("glyph-100", classes.HUNDRED, ("colour",), train=50, test=25)
PRETRAIN = GlyphSet("glyph-pretrain", classes.PRETRAIN, SEEN_STYLES, train=36, test=4)


def glyph_domains() -> Dataset:
    """Ten digits in six styles, the small stand-in for DomainNet."""
    return load(DOMAINS)


def glyph_100() -> Dataset:
    """A hundred letters in colour, the small stand-in for CIFAR-100."""
    return load(HUNDRED)


def glyph_pretrain() -> Dataset:
    """What the embedded backbones are trained on: 314 other glyphs in print."""
    return load(PRETRAIN)


def load(spec: GlyphSet) -> Dataset:
    """The set from the cache; it is drawn again if it is missing, truncated or altered.

    The folder's name is a digest of the recipe, the fonts and the version of the drawing code.
    """
    key = json.dumps([VERSION, fonts_hash(), asdict(spec)])
    folder = cache_dir() / f"{spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    try:
        return open_store(folder, verify=True)
    except UserError:
        return write_store(folder, spec.name, render(spec), tuple(spec.chars), spec.styles)


def render(spec: GlyphSet) -> dict[str, np.ndarray]:
    """Draw a set. Each class and style has its own generator, so no image depends on what else is drawn."""
    count = spec.train + spec.test
    images, labels, domains = [], [], []
    for label, char in enumerate(track(spec.chars, f"drawing {spec.name}")):
        char_masks = torch.from_numpy(masks(char))
        for domain, style in enumerate(spec.styles):
            images.append(draw(char_masks, style, count, torch_rng(spec.seed, "data", spec.name, char, style)))
            labels.append(np.full(count, label))
            domains.append(np.full(count, domain))
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels).astype(np.int64),
        "domains": np.concatenate(domains).astype(np.int64),
        "is_test": np.tile(np.arange(count) >= spec.train, len(images)),
    }


def draw(char_masks: torch.Tensor, style: str, n: int, rng: torch.Generator) -> np.ndarray:
    """``n`` images of one character in one style, uint8 (n, 3, SIZE / 2, SIZE / 2), each with its own font and pose."""
    font = torch.randint(len(char_masks), (n,), generator=rng)
    scene = DRAW[style](pose(char_masks[font][:, None], rng), rng)
    small = nnf.avg_pool2d(scene, 2)
    return (small.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def pose(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Random size, rotation, position and a slight wobble, in a single resampling of the masks."""
    n = len(mask)
    angle, scale, ratio, x, y = torch.rand(5, n, generator=rng)
    angle = (angle - 0.5) * 2 * math.radians(15)
    size = 0.65 + 0.25 * scale  # the glyph's longer side as a share of the picture
    stretch = 1 + 0.2 * (ratio - 0.5)
    room = 0.5 * (1 - size)
    x, y = (2 * x - 1) * room, (2 * y - 1) * room
    cos, sin = torch.cos(angle), torch.sin(angle)
    inverse = (
        torch.stack([cos / stretch, sin / stretch, -sin * stretch, cos * stretch], 1).view(n, 2, 2)
        / size[:, None, None]
    )
    centre = torch.stack([x, y], 1)[:, :, None]
    grid = nnf.affine_grid(torch.cat([inverse, -inverse @ centre], 2), [n, 1, SIZE, SIZE], align_corners=False)
    wobble = 0.12 * (torch.rand(n, 2, 5, 5, generator=rng) - 0.5)
    wobble = nnf.interpolate(wobble, size=(SIZE, SIZE), mode="bicubic", align_corners=True)
    return nnf.grid_sample(mask, grid + wobble.permute(0, 2, 3, 1), align_corners=False)
