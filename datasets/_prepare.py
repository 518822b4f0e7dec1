"""From a source's files to a prepared store, with an account of what the files hold."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.core.progress import track
from fedprompt.core.text import visible
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._images import UNREADABLE, ImageFile, common_size, read_image, to_array
from fedprompt.datasets._listing import Listing
from fedprompt.datasets._store import new_store, open_store, read_meta, write_images, write_rest

CHUNK = 256  # images in memory at a time
UNCHANGED = "prepared before, and no file has changed since: nothing was decoded again"
SHOWN = 10  # lines printed of a list of duplicates


@dataclass(frozen=True)
class Duplicate:
    """Two images with exactly the same pixels."""

    first: str
    second: str
    across: bool  # one is train, the other test
    other_class: bool  # they carry different labels


@dataclass(frozen=True)
class Preparation:
    """What ``prepare`` read and wrote, for people: print :meth:`format_report`.

    ``dataset`` is None if unreadable files kept the store from being written.
    """

    name: str
    source: str
    dataset: Dataset | None
    counts: dict[tuple[str, str, str], int]  # (split, domain, class) -> images
    duplicates: tuple[Duplicate, ...]
    unreadable: tuple[tuple[str, str], ...]  # path and reason
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether a store was written."""
        return self.dataset is not None

    def count(self, *, split: str | None = None, domain: str | None = None, class_name: str | None = None) -> int:
        """How many images have these properties; None stands for any."""
        asked = (split, domain, class_name)
        return sum(n for key, n in self.counts.items() if all(a in (None, k) for a, k in zip(asked, key, strict=True)))

    def format_report(self) -> str:
        """All of it as text for the terminal; control characters in names of files and folders are written out."""
        domains = list(dict.fromkeys(domain for _, domain, _ in self.counts))
        classes = list(dict.fromkeys(name for _, _, name in self.counts))
        lines = [f"{self.name} from {self.source}"]
        if self.dataset is not None:
            lines.append(f"  {self.dataset.image_size} px, checksum {self.dataset.checksum[:12]}")
        for split in ("train", "test"):
            lines.append(f"  {split:5} {self.count(split=split):>9,} images of {len(classes)} classes")
            if len(domains) > 1:
                lines += [f"    {domain}: {self.count(split=split, domain=domain):,}" for domain in domains]
        lines += self._class_lines(classes)
        across = [pair for pair in self.duplicates if pair.across]
        other = sum(pair.other_class for pair in self.duplicates)
        lines.append(
            f"  exact duplicates: {len(self.duplicates)} "
            f"({len(across)} between train and test, {other} with another label)"
        )
        lines += _shortened([f"{pair.first} = {pair.second}" for pair in across])
        lines.append(f"  unreadable files: {len(self.unreadable)}")
        lines += [f"    {path}: {reason}" for path, reason in self.unreadable]
        lines += [f"  {note}" for note in self.notes]
        if self.dataset is None:
            lines.append("  NOT PREPARED: repair the unreadable files, or leave them out with --skip-bad")
        return "\n".join(map(visible, lines))

    def _class_lines(self, classes: list[str]) -> list[str]:
        pairs = [(self.count(split="train", class_name=c), self.count(split="test", class_name=c)) for c in classes]
        if len(set(pairs)) == 1:
            return [f"  every class: {pairs[0][0]:,} train, {pairs[0][1]:,} test"]
        return [f"    {c}: {train:,} train, {test:,} test" for c, (train, test) in zip(classes, pairs, strict=True)]


def stored_preparation(name: str, source: str, store: Path, files: str) -> Preparation | None:
    """What an earlier ``prepare`` reported, if ``store`` was made from ``source`` and its files have not changed.

    ``files`` is the fingerprint of the files' names, sizes and times; None means that the store must be made.
    """
    try:
        meta = read_meta(store)
        if meta.get("files") != files or meta.get("source") != source:
            return None
        notes = (*map(str, meta["notes"]), UNCHANGED)
        duplicates = tuple(Duplicate(*pair) for pair in meta["duplicates"])
        unreadable = tuple((str(path), str(reason)) for path, reason in meta["unreadable"])
    except (UserError, KeyError, TypeError, ValueError):  # damaged: made again from the files
        return None
    dataset = open_store(store)
    labels, domains, is_test = map(np.asarray, (dataset.labels, dataset.domains, dataset.is_test))
    listing = Listing([], labels, domains, is_test, dataset.class_names, dataset.domain_names)
    return Preparation(name, source, dataset, _count(listing), duplicates, unreadable, notes)


def build_store(
    name: str, listing: Listing, source: str, store: Path, skip_bad: bool, fingerprint: str = "", files: str = ""
) -> Preparation:
    """Decode every image of ``listing`` once into ``store``; unreadable ones are listed, and left out if ``skip_bad``.

    Args:
        name: the data set's, for messages and the store.
        listing: files with labels, domains and split.
        source: where the files are, as users are told.
        store: the folder to write.
        skip_bad: write the store although some files are unreadable.
        fingerprint: stored, and compared whenever the data are used (users' folders may change).
        files: stored, and compared when ``prepare`` runs again.
    """
    if not len(listing.labels):
        raise UserError(f"{name}: no images found in {source}")
    size = listing.images.shape[1] if isinstance(listing.images, np.ndarray) else common_size(listing.images)
    digests: list[bytes | None] = []  # of the decoded pixels; None where a file cannot be read
    bad: list[tuple[str, str]] = []
    with new_store(store) as scratch:
        write_images(scratch, _decoded(listing, size, digests, bad))
        readable = listing.take(np.array([row for row, digest in enumerate(digests) if digest], np.int64))
        complete = skip_bad or not bad
        if complete:
            _check(name, readable)
            arrays = {"labels": readable.labels, "domains": readable.domains, "is_test": readable.is_test}
            duplicates = _duplicates(readable, [digest for digest in digests if digest])
            notes: dict[str, Any] = {
                "source": source,
                "notes": readable.notes,
                "fingerprint": fingerprint,
                "files": files,
            }
            notes |= {"duplicates": [astuple(pair) for pair in duplicates], "unreadable": bad}
            write_rest(scratch, name, arrays, readable.class_names, readable.domain_names, **notes)
    return Preparation(
        name=name,
        source=source,
        dataset=open_store(store) if complete else None,
        counts=_count(readable),
        duplicates=_duplicates(readable, [digest for digest in digests if digest]),
        unreadable=tuple(bad),
        notes=readable.notes,
    )


def _decoded(
    listing: Listing, size: int, digests: list[bytes | None], bad: list[tuple[str, str]]
) -> Iterator[np.ndarray]:
    """Chunks of readable images in order; appends every row's digest, and every failure with its reason."""
    starts = range(0, len(listing.labels), CHUNK)
    with ThreadPoolExecutor() as pool:  # Pillow releases Python's lock while it decodes
        for start in track(starts, "reading images"):
            files = listing.images[start : start + CHUNK]
            images = []
            for file, result in zip(files, pool.map(lambda file: _decode(file, size), files), strict=True):
                if isinstance(result, str):
                    digests.append(None)
                    bad.append((str(file), result))
                else:
                    digests.append(result[1])
                    images.append(result[0])
            if images:
                yield np.stack(images)


def _decode(file: ImageFile | np.ndarray, size: int) -> tuple[np.ndarray, bytes] | str:
    """The image at ``size`` and the digest of its pixels, or what is wrong with it."""
    try:
        image = Image.fromarray(file) if isinstance(file, np.ndarray) else read_image(file)
    except UNREADABLE as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    digest = hashlib.blake2b(image.tobytes(), digest_size=16, salt=f"{image.width}x{image.height}".encode())
    return to_array(image, size), digest.digest()


def _check(name: str, listing: Listing) -> None:
    """A class without train images, or no test images at all, would make every later number meaningless."""
    train_images = np.bincount(listing.labels[~listing.is_test], minlength=len(listing.class_names))
    if not train_images.all():
        empty = listing.class_names[int(np.argmin(train_images))]
        raise UserError(f"{name}: class {empty!r} has no readable train image")
    if not listing.is_test.any():
        raise UserError(f"{name}: no class has two readable images, so nothing is left for a test split")


def _count(listing: Listing) -> dict[tuple[str, str, str], int]:
    shape = (2, len(listing.domain_names), len(listing.class_names))
    table = np.zeros(shape, np.int64)
    np.add.at(table, (listing.is_test.astype(int), listing.domains, listing.labels), 1)
    return {
        (("train", "test")[split], listing.domain_names[domain], listing.class_names[label]): int(count)
        for (split, domain, label), count in np.ndenumerate(table)
    }


def _duplicates(listing: Listing, digests: list[bytes]) -> tuple[Duplicate, ...]:
    def describe(row: int) -> str:
        return f"row {row}" if isinstance(listing.images, np.ndarray) else str(listing.images[row])

    first_row: dict[bytes, int] = {}
    duplicates = []
    for row, digest in enumerate(digests):
        first = first_row.setdefault(digest, row)
        if first != row:
            across = bool(listing.is_test[first] != listing.is_test[row])
            other_class = bool(listing.labels[first] != listing.labels[row])
            duplicates.append(Duplicate(describe(first), describe(row), across, other_class))
    return tuple(duplicates)


def _shortened(lines: list[str]) -> list[str]:
    more = [f"    and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"    {line}" for line in lines[:SHOWN]] + more
