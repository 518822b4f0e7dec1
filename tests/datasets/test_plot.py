import dataclasses
from pathlib import Path

import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import make_partition, parse_partition, plot_partition
from fedprompt.datasets.testing import tiny_dataset


@pytest.mark.parametrize(
    ("text", "classes", "domains"),
    [("domains:m=2,unseen=half", 10, 6), ("classes:s=5,clients=100", 100, 1), ("disjoint:clients=1", 1, 1)],
)
def test_the_picture_is_wide_enough_to_read(tmp_path: Path, text: str, classes: int, domains: int) -> None:
    dataset = tiny_dataset(classes, domains, 40, 20)
    plot_partition(make_partition(parse_partition(text), dataset, 0), dataset, tmp_path / "new" / "who.png")
    with Image.open(tmp_path / "new" / "who.png") as picture:
        assert 400 < picture.width < 3000
        assert len(set(picture.convert("L").get_flattened_data())) > 10  # more than paper and ink


def test_a_suffix_that_is_not_a_picture(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    with pytest.raises(UserError, match=r"must end in \.png, \.pdf or \.svg"):
        plot_partition(make_partition(parse_partition("domains:m=1"), dataset, 0), dataset, tmp_path / "who.txt")


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    dataset = tiny_dataset()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the picture"):
        plot_partition(
            make_partition(parse_partition("domains:m=1"), dataset, 0), dataset, tmp_path / "file" / "who.png"
        )


def test_dollar_signs_in_names_are_no_formulas(tmp_path: Path) -> None:
    dataset = dataclasses.replace(tiny_dataset(2, 1), class_names=(r"$\frac$", "\x1b[2J"), name=r"$\nothing$")
    plot_partition(make_partition(parse_partition("disjoint:clients=2"), dataset, 0), dataset, tmp_path / "who.png")
    assert (tmp_path / "who.png").stat().st_size > 1000
