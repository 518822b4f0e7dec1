"""Tables of docs/costs.md and docs/tuning.md: `python tools/doc_tables.py` prints both."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.fields import is_rate
from fedprompt.harness.planning.cost import cost, meta_backbone, meta_method
from fedprompt.harness.tuning.spaces import search_space
from fedprompt.methods import registry


def cost_table(backbone: FrozenViT, names: Sequence[str], classes: int = 100, batch_size: int = 64) -> str:
    """What an image costs with each method by default, in Markdown, as docs/costs.md shows it."""
    lines = [
        "| method | GFLOPs in training | in evaluation | once per run | activations, MB | floats down | floats up |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        method = meta_method(name, backbone, classes)
        spent = cost(method, 1, batch_size, ("evaluate", "features"))
        flops = (spent.train_flops, spent.flops["evaluate"], spent.flops["features"])
        cells = [f"{n / spent.images / 1e9:.4g}" for n in flops] + [f"{spent.saved_bytes / spent.images / 1e6:.4g}"]
        payload = [f"{spent.floats_down:,}", f"{spent.floats_up:,}"]
        lines.append("| " + " | ".join([registry().title(name), *cells, *payload]) + " |")
    return "\n".join(lines)


def space_table(methods: Iterable[str]) -> str:
    """What is searched of each method, in Markdown, as docs/tuning.md shows it."""
    lines = ["| method | lr, first values | other rates, first value | other parameters, values |", "| --- " * 4 + "|"]
    for method in methods:
        space, defaults = search_space(method, {}, method), registry().get(method).Params()
        rates = [f"{name} {_text(getattr(defaults, name))}" for name in space if is_rate(name) and name != "lr"]
        others = [f"{name} {_listed(space[name])}" for name in space if not is_rate(name)]
        first = dict.fromkeys((defaults.lr, *space["lr"])) if "lr" in space else ()
        lines.append(f"| {method} | {_listed(first)} | {'; '.join(rates)} | {'; '.join(others)} |")
    return "\n".join(lines)


def _listed(values: Any) -> str:
    return ", ".join(map(_text, values))


def _text(value: Any) -> str:
    if value is None:
        return "= lr"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


if __name__ == "__main__":
    print(cost_table(meta_backbone(), registry().names(FrozenViT.offers)))
    print()
    print(space_table(name for name in registry().names() if search_space(name, {}, name)))
