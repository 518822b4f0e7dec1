"""Data sources, partitions and the prepared store. Importing this loads neither torch nor matplotlib."""

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
    plan_labels,
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
    "plan_labels",
    "plot_partition",
    "prepare",
    "resize_rows",
    "short_name",
    "shots_note",
    "train_counts",
    "trained_classes",
]
