"""From a source's files to a prepared store, with a report of what was found."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._images import UNREADABLE, ImageFile, common_size, read_image, to_array, with_progress
from fedprompt.datasets._listing import Listing
from fedprompt.datasets._store import new_store, open_store, write_images, write_rest
from fedprompt.harness.core.errors import UserError

CHUNK = 256  # images in memory at a time
SHOWN = 10  # lines of a list in the printed report


@dataclass(frozen=True)
class Duplicate:
    """Two images with exactly the same pixels."""

    first: str
    second: str
    across: bool  # one is train, the other test
    other_class: bool  # they carry different labels


@dataclass(frozen=True)
class Report:
    """What ``prepare`` found. ``dataset`` is None when unreadable files kept the store from being written."""

    name: str
    source: str
    dataset: Dataset | None
    counts: dict[tuple[str, str, str], int]  # (split, domain, class) -> images
    duplicates: tuple[Duplicate, ...]
    unreadable: tuple[tuple[str, str], ...]  # path and reason
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return self.dataset is not None

    def count(self, *, split: str | None = None, domain: str | None = None, class_name: str | None = None) -> int:
        wanted = (split, domain, class_name)
        return sum(n for key, n in self.counts.items() if all(w in (None, k) for w, k in zip(wanted, key, strict=True)))

    def format_report(self) -> str:
        """The report as text, for the terminal."""
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
        return "\n".join(lines)

    def _class_lines(self, classes: list[str]) -> list[str]:
        pairs = [(self.count(split="train", class_name=c), self.count(split="test", class_name=c)) for c in classes]
        if len(set(pairs)) == 1:
            return [f"  every class: {pairs[0][0]:,} train, {pairs[0][1]:,} test"]
        return [f"    {c}: {train:,} train, {test:,} test" for c, (train, test) in zip(classes, pairs, strict=True)]


def build_store(name: str, listing: Listing, source: str, store: Path, skip_bad: bool, fingerprint: str = "") -> Report:
    """Decode every image once into ``store``; unreadable ones are listed, and left out only if ``skip_bad``."""
    if not len(listing.labels):
        raise UserError(f"{name}: no images found in {source}")
    size = listing.images.shape[1] if isinstance(listing.images, np.ndarray) else common_size(listing.images)
    digests: list[bytes | None] = []  # of the decoded pixels; None where a file cannot be read
    bad: list[tuple[str, str]] = []
    with new_store(store) as scratch:
        write_images(scratch, _decoded(listing, size, digests, bad))
        kept = listing.take(np.array([row for row, digest in enumerate(digests) if digest], np.int64))
        complete = skip_bad or not bad
        if complete:
            _check(name, kept)
            arrays = {"labels": kept.labels, "domains": kept.domains, "is_test": kept.is_test}
            notes = {"source": source, "notes": kept.notes, "fingerprint": fingerprint}
            write_rest(scratch, name, arrays, kept.class_names, kept.domain_names, **notes)
    return Report(
        name=name,
        source=source,
        dataset=open_store(store) if complete else None,
        counts=_count(kept),
        duplicates=_duplicates(kept, [digest for digest in digests if digest]),
        unreadable=tuple(bad),
        notes=kept.notes,
    )


def _decoded(
    listing: Listing, size: int, digests: list[bytes | None], bad: list[tuple[str, str]]
) -> Iterator[np.ndarray]:
    """Chunks of readable images in order; notes the digest of every row and the reason of every failure."""
    starts = range(0, len(listing.labels), CHUNK)
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside of Python's lock
        for start in with_progress(starts, "reading images", len(starts)):
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
    held = np.bincount(listing.labels[~listing.is_test], minlength=len(listing.class_names))
    if not held.all():
        empty = listing.class_names[int(np.argmin(held))]
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

    first: dict[bytes, int] = {}
    found = []
    for row, digest in enumerate(digests):
        one = first.setdefault(digest, row)
        if one != row:
            across = bool(listing.is_test[one] != listing.is_test[row])
            other = bool(listing.labels[one] != listing.labels[row])
            found.append(Duplicate(describe(one), describe(row), across, other))
    return tuple(found)


def _shortened(lines: list[str]) -> list[str]:
    more = [f"    and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [f"    {line}" for line in lines[:SHOWN]] + more
