"""Images of another size, resized when they are first asked for: a partition may use a few hundred of 60,000.

`images.npy` has a place for every image, empty until it is needed; `sums.npy` holds the CRC-32 of those that are there.
A row is compared with its sum when a process first reads it; one that is missing, half-written or damaged is resized
again, so any number of processes may fill the same folder and be killed.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.core.files import atomic_file
from fedprompt.core.progress import track
from fedprompt.core.untrusted import map_array
from fedprompt.datasets._dataset import Dataset, Images
from fedprompt.datasets._images import to_array
from fedprompt.datasets._store import cannot_write, one_writer

Forms = dict[str, tuple[tuple[int, ...], type]]  # file -> shape and type of its array
BAR_FROM = 1000  # rows; fewer are resized too fast for a progress bar


def resize_rows(dataset: Dataset, rows: np.ndarray) -> None:
    """Resize the images of ``rows`` now, so that no round waits; does nothing for data sets at their stored size."""
    if isinstance(dataset.images, ResizedImages):
        dataset.images.fill(rows)


class ResizedImages:
    """uint8 (n, 3, size, size), to be indexed like an array; ``images`` are the originals."""

    def __init__(self, images: Images, size: int, folder: Path, name: str) -> None:
        self._originals, self._size, self._folder, self._name = images, size, folder, name
        self.shape = (len(images), 3, size, size)
        self._checked = np.zeros(len(images), bool)  # rows that this process has compared with their sums
        self._pixels, self._sums = self._open()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        self.fill(np.atleast_1d(np.arange(len(self))[index[0] if isinstance(index, tuple) else index]))
        return np.array(self._pixels[index])

    def fill(self, rows: np.ndarray) -> None:
        """Resize those of ``rows`` that are not there yet."""
        new = np.unique(rows[~self._checked[rows]])
        if missing := self._missing(new):
            with one_writer(self._folder):
                self._write(self._missing(missing))  # others may have written them in the meantime
        self._checked[new] = True

    def _missing(self, rows: Iterable[int]) -> list[int]:
        return [row for row in rows if not self._sums[row] or zlib.crc32(self._pixels[row].data) != self._sums[row]]

    def _write(self, rows: list[int]) -> None:
        """Plain writes, since a full disk under a memory map kills the process instead of raising an error."""
        described = f"resizing {self._name} to {self._size} px"
        try:
            with (self._folder / "images.npy").open("r+b") as pixels, (self._folder / "sums.npy").open("r+b") as sums:
                for row in track(rows, described) if len(rows) >= BAR_FROM else rows:
                    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(self._originals[row], 0, -1)))
                    resized = np.ascontiguousarray(to_array(picture, self._size))
                    pixels.seek(self._pixels.offset + row * resized.nbytes)
                    pixels.write(resized.data)
                    pixels.flush()
                    sums.seek(self._sums.offset + row * self._sums.itemsize)
                    sums.write(np.array(zlib.crc32(resized.data), self._sums.dtype).tobytes())
        except OSError as error:
            raise cannot_write(self._folder, error) from error

    def _open(self) -> tuple[np.memmap, np.memmap]:
        """Both files, mapped; created again if one of them is missing or has another shape."""
        forms: Forms = {"images.npy": (self.shape, np.uint8), "sums.npy": (self.shape[:1], np.uint32)}

        def are_there() -> bool:
            return all(_is_array(self._folder / name, *form) for name, form in forms.items())

        if not are_there():
            with one_writer(self._folder):
                if not are_there():
                    _make_empty(self._folder, forms)
        pixels, sums = (map_array(self._folder / name) for name in forms)
        return pixels, sums


def _is_array(path: Path, shape: tuple[int, ...], kind: type) -> bool:
    try:
        array = map_array(path)
    except UserError:
        return False
    return bool(array.shape == shape and array.dtype == kind)


def _make_empty(folder: Path, forms: Forms) -> None:
    """Arrays of zeros that take no room on the disk until they are written to."""
    try:
        folder.mkdir(exist_ok=True)
        for name, (shape, kind) in forms.items():
            with atomic_file(folder / name) as file:
                header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(kind).itemsize)
    except OSError as error:
        raise cannot_write(folder, error) from error
