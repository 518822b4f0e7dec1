"""The folder layouts of the public data sets: one function each, from a folder to a :class:`Listing`."""

import io
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.core.rng import numpy_rng
from fedprompt.core.untrusted import parse_json, read_bytes
from fedprompt.datasets._images import BROKEN_ARCHIVE, ImageFile
from fedprompt.datasets._listing import (
    ListedImage,
    Listing,
    MissingDataError,
    class_tree,
    gather_listing,
    read_split_file,
    split_at_random,
    subfolders,
)

DOMAINNET_DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAINNET_CLASSES = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
BATCH_LIMIT = 2**29  # bytes of a pickled batch; the largest, CIFAR-100's train, has 155 million
DOMAINNET_SIZE = 1830  # images of the smallest domain, as the paper gives it
OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CALTECH_LEFT_OUT = ("BACKGROUND_Google", "Faces_easy")  # the latter are the pictures of "Faces" again, cropped
CALTECH_NAMES = {"airplanes": "airplane", "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike"}


def split_tree(folder: Path) -> Listing:
    """``train/<class>/*`` and ``test/<class>/*``."""
    return gather_listing(class_tree(folder / "train") + class_tree(folder / "test", is_test=True))


def domain_tree(folder: Path, domains: tuple[str, ...], name: str) -> Listing:
    """``<domain>/<class>/*`` without an official split."""
    entries = [entry for domain in domains for entry in class_tree(folder / domain, domain=domain)]
    return split_at_random(gather_listing(entries, domain_names=domains), name)


def cifar(
    folder: Path, batches: tuple[tuple[str, ...], tuple[str, ...]], label: str, names: tuple[str, str]
) -> Listing:
    """Torchvision's pickled batches, or an image tree by split and class.

    ``batches`` are the files of train and test, ``label`` the key of their labels, ``names`` the file of class names
    and its key.
    """
    if not (folder / names[0]).exists():
        return split_tree(folder)
    class_names = _unpickle(folder / names[0]).get(names[1])
    if not isinstance(class_names, list) or not all(isinstance(name, str) for name in class_names):
        raise UserError(f"the file {folder / names[0]} is damaged (no {names[1]!r}); fetch it again")
    parts = [_cifar_batch(folder / file, label) for split in batches for file in split]
    images = np.concatenate([data for data, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    labels = np.concatenate([numbers for _, numbers in parts])
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(class_names):
        raise UserError(f"{folder} is damaged (a label is not among the {len(class_names)} classes); fetch it again")
    train = sum(len(data) for data, _ in parts[: len(batches[0])])
    return Listing(images, labels, np.zeros_like(labels), np.arange(len(labels)) >= train, tuple(class_names))


def domainnet(folder: Path, subsample: str) -> Listing:
    """Official zips or their extracted folders, with ``<domain>_train.txt`` and ``<domain>_test.txt``.

    Ten classes are kept, and every domain is cut to the size of the smallest: its train images with the ``subsample``
    `train`, all images with `total`, of which a fifth then become the test set.
    """
    entries = []
    for domain in DOMAINNET_DOMAINS:
        files = _DomainFiles(folder, domain)
        for split in ("train", "test"):
            for path, class_name in _split_file(folder, f"{domain}_{split}.txt", "domainnet"):
                if class_name in DOMAINNET_CLASSES:
                    entries.append(ListedImage(files.at(path), class_name, split == "test", domain))
    listing = gather_listing(entries, DOMAINNET_CLASSES, DOMAINNET_DOMAINS)
    return _balance_train(listing) if subsample == "train" else _balance_total(listing)


def pacs(folder: Path) -> Listing:
    """``<domain>/<class>/*``; the official train and crossval lists make the split where they exist."""
    images = folder / "kfold" if (folder / "kfold").is_dir() else folder
    if not any(folder.rglob("*_train_kfold.txt")):
        return domain_tree(images, PACS_DOMAINS, "pacs")
    entries = []
    for domain in PACS_DOMAINS:
        for split in ("train", "crossval"):
            for path, class_name in _split_file(folder, f"{domain}_{split}_kfold.txt", "pacs"):
                entries.append(ListedImage(images / path, class_name, split == "crossval", domain))
    return gather_listing(entries, domain_names=PACS_DOMAINS)


def tiny_imagenet(folder: Path) -> Listing:
    """``train/<wnid>/images/*``; the labelled val images are the test split, named in ``val_annotations.txt``."""
    entries = class_tree(folder / "train")
    rearranged = [place for place in subfolders(folder / "val") if place.name != "images"]
    if rearranged:  # a common rearrangement: val/<wnid>/* instead of the annotations
        entries += class_tree(folder / "val", is_test=True)
    else:
        lines = read_split_file(folder / "val" / "val_annotations.txt", "tiny-imagenet").splitlines()
        words = [line.split("\t")[:2] for line in lines if line.strip()]
        entries += [ListedImage(folder / "val" / "images" / file, wnid, is_test=True) for file, wnid in words]
    listing = gather_listing(entries)
    words_of = dict(line.split("\t", 1) for line in read_split_file(folder / "words.txt", "tiny-imagenet").splitlines())
    names = tuple(words_of.get(wnid, wnid).split(",")[0].strip() for wnid in listing.class_names)
    return _rename(listing, names)


def inaturalist(folder: Path) -> Listing:
    """The 2021 competition as torchvision lays it out: ``2021_train_mini`` (or ``2021_train``) and ``2021_valid``."""
    train = folder / ("2021_train" if (folder / "2021_train").is_dir() else "2021_train_mini")
    listing = gather_listing(class_tree(train) + class_tree(folder / "2021_valid", is_test=True))
    return _rename(listing, tuple(" ".join(name.split("_")[-2:]) for name in listing.class_names))


def flowers102(folder: Path) -> Listing:
    """``jpg/image_00001.jpg`` with ``imagelabels.mat`` and ``setid.mat``; its train and valid sets are our train."""
    from torchvision.datasets import Flowers102

    for name in ("imagelabels.mat", "setid.mat"):
        if not (folder / name).exists():
            raise MissingDataError(f"flowers102: the split file {folder / name} is missing")
    labels, sets = _read_mat(folder / "imagelabels.mat")["labels"].ravel(), _read_mat(folder / "setid.mat")
    entries = [
        ListedImage(
            folder / "jpg" / f"image_{number:05d}.jpg", Flowers102.classes[labels[number - 1] - 1], key == "tstid"
        )
        for key in ("trnid", "valid", "tstid")
        for number in sets[key].ravel()
    ]
    return gather_listing(entries, Flowers102.classes[: labels.max()])


def oxford_pets(folder: Path) -> Listing:
    """``images/*.jpg`` with ``annotations/trainval.txt`` and ``annotations/test.txt``; classes in their order."""
    entries, number_of = [], {}
    for split in ("trainval", "test"):
        for line in read_split_file(folder / "annotations" / f"{split}.txt", "oxford-pets").splitlines():
            image, number = line.split()[:2]
            class_name = image.rsplit("_", 1)[0]
            number_of[class_name] = int(number)
            entries.append(ListedImage(folder / "images" / f"{image}.jpg", class_name, split == "test"))
    return gather_listing(entries, sorted(number_of, key=number_of.__getitem__))


def food101(folder: Path) -> Listing:
    """``images/<class>/<number>.jpg`` with ``meta/train.json`` and ``meta/test.json``."""
    entries = []
    for split in ("train", "test"):
        file = folder / "meta" / f"{split}.json"
        lists = parse_json(read_split_file(file, "food101"), f"food101: the list {file}")
        for class_name, images in lists.items():
            entries += [ListedImage(folder / "images" / f"{im}.jpg", class_name, split == "test") for im in images]
    return gather_listing(entries)


def caltech101(folder: Path) -> Listing:
    """``101_ObjectCategories/<class>/*``: 100 classes in the order of the folders, plural names made singular."""
    entries = [e for e in class_tree(folder / "101_ObjectCategories") if e.class_name not in CALTECH_LEFT_OUT]
    listing = split_at_random(gather_listing(entries), "caltech101")
    return _rename(listing, tuple(CALTECH_NAMES.get(name, name) for name in listing.class_names))


def dtd(folder: Path) -> Listing:
    """``images/<class>/*`` with the first of ten splits in ``labels``; its train and val lists are our train."""
    entries = []
    for split in ("train1", "val1", "test1"):
        for line in read_split_file(folder / "labels" / f"{split}.txt", "dtd").split():
            entries.append(ListedImage(folder / "images" / line, line.split("/")[0], split == "test1"))
    return gather_listing(entries)


class _DomainFiles:
    """Images of a DomainNet domain, from its folder or else from its zip."""

    def __init__(self, folder: Path, domain: str) -> None:
        archive = folder / f"{domain}.zip"
        self.base: Path | zipfile.Path = folder
        if not (folder / domain).is_dir():
            if not archive.exists():
                raise MissingDataError(f"domainnet: neither {folder / domain}/ nor {archive} exists")
            try:
                opened = zipfile.ZipFile(archive)
            except BROKEN_ARCHIVE as error:
                raise UserError(f"domainnet: {archive} is not a complete zip file ({error}); fetch it again") from error
            if any(info.flag_bits & 1 for info in opened.infolist()):
                raise UserError(f"domainnet: {archive} is encrypted; extract it to {folder / domain}/ yourself")
            self.base = zipfile.Path(opened)

    def at(self, path: str) -> ImageFile:
        """The image at a path as the official lists give it, ``<domain>/<class>/<file>``."""
        return self.base / path


def _split_file(folder: Path, name: str, what: str) -> list[tuple[str, str]]:
    """Paths ``<domain>/<class>/<file>`` and their classes, from a list in the folder or in a usual place below."""
    places = [folder / part / name for part in ("", "splits", "txt", "kfold")]
    file = next((place for place in places if place.exists()), places[0])
    lines = read_split_file(file, what).splitlines()
    paths = [line.strip().rsplit(maxsplit=1)[0] for line in lines if line.strip()]
    bad = next((path for path in paths if path.count("/") != 2), None)
    if bad is not None:
        raise UserError(f"{what}: {file} has the line {bad!r}, which is not <domain>/<class>/<file>")
    return [(path, path.split("/")[1]) for path in paths]


def _balance_train(listing: Listing) -> Listing:
    """Cut every domain's train images to the smallest domain's number, in proportion to its classes."""
    return _cut_domains(listing, ~listing.is_test, "train")


def _balance_total(listing: Listing) -> Listing:
    """Cut every domain to the smallest domain's number over both splits, then draw a split."""
    cut = _cut_domains(listing, np.ones(len(listing.labels), bool), "train and test")
    return split_at_random(cut, "domainnet")


def _cut_domains(listing: Listing, where: np.ndarray, what: str) -> Listing:
    sizes = [int((where & (listing.domains == k)).sum()) for k in range(len(listing.domain_names))]
    least = min(sizes)
    keep = ~where
    for domain in range(len(sizes)):
        rows = numpy_rng(0, "data", "domainnet", domain).permutation(
            np.flatnonzero(where & (listing.domains == domain))
        )
        rows = rows[np.argsort(listing.labels[rows], kind="stable")]
        keep[rows[np.arange(least) * len(rows) // least]] = True  # evenly over the rows in class order
    smallest = listing.domain_names[int(np.argmin(sizes))]
    note = f"every domain cut to {least:,} {what} images, the number of {smallest!r}"
    if least != DOMAINNET_SIZE:
        note += f" (the paper reports {DOMAINNET_SIZE:,})"
    return listing.take(np.flatnonzero(keep), note)


def _rename(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Readable class names, unless two classes would share one."""
    return replace(listing, class_names=names) if len(set(names)) == len(names) else listing


def _read_mat(path: Path) -> dict[str, Any]:
    """The arrays of a MATLAB file."""
    from scipy.io import loadmat

    content = io.BytesIO(read_bytes(path))
    try:
        arrays: dict[str, Any] = loadmat(content)
    except Exception as error:  # a damaged file can raise anything
        raise UserError(f"the file {path} is damaged ({error}); fetch it again") from error
    return arrays


class _ArraysOnly(pickle.Unpickler):
    """Loads arrays and nothing else: a pickle may name any function to be called."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """What rebuilding an array needs; everything else is refused."""
        if (module, name) in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a data file")


def _unpickle(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise MissingDataError(f"the file {path} is missing")
    content = read_bytes(path, limit=BATCH_LIMIT)
    try:
        content = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"the file {path} is damaged ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"the file {path} is damaged (it contains a {type(content).__name__}); fetch it again")
    return content


def _cifar_batch(path: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3072) and labels of one batch."""
    batch = _unpickle(path)
    data, labels = batch.get("data"), batch.get(label)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise UserError(f"the file {path} is damaged (no images of 3 x 32 x 32); fetch it again")
    if not isinstance(labels, list) or not all(isinstance(number, int) for number in labels):
        raise UserError(f"the file {path} is damaged (no {label!r}); fetch it again")
    if len(data) != len(labels):
        raise UserError(f"the file {path} is damaged ({len(data)} images, {len(labels)} labels); fetch it again")
    return data, np.array(labels, np.int64)
