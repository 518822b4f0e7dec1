"""micro-clip, the small CLIP that comes with the suite: micro-vit and a text tower that reads Unicode names."""

import json
import re
import string
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.pretraining import ARCH, MEAN, STD
from fedprompt.backbones.text import TextTower
from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.rng import derive
from fedprompt.core.untrusted import parse_json

MICRO_CLIP = "micro-clip"
ASSET = Path(__file__).parent / "assets" / "micro-clip.safetensors"
TEXT_ARCH = {"width": 96, "layers": 3, "heads": 4, "mlp_ratio": 2, "context_length": 48}
DIM = 96  # of the space that images and texts share
SPELLING = tuple(f"+{letter}" for letter in string.ascii_lowercase + string.digits)  # letters of a word spelled out
_PAD, _START, _END = "<pad>", "<start>", "<end>"
_TOKEN = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


def words_of(text: str) -> list[str]:
    """Lower-case words, and other signs one by one."""
    return _TOKEN.findall(text.lower())


class WordTokenizer:
    """Words of the vocabulary as one token, other words as their letters; signs that it lacks are left out."""

    def __init__(self, vocabulary: Iterable[str], context_length: int = TEXT_ARCH["context_length"]) -> None:
        self.vocabulary = tuple(vocabulary)
        self.ids = {token: number for number, token in enumerate(self.vocabulary)}
        self.start, self.end, self.context_length = self.ids[_START], self.ids[_END], context_length

    def __call__(self, text: str, spelled: frozenset[int] = frozenset()) -> list[int]:
        """Ids of ``text``; words at the places ``spelled`` are written in letters even if the vocabulary has them."""
        ids = [self.start]
        for place, word in enumerate(words_of(text)):
            if word in self.ids and place not in spelled:
                ids.append(self.ids[word])
            else:
                ids += [self.ids[f"+{letter}"] for letter in word if f"+{letter}" in self.ids]
        return [*ids, self.end]


def make_vocabulary(texts: Iterable[str]) -> tuple[str, ...]:
    """Every word of ``texts`` and the letters; the end of text has the highest id, as in CLIP's own vocabulary."""
    words = sorted({word for text in texts for word in words_of(text)} | {"x", "."})
    return (_PAD, *SPELLING, *words, _START, _END)


def new_towers(vocabulary: tuple[str, ...], seed: int, image_size: int = 32, meta: bool = False) -> nn.ModuleDict:
    """Both towers and the image projection (`image`, `text`, `projection`) with weights drawn from ``seed``.

    torch's global generator stays as it was. With ``meta`` there are shapes and no values.
    """
    width = TEXT_ARCH["width"]
    with torch.device("meta" if meta else "cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "pretrain", "micro-clip", "init"))
        embedding = nn.Embedding(len(vocabulary), width)
        positions = nn.Parameter(torch.empty(TEXT_ARCH["context_length"], width))
        nn.init.normal_(embedding.weight, std=0.02)
        nn.init.normal_(positions, std=0.01)
        block = partial(Block, width, TEXT_ARCH["heads"], mlp_ratio=TEXT_ARCH["mlp_ratio"], qkv_bias=True)
        blocks = [block() for _ in range(TEXT_ARCH["layers"])]
        projection = nn.Linear(width, DIM, bias=False)
        text = TextTower(WordTokenizer(vocabulary), embedding, positions, blocks, nn.LayerNorm(width), projection)
        vit = VisionTransformer(**{**ARCH, "img_size": image_size, "num_classes": 0})
        return nn.ModuleDict({"image": vit, "text": text, "projection": nn.Linear(ARCH["embed_dim"], DIM, bias=False)})


def save_micro_clip(
    towers: nn.ModuleDict, logit_scale: Tensor, vocabulary: tuple[str, ...], templates: tuple[str, ...], out: Path
) -> None:
    """Write weights, vocabulary and zero-shot templates to one file.

    Text tower and projections are stored in half precision. The image tower is stored as it is, so that it stays
    micro-vit bit for bit and both families share one backbone.
    """
    state = {name: value if name.startswith("image.") else value.half() for name, value in towers.state_dict().items()}
    state["logit_scale"] = logit_scale.detach().float()
    described = json.dumps({"vocabulary": vocabulary, "templates": templates})
    # One key only: the order of several is not fixed, and the same weights must be the same bytes.
    content = safetensors.torch.save({k: v.contiguous() for k, v in state.items()}, {MICRO_CLIP: described})
    write_atomic(out, content)


def read_micro_clip(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, and its ``vocabulary`` and ``templates``; the file may come from anywhere."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = parse_json((file.metadata() or {})[MICRO_CLIP], path)
        words, templates = described["vocabulary"], described["templates"]
        if not all(isinstance(word, str) for word in [*words, *templates]) or not templates:
            raise ValueError("its vocabulary and templates are not lists of words")
        if not {_PAD, _START, _END, *SPELLING} <= set(words):
            raise ValueError("its vocabulary lacks letters or marks")
        state = safetensors.torch.load_file(path)
        state["logit_scale"].exp().item()
        return state, {"vocabulary": words, "templates": templates}
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, UserError, safetensors.SafetensorError) as error:
        raise UserError(
            f"weights {str(path)!r} are not a micro-clip file ({type(error).__name__}); "
            "write one with 'fedprompt pretrain micro-clip --out FILE'."
        ) from error


def load_micro_clip(path: Path, identity: str, image_size: int = 32, meta: bool = False) -> FrozenCLIP:
    """The model of a file; with the identity `random` only vocabulary and templates come from the file."""
    state, described = read_micro_clip(path)
    vocabulary = tuple(described["vocabulary"])
    towers = new_towers(vocabulary, seed=0, image_size=image_size, meta=meta)
    scale = float(state.pop("logit_scale").exp())
    if identity == "random":
        scale = 1 / 0.07  # as every CLIP starts
    else:
        _load(towers, state, path)
    vit: Any = towers["image"]
    projection: Any = towers["projection"]
    text: Any = towers["text"]
    return FrozenCLIP(
        vit, projection, text, scale, MICRO_CLIP, identity, (MEAN,) * 3, (STD,) * 3, described["templates"]
    )


def _load(towers: nn.ModuleDict, state: dict[str, Tensor], path: Path) -> None:
    vit: Any = towers["image"]
    try:
        positions = state["image.pos_embed"]
        state["image.pos_embed"] = resample_abs_pos_embed(positions, vit.patch_embed.grid_size, num_prefix_tokens=1)
        towers.load_state_dict(state)  # half precision is widened as it is copied
    except (KeyError, RuntimeError, ValueError, IndexError) as error:
        raise UserError(
            f"weights {str(path)!r} do not fit {MICRO_CLIP}: {error}; they may be of another version of the suite."
        ) from error
