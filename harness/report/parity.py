"""How near each method is to its authors' code: what was compared, the largest difference, and what still differs.

The data are in `results/paper/parity.toml`, which an installed package has, too. `tests/parity` measures them.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed package
PLACES = (ROOT / "results" / "paper" / "parity.toml", ROOT / "paper" / "parity.toml")


@dataclass(frozen=True)
class Parity:
    """One method's entry. Without ``code``, the tests of its equations stand in for parity."""

    code: tuple[str, ...] = ()  # repositories and commits
    functions: str = ""
    vectors: tuple[str, ...] = ()  # comparisons of tests/parity
    compared: str = ""
    reached: float = 0.0  # largest absolute difference, in double precision
    tolerance: float = 1e-12
    repaired: str = ""  # what of the code had to be changed before it could be compared
    differs: tuple[str, ...] = ()
    without: str = ""  # why there is nothing, or what could not be compared
    stands_in: tuple[str, ...] = ()  # FILE::TEST of the equations

    @property
    def brief(self) -> str:
        """For a column of a table."""
        return f"{self.reached:.0e}" if self.code else "equations"

    @property
    def line(self) -> str:
        """For a reader who sees only this method."""
        if not self.code:
            return f"{self.without}; {len(self.stands_in)} tests of its equations stand in"
        differences = f"; {len(self.differs)} known differences" if len(self.differs) > 1 else ""
        differences = "; one known difference" if len(self.differs) == 1 else differences
        return f"{self.compared}: within {self.brief} of {', '.join(self.code)}{differences} (docs/parity.md)"


@cache
def parity_of_methods() -> Mapping[str, Parity]:
    """By name of the method; a plugin's has no entry."""
    file = next((place for place in PLACES if place.exists()), None)
    if file is None:
        return {}
    return {name: _entry(raw) for name, raw in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def _entry(raw: Mapping[str, Any]) -> Parity:
    unknown = raw.keys() - {field.name for field in fields(Parity)}
    if unknown:
        raise ValueError(f"parity.toml: unknown {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return Parity(**values)
