"""Train two methods on a folder of images of your own and print their accuracy.

    python examples/own_images.py PHOTOS RESULTS        PHOTOS/<domain>/<class>/*.png or PHOTOS/<class>/*.png

The images are split into train and test by seed; `fedprompt datasets folder:PHOTOS` prints what was understood.
"""

import sys
from pathlib import Path

from fedprompt.harness import RunEnvironment, backbone_spec, make_cell, read_summaries, run_cells

photos, results = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
rules = {"rounds": 3, "epochs": 1, "batch_size": 8, "last": 1}
cells = [
    make_cell(method, f"folder:{photos}", "disjoint:clients=2", backbone_spec("micro-vit"), 0, {}, rules)
    for method in ("head-tune", "fedvpt")
]
for outcome in run_cells(cells, RunEnvironment(out=results)):
    print(outcome.cell.method, outcome.error or "finished")
print(read_summaries(results, cells)[["method", "average", "worst_local"]].to_string(index=False))
