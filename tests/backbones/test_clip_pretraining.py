import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedprompt.backbones import pretraining
from fedprompt.backbones import pretraining_clip as pc
from fedprompt.backbones.micro_clip import ASSET, make_vocabulary, new_towers
from fedprompt.backbones.text import spoken_name
from fedprompt.core.errors import UserError
from fedprompt.datasets import glyphs
from fedprompt.datasets.glyph_fonts import FONTS

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to


@pytest.fixture
def few_classes(monkeypatch: pytest.MonkeyPatch) -> str:
    """A digit, a letter of glyph-100 and four other classes, and no benchmark to measure on."""
    chars = "7Ж" + glyphs.PRETRAIN.chars[40:44]
    monkeypatch.setattr(pc, "all_classes", lambda: chars)
    monkeypatch.setattr(pc, "measure", lambda _: {"print": 1.0})
    return chars


def test_benchmark_classes_are_met_in_known_styles_only() -> None:
    assert len(pc.all_classes()) == len(set(pc.all_classes())) == 424
    for char in glyphs.DOMAINS.chars + glyphs.HUNDRED.chars:
        assert tuple(pc.styles_of(char)) == glyphs.SEEN_STYLES
    for char in glyphs.PRETRAIN.chars:
        assert pc.styles_of(char) == list(glyphs.DRAW)


def test_every_class_has_its_own_name() -> None:
    assert len({spoken_name(char) for char in pc.all_classes()}) == 424


def test_pictures_hold_what_was_asked_for(few_classes: str) -> None:
    image_tower = new_towers(make_vocabulary(["x"]), 0)["image"]
    seen_fonts = [font for font in FONTS if font not in pc.HELD_OUT_FONTS]
    train = pc.draw_pictures(image_tower, "train", seen_fonts, 3, seed=0)
    held_out = pc.draw_pictures(image_tower, "validation", pc.HELD_OUT_FONTS, 3, seed=0)
    assert len(train) == len(train.features) == 3 * (2 * len(glyphs.SEEN_STYLES) + 4 * len(glyphs.DRAW))
    assert {FONTS[font] for font in train.fonts}.isdisjoint(pc.HELD_OUT_FONTS)
    assert {FONTS[font] for font in held_out.fonts} <= set(pc.HELD_OUT_FONTS)
    styles = list(glyphs.DRAW)
    assert {styles[style] for style in train.styles[train.labels < 2]} == set(glyphs.SEEN_STYLES)


def test_pictures_are_no_images_of_a_benchmark(shared_cache: Path) -> None:
    """Drawn from other keys, so no test picture and no training picture of a benchmark is among them."""
    data = glyphs.glyph_domains()
    masks = torch.from_numpy(np.stack([m for f in FONTS if (m := pc.mask("7", f)) is not None]))[:, None]
    drawn = {
        image.tobytes()
        for style in glyphs.SEEN_STYLES
        for image in pc._paint(masks, style, pc.torch_rng(0, "pretrain", "train", "7", style))
    }
    assert drawn.isdisjoint(image.tobytes() for image in data.images[data.labels == 7])


def test_captions_say_what_is_there() -> None:
    rng = np.random.default_rng(0)
    captions = {pc.caption("digit one", "chalk", "DejaVuSerif-BoldItalic", rng) for _ in range(300)}
    assert {"a chalk of the digit one.", "the serif digit one in chalk", "bold digit one"} <= captions
    assert not any("bold" in pc.caption("digit one", "chalk", "DejaVuSans", rng) for _ in range(50))


def test_every_word_of_a_caption_is_in_the_vocabulary() -> None:
    vocabulary = make_vocabulary(pc._all_captions())
    tokenizer, rng = pc.WordTokenizer(vocabulary), np.random.default_rng(0)
    for char in pc.all_classes():
        text = pc.caption(spoken_name(char), "weave", "STIXGeneralBolIta", rng)
        assert len(tokenizer(text)) == 2 + len(pc.words_of(text))  # no word had to be spelled out
    assert 400 < len(vocabulary) < 460


def test_a_share_of_the_words_is_spelled_out() -> None:
    tokenizer = pc.WordTokenizer(make_vocabulary(["digit one"]))
    none, all_ = (pc.tokenise(["digit one"], tokenizer, np.random.default_rng(0), share) for share in (0.0, 1.0))
    assert (none.ends.tolist(), all_.ends.tolist()) == ([3], [9])


def test_pictures_and_captions_of_one_class_are_all_positives(few_classes: str) -> None:
    """With pictures and captions of one class only, no order of them is better: the loss is log n."""
    towers = new_towers(make_vocabulary(pc._all_captions()), 0)
    features = torch.ones(8, pretraining.ARCH["embed_dim"])
    pictures = pc.Pictures(features, np.zeros(8, int), np.zeros(8, int), np.zeros(8, int))
    rows, rng = np.arange(8), np.random.default_rng(0)
    loss = pc.contrastive_loss(towers, pictures, rows, torch.tensor(0.0), rng)
    assert loss.item() == pytest.approx(np.log(8), abs=0.1)


def test_it_learns_and_repeats_itself(few_classes: str, tmp_path: Path) -> None:
    records = [
        pc.pretrain_clip(tmp_path / f"{name}.safetensors", steps=30, seed=seed, batch=16, warmup=3, each=4)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    contents = [(tmp_path / f"{name}.safetensors").read_bytes() for name in "abc"]
    assert contents[0] == contents[1] != contents[2]
    assert max(records[0]["validation_accuracy"].values()) > 0.5  # of six classes
    assert json.loads((tmp_path / "a.json").read_text())["settings"]["steps"] == 30
    image_tower = load_file(pretraining.ASSET)
    stored = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(stored[f"image.{name}"], value) for name, value in image_tower.items())


def test_templates_are_chosen_before_any_benchmark_is_opened(
    few_classes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise AssertionError("a benchmark was opened")

    monkeypatch.setattr(glyphs, "load", closed)
    record = pc.pretrain_clip(tmp_path / "a.safetensors", steps=1, batch=4, warmup=1, each=1)
    scores = record["validation_accuracy"]
    assert scores[" + ".join(record["templates"])] == max(scores.values())


def test_bad_input_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        pc.pretrain_clip(tmp_path / "a.safetensors", steps=0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        pc.pretrain_clip(tmp_path / "file" / "a.safetensors")


def test_the_committed_record_is_of_the_committed_towers() -> None:
    record = json.loads(ASSET.with_suffix(".json").read_text())
    assert record["image_tower"] == pc.file_identity(pretraining.ASSET), "run 'fedprompt pretrain micro-clip' again"
    assert record["parameters"] == sum(value.numel() for value in load_file(ASSET).values())
    assert set(record["zero_shot_accuracy"]) == {*glyphs.DOMAINS.styles, "mean of styles", "glyph-100"}
