"""Data sources, partitions and the prepared store."""

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._partition import Partition, make_partition
from fedprompt.datasets._plot import plot_partition
from fedprompt.datasets._prepare import Report
from fedprompt.datasets._registry import dataset_names, describe_dataset, load_dataset, prepare
from fedprompt.datasets._spec import PartitionSpec, parse_partition

__all__ = [
    "Dataset",
    "Partition",
    "PartitionSpec",
    "Report",
    "dataset_names",
    "describe_dataset",
    "load_dataset",
    "make_partition",
    "parse_partition",
    "plot_partition",
    "prepare",
]
