"""Names for things that are not classes: common words that are far from all class names."""

import torch

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import PLACEHOLDER

NOUNS = (
    "air", "apron", "arch", "arm", "ash", "attic", "axle", "bag", "barn", "beam", "belt", "bench", "bill", "blame",
    "bolt", "bond", "bone", "brick", "broom", "bulk", "cab", "cable", "calm", "camp", "cape", "cave", "cell", "cent",
    "chalk", "chaos", "chord", "claim", "clay", "cliff", "cloth", "coal", "coast", "coin", "cork", "court", "crisis",
    "curve", "dawn", "debt", "deck", "delay", "ditch", "doubt", "draft", "drain", "dream", "dust", "duty", "edge",
    "error", "event", "fabric", "faith", "fault", "fee", "fiber", "field", "flame", "floor", "fog", "force", "forum",
    "frost", "fuel", "gale", "gap", "gas", "gate", "glue", "grain", "grid", "guild", "gum", "habit", "haste", "heap",
    "hinge", "honor", "hull", "humor", "idea", "inch", "index", "ink", "iron", "item", "jail", "jet", "jury", "kiln",
    "knot", "label", "lace", "lane", "law", "lever", "limit", "linen", "loan", "loft", "logic", "loop", "luck", "mast",
    "merit", "mill", "mist", "mode", "mud", "myth", "nail", "noise", "oath", "oil", "order", "oven", "panel", "patch",
    "peace", "pipe", "plan", "plot", "poem", "pride", "proof", "quiz", "rail", "rent", "rhyme", "risk", "roof", "rope",
    "rule", "rust", "salt", "scale", "scrap", "shelf", "slate", "slope", "smoke", "soap", "sound", "steam", "story",
)  # fmt: skip
ADJECTIVES = (
    "able", "acid", "alien", "ample", "awake", "bald", "bare", "bitter", "bland", "bleak", "blunt", "brisk", "broad",
    "civil", "clear", "coarse", "cold", "crisp", "cruel", "damp", "dense", "dim", "dry", "dull", "eager", "early",
    "empty", "exact", "faint", "false", "firm", "flat", "fond", "frail", "fresh", "grim", "harsh", "hasty", "hollow",
    "idle", "keen", "lame", "late", "lazy", "legal", "local", "loose", "loud", "loyal", "mild", "moist", "naive",
    "neat", "noble", "odd", "pale", "plain", "polite", "prime", "quiet", "rapid", "rare", "raw", "rigid", "rough",
    "rural", "sharp", "shy", "silent", "slim", "sour", "stale", "steep", "stiff", "tame", "tidy", "timid", "tough",
)  # fmt: skip
KINDS = ((NOUNS, "The nice {}."), (ADJECTIVES, "This is a {} photo."))
QUANTILE = 0.95  # of a word's similarities to the classes: a word that is near a few of many classes is near


def far_words(backbone: FrozenCLIP, class_names: tuple[str, ...], count: int, length: int) -> tuple[str, ...]:
    """``count`` words that are least like any class, nouns and adjectives in proportion to their lists.

    Fewer if less fit into a prompt behind ``length`` context tokens.
    """
    names = {name.lower() for name in class_names}
    places = backbone.text.context_length
    fitting = [
        [word for word in words if word not in names and _tokens(backbone, word, length) <= places]
        for words, _ in KINDS
    ]
    total = sum(map(len, fitting))
    wanted = min(count, total)
    nouns = round(wanted * len(fitting[0]) / max(1, total))
    chosen: list[str] = []
    for words, (_, template), number in zip(fitting, KINDS, (nouns, wanted - nouns), strict=True):
        chosen += _farthest(backbone, class_names, words, template, number)
    return tuple(chosen)


def _tokens(backbone: FrozenCLIP, word: str, length: int) -> int:
    return len(backbone.text.tokenizer(f"{' '.join([PLACEHOLDER] * length)} {word}."))


def _farthest(
    backbone: FrozenCLIP, class_names: tuple[str, ...], words: list[str], template: str, count: int
) -> list[str]:
    if not count:
        return []
    classes, texts = backbone.template_features(class_names), backbone.template_features(words, [template])
    if texts.is_meta:  # where only shapes are counted
        return words[:count]
    nearness = torch.quantile((texts @ classes.mT).double(), QUANTILE, dim=1)
    return [words[place] for place in nearness.argsort(stable=True)[:count].sort().values.tolist()]
