"""What needs open_clip: its ResNet between our hands and the authors' numbers, and the tokeniser of OpenAI's CLIP."""

import numpy as np
import pytest
import torch

from fedprompt.backbones.clip_resnet import FrozenResNetCLIP
from parity._feed import Case, clip_tower, gap

open_clip = pytest.importorskip("open_clip")

from fedprompt.backbones.open_clip_towers import BytePairs  # noqa: E402

TOLERANCE = 1e-13


def resnet(case: Case) -> FrozenResNetCLIP:
    shape = case.json("shape")
    net = open_clip.modified_resnet.ModifiedResNet(
        shape["layers"], shape["output_dim"], shape["heads"], shape["image_size"], shape["width"]
    )
    mean, std = case.array("mean").tolist(), case.array("std").tolist()
    clip = FrozenResNetCLIP(net, clip_tower().text, 1.0, "parity", "golden", mean, std).double()
    clip.resnet.load_state_dict(case.state("state/"))
    return clip


def test_embeddings_of_a_resnet_are_theirs() -> None:
    case = Case("clip_resnet")
    clip, images = resnet(case), case.tensor("images")
    assert gap(clip.image_features(images), case.tensor("image_embedding")) < TOLERANCE
    assert gap(clip.spatial(images), case.tensor("place_embedding")) < TOLERANCE


def test_a_change_of_the_resnet_is_noticed() -> None:
    case = Case("clip_resnet")
    clip = resnet(case)
    with torch.no_grad():
        clip.resnet.conv1.weight[0, 0, 0, 0] += 1e-4
    assert gap(clip.image_features(case.tensor("images")), case.tensor("image_embedding")) > 1e-8


def test_token_ids_are_theirs() -> None:
    case = Case("clip_towers", "tokeniser/")
    tokenizer = BytePairs(open_clip.get_tokenizer("ViT-B-16"))
    for text, expected in zip(case.array("texts").tolist(), case.array("tokens"), strict=True):
        ours = tokenizer(text)
        assert ours == expected[: len(ours)].tolist(), text
        assert not expected[len(ours) :].any(), text


def test_the_stand_in_tokeniser_of_the_vectors_is_a_part_of_the_real_one() -> None:
    towers = Case("towers_clip")
    tokenizer, originals = BytePairs(open_clip.get_tokenizer("ViT-B-16")), towers.array("token_ids")
    for text, rows in zip(towers.array("texts").tolist(), towers.array("text_tokens"), strict=True):
        assert tokenizer(text) == originals[rows[rows >= 0]].tolist(), text
    assert np.all(np.diff(originals) > 0)
