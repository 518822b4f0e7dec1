"""The public data sets: where to get their files, how they are laid out, how many classes to expect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.datasets import _layouts
from fedprompt.datasets._download import Download, fetch, unpack
from fedprompt.datasets._listing import Listing, MissingDataError


@dataclass(frozen=True)
class Source:
    """A public data set: how to find, fetch and list its files.

    To add one, write a layout function in ``_layouts.py`` and an entry in ``_LIST``; the command line and the tests
    over all sources then know it.
    """

    name: str
    classes: int
    list_files: Callable[[Path], Listing]
    layout: str  # what the folder must contain, for messages
    markers: tuple[str, ...]  # a folder with one of these has the data set
    inside: tuple[str, ...] = ()  # folders below the root where it may be
    downloads: tuple[Download, ...] = ()
    home: str = ""  # the maintainers' page
    domains: tuple[str, ...] = ("all",)
    folder: str = ""  # for downloads, below the root; empty: the data set's name (two data sets may share their files)

    def find(self, root: Path) -> Path:
        """The folder with the files: the root, or one below it with the data set's name."""
        names = (self.folder or self.name, self.name.replace("-", "_"), "")
        for folder in [root / name / part for name in names for part in (*self.inside, "")]:
            if any((folder / marker).exists() for marker in self.markers):
                return folder
        raise MissingDataError(f"{self.name}: none of its files under {root}; {self.help(root)}")

    def fetch(self, root: Path) -> None:
        """Download and unpack what the maintainers offer."""
        for download in self.downloads:
            archive = fetch(download, root / (self.folder or self.name))
            if download.unpack:
                unpack(download, archive)

    def help(self, root: Path | str) -> str:
        """What to put where, or which command fetches it."""
        fetch = f", or run: fedprompt prepare {self.name} --root {root}" if self.downloads else ""
        page = f" (from {self.home})" if self.home else ""
        return f"put {self.layout}{page} there{fetch}"

    def listing(self, root: Path) -> Listing:
        """All files with their labels. The number of classes is checked, and that no list names a file elsewhere."""
        folder = self.find(root)
        try:
            listing = self.list_files(folder)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, NotImplementedError, OSError) as error:
            raise UserError(
                f"{self.name}: the lists in {folder} cannot be read ({error!r}); fetch them again"
            ) from error
        for file in () if isinstance(listing.images, np.ndarray) else listing.images:
            if isinstance(file, Path) and not _below(file, folder):
                raise UserError(f"{self.name}: a list in {folder} names {file}, which lies elsewhere; fetch it again")
        if len(listing.class_names) != self.classes:
            raise UserError(
                f"{self.name}: {folder} has {len(listing.class_names)} classes, not {self.classes}; {self.help(root)}"
            )
        return listing


def _below(file: Path, folder: Path) -> bool:
    """Whether the path of an image stays in its folder, as text: lists may hold `..` and absolute paths."""
    return file.is_relative_to(folder) and ".." not in file.relative_to(folder).parts


_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_DOMAINNET = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_INATURALIST = "https://ml-inat-competition-datasets.s3.amazonaws.com/2021"

# The maintainers publish no checksums; several public projects agree on these.
_DOMAINNET_MD5 = """
clipart.zip cd0d8f2d77a4e181449b78ed62bccf1e
clipart_train.txt b4349693a7f9c05c53955725c47ed6cb
clipart_test.txt f5ddbcfd657a3acf9d0f7da10db22565
infograph.zip 720380b86f9e6ab4805bb38b6bd135f8
infograph_train.txt 379b50054f4ac2018dca4f89421b92d9
infograph_test.txt 779626b50869edffe8ea6941c3755c71
painting.zip 1ae32cdb4f98fe7ab5eb0a351768abfd
painting_train.txt 7db0e7ca73ad9982f6e1f7f3ef372c0a
painting_test.txt 232b35dc53f26d414686ae579e38d9b5
quickdraw.zip bdc1b6f09f277da1a263389efe0c7a66
quickdraw_train.txt b732ced3939ac8efdd8c0a889dca56cc
quickdraw_test.txt c1a828fdfe216fb109f1c0083a252c6f
real.zip dcc47055e8935767784b7162e7c7cca6
real_train.txt 8ebf02c2075fadd564705f0dc7cd6291
real_test.txt 6098816791c3ebed543c71ffa11b9054
sketch.zip 658d8009644040ff7ce30bb2e820850f
sketch_train.txt 1233bd18aa9a8a200bf4cecf1c34ef3e
sketch_test.txt d8a222e4672cfd585298aa14d02ea441
"""


def _domainnet_downloads() -> tuple[Download, ...]:
    def address(file: str) -> str:
        """Two zips were cleaned by the maintainers and lie elsewhere."""
        if file.endswith(".txt"):
            return f"{_DOMAINNET}/domainnet/txt/{file}"
        return f"{_DOMAINNET}/{'groundtruth/' if file in ('clipart.zip', 'painting.zip') else ''}{file}"

    lines = (line.split() for line in _DOMAINNET_MD5.strip().splitlines())
    return tuple(Download(address(file), md5) for file, md5 in lines)


def _domainnet(name: str, subsample: str) -> Source:
    return Source(
        name,
        classes=10,
        list_files=partial(_layouts.domainnet, subsample=subsample),
        layout="<domain>.zip or <domain>/ with <domain>_train.txt and <domain>_test.txt of all six domains",
        markers=tuple(f"{domain}{end}" for domain in _layouts.DOMAINNET_DOMAINS for end in ("", ".zip")),
        inside=("DomainNet",),
        downloads=_domainnet_downloads(),
        home="http://ai.bu.edu/M3SDA",
        domains=_layouts.DOMAINNET_DOMAINS,
        folder="domainnet",
    )


def _cifar(
    classes: int, md5: str, batches: tuple[tuple[str, ...], tuple[str, ...]], label: str, names: tuple[str, str]
) -> Source:
    folder = "cifar-10-batches-py" if classes == 10 else "cifar-100-python"
    return Source(
        f"cifar{classes}",
        classes=classes,
        list_files=partial(_layouts.cifar, batches=batches, label=label, names=names),
        layout=f"{folder}/, or train/<class>/* and test/<class>/*",
        markers=(names[0], "train/apple" if classes == 100 else "train/airplane"),
        inside=(folder,),
        downloads=(Download(f"{_TORONTO}/cifar-{classes}-python.tar.gz", md5, unpack=True),),
        home=f"{_TORONTO}/cifar.html",
    )


_LIST = (
    _cifar(
        10,
        "c58f30108f718f92721af3b95e74349a",
        (tuple(f"data_batch_{k}" for k in range(1, 6)), ("test_batch",)),
        "labels",
        ("batches.meta", "label_names"),
    ),
    _cifar(
        100, "eb9058c3a382ffc7106e4002c42a8d85", (("train",), ("test",)), "fine_labels", ("meta", "fine_label_names")
    ),
    _domainnet("domainnet", "train"),
    _domainnet("domainnet-total", "total"),
    Source(
        "office-caltech10",
        classes=10,
        list_files=partial(_layouts.domain_tree, domains=_layouts.OFFICE_DOMAINS, name="office-caltech10"),
        layout="the folders amazon, caltech, dslr and webcam with <class>/*",
        markers=_layouts.OFFICE_DOMAINS,
        inside=("office_caltech_10", "OfficeCaltech10", "images"),
        domains=_layouts.OFFICE_DOMAINS,
    ),
    Source(
        "pacs",
        classes=7,
        list_files=_layouts.pacs,
        layout="art_painting/, cartoon/, photo/ and sketch/ with <class>/*, and the official *_kfold.txt lists",
        markers=("art_painting", "kfold/art_painting"),
        inside=("PACS", "images"),
        domains=_layouts.PACS_DOMAINS,
        home="https://dali-dl.github.io/project_iccv2017.html",
    ),
    Source(
        "tiny-imagenet",
        classes=200,
        list_files=_layouts.tiny_imagenet,
        layout="tiny-imagenet-200/",
        markers=("wnids.txt", "words.txt"),
        inside=("tiny-imagenet-200",),
        downloads=(
            Download(
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", unpack=True
            ),
        ),
        home="http://cs231n.stanford.edu",
    ),
    Source(
        "inaturalist",
        classes=10_000,
        list_files=_layouts.inaturalist,
        layout="2021_train_mini/ (or 2021_train/) and 2021_valid/, as torchvision names them",
        markers=("2021_train_mini", "2021_train", "2021_valid"),
        downloads=(
            Download(
                f"{_INATURALIST}/train_mini.tar.gz",
                "db6ed8330e634445efc8fec83ae81442",
                unpack=True,
                rename=("train_mini", "2021_train_mini"),
            ),
            Download(
                f"{_INATURALIST}/val.tar.gz",
                "f6f6e0e242e3d4c9569ba56400938afc",
                unpack=True,
                rename=("val", "2021_valid"),
            ),
        ),
        home="https://github.com/visipedia/inat_comp",
    ),
    Source(
        "flowers102",
        classes=102,
        list_files=_layouts.flowers102,
        layout="jpg/, imagelabels.mat and setid.mat",
        markers=("imagelabels.mat", "setid.mat", "jpg"),
        inside=("flowers-102",),
        downloads=(
            Download(f"{_VGG}/flowers/102/102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", unpack=True),
            Download(f"{_VGG}/flowers/102/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
            Download(f"{_VGG}/flowers/102/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        home=f"{_VGG}/flowers/102",
    ),
    Source(
        "oxford-pets",
        classes=37,
        list_files=_layouts.oxford_pets,
        layout="images/ and annotations/",
        markers=("annotations/trainval.txt", "annotations/test.txt"),
        inside=("oxford-iiit-pet",),
        downloads=(
            Download(f"{_VGG}/pets/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c", unpack=True),
            Download(f"{_VGG}/pets/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f", unpack=True),
        ),
        home=f"{_VGG}/pets",
    ),
    Source(
        "food101",
        classes=101,
        list_files=_layouts.food101,
        layout="food-101/ with images/ and meta/",
        markers=("meta/train.json", "meta/test.json"),
        inside=("food-101",),
        downloads=(
            Download(
                "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz", "85eeb15f3717b99a5da872d97d918f87", unpack=True
            ),
        ),
        home="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
    ),
    Source(
        "caltech101",
        classes=100,
        list_files=_layouts.caltech101,
        layout="101_ObjectCategories/",
        markers=("101_ObjectCategories",),
        inside=("caltech-101",),
        downloads=(
            Download(
                "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                "3138e1922a9193bfa496528edbbc45d0",
                unpack=True,
            ),
        ),
        home="https://data.caltech.edu/records/mzrjq-6wc02",
    ),
    Source(
        "dtd",
        classes=47,
        list_files=_layouts.dtd,
        layout="dtd/ with images/ and labels/",
        markers=("labels/train1.txt", "labels/test1.txt"),
        inside=("dtd",),
        downloads=(
            Download(f"{_VGG}/dtd/download/dtd-r1.0.1.tar.gz", "fff73e5086ae6bdbea199a49dfb8a4c1", unpack=True),
        ),
        home=f"{_VGG}/dtd",
    ),
)
SOURCES: dict[str, Source] = {source.name: source for source in _LIST}
