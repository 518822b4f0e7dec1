"""A user's own folder of images: which level of its tree is the split, the domain, the class."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fedprompt.core.errors import UserError
from fedprompt.datasets._listing import (
    ENDINGS,
    ListedImage,
    Listing,
    MissingDataError,
    composed,
    gather_listing,
    split_at_random,
    visible_tree,
)

TRAIN, TEST = ("train", "training"), ("test", "testing")
HELD_OUT = ("val", "valid", "validation")
SPLITS = (*TRAIN, *TEST, *HELD_OUT)
LEVELS = ("split", "domain", "class", "any")
UNDERSTOOD = (  # by the number of levels, without and with a folder of split names
    *(("class",), ("domain", "class")),
    *(("split", "class"), ("class", "split")),
    *(("split", "domain", "class"), ("domain", "split", "class"), ("domain", "class", "split")),
)
SHOWN = 5  # names in a note

Parts = tuple[str, ...]  # names of the folders between the root and an image


@dataclass(frozen=True)
class _Tree:
    """What lies below a folder."""

    images: dict[Path, Parts]
    strays: list[Path]  # visible files that are not images, or outside every class
    empty: list[Path]  # folders without images

    def names(self, level: int) -> list[str]:
        """Names of the folders at a level, 0 for those directly below the root."""
        return sorted({parts[level] for parts in self.images.values() if len(parts) > level})


def user_folder(folder: Path, layout: str = "") -> Listing:
    """The images of a user's folder, whose layout is recognised or given (`domain/class`, `split/class`).

    What can be read in more than one way is refused with the layouts that would settle it. Images of a val folder are
    the test images if there is no test folder; otherwise they are left out. Without any split a fifth is drawn.
    """
    tree = _read_tree(folder)
    if not tree.images:
        raise MissingDataError(f"{folder} has no images; it must be a tree <class>/* or <domain>/<class>/*")
    levels = _parse(layout) if layout else _recognise(folder, tree)
    domain, split, label = (levels.index(name) if name in levels else None for name in ("domain", "split", "class"))
    shallow = next((file for file, parts in tree.images.items() if len(parts) < len(levels)), None)
    if shallow:
        raise UserError(f"{folder} is not {_written(levels)}: {shallow.relative_to(folder)} lies higher up; move it")
    assert label is not None  # every layout has a class
    role = _roles(folder, tree.names(split)) if split is not None else {}
    entries = [
        ListedImage(
            file,
            class_name=parts[label],
            is_test=split is not None and role[parts[split]] == "test",
            domain="all" if domain is None else parts[domain],
        )
        for file, parts in tree.images.items()
        if split is None or role[parts[split]] != "out"
    ]
    entries.sort(key=lambda entry: (entry.is_test, entry.domain, entry.class_name, composed(str(entry.file))))
    listing = gather_listing(entries)
    if not listing.is_test.any():
        listing = split_at_random(listing, "folder")
    return replace(listing, notes=(*_notes(folder, tree, listing, levels, role), *listing.notes))


def _read_tree(folder: Path) -> _Tree:
    images: dict[Path, Parts] = {}
    strays, empty = [], []
    for place, names, has_folders in visible_tree(folder, within=folder):
        pictures = [place / name for name in names if name.lower().endswith(ENDINGS)]
        parts = tuple(_checked_name(part, place) for part in place.relative_to(folder).parts)
        strays += [place / name for name in names if not name.lower().endswith(ENDINGS)]
        if parts or not has_folders:
            images |= dict.fromkeys(pictures, parts)
        else:
            strays += pictures  # next to the folders of the first level
        if not pictures and not has_folders and parts:
            empty.append(place)
    return _Tree(images, sorted(strays), empty)


def _checked_name(name: str, place: Path) -> str:
    """The name of a folder becomes the name of a class, which must be text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"the folder {os.fsencode(place)!r} has a name that is not UTF-8; rename it") from None
    return composed(name)


def _parse(layout: str) -> Parts:
    levels = tuple(layout.split("/"))
    counts = Counter(level for level in levels if level != "any")
    if set(levels) <= set(LEVELS) and counts["class"] == 1 and max(counts.values()) == 1:
        return levels
    raise UserError(
        f"layout={layout!r} is not understood; name each level of folders once, from the top: class (always), domain, "
        "split, or any for a level to ignore, for example layout=domain/class or layout=any/split/class"
    )


def _recognise(folder: Path, tree: _Tree) -> Parts:
    """The levels of ``tree``; what can be read in two ways is refused with the option that decides."""
    depths = sorted({len(parts) for parts in tree.images.values()})
    if len(depths) > 1:
        shallow = next(parts for parts in tree.images.values() if len(parts) == depths[0])
        raise _ambiguous(folder, f"it mixes images below {depths[0]} and {depths[-1]} folders ({'/'.join(shallow)}/*)")
    wrapper: Parts = ()
    names = [tree.names(level) for level in range(depths[0])]
    if len(names) > 1 and len(names[0]) == 1 and names[0][0].lower() not in SPLITS:
        wrapper, names = ("any",), names[1:]
    named = [level for level, found in enumerate(names) if any(name.lower() in SPLITS for name in found)]
    full = [level for level in named if _is_split(names[level])]
    if (named and len(full) != 1) or not names:
        words = [name for level in named for name in names[level] if name.lower() in SPLITS]
        raise _ambiguous(
            folder, f"{', '.join(words[:SHOWN])} may be splits or classes" if words else "it has no folders"
        )
    fits = [
        levels
        for levels in UNDERSTOOD
        if len(levels) == len(names) and ([levels.index("split")] if "split" in levels else []) == full
    ]
    if len(fits) != 1:
        raise _ambiguous(folder, f"its {len(names)} levels of folders may mean anything")
    _check_domains(folder, tree, (*wrapper, *fits[0]))
    return (*wrapper, *fits[0])


def _is_split(names: list[str]) -> bool:
    """Whether these folders are the splits of a data set: train, and something to test on, and nothing else."""
    lower = [name.lower() for name in names]
    return (
        set(lower) <= set(SPLITS) and any(name in TRAIN for name in lower) and any(name not in TRAIN for name in lower)
    )


def _check_domains(folder: Path, tree: _Tree, levels: Parts) -> None:
    """Domains share classes; where no two do, the upper folders are more likely to be classes or groups of them."""
    if "domain" not in levels:
        return
    pairs = {(parts[levels.index("domain")], parts[levels.index("class")]) for parts in tree.images.values()}
    domains = {domain for domain, _ in pairs}
    if len(domains) > 1 and len({name for _, name in pairs}) == len(pairs):
        shown = _shortened(sorted(domains))
        raise _ambiguous(folder, f"{shown} have no class in common, so they may be domains or groups of classes")


def _roles(folder: Path, names: list[str]) -> dict[str, str]:
    """What each split folder's images are: train, test, or left out."""
    unknown = next((name for name in names if name.lower() not in SPLITS), None)
    if unknown is not None:
        raise UserError(
            f"{folder}: layout= makes {unknown!r} a split; splits are called {', '.join(SPLITS)} (any case)"
        )
    if not any(name.lower() in TRAIN for name in names):
        raise UserError(f"{folder}: no folder is called train, only {', '.join(names)}; rename the one to train on")
    held_out = "out" if any(name.lower() in TEST for name in names) else "test"
    return {name: "train" if name.lower() in TRAIN else "test" if name.lower() in TEST else held_out for name in names}


def _notes(folder: Path, tree: _Tree, listing: Listing, levels: Parts, role: dict[str, str]) -> Iterable[str]:
    """What was understood, and what was left out."""
    yield f"understood as {_written(levels)}"
    if len(listing.domain_names) > 1:
        yield f"domains ({len(listing.domain_names)}): {_shortened(listing.domain_names)}"
    yield f"classes ({len(listing.class_names)}): {_shortened(listing.class_names)}"
    for name, use in role.items():
        count = sum(parts[levels.index("split")] == name for parts in tree.images.values())
        yield f"{name!r}: {count:,} images, {'left out: held-out data are not trained on' if use == 'out' else use}"
    if tree.strays:
        endings = Counter(path.suffix.lower() or "no ending" for path in tree.strays)
        kinds = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(SHOWN))
        files = _shortened([str(path.relative_to(folder)) for path in tree.strays])
        yield f"files left out: {len(tree.strays):,} ({kinds}): {files}"
    if tree.empty:
        folders = _shortened([str(place.relative_to(folder)) for place in tree.empty])
        yield f"folders without images: {len(tree.empty):,}: {folders}"


def _ambiguous(folder: Path, why: str) -> UserError:
    return UserError(
        f"{folder} can be read in more than one way: {why}; say what each level of folders is, for example "
        f"'folder:{folder}?layout=domain/class' (levels: {', '.join(LEVELS)})"
    )


def _written(levels: Parts) -> str:
    return "/".join("train|test" if level == "split" else "*" if level == "any" else f"<{level}>" for level in levels)


def _shortened(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - SHOWN:,} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more
