"""What a source offers, before any image is decoded: files, labels, domains and the split."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.core.rng import numpy_rng
from fedprompt.core.untrusted import read_text, require_inside
from fedprompt.datasets._images import ImageFile

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
TEST_FRACTION = 0.2  # of every class in every domain, if a source has no official split


class MissingDataError(UserError):
    """Files of a source are not where they should be."""


@dataclass(frozen=True)
class Listing:
    """Files with their labels, domains and split. Row ``i`` of every array is image ``i``.

    Class names are ordered, so that a label means the same name in every process. ``notes`` say how the folder was
    understood and what was left out; users see them.
    """

    images: Sequence[ImageFile] | np.ndarray  # files, or uint8 (n, height, width, 3)
    labels: np.ndarray
    domains: np.ndarray
    is_test: np.ndarray
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...] = ("all",)
    notes: tuple[str, ...] = ()

    def take(self, rows: np.ndarray, *notes: str) -> "Listing":
        """The listing cut down to ``rows``, with further notes."""
        images = self.images[rows] if isinstance(self.images, np.ndarray) else [self.images[k] for k in rows]
        return replace(
            self,
            images=images,
            labels=self.labels[rows],
            domains=self.domains[rows],
            is_test=self.is_test[rows],
            notes=(*self.notes, *notes),
        )


@dataclass(frozen=True)
class ListedImage:
    """One image of a listing that is being gathered."""

    file: ImageFile
    class_name: str
    is_test: bool = False
    domain: str = "all"


def gather_listing(
    entries: Sequence[ListedImage], class_names: Sequence[str] | None = None, domain_names: Sequence[str] | None = None
) -> Listing:
    """A listing of ``entries``, with classes and domains numbered in the order given, or alphabetically."""
    classes = tuple(class_names or sorted({entry.class_name for entry in entries}))
    domains = tuple(domain_names or sorted({entry.domain for entry in entries}))
    label_of = {name: number for number, name in enumerate(classes)}
    domain_of = {name: number for number, name in enumerate(domains)}
    return Listing(
        images=[entry.file for entry in entries],
        labels=np.array([label_of[entry.class_name] for entry in entries], np.int64),
        domains=np.array([domain_of[entry.domain] for entry in entries], np.int64),
        is_test=np.array([entry.is_test for entry in entries], bool),
        class_names=classes,
        domain_names=domains,
    )


def subfolders(folder: Path) -> list[Path]:
    """Visible folders in a fixed order."""
    try:
        folders = [path for path in folder.iterdir() if path.is_dir() and _visible(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        raise MissingDataError(f"the folder {folder} is missing") from None
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be read ({error.strerror})") from error
    return sorted(folders, key=composed)


def visible_tree(folder: Path, within: Path | None = None) -> Iterator[tuple[Path, list[str], bool]]:
    """Every visible folder below ``folder``: its path, its visible files, and whether it has visible folders.

    Links to folders are followed, but no folder is entered twice. A link that leads out of ``within`` is refused.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise MissingDataError(f"the folder {error.filename} is missing") from None
        raise UserError(f"the folder {error.filename} cannot be read ({error.strerror})") from error

    entered = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        stat = Path(place).stat()
        again = (stat.st_dev, stat.st_ino) in entered
        entered.add((stat.st_dev, stat.st_ino))
        folders[:] = [] if again else sorted(name for name in folders if _visible(name))
        files = sorted(name for name in names if _visible(name))
        if within is not None:
            for entry in (Path(place, name) for name in (*folders, *files)):
                if entry.is_symlink():
                    require_inside(entry, within)
        if not again:
            yield Path(place), files, bool(folders)


def image_files(folder: Path, within: Path | None = None) -> list[Path]:
    """All visible image files below ``folder`` in a fixed order, whatever the case of their endings."""
    files = [place / name for place, names, _ in visible_tree(folder, within) for name in names]
    return sorted((file for file in files if file.name.lower().endswith(ENDINGS)), key=composed)


def plain_name(path: Path) -> str:
    """A folder's name, as :func:`composed` text."""
    return composed(path.name)


def class_tree(folder: Path, is_test: bool = False, domain: str = "all") -> list[ListedImage]:
    """Every image of a ``<class>/*`` tree, under its class's name; ``is_test`` and ``domain`` hold for all of them."""
    return [
        ListedImage(file, plain_name(place), is_test, domain)
        for place in subfolders(folder)
        for file in image_files(place)
    ]


def split_at_random(listing: Listing, name: str, fraction: float = TEST_FRACTION) -> Listing:
    """Mark ``fraction`` of every class in every domain as test: the same rows on every machine, for every run's seed.

    ``name``, the data set's, is part of the key of the draw. A class with one image in a domain keeps it for training.
    """
    rng = numpy_rng(0, "data", "split", name)
    is_test = np.zeros(len(listing.labels), bool)
    for domain in range(len(listing.domain_names)):
        for label in range(len(listing.class_names)):
            rows = np.flatnonzero((listing.domains == domain) & (listing.labels == label))
            count = max(round(fraction * len(rows)), 1) if len(rows) > 1 else 0
            is_test[rng.permutation(rows)[:count]] = True
    note = f"no official split: {fraction:.0%} of every class in every domain are test, drawn once with a fixed seed"
    return replace(listing, is_test=is_test, notes=(*listing.notes, note))


def read_split_file(path: Path, what: str) -> str:
    """The text of an official list of images; ``what`` is the data set, for errors."""
    if not path.exists():
        raise MissingDataError(f"{what}: the split file {path} is missing")
    try:
        return read_text(path)
    except UserError as error:
        raise UserError(f"{what}: the split file {error}") from error


def _visible(name: str) -> bool:
    return not name.startswith((".", "__MACOSX"))


def composed(path: Path | str) -> str:
    """As text with composed accents, since some systems store them as separate characters."""
    return unicodedata.normalize("NFC", str(path))
