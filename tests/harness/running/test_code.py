"""The digest of the code that computes a cell: what changes it, what does not, and that nothing is forgotten."""

import ast
from pathlib import Path

import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.harness.running import code
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import run_cell
from fedprompt.methods import load_plugin, registry

SOURCE = """
from fedprompt.methods.fedvpt import FedVPT
class Mine(FedVPT):
    name = "mine-for-code"
    def limit(self):
        return 1.0
"""
# Modules that a cell needs but that do not decide what it computes.
ELSEWHERE = {
    *("errors", "fields", "files", "interrupts", "memory", "progress", "text", "untrusted"),
    *("cell", "code", "folder", "journal", "environment", "__init__"),
}


def digest(folder: Path, source: str) -> str:
    path = folder / "mine_for_code.py"
    path.write_text(source)
    load_plugin(path)
    return code.code_digest(registry().get("mine-for-code"))


def test_comments_docstrings_and_layout_make_no_difference(tmp_path: Path) -> None:
    commented = SOURCE.replace("class Mine(FedVPT):", 'class Mine(FedVPT):\n    """Mine."""  # really\n')
    assert digest(tmp_path, SOURCE) == digest(tmp_path, commented)


@pytest.mark.parametrize(("old", "new"), [("1.0", "2.0"), ("limit", "limits"), ("return", "1; return")])
def test_an_edit_makes_a_difference(tmp_path: Path, old: str, new: str) -> None:
    assert digest(tmp_path, SOURCE) != digest(tmp_path, SOURCE.replace(old, new))


def test_a_methods_helpers_count() -> None:
    files = {path.name for path in code._with_imports(code.METHODS / "pfedbayespt.py")}
    helpers = {"_deep_rows", "_densities", "_instance_prompts", "_pfedbayespt_params", "_token_encoder"}
    assert files == {"pfedbayespt.py", *(f"{name}.py" for name in helpers)}


def test_partitions_count_and_pictures_do_not() -> None:
    counted = {path.name for path in code.COMMON if path.parent == code.DATASETS}
    assert counted >= {"_partition.py", "_sample.py", "_spec.py", "_splits.py"}
    assert counted.isdisjoint({"_images.py", "_layouts.py", "glyphs.py"})


def test_scoring_counts_and_measuring_what_was_scored_does_not() -> None:
    counted = {path.name for path in code.COMMON if path.parent.name == "measuring"}
    assert counted >= {"evaluation.py", "scores.py", "counts.py"}
    assert counted.isdisjoint({"detection.py", "measures.py", "score_frame.py"})


def test_clip_counts_only_where_it_is_used() -> None:
    method = registry().get("fedvpt")
    assert code.code_digest(method) != code.code_digest(method, clip=True)


def test_everything_that_a_cell_imports_is_counted_or_known_not_to_matter() -> None:
    pending, seen = [code.HARNESS / "running" / "run.py", *code.CLIP], set[Path]()
    while pending:
        file = pending.pop()
        if file not in seen:
            seen.add(file)
            pending += imports(file)
    forgotten = {
        file.stem for file in seen - {*code.COMMON, *code.CLIP, *code.ELSEWHERE} if file.parent != code.METHODS
    } - ELSEWHERE
    assert forgotten == set()
    assert all(file.is_file() for file in (*code.COMMON, *code.CLIP, *code.ELSEWHERE, *code.MEASURES))


def imports(file: Path) -> list[Path]:
    roots = {
        "fedprompt.core": code.CORE,
        "fedprompt.backbones": code.BACKBONES,
        "fedprompt.datasets": code.DATASETS,
        "fedprompt.methods": code.METHODS,
        "fedprompt.harness": code.HARNESS,
    }
    names = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    places = [
        roots[".".join(name.split(".")[:2])].joinpath(*name.split(".")[2:])
        for name in names
        if ".".join(name.split(".")[:2]) in roots
    ]
    return [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]


def test_a_process_refuses_cells_of_other_code(tmp_path: Path) -> None:
    cell = make_cell("fedvpt", "glyph-domains", "domains:m=2", BackboneSpec("micro-vit", "random", 32))
    object.__setattr__(cell, "code", "edited")
    with pytest.raises(UserError, match="is of code edited, but this process has"):
        run_cell(cell, RunEnvironment(tmp_path))
