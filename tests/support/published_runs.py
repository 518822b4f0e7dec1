"""Published runs of a suite with two clients and two rounds."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedprompt.datasets import Partition
from fedprompt.harness.report import reference
from fedprompt.harness.report.reference import publish
from fedprompt.harness.running.folder import finish, run_folder
from fedprompt.harness.running.suite import Suite
from support.report_suites import every_kind, report, run_all
from support.run_folders import new_store

Published = tuple[Suite, Path, Path]


def publish_anew(out: Path, suite: Suite | None = None, partitions: bool = False) -> Published:
    """A suite, the results folder it was run in, and where it is published."""
    suite, uri, place = suite or every_kind(), new_store(out), out / "reference"
    run_all(suite, uri, out)
    for cell in suite.cells() if partitions else ():
        give_partition(run_folder(out, cell))
    report(suite, uri, out)
    (out / "suite.toml").write_text("title = 'tiny'")
    publish_again(suite, out, out, place)
    return suite, out, place


def publish_again(suite: Suite, out: Path, place: Path, folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "suite_path", lambda _: place / "suite.toml")
        return publish(suite, out, folder)


def give_partition(run: Path) -> None:
    """As if the run had written its partition, too."""
    row = (np.arange(1),)
    partition = Partition(row, row, row)
    partition.save(run / "partition.npz")
    records = (run / "records.csv").read_text()
    (run / "records.csv").write_text(records.replace("0123456789abcdef", partition.hash[:16]))
    finish(run, {**json.loads((run / "summary.json").read_text()), "partition_hash": partition.hash})
