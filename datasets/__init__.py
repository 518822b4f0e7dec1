"""Data sources, partitions and the prepared store."""

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._partition import Partition, make_partition
from fedprompt.datasets._plot import plot_partition
from fedprompt.datasets._registry import dataset_names, load_dataset
from fedprompt.datasets._spec import PartitionSpec, parse_partition

__all__ = [
    "Dataset",
    "Partition",
    "PartitionSpec",
    "dataset_names",
    "load_dataset",
    "make_partition",
    "parse_partition",
    "plot_partition",
]
