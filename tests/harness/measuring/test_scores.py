"""What is kept of a prediction, in which precision, and in which bytes."""

import gzip
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.score_frame import scores_frame
from fedprompt.harness.measuring.scores import IMAGE, pack, score_images


def kept(scores: list[float], label: int) -> dict[str, float]:
    """Of one image."""
    columns = score_images(torch.tensor([[scores]]), torch.tensor([[label]]))
    return {name: float(column[0, 0]) for name, column in columns.items()}


def test_a_prediction_is_kept_with_its_true_class() -> None:
    scores = [math.log(p) for p in (0.125, 0.5, 0.125, 0.25)]
    assert kept(scores, 3) == {
        "label": 3,
        "predicted": 1,
        "rank": 2,
        "log_predicted": pytest.approx(math.log(0.5), rel=2**-11),
        "log_true": pytest.approx(math.log(0.25), rel=2**-11),
        "rest": 0.5**2 + 2 * 0.125**2,
    }


def test_of_equal_scores_the_first_class_is_predicted_and_ranks_first() -> None:
    image = kept([0.0, 1.0, 1.0, 1.0], 3)
    assert (image["predicted"], image["rank"]) == (1, 3)
    image = kept([0.0, 1.0, 1.0, 1.0], 1)
    assert (image["predicted"], image["rank"]) == (1, 1)


def test_an_excluded_true_class_has_no_probability_and_ranks_behind_all_that_can_win() -> None:
    image = kept([-math.inf, 0.0, 0.0, -math.inf], 3)
    assert (image["log_true"], image["rank"], image["rest"]) == (-math.inf, 4, 0.5)
    assert image["log_predicted"] == pytest.approx(math.log(0.5), rel=2**-11)


def test_only_excluded_classes_have_probability_zero() -> None:
    assert kept([0.0, -1e6], 1)["log_true"] == torch.finfo(torch.float16).min


def test_logarithms_are_off_by_a_2048th_at_most() -> None:
    scores = 30 * torch.randn(1, 5000, 10, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(5000)[None] % 10
    exact = scores.double().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    columns = score_images(scores, labels)
    error = (columns["log_true"].double() - exact).abs()
    near_zero = 1e-6  # float32 before it is shortened, and the smallest numbers of the format
    assert float((error - exact.abs() * 2**-11).max()) < near_zero
    probability = columns["log_true"].double().exp()
    assert float((probability - exact.exp()).abs().max()) < 0.0002
    other = scores.double().softmax(-1).square().scatter(-1, labels[..., None], 0).sum(-1)
    assert float(((columns["rest"].double() - other).abs() - other * 2**-11).max()) < near_zero


def test_rank_one_is_a_correct_prediction_also_among_ties() -> None:
    scores: Tensor = torch.randint(0, 3, (4, 500, 6), generator=torch.Generator().manual_seed(1)).float()
    columns = score_images(scores, torch.arange(500).expand(4, -1) % 6)
    assert torch.equal(columns["rank"] == 1, columns["predicted"] == columns["label"])


# -- the file ---------------------------------------------------------------------------------------------------------


def images(count: int) -> np.ndarray:
    table = np.zeros(count, IMAGE)
    table["image"], table["label"], table["predicted"], table["rank"] = np.arange(count) + 70000, 300, 2, 5
    table["log_predicted"], table["log_true"], table["rest"] = math.log(0.5), math.log(0.25), 0.25
    return table


def member(round_: int) -> bytes:
    blocks = [(4, 0, "global", "local", True, False, 2), (7, 3, "global", "novel", False, True, 1)]
    return pack(round_, blocks, images(3))


def test_what_is_packed_is_read_back() -> None:
    frame = scores_frame(member(5) + member(6), "scores.gz")
    assert frame["round"].tolist() == [5, 5, 5, 6, 6, 6]
    assert frame["client"].tolist() == [4, 4, 7] * 2
    assert frame["test_set"].tolist() == ["local", "local", "novel"] * 2
    last = frame.iloc[-1].to_dict()
    assert last == {
        **{"round": 6, "client": 7, "samples": 3, "policy": "global", "test_set": "novel"},
        **{"participated": False, "unseen": True, "image": 70002, "label": 300, "predicted": 2, "rank": 5},
        "probability": pytest.approx(0.5, abs=2e-4),
        "true_probability": pytest.approx(0.25, abs=2e-4),
        "true_log_probability": pytest.approx(math.log(0.25), rel=2**-11),
        "squares": pytest.approx(0.25 + 0.25**2, abs=2e-4),
    }


def test_bytes_do_not_depend_on_when_they_are_written() -> None:
    assert member(5) == member(5)
    assert member(5)[4:8] == bytes(4)  # gzip's time


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        member(5)[:-9],
        gzip.compress(b'{"round": 5}\n', mtime=0),
        gzip.compress(b"no line", mtime=0),
        b"\0" * 40,
    ],
)
def test_what_is_no_file_of_scores_is_one_line(content: bytes) -> None:
    with pytest.raises(UserError, match=r"here/scores\.gz (cannot be read as|holds no) scores"):
        scores_frame(content, "here/scores.gz")
