"""Data sets, their partitions into clients, and the prepared store. Importing this loads neither torch nor matplotlib.

::

    dataset = load_dataset("glyph-domains")
    partition = make_partition(parse_partition("domains:m=2"), dataset, seed=0)
    images = dataset.images[partition.train[0]]  # of client 0

A public data set is a :class:`Source` in ``_sources.py`` with a function from its folder to a list of images in
``_layouts.py``; a partition is a subclass of :class:`PartitionSpec` in ``_spec.py``. Other packages add data sets
through the entry-point group ``fedprompt.datasets``.
"""

from fedprompt.datasets._dataset import Dataset, Images
from fedprompt.datasets._held_out import trained_classes
from fedprompt.datasets._listing import MissingDataError
from fedprompt.datasets._partition import Partition, make_partition
from fedprompt.datasets._plot import heat_map, plot_partition, train_counts
from fedprompt.datasets._prepare import Preparation
from fedprompt.datasets._registry import (
    dataset_names,
    dataset_notes,
    describe_dataset,
    is_prepared,
    load_dataset,
    load_labels,
    name_folder,
    prepare,
    short_name,
)
from fedprompt.datasets._resized import resize_rows
from fedprompt.datasets._skew import label_skew, shots_note
from fedprompt.datasets._sources import SOURCES, Source
from fedprompt.datasets._spec import PartitionSpec, parse_partition

__all__ = [
    "SOURCES",
    "Dataset",
    "Images",
    "MissingDataError",
    "Partition",
    "PartitionSpec",
    "Preparation",
    "Source",
    "dataset_names",
    "dataset_notes",
    "describe_dataset",
    "heat_map",
    "is_prepared",
    "label_skew",
    "load_dataset",
    "load_labels",
    "make_partition",
    "name_folder",
    "parse_partition",
    "plot_partition",
    "prepare",
    "resize_rows",
    "short_name",
    "shots_note",
    "train_counts",
    "trained_classes",
]
