"""Texts and pages of published runs, from their own files and without MLflow.

python tools/published.py texts                 tables.csv and report.md again, in the words of the present code
python tools/published.py pages build/site/reference    the page of every run with its figures, as `make docs` does
"""

import sys
from pathlib import Path

from fedprompt.harness.report.reference import published_notes, recorded_in, write_texts
from fedprompt.harness.report.write import write_files

REFERENCE = Path(__file__).parents[1] / "results" / "reference"


def main(what: str, place: str = "") -> None:
    for folder in sorted(path.parent for path in REFERENCE.glob("*/cells.csv")):
        recorded = recorded_in(folder)
        if what == "texts":
            write_texts(recorded, folder)
        else:
            write_files(recorded, Path(place) / folder.name, folder, tuning_notes=published_notes(folder))
        print(folder.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
