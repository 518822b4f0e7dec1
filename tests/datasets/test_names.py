"""What data sets are called."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import dataset_names, describe_dataset, load_dataset, name_folder, short_name
from fedprompt.harness.recording.store import experiment_name


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for number in range(8):
        path = tmp_path / "my pets" / ("cat" if number % 2 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 20 * number, np.uint8)).save(path)
    return tmp_path / "my pets"


def test_a_folder_gives_its_own_name(pets: Path) -> None:
    address = f"folder:{pets}?layout=class"
    assert short_name(address) == load_dataset(address).name == "my pets"
    assert experiment_name(address) == "fedprompt/my pets"
    assert short_name("glyph-100") == "glyph-100"


def test_a_folder_can_be_given_a_name(pets: Path) -> None:
    name_folder("pets", f"folder:{pets}")
    assert "pets" in dataset_names()
    assert describe_dataset("pets") == f"your images in {pets}"
    assert load_dataset("pets").name == "pets"
    assert load_dataset("pets").checksum == load_dataset(f"folder:{pets}").checksum


@pytest.mark.parametrize(("name", "word"), [("cifar100", "already"), ("a/b", "letters"), ("", "letters")])
def test_a_name_must_be_free_and_plain(pets: Path, name: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        name_folder(name, f"folder:{pets}")
