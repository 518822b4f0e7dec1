"""The digest of the code that computes a cell: results of edited code are other results.

It covers the method's file with the modules of `fedprompt.methods` that it imports, and everything between the images
and the scores: partitions, backbones, training, evaluation. It leaves out how images are prepared, because a cell's
data have their own checksum, and what only moves results around or measures them. Comments, docstrings and layout make
no difference.
"""

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import fedprompt.backbones
import fedprompt.core
import fedprompt.datasets
import fedprompt.methods
from fedprompt.methods import Method

HARNESS = Path(__file__).resolve().parents[1]
CORE, BACKBONES, DATASETS, METHODS = (
    Path(str(package.__file__)).resolve().parent
    for package in (fedprompt.core, fedprompt.backbones, fedprompt.datasets, fedprompt.methods)
)
CLIP = (*BACKBONES.glob("clip*.py"), *(BACKBONES / f"{name}.py" for name in ("micro_clip", "open_clip_towers", "text")))
IMAGES = (  # on their way into the store
    *("_download", "_folders", "_images", "_layouts", "_listing", "_plot", "_prepare", "_registry", "_sources"),
    *("_store", "__init__", "testing"),
)
ELSEWHERE = (
    *(BACKBONES.glob("pretraining*.py")),  # what makes weights
    BACKBONES / "zero_shot.py",  # what only refuses
    *(DATASETS.glob("*glyph*.py")),
    *(DATASETS / f"{name}.py" for name in IMAGES),
)
MEASURES = {
    HARNESS / "measuring" / f"{name}.py" for name in ("detection", "measures", "score_frame")
}  # read what runs have written
COMMON = (
    HARNESS / "running" / "run.py",
    CORE / "rng.py",
    *(HARNESS / "federation").glob("*.py"),
    *({*(HARNESS / "measuring").glob("*.py")} - MEASURES),
    *({*BACKBONES.glob("*.py"), *DATASETS.glob("*.py")} - {*CLIP, *ELSEWHERE}),  # new modules count
    *(
        METHODS / f"{name}.py" for name in ("_batch", "_contract", "_headed", "_mixins", "_server_learning")
    ),  # what methods inherit
)


@cache
def code_digest(method: type[Method], clip: bool = False) -> str:
    """Of the code as it is on disk when a process first asks; ``clip`` counts what only CLIP backbones need."""
    method_files = _with_imports(Path(inspect.getfile(method)).resolve())
    return hashlib.sha256("\n".join([*_shared(clip), *sorted(map(_text, method_files))]).encode()).hexdigest()[:12]


@cache
def _shared(clip: bool) -> list[str]:
    return sorted(map(_text, (*COMMON, *(CLIP if clip else ()))))


def _with_imports(file: Path) -> set[Path]:
    """``file`` and the files of `fedprompt.methods` that it needs, besides those that count for every cell."""
    needed, pending = set[Path](), [file]
    while pending:
        file = pending.pop()
        if file not in needed and file not in COMMON:
            needed.add(file)
            pending += _imports(ast.parse(file.read_bytes()))
    return needed


def _imports(tree: ast.Module) -> Iterator[Path]:
    """Files of `fedprompt.methods` that a module imports, wherever in it."""
    prefix = "fedprompt.methods."
    for node in ast.walk(tree):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom):
            names = (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
        for name in names:
            path = METHODS / f"{name.removeprefix(prefix)}.py"
            if name.startswith(prefix) and path.is_file():
                yield path


def _text(file: Path) -> str:
    return f"{file.name}: {_canonical(ast.parse(file.read_bytes()))}"


def _canonical(node: object) -> str:
    """A syntax tree as text without docstrings. Unlike `ast.dump`, it is the same for all versions of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(_canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        fields["body"] = fields["body"][1:]
    present = (f"{name}={_canonical(value)}" for name, value in fields.items() if value not in (None, []))
    return f"{type(node).__name__}({','.join(present)})"
