from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedprompt.datasets import _glyph_classes as classes
from fedprompt.datasets import glyphs
from fedprompt.datasets._glyph_styles import STYLES
from fedprompt.datasets.glyph_fonts import likeness, mask

TINY = glyphs.GlyphSet("glyph-tiny", "37", ("print", "chalk"), train=3, test=2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPROMPT_CACHE", str(tmp_path))
    return tmp_path


def test_the_three_sets_have_no_character_in_common() -> None:
    assert (len(classes.DOMAINS), len(classes.HUNDRED), len(classes.PRETRAIN)) == (10, 100, 314)
    assert len({*classes.DOMAINS, *classes.HUNDRED, *classes.PRETRAIN}) == 424


@pytest.mark.slow
def test_no_pretraining_class_looks_like_a_class_of_the_other_sets() -> None:
    assert likeness(classes.PRETRAIN, classes.DOMAINS + classes.HUNDRED).max() < classes.LOOK_ALIKE


def test_no_letter_of_glyph_100_looks_like_a_digit() -> None:
    assert likeness(classes.HUNDRED, classes.DOMAINS).max() < 0.9


@pytest.mark.parametrize("pair", ["AА", "BВ", "EΕ", "oо", "Oo", "PР"])
def test_likeness_sees_through_code_points_and_size(pair: str) -> None:
    assert likeness(pair[0], pair[1]).item() > 0.95


def test_likeness_tells_different_letters_apart() -> None:
    assert likeness("A", "W").item() < 0.5


def test_a_mask_fills_its_canvas_and_a_missing_glyph_is_none() -> None:
    drawn = mask("H", "DejaVuSans")
    assert drawn is not None
    assert drawn.shape == (64, 64)
    assert drawn[0].max() > 0.9  # ink touches the top row: size is normalised
    assert mask("\U0010ffff", "DejaVuSans") is None


def test_rendering_has_the_sizes_that_were_asked_for() -> None:
    arrays = glyphs.render(TINY)
    assert arrays["images"].shape == (20, 3, 32, 32)
    assert arrays["images"].dtype == np.uint8
    assert arrays["labels"].tolist() == [0] * 10 + [1] * 10
    assert arrays["domains"].tolist() == ([0] * 5 + [1] * 5) * 2
    assert arrays["is_test"].tolist() == [False, False, False, True, True] * 4


def test_same_seed_same_pixels_other_seed_other_pixels() -> None:
    first = glyphs.render(TINY)["images"]
    assert np.array_equal(first, glyphs.render(TINY)["images"])
    assert not np.array_equal(first, glyphs.render(replace(TINY, seed=1))["images"])


def test_images_of_a_class_do_not_depend_on_the_other_classes() -> None:
    alone = glyphs.render(replace(TINY, chars="7"))["images"]
    assert np.array_equal(alone, glyphs.render(TINY)["images"][10:])


@pytest.mark.parametrize("style", STYLES)
def test_every_style_draws_varied_images_that_are_not_blank(style: str) -> None:
    images = glyphs.render(replace(TINY, styles=(style,)))["images"].astype(float)
    assert images.std(axis=(1, 2, 3)).min() > 5
    assert len(np.unique(images.reshape(10, -1), axis=0)) == 10


def test_second_load_maps_the_cache_without_drawing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = glyphs.load(TINY)
    monkeypatch.setattr(glyphs, "render", None)
    assert glyphs.load(TINY).checksum == first.checksum


def test_other_specs_have_other_caches(cache: Path) -> None:
    glyphs.load(TINY)
    glyphs.load(replace(TINY, seed=1))
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_cache_is_drawn_again(cache: Path, damage: str) -> None:
    intact = glyphs.load(TINY)
    pixels = np.array(intact.images)
    file = next(cache.glob("*/images.npy"))
    if damage == "delete":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[-1] ^= 0xFF
        file.write_bytes(data if damage == "flip" else data[:-100])
    redrawn = glyphs.load(TINY)
    assert np.array_equal(redrawn.images, pixels)
    assert redrawn.checksum == intact.checksum


def test_glyph_domains_suits_one_client_per_style(shared_cache: Path) -> None:
    data = glyphs.glyph_domains()
    assert data.domain_names == ("print", "sketch", "chalk", "photo", "poster", "weave")
    assert np.bincount(data.domains[~data.is_test]).tolist() == [600] * 6
    assert np.bincount(data.domains[data.is_test]).tolist() == [300] * 6
