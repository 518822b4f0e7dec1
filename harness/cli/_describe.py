"""`fedprompt methods` and `fedprompt datasets`: what there is, and one in detail."""

import inspect
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedprompt.datasets import dataset_names, load_dataset, make_partition, parse_partition
from fedprompt.datasets import describe_dataset as describe_source
from fedprompt.harness.core.fields import describe
from fedprompt.methods import Method, registry


def list_methods(console: Console) -> None:
    width = max(map(len, registry().names()))
    for name in registry().names():
        method = registry().get(name)
        console.print(
            f"{name:<{width}}  [bold]{method.title}[/]; a client sends {method.payload_formula}",
            highlight=False,
            soft_wrap=True,
        )
    console.print("\n'fedprompt methods NAME' shows a method's state, payload and parameters.", highlight=False)


def describe_method(method: type[Method], console: Console) -> None:
    """Meaning, state, payload and parameters."""
    module = inspect.getmodule(method)
    console.print(f"[bold]{method.title}[/] ({method.name})", highlight=False)
    console.print(inspect.getdoc(module) or "", highlight=False)
    shared, personal = _state(method)
    console.print(f"\npaper:    {method.paper}", highlight=False)
    console.print(f"needs:    {', '.join(sorted(method.needs))}", highlight=False)
    console.print(f"server:   {shared}", highlight=False)
    console.print(f"personal: {personal}", highlight=False)
    console.print(f"payload:  {method.payload_formula} (floats a client and round)\n", highlight=False)
    for row in describe(method.Params):
        console.print(f"  [bold]{row['name']} = {row['default']}[/]  {row['help']}", highlight=False, soft_wrap=True)
        notes = {"allowed": row["allowed"], "paper": row["paper"], "tuning grid": row["grid"]}
        console.print("      " + "; ".join(f"{k}: {v}" for k, v in notes.items() if v), highlight=False, soft_wrap=True)


def _state(method: type[Method]) -> tuple[str, str]:
    """Names and shapes, read off the method itself at the toy's sizes."""
    from fedprompt.harness.conformance.toy import toy_federation

    federation = toy_federation(method)
    state = federation.start()

    def shapes(tensors: dict[str, object]) -> str:
        return ", ".join(f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors.items()) or "nothing"  # type: ignore[attr-defined]

    sizes = f"  (at width {federation.method.backbone.width}, {federation.method.task.num_classes} classes)"
    return shapes(dict(state.server)) + sizes, shapes(dict(federation.personal(state, 0)))


def list_datasets(console: Console) -> None:
    width = max(map(len, dataset_names()))
    for name in dataset_names():
        console.print(f"{name:<{width}}  {describe_source(name)}", highlight=False, soft_wrap=True)
    console.print(f"{'folder:PATH':<{width}}  your own <domain>/<class>/* or <class>/* tree", highlight=False)


def describe_dataset(
    name: str, root: Path | None, partition: str | None, seed: int, plot: Path | None, console: Console
) -> None:
    dataset = load_dataset(name, root=root)
    console.print(
        f"[bold]{name}[/]: {len(dataset.labels)} images of {dataset.image_size} x {dataset.image_size}", highlight=False
    )
    console.print(f"classes ({dataset.num_classes}): {', '.join(dataset.class_names)}", highlight=False)
    table = Table("domain", "train", "test", box=None)
    for index, domain in enumerate(dataset.domain_names):
        mine = dataset.domains == index
        table.add_row(domain, str(int((mine & ~dataset.is_test).sum())), str(int((mine & dataset.is_test).sum())))
    console.print(table)
    console.print(f"checksum {dataset.checksum[:16]}", highlight=False)
    if partition is None:
        return
    dealt = make_partition(parse_partition(partition), dataset, seed)
    sizes = np.array([[len(a), len(b)] for a, b in zip(dealt.train, dealt.test, strict=True)])
    low, high = sizes.min(0), sizes.max(0)
    console.print(
        f"{partition}, seed {seed}: {dealt.num_clients} clients with {low[0]} to {high[0]} training and "
        f"{low[1]} to {high[1]} test images each, hash {dealt.hash[:16]}",
        highlight=False,
        soft_wrap=True,
    )
    if plot is not None:
        from fedprompt.datasets import plot_partition

        plot_partition(dealt, dataset, plot)
        console.print(f"drawn to {plot}", highlight=False)
