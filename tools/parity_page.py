"""docs/parity.md, from results/paper/parity.toml: run this after editing the latter."""

from pathlib import Path

from fedprompt.core.files import write_atomic
from fedprompt.harness.report.parity import Parity, parity_of_methods
from fedprompt.methods import registry

FOLDER = "tests/methods/"  # of the tests that the table names
PAGE = Path(__file__).parents[1] / "docs" / "parity.md"
INTRODUCTION = """# Parity with the authors' code

<!-- Written by tools/parity_page.py from results/paper/parity.toml; edit that file. -->

Methods whose authors published code were compared with it in double precision, with the same weights and the same
images; the table names those that were not. `tests/parity/vectors` keeps inputs and the numbers that their code
computed from them, and `tests/parity` feeds the same inputs to our classes: scores, losses, gradients, short trainings,
aggregates, whole rounds. Nobody needs the authors' code to run these tests. A change of one part in ten thousand in the
loss, the scores or the aggregate of any of these methods fails them, as does 1e-4 added to one weight of a tower.

The largest difference is absolute, over all that was compared; the tests allow 1e-12, for FedOTP 1e-11. Where no code
is public, or none was run, the table names what stands in for parity: tests of the equations themselves, in
`tests/methods`. Both say whether a method computes what it should, not how well it does: the suites are for that.
"""
HEADS = ("method", "authors' code", "compared, or what stands in", "largest difference")
STEP_BY_STEP = """## Adding vectors

1. Run the authors' code in double precision on the images and towers of `tests/parity/vectors/towers_vit.npz` or
   `towers_clip.npz`, and save inputs and results under the names that the other files use: `class`, `params`, `labels`,
   `theta.NAME`, then `logits`, `loss`, `grad.NAME`, and `after.NAME` with `rates` and `sgd`.
2. Add the case to `CASES` in `tests/parity/_steps.py`; all hooks of methods are called in `tests/parity/_feed.py`.
3. Describe it in `results/paper/parity.toml` and run `python tools/parity_page.py`.
"""


def page() -> str:
    """The whole page."""
    entries = [(registry().get(name).title, name, entry) for name, entry in parity_of_methods().items()]
    rows = [(f"{title} (`{name}`)", *_cells(entry)) for title, name, entry in entries]
    table = [_row(HEADS), _row(["---", "---", "---", "---:"]), *map(_row, rows)]
    repaired = [f"- **{title}**: {entry.repaired}." for title, _, entry in entries if entry.repaired]
    sections = [
        INTRODUCTION,
        "\n".join(table) + "\n",
        "## What still differs\n\nBy default; an option in brackets gives the authors' way.\n\n"
        + "\n".join(_differences(title, entry) for title, _, entry in entries if entry.differs),
        "## What of their code was repaired first\n\n" + "\n".join(repaired) + "\n",
        STEP_BY_STEP,
    ]
    return "\n".join(sections)


def _cells(entry: Parity) -> tuple[str, str, str]:
    stands_in = "tests of the equations: " + ", ".join(f"`{test.removeprefix(FOLDER)}`" for test in entry.stands_in)
    if not entry.code:
        return entry.without, stands_in, ""
    compared = f"{entry.compared}, with {entry.functions}"
    if entry.without:
        compared += f"; but {entry.without}; {stands_in}"
    return ", ".join(_linked(code) for code in entry.code), compared, entry.brief


def _linked(code: str) -> str:
    """`owner/name commit` with a link to that tree."""
    repository, commit = code.split()
    return f"[{repository}](https://github.com/{repository}/tree/{commit}) {commit}"


def _row(cells: "tuple[str, ...] | list[str]") -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _differences(title: str, entry: Parity) -> str:
    return f"### {title}\n\n" + "\n".join(f"- {difference}" for difference in entry.differs) + "\n"


if __name__ == "__main__":
    write_atomic(PAGE, page().encode())
