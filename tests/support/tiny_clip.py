"""A tiny open_clip model with no parameter left at a neutral first value, and the same model rebuilt."""

from typing import Any

import open_clip
import torch
from open_clip.model import CLIP

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.open_clip_towers import BytePairs, rebuild

VISION = {"layers": 3, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32, "mlp_ratio": 2.3}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 48, "heads": 4, "layers": 3}
IMAGES = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def tiny_open_clip(vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None, **options: Any) -> CLIP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = CLIP(32, VISION | (vision or {}), TEXT | (text or {}), **options).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def rebuilt(model: CLIP) -> FrozenCLIP:
    return rebuild(model, "tiny", "random", BytePairs(open_clip.get_tokenizer("ViT-B-16")))


def pixels(clip: FrozenCLIP, images: torch.Tensor = IMAGES) -> torch.Tensor:
    return (images - clip.mean) / clip.std
