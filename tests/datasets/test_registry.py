import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import (
    Dataset,
    MissingDataError,
    dataset_names,
    describe_dataset,
    is_prepared,
    load_dataset,
    load_labels,
    make_partition,
    parse_partition,
    prepare,
)
from fedprompt.datasets import _registry as registry
from fedprompt.datasets._sources import SOURCES
from fedprompt.datasets.testing import tiny_dataset

DOMAINS = ("amazon", "caltech", "dslr", "webcam")


def colour(label: int, domain: int, number: int) -> tuple[int, int, int]:
    return (label * 20 + 5, domain * 50 + 5, number * 10)


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """A small Office-Caltech10 whose colours tell class, domain and number."""
    for d, domain in enumerate(DOMAINS):
        for label in range(10):
            for number in range(10):
                path = tmp_path / domain / f"c{label}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (6, 6), colour(label, d, number)).save(path)
    return tmp_path


def test_names_and_descriptions() -> None:
    names = dataset_names()
    assert names == sorted(names)
    assert {"cifar10", "cifar100", "domainnet", "glyph-100", "glyph-domains", "office-caltech10", "pacs"} < set(names)
    assert {"tiny-imagenet", "inaturalist", "flowers102", "oxford-pets", "food101", "caltech101", "dtd"} < set(names)
    for name in names:
        assert describe_dataset(name)
        assert "\n" not in describe_dataset(name)


def test_an_unknown_name() -> None:
    with pytest.raises(UserError, match=r"unknown data set 'cifar-100'. Did you mean 'cifar100'.*folder:PATH"):
        load_dataset("cifar-100")


def test_missing_data_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not prepared; run: fedprompt prepare cifar100 --root DIR"):
        load_dataset("cifar100")
    with pytest.raises(UserError, match=f"none of its files under {tmp_path}; put the folders amazon"):
        load_dataset("office-caltech10", root=tmp_path)
    with pytest.raises(UserError, match="fedprompt prepare dtd --root DIR"):
        prepare("dtd")


def test_every_client_has_images_with_the_labels_of_the_source(office: Path) -> None:
    dataset = load_dataset("office-caltech10", root=office)
    assert dataset.class_names == tuple(f"c{k}" for k in range(10))
    assert dataset.domain_names == DOMAINS
    seen = set()
    for text in ("domain-dirichlet:alpha=0.3,clients=2,min_size=1", "domains:m=2", "disjoint:clients=5"):
        partition = make_partition(parse_partition(text), dataset, 0)
        for rows in (*partition.train, *partition.test):
            for row in rows:
                red, green, blue = dataset.images[row, :, 3, 3].tolist()
                assert colour(dataset.labels[row], dataset.domains[row], blue // 10) == (red, green, blue)
                seen.add((red, green, blue))
    assert len(seen) == 400


def test_training_never_opens_an_image_file(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_dataset("office-caltech10", root=office, image_size=8)

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("an image file was opened")

    monkeypatch.setattr(Image, "open", refuse)
    for path in office.rglob("*.png"):
        path.unlink()
    assert isinstance(load_dataset("office-caltech10").images, np.memmap)
    reloaded = load_dataset("office-caltech10", image_size=8)
    assert reloaded.checksum == first.checksum
    assert reloaded.images[:].sum() == first.images[:].sum()


def test_the_root_can_come_from_the_environment(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPROMPT_DATA", str(office))
    assert len(load_dataset("office-caltech10").labels) == 400


def test_a_store_of_another_root_is_not_used_silently(office: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_dataset("office-caltech10", root=office)
    other = tmp_path_factory.mktemp("other")
    assert (
        len(load_dataset("office-caltech10", root=other).labels) == 400
    )  # it holds no data, so the prepared store is used
    (other / "amazon").mkdir()
    with pytest.raises(UserError, match=f"was prepared from {office}, not from {other}; to replace it run: fedprompt"):
        load_dataset("office-caltech10", root=other)


def test_labels_without_decoding_an_image(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDataError, match="office-caltech10 is not prepared"):
        load_labels("office-caltech10")
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", None)
        listed = load_labels("office-caltech10", office)
    assert listed.images.shape == (400, 3, 0, 0)
    assert not is_prepared("office-caltech10")
    prepared = load_dataset("office-caltech10", root=office)
    assert is_prepared("office-caltech10")
    for name in ("labels", "domains", "is_test"):
        assert np.array_equal(getattr(listed, name), getattr(prepared, name))
    assert (listed.class_names, listed.domain_names) == (prepared.class_names, prepared.domain_names)
    assert load_labels("office-caltech10").checksum == prepared.checksum


def test_other_image_sizes(office: Path) -> None:
    native = load_dataset("office-caltech10", root=office)
    assert native.image_size == 6
    large = load_dataset("office-caltech10", image_size=9)
    assert large.images.shape == (400, 3, 9, 9)
    assert np.array_equal(large.images[:, :, 4, 4], native.images[:, :, 3, 3])
    assert np.array_equal(large.labels, native.labels)
    assert large.checksum != native.checksum
    with pytest.raises(UserError, match="image_size=0 must be at least 1"):
        load_dataset("office-caltech10", image_size=0)


def test_a_wrong_number_of_classes(office: Path) -> None:
    (office / "dslr" / "c3").rename(office / "dslr" / "extra")
    with pytest.raises(UserError, match="has 11 classes, not 10"):
        load_dataset("office-caltech10", root=office)


def test_a_user_folder_is_prepared_again_when_it_changes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.new("RGB", (4, 4), (k, 0, 0)).save(tmp_path / name / f"{k}.png")
    assert len(load_dataset(f"folder:{tmp_path}").labels) == 10
    Image.new("RGB", (4, 4)).save(tmp_path / "dog" / "new.png")
    assert len(load_dataset(f"folder:{tmp_path}", image_size=3).labels) == 11


def test_unreadable_files_stop_loading_with_one_line(office: Path, own_cache: Path) -> None:
    (office / "amazon" / "c3" / "1.png").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"1 unreadable images, the first is .*amazon/c3/1\.png .*--skip-bad") as caught:
        load_dataset("office-caltech10", root=office)
    assert "\n" not in str(caught.value)
    assert [path for path in (own_cache / "datasets").iterdir() if path.is_dir()] == []


def test_two_simultaneous_loads_prepare_it_once(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = registry.build_store
    monkeypatch.setattr(registry, "build_store", lambda *args, **more: built.append(args[0]) or build(*args, **more))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: load_dataset("office-caltech10", root=office), range(2)))
    assert built == ["office-caltech10"]
    assert both[0].checksum == both[1].checksum


def entry_point(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    point = EntryPoint(name, f"{__name__}:plugin_loader", "fedprompt.datasets")
    monkeypatch.setattr(registry, "entry_points", lambda **_: [point])


def plugin_loader(root: Path | None) -> Dataset:
    return tiny_dataset(classes=3)


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, "plugin")
    assert "plugin" in dataset_names()
    assert load_dataset("plugin").num_classes == 3
    with pytest.raises(UserError, match="needs no preparation"):
        prepare("plugin")


def test_an_entry_point_cannot_take_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, "cifar100")
    with pytest.raises(UserError, match="two data sets are called 'cifar100'"):
        dataset_names()


def test_class_names_do_not_depend_on_pythonhashseed(office: Path) -> None:
    code = (
        f"from fedprompt.datasets import load_dataset as l; d = l('folder:{office}'); print(d.class_names, d.checksum)"
    )
    outputs = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "FEDPROMPT_CACHE": str(office / f".cache{seed}")}
        outputs.add(subprocess.check_output([sys.executable, "-c", code], env=env))
    assert len(outputs) == 1


def test_importing_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, fedprompt.datasets; print({'torch', 'matplotlib', 'scipy', 'pandas'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_prepare_fetches_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_fetch(self: object, root: Path) -> None:
        for split in ("train", "test"):
            (root / "cifar10" / split / "airplane").mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(root / "cifar10" / split / "airplane" / "0.png")

    monkeypatch.setattr(type(SOURCES["cifar10"]), "fetch", fake_fetch)
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(SOURCES["cifar10"], classes=1))
    with pytest.raises(UserError, match="none of its files under"):
        prepare("cifar10", tmp_path, download=False)
    preparation = prepare("cifar10", tmp_path)
    assert preparation.count(split="train") == 1


@pytest.mark.parametrize("text", ["[]", "null", '{"pets": []}', '{"pets": "/etc"}', "{", "[" * 100_000])
def test_a_damaged_list_of_names_is_one_line(text: str, own_cache: Path) -> None:
    file = own_cache / "datasets" / "names.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    for ask in (dataset_names, lambda: load_dataset("pets"), lambda: describe_dataset("pets")):
        with pytest.raises(UserError, match=r"names\.json cannot be read: "):
            ask()


@pytest.mark.parametrize("damage", ["notes", "duplicates", "unreadable"])
def test_a_damaged_account_is_made_again(office: Path, damage: str, own_cache: Path) -> None:
    prepare("office-caltech10", office)
    file = own_cache / "datasets" / "office-caltech10" / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), damage: 3}))
    assert prepare("office-caltech10", office).complete
    assert isinstance(json.loads(file.read_text())[damage], list)
