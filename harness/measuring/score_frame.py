"""A run's scores as a DataFrame: one row per reported round, reading, client and image."""

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.scores import BLOCK


def scores_frame(content: bytes, where: object) -> pd.DataFrame:
    """What `scores.gz` holds; ``where`` names the file in errors.

    round, client, samples, policy, test_set, participated, unseen
                            as in records.csv
    image, label            the image's row in the data set; its class, counted from the first that competes (of novel
                            classes: the first novel one)
    predicted, probability  the class with the largest score, and its probability
    true_probability, true_log_probability, rank
                            of the true class; the logarithm is -inf if the method excludes the class
    squares                 the sum of all classes' squared probabilities (of a uniform prediction 1 / C)
    """
    try:
        parts, data, start = [], gzip.decompress(content), 0
        while start < len(data):
            part, start = _round(data, start)
            parts.append(part)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise UserError(f"{where} cannot be read as scores ({error}).") from error
    if not parts:
        raise UserError(f"{where} holds no scores: no round was evaluated.")
    return pd.concat(parts, ignore_index=True)


def _round(data: bytes, start: int) -> tuple[pd.DataFrame, int]:
    """The frame of the member at ``start``, and where the next one begins."""
    end = data.index(b"\n", start)
    header, start = json.loads(data[start:end]), end + 1
    sizes = [block[-1] for block in header["blocks"]]
    frame: dict[str, Any] = {"round": header["round"]}
    for name, values in zip(BLOCK[:-1], zip(*header["blocks"], strict=True), strict=False):
        frame[name] = np.repeat(np.array(values, object if isinstance(values[0], str) else None), sizes)
    stored, total = {}, sum(sizes)
    for name, kind in header["columns"]:
        width = np.dtype(kind).itemsize
        shuffled = np.frombuffer(data, np.uint8, width * total, start).reshape(width, total)
        stored[name], start = np.ascontiguousarray(shuffled.T).view(kind)[:, 0], start + width * total
    true = np.exp(stored["log_true"].astype(float))
    frame |= {
        **{name: stored[name] for name in ("image", "label", "predicted")},
        "probability": np.exp(stored["log_predicted"].astype(float)),
        "true_probability": true,
        "true_log_probability": stored["log_true"].astype(float),
        "rank": stored["rank"],
        "squares": stored["rest"].astype(float) + true**2,
    }
    return pd.DataFrame(frame, index=range(total)), start
