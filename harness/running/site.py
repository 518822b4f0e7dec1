"""Where cells run: folders, device, threads."""

from dataclasses import dataclass
from pathlib import Path

from fedprompt.core.errors import UserError


@dataclass(frozen=True)
class Site:
    """Where cells run. On the CPU nothing here changes a result, except ``threads``, which may change the last bits."""

    out: Path = Path("results")
    data_root: Path | None = None
    weights: str | None = None  # the file behind a backbone's content hash, unless it is the embedded one
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    token_memory: int = 2**30  # bytes of frozen tokens that a process keeps; 0 computes them anew in every pass
    image_memory: int = 0  # bytes of the device's memory for the images of a data set; 0 copies every batch
    evaluate_all: bool = False  # count every client in every evaluation, also those that have not changed
    gpus_per_cell: float = 1.0  # that a Ray cluster sets aside; cells with a part of one share it

    def __post_init__(self) -> None:
        if not 0 < self.gpus_per_cell <= 1:
            raise UserError(f"--gpus-per-cell {self.gpus_per_cell:g} must be above 0 and at most 1, such as 0.25.")


DEFAULT_SITE = Site()


def choose_device(name: str) -> str:
    """``name`` if it can be used here; for `auto` a GPU if there is one, else the CPU."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {name!r} is not available here; use cpu, cuda, cuda:N or auto.") from error
    return name
