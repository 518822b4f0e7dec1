"""Train micro-vit, the small backbone that comes with the suite, and measure what its frozen features are worth."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from timm.models.vision_transformer import VisionTransformer

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.rng import derive, torch_rng
from fedprompt.datasets import Dataset
from fedprompt.datasets.glyphs import glyph_100, glyph_domains, glyph_pretrain

ARCH: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 96,
    "depth": 4,
    "num_heads": 4,
    "mlp_ratio": 2,
    "num_classes": 0,
}
MEAN = STD = 0.5  # of every channel, after scaling pixels to [0, 1]
ASSET = Path(__file__).parent / "assets" / "micro-vit.safetensors"


def new_model(seed: int, num_classes: int = 0) -> VisionTransformer:
    """The architecture with weights drawn from the seed, leaving torch's global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "pretrain", "init"))  # timm draws initial weights from the global stream
        return VisionTransformer(**{**ARCH, "num_classes": num_classes})


def normalise(images: np.ndarray) -> torch.Tensor:
    """uint8 images as micro-vit reads them."""
    return (torch.from_numpy(images.astype(np.float32)) / 255 - MEAN) / STD


def pretrain(
    out: Path,
    steps: int = 6000,
    seed: int = 0,
    batch: int = 64,
    lr: float = 1e-3,
    warmup: int = 200,
    data: Dataset | None = None,
    probes: bool = True,
) -> dict[str, Any]:
    """Train on glyph-pretrain; write the weights without their class head to ``out`` and a record next to it (.json).

    The record, which is also returned, has the settings, the accuracy on held-out images of the pretraining
    classes and, with ``probes``, what ``probe`` measures. The rate ``lr`` rises for ``warmup`` steps, then falls to
    zero along a cosine. ``data`` replaces glyph-pretrain.
    """
    if steps < 1:
        raise UserError(f"{steps} steps of pretraining are too few; give at least 1 (the default is 6000).")
    _check_writable(out)
    data = data or glyph_pretrain()
    model = new_model(seed, data.num_classes)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05, fused=True)
    rng = torch_rng(seed, "pretrain", "batches")
    train = np.flatnonzero(~data.is_test)
    console = Console(stderr=True)
    for step in track(range(steps), "pretraining micro-vit", console=console, disable=not console.is_terminal):
        rows = train[torch.randint(len(train), (batch,), generator=rng).numpy()]
        for group in optimiser.param_groups:
            group["lr"] = lr * rate(step, steps, warmup)
        logits = model(shift(normalise(data.images[rows]), rng))
        loss = nnf.cross_entropy(logits, torch.from_numpy(data.labels[rows]))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % 1000 == 0:  # something usable exists long before the end
            save_weights(model, out)
    test = np.flatnonzero(data.is_test)
    right = predict(model, data.images[test]).argmax(1).numpy() == data.labels[test]
    held_out = {
        name: round(float(right[data.domains[test] == k].mean()), 4) for k, name in enumerate(data.domain_names)
    }
    save_weights(model, out)
    record = {
        "architecture": ARCH,
        "parameters": sum(value.numel() for value in load_file(out).values()),
        "settings": {"steps": steps, "seed": seed, "batch": batch, "lr": lr, "warmup": warmup},
        "data": data.name,
        "data_checksum": data.checksum,
        "held_out_accuracy": held_out,
    }
    if probes:
        record["probe"] = probe(out, seed)
    write_atomic(out.with_suffix(".json"), (json.dumps(record, indent=1) + "\n").encode())
    return record


def _check_writable(out: Path) -> None:
    """Raise a UserError before the work rather than after it."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = out.with_suffix(".part")
        scratch.touch()
        scratch.unlink()
    except OSError as error:
        raise UserError(f"cannot write {str(out)!r} ({error.strerror}); choose another place.") from error


def save_weights(model: VisionTransformer, out: Path) -> None:
    """Write the weights without the class head, whole or not at all."""
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    write_atomic(out, save_tensors(weights))


def rate(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def shift(images: torch.Tensor, rng: torch.Generator, most: int = 2) -> torch.Tensor:
    """Move each image by up to ``most`` pixels each way, repeating its border."""
    n, _, side, _ = images.shape
    padded = nnf.pad(images, (most,) * 4, mode="replicate")
    offset = torch.randint(2 * most + 1, (2, n, 1), generator=rng) + torch.arange(side)
    rows, columns = offset[0][:, None, :, None], offset[1][:, None, None, :]
    return padded[torch.arange(n)[:, None, None, None], torch.arange(3)[:, None, None], rows, columns]


@torch.no_grad()
def predict(model: VisionTransformer, images: np.ndarray, batch: int = 512) -> torch.Tensor:
    """The model's output for each image: logits, or CLS features after the final norm if it has no head."""
    model.eval()
    return torch.cat([model(normalise(images[i : i + batch])) for i in range(0, len(images), batch)])


def probe(weights: Path = ASSET, seed: int = 0) -> dict[str, dict[str, float]]:
    """Test accuracy of a linear classifier on frozen CLS features, with ``weights`` and with random ones.

    One classifier for each style of glyph-domains and one for glyph-100.
    """
    trained = new_model(seed)
    trained.load_state_dict(load_file(weights))
    return {"trained": _probe_all(trained), "random": _probe_all(new_model(seed))}


def _probe_all(model: VisionTransformer) -> dict[str, float]:
    domains, hundred = glyph_domains(), glyph_100()
    scores = {name: linear_probe(model, domains, domains.domains == k) for k, name in enumerate(domains.domain_names)}
    scores["mean of styles"] = sum(scores.values()) / len(scores)
    scores["glyph-100"] = linear_probe(model, hundred, np.ones(len(hundred.labels), bool))
    return {name: round(score, 4) for name, score in scores.items()}


def linear_probe(model: VisionTransformer, data: Dataset, selected: np.ndarray) -> float:
    """Softmax regression on the training images among ``selected``; accuracy on the test images among them."""
    features, labels = predict(model, data.images[selected]), torch.from_numpy(data.labels[selected])
    test = torch.from_numpy(data.is_test[selected])
    head = torch.nn.Linear(features.shape[1], data.num_classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=0.01)
    for _ in range(500):
        loss = nnf.cross_entropy(head(features[~test]), labels[~test])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    correct: torch.Tensor = head(features[test]).argmax(1) == labels[test]
    return float(correct.float().mean())
