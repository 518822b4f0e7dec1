"""Six ways to draw a glyph. Each takes coverage masks (n, 1, s, s) in [0, 1] and returns colours (n, 3, s, s)."""

from collections.abc import Callable

import torch
import torch.nn.functional as nnf

Style = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def uniform(low: float, high: float, *shape: int, rng: torch.Generator) -> torch.Tensor:
    """Independent draws from U(low, high)."""
    return low + (high - low) * torch.rand(*shape, generator=rng)


def field(mask: torch.Tensor, cells: int, rng: torch.Generator, channels: int = 1) -> torch.Tensor:
    """Smooth random values in about [0, 1], varying over a grid of ``cells`` by ``cells``."""
    coarse = torch.rand(len(mask), channels, cells, cells, generator=rng)
    return nnf.interpolate(coarse, size=mask.shape[-2:], mode="bilinear", align_corners=True)


def blend(mask: torch.Tensor, ink: torch.Tensor, paper: torch.Tensor) -> torch.Tensor:
    """``ink`` where the mask is 1, ``paper`` where it is 0."""
    return mask * ink + (1 - mask) * paper


def thicken(mask: torch.Tensor, width: int) -> torch.Tensor:
    """The glyph with ``width`` more pixels on every side."""
    return nnf.max_pool2d(mask, 2 * width + 1, 1, width)


def thin(mask: torch.Tensor, width: int) -> torch.Tensor:
    """The glyph with ``width`` fewer pixels on every side."""
    return -thicken(-mask, width)


def blur(image: torch.Tensor, width: int) -> torch.Tensor:
    """Means over squares that reach ``width`` pixels each way."""
    return nnf.avg_pool2d(image, 2 * width + 1, 1, width, count_include_pad=False)


def two_colours(n: int, rng: torch.Generator, gap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ink and paper, (n, 3, 1, 1), whose brightness differs by about ``gap`` or more; either may be brighter."""
    paper = uniform(0, 1, n, 3, 1, 1, rng=rng)
    ink = uniform(0, 1, n, 3, 1, 1, rng=rng)
    bright = paper.mean(1, keepdim=True)
    target = bright + torch.where(bright > 0.5, -1.0, 1.0) * uniform(gap, gap + 0.2, n, 1, 1, 1, rng=rng)
    return (ink - ink.mean(1, keepdim=True)) * 0.6 + target, paper


def print_(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Black ink on white paper."""
    n = len(mask)
    return blend(mask, uniform(0, 0.25, n, 1, 1, 1, rng=rng), uniform(0.85, 1, n, 1, 1, 1, rng=rng)).expand(
        -1, 3, -1, -1
    )


def photo(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """A painted sign under uneven light, out of focus, with sensor noise."""
    ink, paper = two_colours(len(mask), rng, gap=0.25)
    scene = blend(mask, ink, paper + 0.5 * (field(mask, 4, rng, channels=3) - 0.5))
    light = 0.6 + 0.8 * field(mask, 3, rng)
    return blur(scene, 1) * light + 0.1 * torch.randn(scene.shape, generator=rng)


def poster(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Flat saturated colours on broad bands, with a dark contour and a drop shadow."""
    n, side = len(mask), mask.shape[-1]
    across = torch.arange(side).view(1, 1, 1, side) + torch.randint(0, 32, (n, 1, 1, 1), generator=rng)
    paper = blend((across % 32 < 16).float(), saturated(n, rng), saturated(n, rng))
    shadow = torch.roll(thicken(mask, 1), (4, 4), (2, 3))
    scene = blend(0.6 * shadow, torch.zeros(1), paper)
    scene = blend(thicken(mask, 2), torch.full((1,), 0.08), scene)
    return blend(mask, saturated(n, rng), scene)


def saturated(n: int, rng: torch.Generator) -> torch.Tensor:
    """Random colours of full strength, (n, 3, 1, 1)."""
    hue = uniform(0, 6, n, 1, 1, 1, rng=rng)
    phase = torch.tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)
    k = (hue + phase) % 6
    return 1 - torch.minimum(k, 4 - k).clamp(0, 1) * 0.9


def sketch(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Pencil contours only, drawn twice with a slip and with varying pressure."""
    edge = thicken(mask, 1) - thin(mask, 1)
    slip = torch.roll(edge, (2, -2), (2, 3))
    pressure = (0.35 + 0.9 * field(mask, 6, rng)).clamp(max=1)
    grain = 0.75 + 0.25 * torch.rand(mask.shape, generator=rng)
    line = torch.maximum(edge, 0.5 * slip) * pressure * grain
    paper = 0.93 + 0.04 * torch.randn(mask.shape, generator=rng)
    return blend(line, torch.full((1,), 0.25), paper).expand(-1, 3, -1, -1)


def chalk(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Broken light strokes on a smeared dark board."""
    board = torch.tensor([0.10, 0.20, 0.15]).view(1, 3, 1, 1) + 0.25 * field(mask, 5, rng)
    grain = (blur(torch.rand(mask.shape, generator=rng), 1) > 0.44).float()
    dust = blur(mask, 4) * 0.35
    tint = 0.75 + 0.25 * uniform(0, 1, len(mask), 3, 1, 1, rng=rng)
    return blend((mask * grain * 0.9 + dust).clamp(max=1), tint, board)


def weave(mask: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """A strongly hatched glyph on faintly hatched cloth, the stripes crossing."""
    n, side = len(mask), mask.shape[-1]
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    shift = torch.randint(0, 6, (2, n, 1, 1, 1), generator=rng)
    rising = ((row + column + shift[0]) % 6 < 3).float()
    falling = ((row - column + shift[1]) % 6 < 3).float()
    ink, paper = two_colours(n, rng, gap=0.5)
    return blend(blend(mask, rising, 0.5 * falling), ink, paper)


STYLES: dict[str, Style] = {
    "print": print_,
    "sketch": sketch,
    "chalk": chalk,
    "photo": photo,
    "poster": poster,
    "weave": weave,
}
