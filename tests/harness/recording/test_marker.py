from pathlib import Path

from fedprompt.harness.recording.marker import MARKER, Marker, StoreEntry


def test_a_folder_without_a_marker_is_recorded_nowhere(tmp_path: Path) -> None:
    assert Marker.read(tmp_path) == Marker([], {})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    marker = Marker(["embedded"], {"sqlite:///a.db": StoreEntry("1@2", ("embedded",), {"study": "x"}, "abc")})
    marker.write(tmp_path)
    assert Marker.read(tmp_path) == marker


def test_keys_of_other_versions_are_ignored(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"stores": {"uri": {"experiment": "1@2", "trial": "3", "run": "abc"}}}')
    assert Marker.read(tmp_path).stores == {"uri": StoreEntry("1@2", run="abc")}


def test_a_marker_that_is_no_object_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("[]")
    assert Marker.read(tmp_path) == Marker()
