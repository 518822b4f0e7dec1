import dataclasses
from pathlib import Path

import pytest
import torch

from fedprompt.backbones import features
from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.features import cached_features, frozen_features
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_backbone, toy_dataset


@pytest.fixture
def backbone() -> FrozenViT:
    return toy_backbone()


def cached_files(cache: Path) -> list[Path]:
    return sorted((cache / "features").glob("*"))


def test_features_are_the_cls_rows_of_all_images(backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "CHUNK", 33)  # 100 images: three chunks and a rest
    whole = backbone.cls(torch.from_numpy(toy_dataset().images))
    torch.testing.assert_close(frozen_features(backbone, toy_dataset()), whole, atol=1e-5, rtol=1e-5)


def test_the_second_time_they_come_from_disk(
    backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    first = cached_features(backbone, toy_dataset())
    assert len(cached_files(own_cache)) == 1  # and nothing half-written next to it
    monkeypatch.setattr(features, "frozen_features", None)
    assert torch.equal(cached_features(backbone, toy_dataset()), first)


def test_other_images_or_weights_are_other_features(backbone: FrozenViT, own_cache: Path) -> None:
    cached_features(backbone, toy_dataset())
    cached_features(backbone, dataclasses.replace(toy_dataset(), checksum="other images"))
    backbone.weights = "sha256:other"
    cached_features(backbone, toy_dataset())
    assert len(cached_files(own_cache)) == 3


def test_what_the_hub_serves_is_not_kept(backbone: FrozenViT, own_cache: Path) -> None:
    backbone.weights = "hub"
    cached_features(backbone, toy_dataset())
    assert cached_files(own_cache) == []


@pytest.mark.parametrize("keep", [0, 50, 1000])
def test_a_damaged_file_is_computed_again(keep: int, backbone: FrozenViT, own_cache: Path) -> None:
    first = cached_features(backbone, toy_dataset())
    (file,) = cached_files(own_cache)
    file.write_bytes(file.read_bytes()[:keep])
    assert torch.equal(cached_features(backbone, toy_dataset()), first)
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("place", [100, 5000, -1])
def test_changed_bytes_are_found_and_computed_again(
    place: int, backbone: FrozenViT, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = cached_features(backbone, toy_dataset())
    (file,) = cached_files(own_cache)
    intact = file.read_bytes()
    damaged = bytearray(intact)
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert torch.equal(cached_features(backbone, toy_dataset()), first)
    assert f"cached features {file} are damaged" in caplog.text
    assert file.read_bytes() == intact


def test_a_file_of_other_features_is_not_believed(backbone: FrozenViT, own_cache: Path) -> None:
    first = cached_features(backbone, toy_dataset())
    (file,) = cached_files(own_cache)
    cached_features(backbone, toy_dataset(), depth=1)
    (other,) = set(cached_files(own_cache)) - {file}
    file.write_bytes(other.read_bytes())
    assert torch.equal(cached_features(backbone, toy_dataset()), first)


def test_features_after_some_blocks_are_kept_apart(backbone: FrozenViT, own_cache: Path) -> None:
    images = torch.from_numpy(toy_dataset().images)
    for depth, files in ((1, 1), (2, 2), (3, 3), (None, 3)):  # three blocks are all
        found = cached_features(backbone, toy_dataset(), depth)
        torch.testing.assert_close(found, backbone.cls(images, stop=depth), atol=1e-5, rtol=1e-5)
        assert len(cached_files(own_cache)) == files


@pytest.mark.parametrize("depth", [0, 4])
def test_blocks_that_are_not_there(depth: int, backbone: FrozenViT) -> None:
    with pytest.raises(UserError, match=f"features after {depth} blocks: backbone 'toy' has 3"):
        frozen_features(backbone, toy_dataset(), depth)
