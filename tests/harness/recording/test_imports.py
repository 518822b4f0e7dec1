"""MLflow takes seconds to import, so nothing imports it before something is recorded."""

import ast
from pathlib import Path

import pytest

from fedprompt.harness.recording import tracker as tracking


def imported_at_once(file: Path) -> set[str]:
    """Top-level packages that importing ``file`` imports: not those of functions, nor for types alone."""
    packages: set[str] = set()
    pending: list[ast.stmt] = ast.parse(file.read_text()).body
    while pending:
        match pending.pop():
            case ast.Import(names=names):
                packages |= {name.name.split(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                packages.add(module.split(".")[0])
            case ast.If(test=test, body=body, orelse=orelse):
                pending += orelse + ([] if ast.unparse(test) == "TYPE_CHECKING" else body)
            case ast.Try(body=body) | ast.With(body=body) | ast.ClassDef(body=body):
                pending += body
    return packages


def test_imports_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import a.b\nif TYPE_CHECKING:\n  import b\ntry:\n  from c.d import e\nfinally: pass\ndef f(): import g\n"
    )
    assert imported_at_once(file) == {"a", "c"}


@pytest.mark.slow
def test_mlflow_is_not_imported_until_something_is_recorded() -> None:
    """Importing it takes seconds; read from the source, for a new process would take as long."""
    files = list(Path(tracking.__file__).parents[1].rglob("*.py"))
    assert len(files) > 50
    assert [file.name for file in files if "mlflow" in imported_at_once(file)] == []
