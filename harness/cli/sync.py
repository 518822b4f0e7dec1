"""`fedprompt sync`: finished runs that MLflow has missed."""

from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.harness.cli._options import add_out, add_tracking, tracking_uri
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


def add(commands: "Commands") -> None:
    parser = add_command(commands, "sync", sync, "record finished runs that MLflow has not seen", ("sync",))
    add_out(parser)
    add_tracking(parser)


def sync(args: Namespace) -> int:
    from fedprompt.harness.recording.tracker import sync as sync_runs

    recorded, present, failed = sync_runs(args.out, tracking_uri(args))
    print(f"recorded {recorded}, already there {present}, failed {failed}")
    return 1 if failed else 0
