"""A user's own folder: what is recognised, what is refused, what is left out."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.core.errors import UserError
from fedprompt.datasets import dataset_notes, load_dataset, prepare
from fedprompt.datasets._folders import user_folder
from fedprompt.datasets._listing import Listing, MissingDataError

CLASSES, DOMAINS = ("cat", "dog"), ("indoor", "outdoor")


def paint(path: Path, *colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)


def tree(root: Path, pattern: str, splits: tuple[str, ...] = ("",)) -> None:
    """Five images for every combination that the pattern asks for; their colour tells class, domain and split."""
    for c, class_name in enumerate(CLASSES):
        for d, domain in enumerate(DOMAINS if "DOMAIN" in pattern else ("",)):
            for s, split in enumerate(splits):
                place = pattern.replace("CLASS", class_name).replace("DOMAIN", domain).replace("SPLIT", split)
                for k in range(5):
                    paint(root / place / f"{k}.png", 100 * c, 100 * d, 10 * s)


def check(listing: Listing, size: int, test_split: int | None = None) -> None:
    """Every row has the label, the domain and (with ``test_split``) the split that its image was painted for."""
    assert listing.class_names == CLASSES
    assert len(listing.labels) == size
    for row, file in enumerate(listing.images):
        assert isinstance(file, Path)
        with Image.open(file) as image:
            red, green, blue = image.getpixel((0, 0))  # type: ignore[misc]
        assert (red // 100, green // 100) == (listing.labels[row], listing.domains[row])
        if test_split is not None:
            assert listing.is_test[row] == (blue // 10 == test_split)


@pytest.mark.parametrize("wrapper", ["", "data/"])
@pytest.mark.parametrize(
    ("pattern", "splits", "size", "layout"),
    [
        ("CLASS", ("",), 10, "<class>"),
        ("DOMAIN/CLASS", ("",), 20, "<domain>/<class>"),
        ("SPLIT/CLASS", ("train", "test"), 20, "train|test/<class>"),
        ("SPLIT/CLASS", ("Train", "TEST"), 20, "train|test/<class>"),
        ("SPLIT/CLASS", ("training", "Validation"), 20, "train|test/<class>"),
        ("CLASS/SPLIT", ("train", "test"), 20, "<class>/train|test"),
        ("SPLIT/DOMAIN/CLASS", ("train", "test"), 40, "train|test/<domain>/<class>"),
        ("DOMAIN/SPLIT/CLASS", ("train", "valid"), 40, "<domain>/train|test/<class>"),
    ],
)
def test_common_layouts_are_recognised(
    tmp_path: Path, wrapper: str, pattern: str, splits: tuple[str, ...], size: int, layout: str
) -> None:
    tree(tmp_path, wrapper + pattern, splits)
    listing = user_folder(tmp_path)
    check(listing, size, test_split=1 if len(splits) > 1 else None)
    assert listing.domain_names == (DOMAINS if "DOMAIN" in pattern else ("all",))
    assert listing.notes[0] == f"understood as {'*/' if wrapper else ''}{layout}"
    assert listing.is_test.sum() == (size // 2 if len(splits) > 1 else size // 5)


def test_held_out_images_are_left_out_beside_a_test_folder(tmp_path: Path) -> None:
    tree(tmp_path, "SPLIT/CLASS", ("train", "test", "val"))
    listing = user_folder(tmp_path)
    check(listing, 20, test_split=1)
    assert "'val': 10 images, left out: held-out data are not trained on" in listing.notes


@pytest.mark.parametrize(
    ("pattern", "splits", "reason"),
    [
        ("SPLIT/CLASS", ("train", "extra"), "train may be splits or classes"),
        ("SPLIT/CLASS", ("train",), "train may be splits or classes"),
        ("SPLIT/CLASS", ("test", "val"), "test, val may be splits or classes"),
        ("SPLIT", ("car", "train"), "train may be splits or classes"),
        ("DOMAIN/SPLIT/CLASS", ("a", "b"), "its 3 levels of folders may mean anything"),
        ("SPLIT/CLASS-of-SPLIT", ("mammals", "birds"), "birds, mammals have no class in common"),
    ],
)
def test_what_is_ambiguous_is_refused_with_the_option_that_decides(
    tmp_path: Path, pattern: str, splits: tuple[str, ...], reason: str
) -> None:
    tree(tmp_path, pattern, splits)
    with pytest.raises(UserError) as caught:
        user_folder(tmp_path)
    assert reason in str(caught.value)
    assert f"'folder:{tmp_path}?layout=domain/class' (levels: split, domain, class, any)" in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "classes", "domains"),
    [
        ("class", ("birds", "mammals"), ("all",)),
        ("any/class", ("cat", "dog"), ("all",)),
        ("domain/class", ("cat", "dog"), ("birds", "mammals")),
        ("class/domain", ("birds", "mammals"), ("cat", "dog")),
    ],
)
def test_the_layout_decides(tmp_path: Path, layout: str, classes: tuple[str, ...], domains: tuple[str, ...]) -> None:
    tree(tmp_path, "SPLIT/CLASS", ("mammals", "birds"))
    dataset = load_dataset(f"folder:{tmp_path}?layout={layout}")
    assert (dataset.class_names, dataset.domain_names) == (classes, domains)
    assert len(load_dataset(f"folder:{tmp_path}").domain_names) == 2  # each reading has its own store


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("domain", "layout='domain' is not understood"),
        ("class/class", "name each level of folders once"),
        ("klass", "for example layout=domain/class"),
        ("split/class", "layout= makes 'birds' a split; splits are called train, training, test"),
        ("domain/class/split", "is not <domain>/<class>/train|test: birds/cat/0.png lies higher"),
    ],
)
def test_a_layout_that_does_not_fit(tmp_path: Path, layout: str, message: str) -> None:
    tree(tmp_path, "SPLIT/CLASS", ("mammals", "birds"))
    with pytest.raises(UserError) as caught:
        user_folder(tmp_path, layout)
    assert message in str(caught.value)


def test_a_train_folder_alone_is_split_at_random_when_asked(tmp_path: Path) -> None:
    tree(tmp_path, "SPLIT/CLASS", ("train",))
    assert user_folder(tmp_path, "split/class").is_test.sum() == 2


def test_images_at_two_depths_are_refused(tmp_path: Path) -> None:
    tree(tmp_path, "DOMAIN/CLASS")
    paint(tmp_path / "garden" / "0.png", 0)
    with pytest.raises(UserError, match=r"mixes images below 1 and 2 folders \(garden/\*\)"):
        user_folder(tmp_path)


def test_a_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="has no images"):
        user_folder(tmp_path)
    with pytest.raises(MissingDataError, match="none is missing"):
        user_folder(tmp_path / "none")
    paint(tmp_path / "0.png", 0)
    with pytest.raises(UserError, match="it has no folders"):
        user_folder(tmp_path)


def test_what_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    (tmp_path / "cow").mkdir()
    for name in ("cat/1.heic", "cat/2.HEIC", "dog/3.avif", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    paint(tmp_path / "logo.png", 0)
    report = prepare(f"folder:{tmp_path}").format_report()
    assert "understood as <class>" in report
    assert "classes (2): cat, dog" in report
    assert "files left out: 5 (2 .heic, 1 .avif, 1 .png, 1 .txt): cat/1.heic, cat/2.HEIC" in report
    assert "folders without images: 1: cow" in report
    assert "classes (2): cat, dog" in dataset_notes(f"folder:{tmp_path}")


def test_a_broken_link_is_a_bad_file(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    preparation = prepare(f"folder:{tmp_path}")
    assert [Path(path).name for path, _ in preparation.unreadable] == ["gone.png"]
    with pytest.raises(UserError, match=r"1 unreadable images, the first is .*gone\.png"):
        load_dataset(f"folder:{tmp_path}")
    prepare(f"folder:{tmp_path}", skip_bad=True)
    assert len(load_dataset(f"folder:{tmp_path}").labels) == 10


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    tree(tmp_path / ".elsewhere", "CLASS")
    for name in CLASSES:
        (tmp_path / name).symlink_to(tmp_path / ".elsewhere" / name)
    (tmp_path / ".elsewhere" / "cat" / "up").symlink_to(tmp_path)
    check(user_folder(tmp_path), 10)


@pytest.mark.parametrize("name", ["cat/link.png", "cow"])
def test_a_link_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    tree(tmp_path / "mine", "CLASS")
    tree(tmp_path / "private", "CLASS")
    target = tmp_path / "private" / "cat"
    (tmp_path / "mine" / name).symlink_to(target / "0.png" if name.endswith("png") else target)
    for read in (prepare, load_dataset):
        with pytest.raises(UserError, match=rf"mine/{name} cannot be read: it leads out of .*mine$"):
            read(f"folder:{tmp_path / 'mine'}")


def test_a_fifo_with_the_name_of_an_image_is_a_bad_file(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    preparation = prepare(f"folder:{tmp_path}")
    assert [(Path(path).name, reason) for path, reason in preparation.unreadable] == [
        ("pipe.png", "it is not a plain file")
    ]


def test_images_replaced_by_others_of_equal_size_and_age_are_noticed(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    file = tmp_path / "cat" / "new.bmp"
    paint(file, 0, 0, 0)
    before = load_dataset(f"folder:{tmp_path}").checksum
    times, size = file.stat(), file.stat().st_size
    paint(file, 0, 0, 1)
    assert file.stat().st_size == size
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert load_dataset(f"folder:{tmp_path}").checksum != before


def test_a_folder_name_that_is_not_utf8(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    bad = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    paint(bad / "0.png", 0)
    with pytest.raises(UserError, match=r"caf\\xe9' has a name that is not UTF-8; rename it"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(UserError, match="give the path of a folder"):
        load_dataset(f"folder:{bad}")


def test_a_file_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    tree(tmp_path, "CLASS")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/cat/caf\xe9.png")).write_bytes(b"no image")
    prepare(f"folder:{tmp_path}").format_report().encode()
    prepare(f"folder:{tmp_path}", skip_bad=True)
    assert np.bincount(load_dataset(f"folder:{tmp_path}").labels).tolist() == [5, 5]


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 3000, "a\0b", "~nobody-of-this-name/x", "", "/no/such/folder"])
def test_a_path_that_cannot_be_a_folder_is_one_short_line(path: str) -> None:
    with pytest.raises(UserError) as caught:
        load_dataset(f"folder:{path}")
    assert "give the path of" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="give the path of"):
        load_dataset(f"folder:{tmp_path / 'loop'}")


def test_escape_sequences_in_names_are_written_out(tmp_path: Path) -> None:
    for name in ("\x1b[2Jcat", "dog\u202e"):
        for k in range(5):
            paint(tmp_path / name / f"{k}.png", 0)
    (tmp_path / "dog\u202e" / "\x07.png").write_bytes(b"no image")
    report = prepare(f"folder:{tmp_path}", skip_bad=True).format_report()
    assert report.replace("\n", "").isprintable()
    assert "\\x1b[2Jcat" in report
    assert all(note.isprintable() for note in dataset_notes(f"folder:{tmp_path}"))
