"""Which CLIP, with which weights: `micro-clip`, or `clip:NAME` for the models of open_clip."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.clip_resnet import PIXELS_PER_PLACE
from fedprompt.backbones.micro_clip import ASSET, MICRO_CLIP, load_micro_clip, read_micro_clip
from fedprompt.backbones.weights import CLIP_PREFIX, BackboneSpec, file_identity
from fedprompt.core.errors import UserError

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
MICRO_SIZE, MICRO_PATCH = 32, 8


def clip_spec(name: str, weights: str | None, image_size: int | None) -> BackboneSpec:
    """Check a user's choice without building towers or asking the network.

    ``weights`` is a file, `random`, None for micro-clip's own, or a tag of open_clip's, whose identity is `hub:TAG`.
    """
    if name == MICRO_CLIP:
        if weights == "hub":
            raise UserError(f"{MICRO_CLIP} is not on a hub; leave --weights out, or give a file or 'random'.")
        identity = "random" if weights == "random" else file_identity(Path(weights) if weights else ASSET)
        if weights and identity != "random":
            read_micro_clip(Path(weights))
        return BackboneSpec(name, identity, _fitting(name, image_size or MICRO_SIZE, MICRO_PATCH))
    from fedprompt.backbones.open_clip_towers import model_config, open_clip

    model = name.removeprefix(CLIP_PREFIX)
    vision = model_config(model)["vision_cfg"]
    tags = open_clip().list_pretrained_tags_by_model(model)
    size = _fitting(name, image_size or int(vision.get("image_size", 224)), _patch_size(vision))
    if weights == "random":
        return BackboneSpec(name, "random", size)
    if weights in tags:
        return BackboneSpec(name, f"hub:{weights}", size)
    if weights is None or Path(weights).suffix not in SUFFIXES:
        raise UserError(
            f"weights {weights!r} of {name}: must be 'random', a file ending in {', '.join(SUFFIXES)}, or one of "
            f"open_clip's tags ({', '.join(tags) or 'none for this model'})."
        )
    return BackboneSpec(name, file_identity(Path(weights)), size)


def _patch_size(vision: Mapping[str, Any]) -> int:
    """Of a ResNet, whose configuration lists its layers, the pixels that one place stands for."""
    return PIXELS_PER_PLACE if isinstance(vision.get("layers"), list) else int(vision.get("patch_size") or 1)


def _fitting(name: str, size: int, patch: int) -> int:
    if size < patch or size % patch:
        nearest = max(patch, size // patch * patch)
        raise UserError(f"image size {size} is not a multiple of the patch size {patch} of {name}; take {nearest}.")
    return size


def load_clip(spec: BackboneSpec, weights: str | None = None, device: str | torch.device = "cpu") -> FrozenCLIP:
    """Build the towers of ``spec``, fetching the weights of a tag; ``weights`` is the file behind ``spec``, if any."""
    meta = torch.device(device).type == "meta"
    if spec.weights.startswith("sha256:"):
        path = Path(weights) if weights else ASSET
        if file_identity(path) != spec.weights:
            raise UserError(
                f"weights {str(path)!r} are {file_identity(path)}, but {spec.weights} is asked for; "
                "pass the right --weights FILE."
            )
    if spec.name == MICRO_CLIP:
        path = ASSET if spec.weights == "random" or not weights else Path(weights)
        return load_micro_clip(path, spec.weights, spec.image_size, meta).to(device)
    from fedprompt.backbones.open_clip_towers import BytePairs, build_model, open_clip, rebuild

    name = spec.name.removeprefix(CLIP_PREFIX)
    source = "random" if spec.weights == "random" else spec.weights.removeprefix("hub:")
    model = build_model(name, str(weights) if source.startswith("sha256:") else source, spec.image_size, meta)
    return rebuild(model, spec.name, spec.weights, BytePairs(open_clip().get_tokenizer(name))).to(device)
