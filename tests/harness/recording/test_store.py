"""A new database of MLflow is a copy of an empty one that was made before."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedprompt.harness.recording import store
from fedprompt.harness.recording.store import connect, make_database


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPROMPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def schema(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@pytest.mark.slow
def test_the_second_database_is_a_copy(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (tmp_path / name for name in ("one.db", "two.db", "three.db"))
    make_database(f"sqlite:///{first}")
    (template,) = cache.glob("mlflow-*.db")
    made: list[str] = []
    monkeypatch.setattr(store, "connect", lambda uri: made.append(uri) or connect(uri))
    make_database(f"sqlite:///{second}")
    assert made == []
    assert schema(second) == schema(first)
    client = connect(f"sqlite:///{second}")
    assert client.get_experiment(client.create_experiment("new")).name == "new"
    template.write_bytes(template.read_bytes()[:5000])  # as a full disk would leave it
    make_database(f"sqlite:///{third}")
    assert len(made) == 1
    assert [row[:2] for row in schema(third)] == [
        row[:2] for row in schema(first)
    ]  # MLflow writes its checks in any order
    assert sorted(path.name for path in cache.iterdir()) == [template.name]
