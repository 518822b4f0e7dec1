"""`tracked.json` in a run folder: what the folder itself knows about where it is recorded."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedprompt.core.files import write_atomic

MARKER = "tracked.json"
MAIN = "main"  # the tag `variant` of runs that main tables show


@dataclass(frozen=True)
class StoreEntry:
    """What one store has of a run."""

    experiment: str = ""  # its id and the time it was created
    suites: tuple[str, ...] = ()
    group: dict[str, str] = field(default_factory=dict)  # tags that say where the run belongs, such as under a parent
    run: str = ""  # MLflow's id
    variant: str = ""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "StoreEntry":
        """Fields that other versions wrote are ignored."""
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**{**known, "suites": tuple(known.get("suites", ()))})


@dataclass
class Marker:
    """All that `tracked.json` says about one run."""

    suites: list[str] = field(default_factory=list)  # that the run belongs to; `fedprompt sync` cannot know them
    stores: dict[str, StoreEntry] = field(default_factory=dict)  # by URI, without user name and password
    variant: str = ""  # the name of a cell that only ablations show; MAIN if a main table shows it

    @classmethod
    def read(cls, folder: Path) -> "Marker":
        """An empty marker if the folder has none, or a damaged one."""
        try:
            values = {"suites": [], "variant": "", "stores": {}, **json.loads((folder / MARKER).read_text())}
            stores = {uri: StoreEntry.from_json(entry) for uri, entry in values["stores"].items()}
            return cls(values["suites"], stores, values["variant"])
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, AttributeError):  # damaged: recording the run again has no effect
            return cls()

    def write(self, folder: Path) -> None:
        """Replaces the file as a whole."""
        write_atomic(folder / MARKER, json.dumps(asdict(self), indent=1, sort_keys=True).encode())
