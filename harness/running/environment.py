"""Where cells run: folders, device, threads."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedprompt.core.errors import UserError


@dataclass(frozen=True)
class RunEnvironment:
    """Where cells run. On the CPU nothing here changes a result, except ``threads``, which may change the last bits."""

    out: Path = Path("results")
    data_root: Path | None = None
    weights: str | None = None  # the file behind a backbone's content hash, unless it is the embedded one
    device: str = "cpu"  # or several, separated by commas, that the workers of one machine are dealt
    threads: int = 1
    plugins: tuple[str, ...] = ()
    token_memory: int = 2**30  # bytes of frozen tokens that a process keeps; 0 computes them in every pass
    image_memory: int = 0  # bytes of the device's memory for the images of a data set; 0 copies every batch
    evaluate_all: bool = False  # count every client in every evaluation, also those that have not changed
    gpus_per_cell: float = 1.0  # that a Ray cluster sets aside; cells with a part of one share it
    cell_timeout: float | None = None  # seconds after which a cell is killed and fails
    executor_options: tuple[tuple[str, str], ...] = ()  # settings of the chosen executor, such as Slurm's partition

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.device.split(","))

    def resolved(self) -> "RunEnvironment":
        """With absolute paths: processes on other machines do not start in the folder that paths are relative to."""
        return replace(
            self,
            out=self.out.resolve(),
            data_root=self.data_root.resolve() if self.data_root else None,
            weights=str(Path(self.weights).resolve()) if self.weights else None,
            plugins=tuple(str(Path(plugin).resolve()) for plugin in self.plugins),
        )

    def __post_init__(self) -> None:
        if self.cell_timeout is not None and not self.cell_timeout > 0:
            raise UserError(f"--cell-timeout {self.cell_timeout:g} must be above 0 seconds; leave it out for no limit.")
        if not 0 < self.gpus_per_cell <= 1:
            raise UserError(f"--gpus-per-cell {self.gpus_per_cell:g} must be above 0 and at most 1, such as 0.25.")


DEFAULT_ENVIRONMENT = RunEnvironment()


def choose_device(name: str) -> str:
    """``name`` if it can be used here, be it one device or several; for `auto` a GPU if there is one, else the CPU."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    devices = name.split(",")
    if len(set(devices)) < len(devices):
        raise UserError(f"--device {name} names a device twice; name each once, such as cuda:0,cuda:1.")
    for device in devices:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UserError(
                f"device {device!r} is not available here; use cpu, cuda, cuda:N, several of them separated by commas, "
                "or auto."
            ) from error
    return name
