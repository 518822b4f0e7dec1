"""Images of another size: resized once, only those that are asked for, to the same pixels as ever."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import _resized
from fedprompt.datasets._resized import ResizedImages

ORIGINALS = np.random.default_rng(0).integers(0, 256, (40, 3, 6, 6), dtype=np.uint8)
FullDisk = Callable[[int], AbstractContextManager[None]]


def expected(rows: list[int], size: int = 9) -> np.ndarray:
    """By Pillow, image by image."""
    pictures = [Image.fromarray(np.moveaxis(ORIGINALS[row], 0, -1)) for row in rows]
    resized = [picture.resize((size, size), Image.Resampling.BILINEAR) for picture in pictures]
    return np.stack([np.moveaxis(np.asarray(picture), -1, 0) for picture in resized])


@pytest.fixture
def resized_pictures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever a picture is resized."""
    done: list[object] = []
    plain = _resized.to_array
    monkeypatch.setattr(_resized, "to_array", lambda picture, size: (done.append(picture), plain(picture, size))[1])
    return done


def opened(tmp_path: Path) -> ResizedImages:
    return ResizedImages(ORIGINALS, 9, tmp_path / "resized", "tiny")


def test_only_the_rows_asked_for_are_resized_and_only_once(tmp_path: Path, resized_pictures: list[object]) -> None:
    images = opened(tmp_path)
    assert images.shape == (40, 3, 9, 9)
    assert np.array_equal(images[np.array([7, 3, 7])], expected([7, 3, 7]))
    assert np.array_equal(images[np.array([3, 39])], expected([3, 39]))
    assert len(resized_pictures) == 3
    assert np.array_equal(opened(tmp_path)[np.array([3, 7, 39])], expected([3, 7, 39]))
    assert len(resized_pictures) == 3


@pytest.mark.parametrize("index", [5, slice(2, 5), np.arange(40) % 2 == 0, (slice(0, 3), 1), (4, slice(None), 2, 2)])
def test_indexing_is_that_of_an_array(tmp_path: Path, index: object) -> None:
    assert np.array_equal(opened(tmp_path)[index], expected(list(range(40)))[index])  # type: ignore[index]


def test_a_damaged_or_half_written_row_is_resized_again(tmp_path: Path, resized_pictures: list[object]) -> None:
    assert opened(tmp_path)[:5].any()
    file = tmp_path / "resized" / "images.npy"
    content = bytearray(file.read_bytes())
    content[-37 * 243] ^= 1  # the first byte of row 3
    file.write_bytes(content)
    assert np.array_equal(opened(tmp_path)[:5], expected([0, 1, 2, 3, 4]))
    assert len(resized_pictures) == 6


@pytest.mark.parametrize("name", ["images.npy", "sums.npy"])
def test_a_file_that_is_cut_short_is_made_anew(tmp_path: Path, name: str) -> None:
    assert opened(tmp_path)[:5].any()
    file = tmp_path / "resized" / name
    file.write_bytes(file.read_bytes()[:100])
    assert np.array_equal(opened(tmp_path)[:5], expected([0, 1, 2, 3, 4]))


def test_several_may_fill_the_same_folder(tmp_path: Path, resized_pictures: list[object]) -> None:
    rows = np.arange(40)
    with ThreadPoolExecutor(4) as pool:
        for pixels in pool.map(lambda _: opened(tmp_path)[rows], range(4)):
            assert np.array_equal(pixels, expected(list(rows)))
    assert len(resized_pictures) == 40


def test_empty_places_take_no_room(tmp_path: Path) -> None:
    images = ResizedImages(ORIGINALS, 600, tmp_path / "resized", "tiny")
    assert images[np.array([3])].any()
    status = (tmp_path / "resized" / "images.npy").stat()
    assert status.st_size > 40 * 3 * 600**2
    assert status.st_blocks * 512 < 3 * 3 * 600**2


def test_a_full_disk_is_one_line(tmp_path: Path, full_disk: FullDisk) -> None:
    images = ResizedImages(ORIGINALS, 100, tmp_path / "resized", "tiny")
    with full_disk(1000), pytest.raises(UserError, match="cannot write the prepared data"):
        images.fill(np.arange(3))
