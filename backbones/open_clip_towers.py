"""Towers of open_clip models, rebuilt from timm's blocks so that both families share one image and one text path.

open_clip builds the model, reads the checkpoint and brings the tokenizer; of its forward code only the convolutions of
ResNets run in a method.
"""

import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.clip_resnet import FrozenResNetCLIP
from fedprompt.backbones.text import TextTower
from fedprompt.core.errors import UserError, unknown
from fedprompt.core.rng import derive
from fedprompt.core.untrusted import read_table

INSTALL = "pip install -e '.[clip]' in the checkout"
QUICK = "-quickgelu"
HUGGING_FACE = ("hf_model_name", "hf_tokenizer_name")  # keys of a text tower that is not open_clip's own


def open_clip() -> Any:
    """The package, which is optional; without it the error says how to install it."""
    try:
        import open_clip as package
    except ImportError as error:
        raise UserError(f"open_clip is not installed; CLIP models other than micro-clip need it: {INSTALL}.") from error
    return package


def model_config(name: str) -> dict[str, Any]:
    """open_clip's configuration of a model that it lists, or an error with the nearest names.

    Only listed names: open_clip would fetch `hf-hub:...` from the network and run what `local-dir:...` names. Models
    whose text side is a Hugging Face model or tokenizer are refused, since building them fetches its files.
    """
    models = open_clip().list_models()
    if name not in models:
        raise unknown("open_clip model", name, [model for model in models if model.startswith(("ViT-", "RN"))])
    config: dict[str, Any] = open_clip().get_model_config(name)
    foreign = [config["text_cfg"][key] for key in HUGGING_FACE if config["text_cfg"].get(key)]
    if foreign:
        raise _unfit(name, f"needs {foreign[0]!r} of another library for its text")
    return config


def build_model(name: str, weights: str, image_size: int, meta: bool = False) -> Any:
    """open_clip's own model, from which `rebuild` takes the tensors.

    ``weights`` is `random` (drawn from a fixed key), a file, or one of open_clip's tags, which is fetched. A file or
    tag that was trained with the other GELU is refused. With ``meta`` there are shapes and no values.
    """
    quick = bool(model_config(name).get("quick_gelu", False))
    options: dict[str, Any] = {"force_image_size": image_size, "weights_only": True}
    if weights == "random":
        with torch.device("meta" if meta else "cpu"), torch.random.fork_rng(devices=[]), _quiet():
            torch.manual_seed(derive(0, "init", "backbone", name))
            return open_clip().create_model(name, load_weights=False, device="meta" if meta else "cpu", **options)
    if weights in open_clip().list_pretrained_tags_by_model(name):
        _require_gelu(name, weights, quick, _tag_is_quick(name, weights), f"the tag {weights!r}")
    elif Path(weights).is_file():
        _require_gelu(name, weights, quick, file_is_quick(Path(weights)), "the file")
    else:
        raise unknown("weights", weights, open_clip().list_pretrained_tags_by_model(name), f"Or a file, for {name}.")
    try:
        with _quiet():
            return open_clip().create_model(name, pretrained=weights, **options)
    except Exception as error:  # the hub client raises whatever its network stack does, unpicklers likewise
        raise UserError(f"{name} cannot take the weights {weights!r}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    first = str(error).strip().split("\n")[0]
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error) or "TorchScript" in str(error):
        return "it is not a file of plain tensors; convert it to .safetensors once, as docs/clip.md shows."
    if "download" in first.lower():
        return "they cannot be downloaded; pass --weights FILE (.safetensors or .pt)."
    return f"{type(error).__name__}: {first}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence open_clip, which writes to the root logger what our errors and records say."""
    logger = logging.getLogger()
    level, logger.level = logger.level, logging.ERROR
    try:
        yield
    finally:
        logger.level = level


# -- quick GELU -------------------------------------------------------------------------------------------------------


def _tag_is_quick(name: str, tag: str) -> bool:
    return bool(open_clip().get_pretrained_cfg(name, tag).get("quick_gelu", False))


def file_is_quick(path: Path) -> bool | None:
    """Whether a checkpoint file was trained with quick GELU; None if nothing shows it.

    Tensors look the same either way. OpenAI's weights, for which it matters most, can be recognised: by three numbers
    that their files carry, their mixture of precisions, a configuration next to the file, or the file's name.
    """
    config = path.parent / "open_clip_config.json"
    if config.is_file():
        model = read_table(config).get("model_cfg", {})
        return bool(model.get("quick_gelu", False)) if isinstance(model, dict) else None
    if "openai" in path.name.lower():
        return True
    if path.suffix == ".safetensors":
        try:
            with safetensors.safe_open(path, "pt") as file:
                names = set(file.keys())
                halves = {
                    name: file.get_slice(name).get_dtype() == "F16"
                    for name in ("visual.conv1.weight", "visual.ln_pre.weight")
                    if name in names
                }
        except (OSError, safetensors.SafetensorError):
            return None  # the loader says what is wrong with it
        if "input_resolution" in names or list(halves.values()) == [True, False]:
            return True
    return None


def _require_gelu(name: str, weights: str, quick: bool, wanted: bool | None, what: str) -> None:
    if wanted is None or wanted == quick:
        return
    other = name.removesuffix(QUICK) if quick else name + QUICK
    raise UserError(
        f"{what} {weights!r} was trained {'with' if wanted else 'without'} quick GELU, but {name} computes "
        f"{'with' if quick else 'without'} it, which costs accuracy silently; use the model {other}."
    )


# -- the towers -------------------------------------------------------------------------------------------------------


def rebuild(model: Any, name: str, identity: str, tokenizer: Any) -> FrozenCLIP:
    """Our towers around the tensors of open_clip's ``model``; none is copied.

    Refuses, with the reason, a model whose towers cannot be rebuilt exactly. ``identity`` is that of the weights.
    """
    text = _text_tower(getattr(model, "text", model), name, tokenizer)
    preprocess = open_clip().model.get_model_preprocess_cfg(model)
    mean = preprocess.get("mean") or open_clip().OPENAI_DATASET_MEAN
    std = preprocess.get("std") or open_clip().OPENAI_DATASET_STD
    scale = 1 / 0.07 if model.logit_scale.is_meta else float(model.logit_scale.detach().exp())
    if isinstance(model.visual, open_clip().modified_resnet.ModifiedResNet):
        return FrozenResNetCLIP(model.visual, text, scale, name, identity, mean, std)
    vit, projection = _image_tower(model.visual, name)
    return FrozenCLIP(vit, projection, text, scale, name, identity, mean, std)


class BytePairs:
    """open_clip's tokenizer without its silent cut at the context length."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.context_length = tokenizer, int(tokenizer.context_length)
        self.start, self.end = int(tokenizer.sot_token_id), int(tokenizer.eot_token_id)

    def __call__(self, text: str) -> list[int]:
        return [self.start, *self.tokenizer.encode(text), self.end]


def _unfit(name: str, why: str) -> UserError:
    return UserError(f"open_clip model {name!r} {why}; use one such as ViT-B-16, ViT-B-32 or ViT-L-14.")


def _image_tower(visual: Any, name: str) -> tuple[VisionTransformer, nn.Linear]:
    if isinstance(visual, open_clip().timm_model.TimmModel):
        projection = getattr(visual.head, "proj", None)
        if not isinstance(visual.trunk, VisionTransformer) or not isinstance(projection, nn.Linear):
            raise _unfit(name, "has no plain ViT with a linear projection as image tower")
        return visual.trunk, projection
    if not isinstance(visual, open_clip().transformer.VisionTransformer):
        raise _unfit(name, f"has a {type(visual).__name__} as image tower, which takes no tokens")
    if visual.attn_pool is not None or visual.pool_type != "tok" or visual.final_ln_after_pool:
        raise _unfit(name, "does not read its image tower at the class token")
    blocks = _blocks(visual.transformer, name)
    with torch.device("meta"):
        vit = VisionTransformer(
            img_size=visual.image_size,
            patch_size=visual.patch_size,
            embed_dim=visual.transformer.width,
            depth=0,
            num_classes=0,
            pre_norm=True,
            norm_layer=partial(nn.LayerNorm, eps=visual.ln_post.eps),
        )
    vit.patch_embed.proj.weight = visual.conv1.weight
    vit.cls_token = nn.Parameter(visual.class_embedding.detach()[None, None])
    vit.pos_embed = nn.Parameter(visual.positional_embedding.detach()[None])
    vit.norm_pre, vit.norm, vit.blocks = visual.ln_pre, visual.ln_post, nn.Sequential(*blocks)
    return vit, _linear(visual.proj)


def _text_tower(text: Any, name: str, tokenizer: Any) -> TextTower:
    if not all(hasattr(text, part) for part in ("token_embedding", "positional_embedding", "ln_final", "transformer")):
        raise _unfit(name, "has a text tower of another library")
    if text.attn_mask is None:
        raise _unfit(name, "has a text tower without a causal mask, whose prompts may not be cut at their end")
    pooling = getattr(text, "text_pool_type", getattr(text, "pool_type", None))
    ends: dict[Any, Any] = {"argmax": tokenizer.end, "eos": getattr(text, "text_eos_id", getattr(text, "eos_id", None))}
    if ends.get(pooling) != tokenizer.end or getattr(text, "cls_emb", None) is not None:
        raise _unfit(name, "does not read its text tower at the end-of-text token")
    return TextTower(
        tokenizer,
        text.token_embedding,
        text.positional_embedding,
        _blocks(text.transformer, name),
        text.ln_final,
        _linear(text.text_projection),
    )


def _linear(matrix: Any) -> nn.Linear:
    """A projection as open_clip keeps it, a module or a matrix that multiplies from the right."""
    if isinstance(matrix, nn.Linear):
        return matrix
    width, dim = matrix.shape
    layer = nn.Linear(width, dim, bias=False, device="meta")
    layer.weight = nn.Parameter(matrix.detach().T)
    return layer


_RENAMED = {
    "ln_1.": "norm1.",
    "ln_2.": "norm2.",
    "attn.in_proj_": "attn.qkv.",
    "attn.out_proj.": "attn.proj.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
    "ls_1.": "ls1.",
    "ls_2.": "ls2.",
}


def _blocks(transformer: Any, name: str) -> list[Block]:
    plain = open_clip().transformer.ResidualAttentionBlock
    if not all(type(block) is plain for block in transformer.resblocks):
        raise _unfit(name, "has blocks that are not plain pre-norm blocks")
    return [_block(block) for block in transformer.resblocks]


def _block(source: Any) -> Block:
    width, hidden = source.mlp.c_fc.in_features, source.mlp.c_fc.out_features
    norm: Any = partial(nn.LayerNorm, eps=source.ln_1.eps)  # timm's annotation asks for a class
    block = Block(
        width,
        source.attn.num_heads,
        mlp_ratio=(hidden + 0.5) / width,  # timm rounds down
        qkv_bias=True,
        init_values=None if isinstance(source.ls_1, nn.Identity) else 1.0,
        norm_layer=norm,
        device="meta",
    )
    block.load_state_dict(dict(_renamed(source.state_dict())), assign=True)
    block.mlp.act = source.mlp.gelu
    return block


def _renamed(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        old = next(old for old in _RENAMED if key.startswith(old))
        yield key.replace(old, _RENAMED[old], 1), value
