from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import _prepare, load_dataset, prepare


def noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(256, size=(8, 8, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes with their own split: 4 train and 2 test images each."""
    for label, name in enumerate(("cat", "dog")):
        for k in range(6):
            noise(tmp_path / ("train" if k < 4 else "test") / name / f"{k}.png", 10 * label + k)
    return tmp_path


def test_counts(pets: Path) -> None:
    noise(pets / "test" / "dog" / "more.png", 99)
    preparation = prepare(f"folder:{pets}")
    assert preparation.count() == 13
    assert preparation.count(split="test", class_name="dog") == 3
    text = preparation.format_report()
    assert "train         8 images of 2 classes" in text
    assert "dog: 4 train, 3 test" in text
    assert "8 px" in text


def test_equal_classes_take_one_line(pets: Path) -> None:
    assert "every class: 4 train, 2 test" in prepare(f"folder:{pets}").format_report()


def test_exact_duplicates_are_found_whatever_the_file_format(pets: Path) -> None:
    Image.open(pets / "train" / "cat" / "0.png").save(pets / "test" / "cat" / "copy.bmp")
    Image.open(pets / "train" / "cat" / "1.png").save(pets / "train" / "dog" / "copy.png")
    preparation = prepare(f"folder:{pets}")
    assert [(pair.across, pair.other_class) for pair in preparation.duplicates] == [(False, True), (True, False)]
    text = preparation.format_report()
    assert "exact duplicates: 2 (1 between train and test, 1 with another label)" in text
    assert f"{pets}/train/cat/0.png = {pets}/test/cat/copy.bmp" in text


def test_unreadable_files_are_listed_and_nothing_is_written(pets: Path, own_cache: Path) -> None:
    for name in ("train/cat/1.png", "test/dog/5.png"):
        (pets / name).write_bytes((pets / name).read_bytes()[:60])
    preparation = prepare(f"folder:{pets}")
    assert [Path(path).name for path, _ in preparation.unreadable] == ["1.png", "5.png"]
    assert preparation.dataset is None
    assert "NOT PREPARED" in preparation.format_report()
    assert f"{pets}/test/dog/5.png: " in preparation.format_report()
    assert [path for path in (own_cache / "datasets").iterdir() if path.is_dir()] == []


def test_unreadable_files_are_skipped_when_asked(pets: Path) -> None:
    (pets / "train/cat/1.png").write_bytes(b"")
    preparation = prepare(f"folder:{pets}", skip_bad=True)
    assert preparation.dataset is not None
    assert len(preparation.unreadable) == 1
    dataset = load_dataset(f"folder:{pets}")
    assert np.bincount(dataset.labels[~dataset.is_test]).tolist() == [3, 4]
    for row, (name, k) in enumerate([("cat", 0), ("cat", 2), ("cat", 3), ("dog", 0)]):  # images keep their labels
        with Image.open(pets / "train" / name / f"{k}.png") as image:
            assert np.array_equal(dataset.images[row], np.moveaxis(np.asarray(image), -1, 0))


def test_a_class_of_unreadable_files_only(pets: Path) -> None:
    for path in (pets / "train" / "dog").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="class 'dog' has no readable train image"):
        prepare(f"folder:{pets}", skip_bad=True)


def test_one_image_per_class_leaves_nothing_to_test(tmp_path: Path) -> None:
    noise(tmp_path / "cat" / "0.png", 0)
    with pytest.raises(UserError, match="nothing is left for a test split"):
        prepare(f"folder:{tmp_path}")


def test_unchanged_files_are_not_decoded_again(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pets / "train/cat/1.png").write_bytes(b"")
    noise(pets / "test" / "cat" / "copy.png", 0)
    first = prepare(f"folder:{pets}", skip_bad=True)
    decoded: list[object] = []
    monkeypatch.setattr(_prepare, "read_image", lambda file: decoded.append(file))
    again = prepare(f"folder:{pets}", skip_bad=True)
    assert decoded == []
    assert (again.counts, again.duplicates, again.unreadable) == (first.counts, first.duplicates, first.unreadable)
    assert len(again.duplicates) == len(again.unreadable) == 1
    assert again.format_report() == f"{first.format_report()}\n  {_prepare.UNCHANGED}"


def test_changed_files_are_decoded_again(pets: Path) -> None:
    prepare(f"folder:{pets}")
    noise(pets / "test" / "dog" / "more.png", 99)
    assert prepare(f"folder:{pets}").count() == 13
