"""`fedprompt datasets`: what there is, and one data set in detail."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import unknown
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from rich.console import Console

    from fedprompt.datasets import Dataset
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("datasets", "datasets glyph-domains --partition domains:m=2 --plot who-has-what.png")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "datasets", datasets, "list the data sets, or show one in detail", EXAMPLES)
    parser.add_argument("name", nargs="?", help="show this one; without a name, list all")
    parser.add_argument("--partition", help="show how it is dealt to clients")
    parser.add_argument("--seed", type=int, default=0, help="of the partition (default 0)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw who has what (.png or .pdf)")
    parser.add_argument("--data-root", type=Path, help="folder with downloaded data sets")


def datasets(args: Namespace) -> None:
    from rich.console import Console

    from fedprompt.datasets import dataset_names, dataset_notes, load_dataset

    console = Console(highlight=False, soft_wrap=True)
    if args.name is None:
        _list(console)
        return
    if args.name not in dataset_names() and not args.name.startswith("folder:"):
        raise unknown("data set", args.name, [*dataset_names(), "folder:PATH"])
    dataset = load_dataset(args.name, root=args.data_root)
    _describe(dataset, console)
    for note in dataset_notes(args.name):
        console.print(note, markup=False)
    if args.partition is not None:
        _describe_partition(dataset, args, console)


def _list(console: "Console") -> None:
    from fedprompt.datasets import dataset_names, describe_dataset

    width = max(map(len, dataset_names()))
    for name in dataset_names():
        console.print(f"{name:<{width}}  {describe_dataset(name)}")
    console.print(f"{'folder:PATH':<{width}}  your own images; see docs/data.md for the layouts")


def _describe(dataset: "Dataset", console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    size = dataset.image_size
    console.print(f"[bold]{escape(dataset.name)}[/]: {len(dataset.labels)} images of {size} x {size}", soft_wrap=False)
    console.print(f"classes ({dataset.num_classes}): {', '.join(dataset.class_names)}", soft_wrap=False, markup=False)
    table = Table("domain", "train", "test", box=None)
    for index, domain in enumerate(dataset.domain_names):
        in_domain = dataset.domains == index
        train, test = (in_domain & ~dataset.is_test).sum(), (in_domain & dataset.is_test).sum()
        table.add_row(escape(domain), str(int(train)), str(int(test)))
    console.print(table)
    console.print(f"checksum {dataset.checksum[:16]}")


def _describe_partition(dataset: "Dataset", args: Namespace, console: "Console") -> None:
    from fedprompt.datasets import label_skew, make_partition, parse_partition, plot_partition, shots_note

    partition = make_partition(parse_partition(args.partition), dataset, args.seed)
    train, test = ([len(images) for images in split] for split in (partition.train, partition.test))
    console.print(
        f"{args.partition}, seed {args.seed}: {partition.num_clients} clients with {min(train)} to {max(train)} "
        f"training and {min(test)} to {max(test)} test images each, label skew {label_skew(partition, dataset):.2f}, "
        f"hash {partition.hash[:16]}"
    )
    if note := shots_note(parse_partition(args.partition), dataset, args.seed):
        console.print(note)
    if args.plot is not None:
        plot_partition(partition, dataset, args.plot)
        console.print(f"drawn to {args.plot}")
