"""Data sets by name: those that the suite knows, a user's folder, and those of installed packages."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np

from fedprompt.core.errors import UserError, unknown
from fedprompt.core.files import cache_dir, write_atomic
from fedprompt.core.text import visible
from fedprompt.core.untrusted import read_table
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._folders import user_folder
from fedprompt.datasets._listing import MissingDataError, image_files, visible_tree
from fedprompt.datasets._prepare import Preparation, build_store, stored_preparation
from fedprompt.datasets._resized import ResizedImages
from fedprompt.datasets._sources import SOURCES, Source
from fedprompt.datasets._store import is_store, one_writer, open_store, read_meta

GROUP = "fedprompt.datasets"
FOLDER, LAYOUT = "folder:", "?layout="
EMBEDDED = {
    "glyph-domains": "10 glyph classes in 6 styles, drawn on first use",
    "glyph-100": "100 glyph classes, drawn on first use",
}
Loader = Callable[[Path | None], Dataset]  # what an entry point names: a function from the user's root to the data set


@cache  # every cell of a suite asks, and the answer takes reading the metadata of every installed package
def entry_points(*, group: str) -> metadata.EntryPoints:
    """Those of installed packages; nothing is imported yet."""
    return metadata.entry_points(group=group)


def dataset_names() -> list[str]:
    """Every name that :func:`load_dataset` knows, sorted; it also takes any ``folder:PATH``."""
    return sorted({*EMBEDDED, *SOURCES, *_installed(), *named_folders()})


def short_name(name: str) -> str:
    """What tables, figures and MLflow call a data set: its name, or the name of its folder for ``folder:PATH``."""
    if not name.startswith(FOLDER):
        return name
    path = name.removeprefix(FOLDER).partition(LAYOUT)[0]
    return Path(path).expanduser().resolve().name or path


def named_folders() -> dict[str, str]:
    """The ``folder:PATH`` behind each name that :func:`name_folder` gave on this machine."""
    file = _names_file()
    if not file.exists():
        return {}
    names = read_table(file)
    if not all(isinstance(address, str) and address.startswith(FOLDER) for address in names.values()):
        raise UserError(f"{file} cannot be read: it must give a {FOLDER}PATH for every name; correct or delete it")
    return names


def name_folder(name: str, folder: str) -> None:
    """Give the data set ``folder:PATH`` a name, on this machine: ``name_folder("pets", "folder:/data/pets")``."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise UserError(f"{name!r} cannot name a data set; use letters, digits, '-', '_' and '.'")
    if name in {*EMBEDDED, *SOURCES, *_installed()}:
        raise UserError(f"a data set is called {name!r} already; choose another name")
    path, layout = _user_path(folder)
    with one_writer(_names_file()):
        names = {**named_folders(), name: f"{FOLDER}{path}{LAYOUT + layout if layout else ''}"}
        write_atomic(_names_file(), json.dumps(names, indent=1, sort_keys=True).encode())


def _names_file() -> Path:
    return cache_dir() / "datasets" / "names.json"


def _resolved(name: str) -> str:
    """``folder:PATH`` of a name that stands for one."""
    return named_folders().get(name, name)


def describe_dataset(name: str) -> str:
    """One line: what it is, or which files it needs."""
    if name in SOURCES:
        source = SOURCES[name]
        return f"{source.classes:,} classes; needs {source.layout}{f' from {source.home}' if source.home else ''}"
    if name in EMBEDDED:
        return EMBEDDED[name]
    if name in named_folders():
        return visible(f"your images in {named_folders()[name].removeprefix(FOLDER)}")
    return f"from an installed package ({_installed()[name].value})"


def load_dataset(name: str, *, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Open a data set, mapped from disk. It is prepared on first use.

    Args:
        name: one of :func:`dataset_names`, or ``folder:PATH`` for your own images.
        root: the folder with the downloaded files ($FEDPROMPT_DATA by default); not needed once the data are prepared.
        image_size: the side in pixels that a backbone wants; None keeps the stored size. Images are resized when they
            are first read, and kept.

    Raises :class:`MissingDataError`, with the command that helps, if its files are nowhere.
    """
    if image_size is not None and image_size < 1:
        raise UserError(f"image_size={image_size} must be at least 1")
    dataset = replace(_load(_resolved(name), root), name=short_name(name))
    return dataset if image_size in (None, dataset.image_size) else _resized(dataset, image_size)


def is_prepared(name: str) -> bool:
    """Whether the public data set ``name`` has a prepared store, so that it loads without a root."""
    return is_store(_store_of(name))


def dataset_notes(name: str) -> tuple[str, ...]:
    """What its preparation noted: how a user's folder was understood, how the split was drawn, what was left out."""
    store = _store_of(_resolved(name))
    notes = read_meta(store).get("notes") if (store / "meta.json").exists() else ()
    return tuple(map(visible, notes)) if isinstance(notes, list) else ()


def load_labels(name: str, root: Path | None = None) -> Dataset:
    """The data set for those who only count: if it is public and not prepared, no image is decoded (n, 3, 0, 0).

    Raises :class:`MissingDataError` if a public data set is not prepared and its files are not under ``root`` either.
    """
    source = SOURCES.get(name)
    if source is None or is_prepared(name):
        return load_dataset(name, root=root)
    source_root = _root(root)
    if source_root is None:
        raise _not_prepared(source)
    listing = source.listing(source_root)
    return Dataset(
        name,
        images=np.empty((len(listing.labels), 3, 0, 0), np.uint8),
        labels=listing.labels,
        domains=listing.domains,
        is_test=listing.is_test,
        class_names=listing.class_names,
        domain_names=listing.domain_names,
        checksum="",
    )


def prepare(name: str, root: Path | None = None, skip_bad: bool = False, download: bool = True) -> Preparation:
    """Check or fetch the files of a data set and write its store, unless it was made from the same files.

    Args:
        name: a public data set or ``folder:PATH``; embedded data need no preparation.
        root: where the files are or should go ($FEDPROMPT_DATA by default).
        skip_bad: leave unreadable files out. Otherwise nothing is written if there are any; the result lists them.
        download: fetch what is missing, if the maintainers offer it.
    """
    address = _resolved(name)
    if address.startswith(FOLDER):
        folder, layout = _user_path(address)
        fingerprint = _fingerprint(
            image_files(folder, within=folder), folder
        )  # before they are read, so that a change is noticed
        where = str(folder), _store_of(address)
        return stored_preparation(short_name(name), *where, fingerprint) or build_store(
            short_name(name), user_folder(folder, layout), *where, skip_bad, fingerprint, fingerprint
        )
    source = _public_source(name)
    root = _root(root)
    if root is None:
        raise UserError(f"{name}: say where its files are or should go: fedprompt prepare {name} --root DIR")
    try:
        listing = source.listing(root)
    except MissingDataError:
        if not (download and source.downloads):
            raise
        source.fetch(root)
        listing = source.listing(root)
    folder = source.find(root).resolve()
    files = _fingerprint([place / file for place, files, _ in visible_tree(folder) for file in files], folder)
    return stored_preparation(name, str(folder), _store_of(name), files) or build_store(
        name, listing, str(folder), _store_of(name), skip_bad, files=files
    )


def _load(name: str, root: Path | None) -> Dataset:
    if name in EMBEDDED:
        from fedprompt.datasets import glyphs

        return glyphs.glyph_domains() if name == "glyph-domains" else glyphs.glyph_100()
    if name in _installed():
        loader: Loader = _installed()[name].load()
        return loader(root)
    store = _store_of(name)
    if name.startswith(FOLDER):
        folder = _user_path(name)[0]
        fingerprint = _fingerprint(image_files(folder, within=folder), folder)
    else:
        fingerprint = ""
        _check_source(_public_source(name), _root(root), store)
    if not is_store(store, fingerprint):
        with one_writer(store):
            if not is_store(store, fingerprint):
                _prepare_or_raise(name, root)
    return open_store(store)


def _prepare_or_raise(name: str, root: Path | None) -> None:
    preparation = prepare(name, root, download=False)
    if preparation.dataset is None:
        path, reason = preparation.unreadable[0]
        raise UserError(
            f"{name}: {len(preparation.unreadable)} unreadable images, the first is {path} ({reason}); "
            f"repair them or run: fedprompt prepare {name} --root {_root(root) or 'DIR'} --skip-bad"
        )


def _installed() -> dict[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in points or point.name in EMBEDDED or point.name in SOURCES:
            raise UserError(
                f"two data sets are called {point.name!r}; one comes from {point.value}: rename or remove it"
            )
        points[point.name] = point
    return points


def _public_source(name: str) -> Source:
    if name in SOURCES:
        return SOURCES[name]
    if name in EMBEDDED or name in _installed():
        raise UserError(f"{name!r} needs no preparation; it is ready to use")
    raise unknown("data set", name, dataset_names(), hint="For your own images: folder:PATH.")


def _root(root: Path | None) -> Path | None:
    configured = os.environ.get("FEDPROMPT_DATA")
    return root or (Path(configured) if configured else None)


def _store_of(name: str) -> Path:
    if name.startswith(FOLDER):
        folder, layout = _user_path(name)
        key = hashlib.sha256(f"{folder}{LAYOUT + layout if layout else ''}".encode()).hexdigest()[:16]
        return cache_dir() / "datasets" / f"folder-{key}"
    return cache_dir() / "datasets" / name


def _user_path(name: str) -> tuple[Path, str]:
    """The folder of ``folder:PATH`` or ``folder:PATH?layout=LEVELS``, and the layout (empty: to be recognised)."""
    text, _, layout = name.removeprefix(FOLDER).partition(LAYOUT)
    if not text:
        raise MissingDataError(f"{name!r} names no folder; give the path of one, such as {FOLDER}photos")
    try:
        text.encode()
        path = Path(text).expanduser().resolve()
        if not path.is_dir():
            raise MissingDataError(
                f"{FOLDER}{text:.100}: the folder {str(path)[:100]!r} is missing; give the path of one"
            )
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # too long, a null byte or not UTF-8, no home or a loop of links
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{FOLDER}{text!a:.100}: {str(reason)[:100]}; give the path of a folder") from error
    return path, layout


def _fingerprint(files: Sequence[Path], folder: Path) -> str:
    """Names, sizes and times of files below a folder, which may change between two runs."""
    digest = hashlib.sha256()
    for path in files:
        try:
            stat = path.stat()
            state = f"{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}"
        except OSError:  # a broken link, which is reported when images are read
            state = "unreadable"
        digest.update(f"{path.relative_to(folder)}\0{state}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _check_source(source: Source, root: Path | None, store: Path) -> None:
    """There must be a store or a root, and if the root holds the data, the store must have been made from them."""
    if not is_store(store):
        if root is None:
            raise _not_prepared(source)
        return
    try:
        folder = str(source.find(root).resolve()) if root else None
    except MissingDataError:
        return
    prepared = read_meta(store).get("source")
    if folder and folder != prepared:
        raise UserError(
            f"{source.name} was prepared from {prepared}, not from {folder}; to replace it run: "
            f"fedprompt prepare {source.name} --root {root}"
        )


def _not_prepared(source: Source) -> MissingDataError:
    return MissingDataError(
        f"{source.name} is not prepared; run: fedprompt prepare {source.name} --root DIR "
        f"(DIR has, or will get, {source.layout})"
    )


def _resized(dataset: Dataset, size: int) -> Dataset:
    """The data set at another image size; each image is resized once, when it is first asked for."""
    folder = cache_dir() / "resized" / f"{dataset.name}-{dataset.checksum[:16]}-{size}"
    checksum = hashlib.sha256(f"{dataset.checksum} at {size} px".encode()).hexdigest()
    return replace(dataset, images=ResizedImages(dataset.images, size, folder, dataset.name), checksum=checksum)
