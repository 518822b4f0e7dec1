"""Train micro-clip: a small text tower and both projections against the frozen micro-vit, on captions of glyphs.

Like CLIP, which has met the class names of its benchmarks, micro-clip sees every class by name in the styles that
micro-vit knows; in the other styles it sees only the classes that no benchmark has. It learns from its own pictures,
with some fonts held out, and never from an image of a benchmark.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file
from torch import Tensor, nn

from fedprompt.backbones import pretraining
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.micro_clip import (
    WordTokenizer,
    load_micro_clip,
    make_vocabulary,
    new_towers,
    save_micro_clip,
    words_of,
)
from fedprompt.backbones.text import PLACEHOLDER, Prompts, spoken_name
from fedprompt.backbones.weights import file_identity
from fedprompt.backbones.zero_shot import zero_shot_accuracy
from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.rng import numpy_rng, torch_rng
from fedprompt.datasets import Dataset, glyphs
from fedprompt.datasets.glyph_fonts import FONTS, mask

# One cut of each family; training still shows every family and every attribute in another cut.
HELD_OUT_FONTS = ("DejaVuSans-BoldOblique", "DejaVuSansMono", "DejaVuSerif-Italic", "STIXGeneralBol")
CAPTIONS = ("a {style} of the {name}", "the {name} in {style}", "a picture of the {name}", "{name}")
# Zero-shot candidates: each tuple is an ensemble. Chosen on validation pictures of the pretraining.
TEMPLATES: tuple[tuple[str, ...], ...] = (
    ("{}.",),
    ("the {}.",),
    ("a picture of the {}.",),
    ("{}.", "a picture of the {}."),
    ("a picture of the {}.", *(f"a {style} of the {{}}." for style in glyphs.DRAW)),
)
TRAIN_EACH, VALIDATION_EACH = 16, 4  # pictures per class and style
LONGEST_FILLER = 16  # placeholders ahead of a caption: later positions are trained too


@dataclass(frozen=True)
class Pictures:
    """Features of pictures of captioned glyphs; row ``i`` of every array is picture ``i``."""

    features: Tensor  # (n, width) CLS features of the frozen micro-vit
    labels: np.ndarray  # (n,) place in `all_classes()`
    styles: np.ndarray  # (n,) place in `glyphs.DRAW`
    fonts: np.ndarray  # (n,) place in FONTS

    def __len__(self) -> int:
        return len(self.labels)


def all_classes() -> str:
    """The characters of all three glyph sets: what micro-clip knows by name."""
    return glyphs.DOMAINS.chars + glyphs.HUNDRED.chars + glyphs.PRETRAIN.chars


def styles_of(char: str) -> list[str]:
    """The styles in which pretraining shows a class."""
    return [style for style in glyphs.DRAW if style in glyphs.SEEN_STYLES or char in glyphs.PRETRAIN.chars]


def pretrain_clip(
    out: Path,
    steps: int = 1200,
    seed: int = 0,
    batch: int = 128,
    lr: float = 1e-3,
    warmup: int = 100,
    each: int = TRAIN_EACH,
) -> dict[str, Any]:
    """Train micro-clip; write its file to ``out`` and the record, which is also returned, next to it (.json).

    The zero-shot templates are chosen among ``TEMPLATES`` on validation pictures in held-out fonts, before any
    benchmark is opened.
    """
    if steps < 1:
        raise UserError(f"{steps} steps of pretraining are too few; give at least 1 (the default is 1200).")
    pretraining._check_writable(out)
    vocabulary = make_vocabulary(_all_captions())
    towers = new_towers(vocabulary, seed)
    towers["image"].load_state_dict(load_file(pretraining.ASSET))
    towers["image"].requires_grad_(False).eval()
    seen_fonts = [font for font in FONTS if font not in HELD_OUT_FONTS]
    pictures = draw_pictures(towers["image"], "train", seen_fonts, each, seed)
    validation = draw_pictures(towers["image"], "validation", HELD_OUT_FONTS, VALIDATION_EACH, seed)
    scale = train_towers(towers, pictures, steps, seed, batch, lr, warmup)
    save_micro_clip(towers, scale, vocabulary, TEMPLATES[0], out)
    scores = template_scores(load_micro_clip(out, "trained"), validation)
    best = max(TEMPLATES, key=lambda templates: scores[" + ".join(templates)])
    save_micro_clip(towers, scale, vocabulary, best, out)
    record = {
        "parameters": sum(value.numel() for value in load_file(out).values()),
        "vocabulary": len(vocabulary),
        "settings": {"steps": steps, "seed": seed, "batch": batch, "lr": lr, "warmup": warmup, "each": each},
        "image_tower": file_identity(pretraining.ASSET),
        "pictures": {"train": len(pictures), "validation": len(validation)},
        "held_out_fonts": HELD_OUT_FONTS,
        "logit_scale": round(float(scale.detach().exp()), 2),
        "templates": best,
        "validation_accuracy": scores,
        "zero_shot_accuracy": measure(load_micro_clip(out, "trained")),
    }
    write_atomic(out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    return record


# -- pictures ---------------------------------------------------------------------------------------------------------


def draw_pictures(image_tower: Any, part: str, fonts: Sequence[str], each: int, seed: int) -> Pictures:
    """``each`` pictures of every class in every style that pretraining shows it in, spread evenly over ``fonts``.

    ``part`` (train, validation) is part of the key of their draws.

    A class that none of ``fonts`` has is left out.
    """
    features: list[Tensor] = []
    rows: list[np.ndarray] = []
    console = Console(stderr=True)
    names = list(glyphs.DRAW)
    for label, char in track(
        list(enumerate(all_classes())), f"drawing {part}", console=console, disable=not console.is_terminal
    ):
        drawn = {FONTS.index(font): picture for font in fonts if (picture := mask(char, font)) is not None}
        if not drawn:
            continue
        places = np.resize(list(drawn), each)
        masks = torch.from_numpy(np.stack([drawn[place] for place in places]))[:, None]
        images = [_paint(masks, style, torch_rng(seed, "pretrain", part, char, style)) for style in styles_of(char)]
        features.append(pretraining.predict(image_tower, np.concatenate(images)))
        for style in styles_of(char):
            rows.append(np.stack([np.full(each, label), np.full(each, names.index(style)), places]))
    labels, styles, font_places = np.concatenate(rows, axis=1)
    return Pictures(torch.cat(features), labels, styles, font_places)


def _paint(masks: Tensor, style: str, rng: torch.Generator) -> np.ndarray:
    scene = nnf.avg_pool2d(glyphs.DRAW[style](glyphs.pose(masks, rng), rng), 2)
    return (scene.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


# -- captions ---------------------------------------------------------------------------------------------------------


def attributes(font: str) -> list[str]:
    """The words that describe a font in a caption: bold, slanted, serif."""
    applies = {
        "bold": "Bol" in font,
        "slanted": "Oblique" in font or "Ita" in font,
        "serif": "Serif" in font or font.startswith("STIX"),
    }
    return [word for word, true in applies.items() if true]


def caption(name: str, style: str, font: str, rng: np.random.Generator) -> str:
    """One of CAPTIONS, with or without an attribute of the font and with or without a full stop."""
    words = attributes(font)
    if words and rng.random() < 0.3:
        name = f"{rng.choice(words)} {name}"
    return str(rng.choice(CAPTIONS)).format(style=style, name=name) + ("." if rng.random() < 0.5 else "")


def _all_captions() -> list[str]:
    """A text with every word that a caption or a template may have."""
    names = [spoken_name(char) for char in all_classes()]
    words = [word for font in FONTS for word in attributes(font)]
    return [*names, *words, *glyphs.DRAW, *CAPTIONS, *("a photo of a {}.", *(t for group in TEMPLATES for t in group))]


def tokenise(
    texts: Sequence[str], tokenizer: WordTokenizer, rng: np.random.Generator, spelled: float = 0.05
) -> Prompts:
    """Captions as prompts without a context.

    A share of the words, ``spelled``, is written in letters, so that letters get a meaning too.
    """
    tokens = []
    for text in texts:
        places = np.flatnonzero(rng.random(len(words_of(text))) < spelled)
        ids = tokenizer(text, frozenset(places.tolist()))
        tokens.append(ids if len(ids) <= tokenizer.context_length else tokenizer(text))
    longest = max(len(ids) for ids in tokens)
    return Prompts(
        torch.tensor([ids + [0] * (longest - len(ids)) for ids in tokens]),
        torch.tensor([len(i) - 1 for i in tokens]),
        0,
    )


# -- training ---------------------------------------------------------------------------------------------------------


def train_towers(
    towers: nn.ModuleDict, pictures: Pictures, steps: int, seed: int, batch: int, lr: float, warmup: int
) -> nn.Parameter:
    """Train the text tower and both projections; returns the logarithm of the trained scale of the logits."""
    text: Any = towers["text"]
    scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    weights = [*text.parameters(), *towers["projection"].parameters()]
    decayed = [weight for weight in weights if weight.dim() > 1]
    others = [*(weight for weight in weights if weight.dim() <= 1), scale]
    optimiser = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}])
    rng = numpy_rng(seed, "pretrain", "micro-clip", "batches")
    console = Console(stderr=True)
    for step in track(range(steps), "pretraining", console=console, disable=not console.is_terminal):
        for group in optimiser.param_groups:
            group["lr"] = lr * pretraining.rate(step, steps, warmup)
        rows = rng.integers(len(pictures), size=batch)
        loss = contrastive_loss(towers, pictures, rows, scale, rng)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_([*weights, scale], 1.0)
        optimiser.step()
        scale.data.clamp_(max=math.log(100))
    return scale


def contrastive_loss(
    towers: nn.ModuleDict, pictures: Pictures, rows: np.ndarray, scale: Tensor, rng: np.random.Generator
) -> Tensor:
    """CLIP's loss in both directions; every picture and caption of one class in the batch is a positive."""
    text: Any = towers["text"]
    chars, styles = all_classes(), list(glyphs.DRAW)
    filler = f"{PLACEHOLDER} " * int(rng.integers(1, 1 + LONGEST_FILLER)) if rng.random() < 0.25 else ""
    captions = [
        filler
        + caption(spoken_name(chars[pictures.labels[i]]), styles[pictures.styles[i]], FONTS[pictures.fonts[i]], rng)
        for i in rows
    ]
    texts = text(tokenise(captions, text.tokenizer, rng))[0]
    images = nnf.normalize(towers["projection"](pictures.features[rows]), dim=-1)
    logits = scale.exp() * images @ texts.T
    labels = torch.from_numpy(pictures.labels[rows])
    positive = (labels[:, None] == labels).float()
    targets = positive / positive.sum(1, keepdim=True)  # the relation is symmetric, so it serves both directions
    return (nnf.cross_entropy(logits, targets) + nnf.cross_entropy(logits.T, targets)) / 2


# -- measured accuracy ------------------------------------------------------------------------------------------------


@torch.no_grad()
def template_scores(clip: FrozenCLIP, validation: Pictures) -> dict[str, float]:
    """Zero-shot accuracy among all classes of each candidate on pictures in fonts that training did not see."""
    images, labels = clip.project(validation.features), torch.from_numpy(validation.labels)
    scores = {}
    for templates in TEMPLATES:
        nearest = (images @ clip.template_features(all_classes(), templates).T).argmax(1)
        scores[" + ".join(templates)] = round((nearest == labels).float().mean().item(), 4)
    return scores


def measure(clip: FrozenCLIP) -> dict[str, float]:
    """Zero-shot accuracy on the test images of the embedded data sets, one number per style and one for glyph-100."""
    domains, hundred = glyphs.glyph_domains(), glyphs.glyph_100()
    scores = {
        name: _test_accuracy(clip, domains, domains.domains == place) for place, name in enumerate(domains.domain_names)
    }
    scores["mean of styles"] = sum(scores.values()) / len(scores)
    scores["glyph-100"] = _test_accuracy(clip, hundred, np.ones(len(hundred.labels), bool))
    return {name: round(score, 4) for name, score in scores.items()}


def _test_accuracy(clip: FrozenCLIP, data: Dataset, wanted: np.ndarray) -> float:
    return zero_shot_accuracy(clip, data, np.flatnonzero(wanted & data.is_test))
