"""What evaluation keeps of each test image: enough for every measure, in a few bytes.

A run's scores are one file, to which every reported round adds one gzip member: a line of JSON that says which images
follow (`BLOCK`), then the columns of `IMAGE`, one after the other, bytes of equal significance together, which packs
better. `score_frame.py` reads it.

Probabilities are kept as 16-bit logarithms: their relative error is 2^-11 (0.05 %), so that a probability is off by at
most 0.0002 and confident predictions stay apart however near to 1 they are.
"""

import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IMAGE = np.dtype(
    [
        ("image", "<u4"),  # its row in the data set
        ("label", "<u2"),  # the true class
        ("predicted", "<u2"),  # the class with the largest score; of equal ones the first
        ("rank", "<u2"),  # of the true class, from 1; of equal scores the first class ranks first, as it does above
        ("log_predicted", "<f2"),  # log-probability of the predicted class
        ("log_true", "<f2"),  # log-probability of the true class; -inf if the method excludes it
        ("rest", "<f2"),  # squared probabilities of all classes but the true one, summed
    ]
)
BLOCK = ("client", "samples", "policy", "test_set", "participated", "unseen", "images")  # the last is how many
LEAST_LOG = torch.finfo(torch.float16).min


def score_images(scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The columns of `IMAGE` but the first, (K, B) each, of a method's scores (K, B, C)."""
    logs, true = scores.float().log_softmax(-1), labels[..., None]
    predicted, true_score = scores.argmax(-1), scores.gather(-1, true)
    classes = torch.arange(scores.shape[-1], device=scores.device)
    before = (scores > true_score) | ((scores == true_score) & (classes < true))
    return {
        "label": labels,
        "predicted": predicted,
        "rank": 1 + before.sum(-1),
        "log_predicted": _half(logs.gather(-1, predicted[..., None])[..., 0]),
        "log_true": _half(logs.gather(-1, true)[..., 0]),
        "rest": logs.exp().square().scatter(-1, true, 0).sum(-1).half(),
    }


def _half(logs: Tensor) -> Tensor:
    """-inf only where it was: a log below the range of the format becomes its least number."""
    return torch.where(logs.isinf(), logs, logs.clamp(min=LEAST_LOG)).half()


def pack(round_: int, blocks: Sequence[tuple[Any, ...]], images: NDArray[Any]) -> bytes:
    """A member of the file; ``blocks`` are rows of `BLOCK` for consecutive parts of ``images``."""
    header = {"round": round_, "blocks": blocks, "columns": IMAGE.descr}
    columns = (np.ascontiguousarray(images[name]) for name in IMAGE.names or ())
    shuffled = (column.view(np.uint8).reshape(len(column), -1).T.tobytes() for column in columns)
    return gzip.compress(json.dumps(header).encode() + b"\n" + b"".join(shuffled), mtime=0)
