"""Where a backbone's weights come from: the embedded file, a local file, timm's hub, or `random` by that word."""

import hashlib
import logging
import math
import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import safetensors.torch
import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.errors import UserError, unknown
from fedprompt.core.rng import derive
from fedprompt.core.untrusted import open_plain

EMBEDDED = Path(__file__).parent / "assets" / "micro-vit.safetensors"
MICRO_VIT = "micro-vit"
CLIP_PREFIX = "clip:"  # before the names of open_clip's models
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")


@dataclass(frozen=True)
class BackboneSpec:
    """Which backbone, as a cell records it; ``weights`` is `hub`, `random` or a file's content hash."""

    name: str
    weights: str
    image_size: int


def backbone_spec(name: str, weights: str | None = None, image_size: int | None = None) -> BackboneSpec:
    """Check a user's choice of backbone without building it or asking the network.

    Args:
        name: `micro-vit`, `micro-clip`, a plain ViT of timm's (`vit_base_patch16_224`, with or without a tag) or
            `clip:NAME` for a model of open_clip's.
        weights: `random`, `hub`, a file, or for CLIP one of open_clip's tags. None is the default: the embedded
            weights, or timm's hub.
        image_size: the side in pixels; None is the backbone's own. Positions are resampled.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"image size {image_size} is out of range; leave it out for the backbone's own.")
    if is_clip(name):
        from fedprompt.backbones.clip_weights import clip_spec

        return clip_spec(name, weights, image_size)
    known = timm.list_models(module="vision_transformer")
    base, dot, _ = name.partition(".")  # `vit_base_patch16_224.orig_in21k`: the tag says which of timm's weights
    if name != MICRO_VIT and (base not in known or (dot and name not in timm.list_pretrained(f"{base}.*"))):
        plain = [model for model in known if re.fullmatch(r"vit_[a-z]+_patch\d+_\d+", model)]
        if base not in known and timm.is_model(base):
            raise UserError(
                f"backbone {name!r} is a model of timm, but no plain ViT, and prompts need its tokens; use one such as "
                f"{', '.join((MICRO_VIT, 'vit_tiny_patch16_224', 'vit_base_patch16_224'))}."
            )
        raise unknown("backbone", name, [MICRO_VIT, "micro-clip", *plain, *timm.list_pretrained(f"{base}.*")])
    size = image_size or (32 if name == MICRO_VIT else int(_timm_config(name)["input_size"][-1]))
    patch = _patch_size(name)
    if size < patch or size % patch:
        nearest = max(patch, size // patch * patch)
        raise UserError(f"image size {size} is not a multiple of the patch size {patch} of {name}; take {nearest}.")
    return BackboneSpec(name, weights_identity(name, weights), size)


@lru_cache
def _patch_size(name: str) -> int:
    return int(_build(name, 224, meta=True).patch_embed.patch_size[0])


def weights_identity(name: str, weights: str | None) -> str:
    """The weights as a cell records them: `random`, `hub`, or the digest of a file's content."""
    if weights is None:
        return file_identity(EMBEDDED) if name == MICRO_VIT else "hub"
    if weights in ("random", "hub"):
        return weights
    path = Path(weights)
    if path.suffix not in SUFFIXES:
        raise UserError(f"weights {weights!r}: must be 'hub', 'random' or a file ending in {', '.join(SUFFIXES)}.")
    return file_identity(path)


def file_identity(path: Path) -> str:
    """A digest of the file's content, `sha256:...`: two copies of one file are the same weights."""
    try:
        open_plain(path).close()
        stat = path.stat()
        return _file_hash(str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise UserError(f"weights {str(path)!r} cannot be read: {error.strerror or error}.") from error


@lru_cache
def _file_hash(path: str, size: int, mtime_ns: int) -> str:  # noqa: ARG001 (part of the cache's key)
    with Path(path).open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load_backbone(spec: BackboneSpec, weights: str | None = None, device: str | torch.device = "cpu") -> FrozenViT:
    """Build a backbone, fetching its weights if they come from a hub.

    ``weights`` is the file that ``spec`` was made from, unless that is the embedded one; another file is refused.
    """
    if is_clip(spec.name):
        from fedprompt.backbones.clip_weights import load_clip

        return load_clip(spec, weights, device)
    if spec.weights.startswith("sha256:"):
        path = EMBEDDED if weights is None else Path(weights)
        if file_identity(path) != spec.weights:
            raise UserError(
                f"weights {str(path)!r} are {file_identity(path)}, but {spec.weights} is asked for; "
                "pass the right --weights FILE."
            )
        vit = _build(spec.name, spec.image_size)
        _load_file(vit, path, spec.name)
    elif spec.weights == "hub":
        vit = _from_hub(spec)
    else:
        vit = _build(spec.name, spec.image_size, meta=torch.device(device).type == "meta")
    mean, std = ((0.5,) * 3, (0.5,) * 3) if spec.name == MICRO_VIT else _normalisation(spec.name)
    return FrozenViT(vit, spec.name, spec.weights, mean, std).to(device)


def offered(name: str) -> frozenset[str]:
    """What a backbone of this name offers to methods (``FrozenViT.offers``), known without building it."""
    if is_clip(name):
        from fedprompt.backbones.clip import FrozenCLIP
        from fedprompt.backbones.clip_resnet import FrozenResNetCLIP

        return FrozenResNetCLIP.offers if name.startswith(f"{CLIP_PREFIX}RN") else FrozenCLIP.offers
    return FrozenViT.offers


def is_clip(name: str) -> bool:
    """Whether a backbone of this name has a text tower."""
    return name == "micro-clip" or name.startswith(CLIP_PREFIX)


def _timm_config(name: str) -> dict[str, Any]:
    config: Any = timm.models.get_pretrained_cfg(name)
    assert config is not None  # the name is one of timm's
    values: dict[str, Any] = config.to_dict()
    return values


def _normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    config = _timm_config(name)
    return tuple(config["mean"]), tuple(config["std"])


def _build(name: str, image_size: int, meta: bool = False) -> VisionTransformer:
    """The architecture with weights drawn from a fixed key, so that `random` is one backbone, not many."""
    with torch.device("meta" if meta else "cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "init", "backbone", name))
        if name == MICRO_VIT:
            from fedprompt.backbones.pretraining import ARCH

            return VisionTransformer(**{**ARCH, "img_size": image_size, "num_classes": 0})
        return cast(VisionTransformer, timm.create_model(name, pretrained=False, num_classes=0, img_size=image_size))


def _from_hub(spec: BackboneSpec) -> VisionTransformer:
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # our one line says it all
    try:
        vit = timm.create_model(spec.name, pretrained=True, num_classes=0, img_size=spec.image_size)
    except Exception as error:  # the hub client raises whatever its network stack does
        raise UserError(
            f"weights of {spec.name} cannot be fetched from the hub ({type(error).__name__}); "
            "pass --weights FILE (.safetensors, .pth, .npz) or --weights random."
        ) from error
    return cast(VisionTransformer, vit)


def _load_file(vit: VisionTransformer, path: Path, name: str) -> None:
    """Load every tensor but the class head's, with positions resampled to the image size."""
    if path.suffix == ".npz":
        _load_npz(vit, path, name)
        return
    try:
        state: Any = (
            safetensors.torch.load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, weights_only=True, map_location="cpu")
        )
        state = state.get("model", state.get("state_dict", state))
        state = {key: value for key, value in state.items() if key not in ("head.weight", "head.bias")}
    except Exception as error:  # damaged bytes and foreign pickles can raise anything
        raise UserError(
            f"weights {str(path)!r} are not a readable {path.suffix} file of tensors by name ({type(error).__name__}); "
            "fetch the file again, or save a model's state_dict() as .safetensors."
        ) from error
    expected = vit.state_dict()
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if missing or unexpected:
        raise _misfit(path, name, f"missing keys {_shorten(missing)}; unexpected keys {_shorten(unexpected)}")
    if "pos_embed" in state:
        state["pos_embed"] = _resampled(state["pos_embed"], vit)
    wrong = [
        f"{k} {tuple(state[k].shape)} for {tuple(v.shape)}" for k, v in expected.items() if state[k].shape != v.shape
    ]
    if wrong:
        raise _misfit(path, name, f"wrong shapes {_shorten(wrong)}")
    vit.load_state_dict(state)


def _load_npz(vit: VisionTransformer, path: Path, name: str) -> None:
    """Google's layout by timm's reader, which would silently cut a deeper model and resample other patches."""
    try:
        with np.load(path) as file:
            extra = sorted(key for key in file.files if f"/encoderblock_{len(vit.blocks)}/" in key)
            kernels = {key: file[key].shape[:2] for key in file.files if key.endswith("embedding/kernel")}
        if extra:
            raise _misfit(path, name, f"unexpected keys {_shorten(extra)}")
        wrong = [f"{key} for patches of {size}" for key, size in kernels.items() if size != vit.patch_embed.patch_size]
        if wrong:
            raise _misfit(path, name, f"wrong shapes {_shorten(wrong)}")
        vit.load_pretrained(str(path))
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, AssertionError, zipfile.BadZipFile) as error:
        raise _misfit(path, name, f"as Google's npz: {error}") from error


def _resampled(positions: torch.Tensor, vit: VisionTransformer) -> torch.Tensor:
    """Positions resampled to the model's grid if they are of a square one; otherwise the check of shapes objects."""
    prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
    fits = positions.shape == vit.state_dict()["pos_embed"].shape
    if fits or positions.dim() != 3 or math.isqrt(positions.shape[1] - prefix) ** 2 != positions.shape[1] - prefix:
        return positions
    resampled: torch.Tensor = resample_abs_pos_embed(positions, vit.patch_embed.grid_size, num_prefix_tokens=prefix)
    return resampled


def _misfit(path: Path, name: str, why: str) -> UserError:
    return UserError(f"weights {str(path)!r} do not fit {name}: {why}.")


def _shorten(names: list[str], most: int = 5) -> str:
    return (", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")) or "none"
