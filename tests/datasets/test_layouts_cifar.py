"""CIFAR as torchvision pickles it, whole and damaged, and as a tree of images."""

import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.listings import check, paint

from fedprompt.core.errors import UserError
from fedprompt.datasets._listing import MissingDataError
from fedprompt.datasets._sources import SOURCES


def pickled_cifar(root: Path, classes: int) -> None:
    """Batches as torchvision stores them: flat planes red, green, blue; Python 2 strings."""

    def batch(test: bool) -> dict[str, object]:
        labels = list(range(min(classes, 10))) * 2
        planes = [[label * 20 + 10, 10, 200 if test else 50] for label in labels]
        data = np.repeat(np.array(planes, np.uint8), 1024, axis=1)
        return {"data": data, "fine_labels" if classes == 100 else "labels": labels}

    names = [f"class {k}" for k in range(classes)]
    if classes == 100:
        folder = root / "cifar-100-python"
        files = {"train": batch(False), "test": batch(True), "meta": {"fine_label_names": names}}
    else:
        folder = root / "cifar-10-batches-py"
        files = {f"data_batch_{k}": batch(False) for k in range(1, 6)} | {"test_batch": batch(True)}
        files["batches.meta"] = {"label_names": names}
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize(("classes", "size"), [(100, 40), (10, 120)])
def test_cifar_batches(tmp_path: Path, classes: int, size: int) -> None:
    pickled_cifar(tmp_path, classes)
    listing = SOURCES[f"cifar{classes}"].listing(tmp_path)
    check(listing, size)
    assert listing.class_names[3] == "class 3"


def test_a_cifar_batch_cannot_run_code(tmp_path: Path) -> None:
    pickled_cifar(tmp_path, 100)
    (tmp_path / "cifar-100-python" / "test").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(UserError, match=r"test is damaged \(os.system does not belong in a data file\)"):
        SOURCES["cifar100"].listing(tmp_path)


@pytest.mark.parametrize(
    ("module", "name"),
    [("numpy.ctypeslib", "ndarray"), ("numpy.testing", "dtype"), ("numpy", "_reconstruct"), ("numpy", "encode")],
)
def test_a_cifar_batch_gets_exactly_what_it_needs(tmp_path: Path, module: str, name: str) -> None:
    pickled_cifar(tmp_path, 100)
    (tmp_path / "cifar-100-python" / "test").write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(UserError, match=f"{module}.{name} does not belong in a data file"):
        SOURCES["cifar100"].listing(tmp_path)


DATA = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02.",
        b"garbage",
        pickle.dumps([1, 2], 2),
        pickle.dumps({"data": DATA}, 2),
        pickle.dumps({"data": DATA[:, :-1], "fine_labels": [0, 1]}, 2),
        pickle.dumps({"data": DATA.astype(np.int64), "fine_labels": [0, 1]}, 2),
        pickle.dumps({"data": DATA, "fine_labels": [0]}, 2),
        pickle.dumps({"data": DATA, "fine_labels": [0, "one"]}, 2),
        pickle.dumps({"data": DATA, "fine_labels": [0, 100]}, 2),
        pickle.dumps({"data": DATA, "fine_labels": 3}, 2),
    ],
)
@pytest.mark.parametrize("file", ["train", "meta"])
def test_a_damaged_cifar_batch_is_one_line(tmp_path: Path, content: bytes, file: str) -> None:
    pickled_cifar(tmp_path, 100)
    (tmp_path / "cifar-100-python" / file).write_bytes(content)
    with pytest.raises(UserError, match=r"is damaged \(.*; fetch it again"):
        SOURCES["cifar100"].listing(tmp_path)


@given(seed=st.integers(0, 2**32), flips=st.integers(1, 20))
def test_any_damage_to_a_cifar_batch_is_one_line_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int
) -> None:
    folder = tmp_path_factory.mktemp("cifar")
    pickled_cifar(folder, 100)
    file = folder / "cifar-100-python" / "meta"
    damaged = bytearray(file.read_bytes())
    for place in np.random.default_rng(seed).integers(len(damaged), size=flips):
        damaged[place] ^= 1 << int(place) % 8
    file.write_bytes(damaged)
    with suppress(UserError):
        SOURCES["cifar100"].listing(folder)


def test_a_missing_or_cut_cifar_batch(tmp_path: Path) -> None:
    pickled_cifar(tmp_path, 10)
    file = tmp_path / "cifar-10-batches-py" / "data_batch_4"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(UserError, match=r"data_batch_4 is damaged .*; fetch it again"):
        SOURCES["cifar10"].listing(tmp_path)
    file.unlink()
    with pytest.raises(MissingDataError, match="data_batch_4 is missing"):
        SOURCES["cifar10"].listing(tmp_path)


def test_cifar_as_an_image_tree(tmp_path: Path) -> None:
    names = ["airplane", *(f"class {k}" for k in range(9))]
    for label, name in enumerate(names):
        for k in range(3):
            paint(tmp_path / "cifar10" / ("test" if k == 2 else "train") / name / f"{k}.png", label, test=k == 2)
    check(SOURCES["cifar10"].listing(tmp_path), 30)
