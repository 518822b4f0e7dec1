"""Tiny cells on the embedded data, for methods of a plugin that kill or delay their process."""

from pathlib import Path

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.run import RoundProgress
from fedprompt.methods import load_plugin


def plugin_file(source: str, folder: Path) -> str:
    path = folder / "deadly.py"
    path.write_text(source)
    load_plugin(path)
    return str(path)


def tiny_cell(method: str, seed: int = 0, **protocol: int) -> Cell:
    backbone = BackboneSpec("micro-vit", "random", 32)
    protocol = {"epochs": 1, "batch_size": 8, "last": 1, **protocol}
    return make_cell(method, "glyph-domains", "domains:m=1,shots=1", backbone, seed, {"length": 1}, protocol)


def silent(_: RoundProgress) -> None:
    pass
