"""Small trees in each data set's true layout. The colour of an image tells its class, domain and split."""

import json
import os
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from support.listings import check, paint

from fedprompt.core.errors import UserError
from fedprompt.datasets._folders import user_folder
from fedprompt.datasets._layouts import DOMAINNET_CLASSES, DOMAINNET_DOMAINS, PACS_DOMAINS
from fedprompt.datasets._listing import MissingDataError
from fedprompt.datasets._sources import SOURCES


def paint_domainnet(root: Path, train: dict[str, int], unlisted: str = "airplane") -> None:
    for d, domain in enumerate(DOMAINNET_DOMAINS):
        for split, count in (("train", train.get(domain, 4)), ("test", 1)):
            lines = []
            for number in range(count):
                for label, name in enumerate(DOMAINNET_CLASSES):
                    file = f"{domain}/{name}/{domain}_{label:03}_{split}{number}.{'png' if d == 3 else 'jpg'}"
                    paint(root / file, label, d, split == "test")
                    lines.append(f"{file} {label + 100}")  # the official numbers are those of all 345 classes
            lines.append(f"{domain}/{unlisted}/{domain}_000.jpg 0")
            (root / f"{domain}_{split}.txt").write_text("\n".join(lines) + "\n")


def zip_domain(root: Path, domain: str) -> None:
    with zipfile.ZipFile(root / f"{domain}.zip", "w") as archive:
        for path in sorted((root / domain).rglob("*")):
            archive.write(path, path.relative_to(root).as_posix())
            if path.is_file():
                path.unlink()
    for path in sorted((root / domain).rglob("*"), reverse=True):
        path.rmdir()
    (root / domain).rmdir()


def test_domainnet_balances_train_to_the_smallest_domain(tmp_path: Path) -> None:
    paint_domainnet(tmp_path / "domainnet", {"infograph": 2})
    listing = SOURCES["domainnet"].listing(tmp_path)
    check(listing, 6 * 20 + 6 * 10)
    assert listing.class_names == DOMAINNET_CLASSES
    assert listing.class_names[0] == "bird"
    assert listing.class_names[9] == "zebra"
    train = listing.domains[~listing.is_test]
    assert np.bincount(train).tolist() == [20] * 6
    assert np.bincount(listing.labels[~listing.is_test]).tolist() == [12] * 10
    assert listing.notes == (
        "every domain cut to 20 train images, the number of 'infograph' (the paper reports 1,830)",
    )


def test_domainnet_reads_zips_and_folders_alike(tmp_path: Path) -> None:
    paint_domainnet(tmp_path, {})
    folders = SOURCES["domainnet"].listing(tmp_path)
    for domain in DOMAINNET_DOMAINS[:3]:
        zip_domain(tmp_path, domain)
    zips = SOURCES["domainnet"].listing(tmp_path)
    check(zips, 300)
    assert np.array_equal(zips.labels, folders.labels)


def test_domainnet_total_draws_over_both_splits(tmp_path: Path) -> None:
    paint_domainnet(tmp_path, {"real": 3})
    listing = SOURCES["domainnet-total"].listing(tmp_path)
    check(listing, 6 * 40, official_split=False)
    assert np.bincount(listing.domains[listing.is_test]).tolist() == [10] * 6
    assert listing.notes[0].startswith("every domain cut to 40 train and test images, the number of 'real'")


def test_domainnet_without_a_split_file_or_domain(tmp_path: Path) -> None:
    paint_domainnet(tmp_path, {})
    (tmp_path / "sketch_test.txt").rename(tmp_path / "away")
    with pytest.raises(MissingDataError, match=r"domainnet: the split file .*sketch_test\.txt is missing"):
        SOURCES["domainnet"].listing(tmp_path)
    (tmp_path / "away").rename(tmp_path / "sketch_test.txt")
    (tmp_path / "real").rename(tmp_path / "elsewhere")
    with pytest.raises(MissingDataError, match=r"neither .*real/ nor .*real\.zip exists"):
        SOURCES["domainnet"].listing(tmp_path)
    (tmp_path / "real.zip").write_bytes(b"half a zip")
    with pytest.raises(UserError, match=r"real\.zip is not a complete zip file"):
        SOURCES["domainnet"].listing(tmp_path)


def test_an_encrypted_zip_is_one_line(tmp_path: Path) -> None:
    paint_domainnet(tmp_path, {})
    zip_domain(tmp_path, "real")
    raw = (tmp_path / "real.zip").read_bytes()
    header = raw.index(b"PK\1\2")  # of the first file in the archive's directory; its flags are 8 bytes further on
    (tmp_path / "real.zip").write_bytes(raw[: header + 8] + bytes([raw[header + 8] | 1]) + raw[header + 9 :])
    with pytest.raises(UserError, match=r"real\.zip is encrypted; extract it to .*real/ yourself"):
        SOURCES["domainnet"].listing(tmp_path)


def test_domainnet_with_a_strange_line(tmp_path: Path) -> None:
    paint_domainnet(tmp_path, {})
    (tmp_path / "real_train.txt").write_text("something 1\n")
    with pytest.raises(UserError, match="has the line 'something', which is not <domain>/<class>/<file>"):
        SOURCES["domainnet"].listing(tmp_path)


def test_a_label_means_the_same_name_whatever_the_string_hashes(tmp_path: Path) -> None:
    """A set of names, as in public loaders, has another order in every process."""
    paint_domainnet(tmp_path / "domainnet", {})
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for label in range(10):
            for k in range(2):
                paint(tmp_path / "office-caltech10" / domain / f"class {label}" / f"{k}.png", label)
    code = (
        "import sys; from pathlib import Path; from fedprompt.datasets._sources import SOURCES;"
        "lists = [SOURCES[name].listing(Path(sys.argv[1])) for name in ('domainnet', 'office-caltech10')];"
        "print([(type(x.class_names), x.class_names, x.labels.tolist(), list(map(str, x.images))) for x in lists])"
    )
    environments = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    runs = [subprocess.check_output([sys.executable, "-c", code, tmp_path], env=env) for env in environments]
    assert runs[0] == runs[1]
    assert b"<class 'tuple'>, ('bird', 'feather', 'headphones', 'ice_cream'" in runs[0]


def test_office_caltech10(tmp_path: Path) -> None:
    for d, domain in enumerate(("amazon", "caltech", "dslr", "webcam")):
        for label in range(10):
            for k in range(5):
                paint(tmp_path / "office_caltech10" / domain / f"c{label}" / f"frame_{k}.jpg", label, d)
    listing = SOURCES["office-caltech10"].listing(tmp_path)
    check(listing, 200, official_split=False)
    assert np.bincount(10 * listing.domains[listing.is_test] + listing.labels[listing.is_test]).tolist() == [1] * 40
    assert "no official split" in listing.notes[0]
    (tmp_path / "office_caltech10" / "webcam").rename(tmp_path / "away")
    with pytest.raises(MissingDataError, match="webcam is missing"):
        SOURCES["office-caltech10"].listing(tmp_path)


def paint_pacs(root: Path, lists: bool) -> None:
    for d, domain in enumerate(PACS_DOMAINS):
        for split, count in (("train", 3), ("crossval", 1)):
            files = [(f"{domain}/c{c}/{split} {k}.jpg", c) for c in range(7) for k in range(count)]
            for file, label in files:
                paint(root / "kfold" / file, label, d, split == "crossval")
            if lists:
                text = "".join(f"{file} {label + 1}\n" for file, label in files)
                (root / f"{domain}_{split}_kfold.txt").write_text(text)


def test_pacs_with_its_lists(tmp_path: Path) -> None:
    paint_pacs(tmp_path / "PACS", lists=True)
    check(SOURCES["pacs"].listing(tmp_path), 4 * 7 * 4)


def test_pacs_without_lists_and_with_one_missing(tmp_path: Path) -> None:
    paint_pacs(tmp_path, lists=False)
    check(SOURCES["pacs"].listing(tmp_path), 4 * 7 * 4, official_split=False)
    paint_pacs(tmp_path, lists=True)
    (tmp_path / "photo_crossval_kfold.txt").unlink()
    with pytest.raises(MissingDataError, match=r"photo_crossval_kfold\.txt is missing"):
        SOURCES["pacs"].listing(tmp_path)


def test_tiny_imagenet(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    wnids = [f"n{k:08}" for k in range(3)]
    lines = []
    for label, wnid in enumerate(wnids):
        for k in range(2):
            paint(folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", label)
        paint(folder / "val" / "images" / f"val_{2 - label}.JPEG", label, test=True)
        lines.append(f"val_{2 - label}.JPEG\t{wnid}\t0\t0\t63\t63")
    (folder / "wnids.txt").write_text("\n".join(reversed(wnids)))
    (folder / "words.txt").write_text("".join(f"{wnid}\tname {k}, other\n" for k, wnid in enumerate(wnids)))
    with pytest.raises(MissingDataError, match=r"val_annotations\.txt is missing"):
        SOURCES["tiny-imagenet"].list_files(folder)
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines))
    listing = SOURCES["tiny-imagenet"].list_files(folder)
    check(listing, 9)
    assert listing.class_names == ("name 0", "name 1", "name 2")


def test_inaturalist(tmp_path: Path) -> None:
    names = ["00000_Animalia_P_C_O_F_Genus_one", "00001_Animalia_P_C_O_F_Genus_two"]
    for label, name in enumerate(names):
        for k in range(2):
            paint(tmp_path / "2021_train_mini" / name / f"{k}.jpg", label)
    with pytest.raises(MissingDataError, match="2021_valid is missing"):
        SOURCES["inaturalist"].list_files(tmp_path)
    for label, name in enumerate(names):
        paint(tmp_path / "2021_valid" / name / "v.jpg", label, test=True)
    listing = SOURCES["inaturalist"].list_files(tmp_path)
    check(listing, 6)
    assert listing.class_names == ("Genus one", "Genus two")


def test_flowers102(tmp_path: Path) -> None:
    labels = [3, 1, 2, 2, 3, 1, 1]
    sets = {"trnid": [[1, 2, 3]], "valid": [[7]], "tstid": [[4, 5, 6]]}
    for number, label in enumerate(labels, start=1):
        paint(tmp_path / "jpg" / f"image_{number:05}.jpg", label - 1, test=number in sets["tstid"][0])
    savemat(tmp_path / "imagelabels.mat", {"labels": np.array([labels])})
    with pytest.raises(MissingDataError, match=r"setid\.mat is missing"):
        SOURCES["flowers102"].list_files(tmp_path)
    savemat(tmp_path / "setid.mat", {key: np.array(value) for key, value in sets.items()})
    listing = SOURCES["flowers102"].list_files(tmp_path)
    check(listing, 7)
    assert listing.class_names[0] == "pink primrose"


def test_oxford_pets(tmp_path: Path) -> None:
    folder = tmp_path / "annotations"
    folder.mkdir()
    names = ["Abyssinian", "american_bulldog", "Bengal"]  # not the order of a plain sort
    for split in ("trainval", "test"):
        images = [(f"{name}_{k}{split}", label) for label, name in enumerate(names) for k in range(2)]
        for image, label in images:
            paint(tmp_path / "images" / f"{image}.jpg", label, test=split == "test")
        (folder / f"{split}.txt").write_text("".join(f"{im} {label + 1} 1 {label}\n" for im, label in images))
    check(SOURCES["oxford-pets"].list_files(tmp_path), 12)
    (folder / "test.txt").unlink()
    with pytest.raises(MissingDataError, match=r"oxford-pets: the split file .*test\.txt is missing"):
        SOURCES["oxford-pets"].list_files(tmp_path)


def test_food101(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    for split in ("train", "test"):
        lists = {name: [f"{name}/{k}{split}" for k in range(2)] for name in ("apple_pie", "baklava")}
        for label, images in enumerate(lists.values()):
            for image in images:
                paint(tmp_path / "images" / f"{image}.jpg", label, test=split == "test")
        (tmp_path / "meta" / f"{split}.json").write_text(json.dumps(dict(reversed(lists.items()))))
    check(SOURCES["food101"].list_files(tmp_path), 8)
    (tmp_path / "meta" / "test.json").write_text('{"apple_pie": [')
    with pytest.raises(UserError, match=r"food101: the list .*test\.json cannot be read"):
        SOURCES["food101"].listing(tmp_path)


def test_caltech101_leaves_the_background_and_the_cropped_faces_out(tmp_path: Path) -> None:
    for label, name in enumerate(["Faces", "accordion", "airplanes"]):
        for k in range(5):
            paint(tmp_path / "101_ObjectCategories" / name / f"image_{k:04}.jpg", label)
    for name in ("BACKGROUND_Google", "Faces_easy"):
        paint(tmp_path / "101_ObjectCategories" / name / "image_0001.jpg", 9)
    listing = SOURCES["caltech101"].list_files(tmp_path)
    check(listing, 15, official_split=False)
    assert listing.is_test.sum() == 3
    assert listing.class_names == ("face", "accordion", "airplane")


def test_dtd(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    for split in ("train1", "val1", "test1"):
        files = [(f"{name}/{name}_{split}.jpg", label) for label, name in enumerate(["banded", "zigzagged"])]
        for file, label in files:
            paint(tmp_path / "images" / file, label, test=split == "test1")
        (tmp_path / "labels" / f"{split}.txt").write_text("".join(f"{file}\n" for file, _ in files))
    check(SOURCES["dtd"].list_files(tmp_path), 6)


def test_odd_names_and_hidden_files_in_a_tree(tmp_path: Path) -> None:
    decomposed = unicodedata.normalize("NFD", "crème brûlée")
    names = sorted([unicodedata.normalize("NFC", decomposed), "two words", "日本"])
    for label, name in enumerate(names):
        folder = decomposed if name.startswith("cr") else name
        for k in range(4):
            paint(tmp_path / folder / f"image {k}.{['JPG', 'PNG', 'Jpeg', 'webp'][k]}", label)
        (tmp_path / folder / ".DS_Store").write_bytes(b"x")
        (tmp_path / folder / "._image 0.JPG").write_bytes(b"x")
        (tmp_path / folder / "notes.txt").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    listing = user_folder(tmp_path)
    assert listing.class_names == tuple(names)
    check(listing, 12, official_split=False)
    assert np.bincount(listing.labels[listing.is_test]).tolist() == [1, 1, 1]


@pytest.mark.parametrize("path", ["banded/../../../secret.jpg", "/etc/secret.jpg"])
def test_a_list_cannot_name_a_file_elsewhere(path: str, tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    for split, line in (("train1", "banded/a.jpg"), ("val1", "banded/b.jpg"), ("test1", path)):
        (tmp_path / "labels" / f"{split}.txt").write_text(line)
    with pytest.raises(UserError, match=r"names .*secret\.jpg, which lies elsewhere; fetch it again"):
        SOURCES["dtd"].listing(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no matlab file", b"MATLAB 5.0" + bytes(200)])
def test_a_damaged_matlab_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    for name in ("imagelabels.mat", "setid.mat"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=r"imagelabels\.mat is damaged .*; fetch it again"):
        SOURCES["flowers102"].listing(tmp_path)


def test_a_deeply_nested_list_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "train.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"train\.json cannot be read: it is nested more than 50 levels deep"):
        SOURCES["food101"].listing(tmp_path)
