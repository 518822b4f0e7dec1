"""Options that several commands share, and what they mean."""

import dataclasses
import os
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError, unknown
from fedprompt.harness.cli._parser import Parser
from fedprompt.harness.running.executors import executors, get_executor

if TYPE_CHECKING:
    from fedprompt.harness.running.environment import RunEnvironment
    from fedprompt.harness.running.suite import Suite

SET_HELP = "a parameter of the method or a field of the protocol (protocol.KEY if both have it); may be repeated"


def add_suite(parser: Parser) -> None:
    parser.add_argument("suite", help=f"a .toml file of yours, or one of {', '.join(_suite_names())}")


def _suite_names() -> list[str]:
    """Like `suite_file.suite_names`, without what that module imports."""
    return sorted(path.stem for path in (Path(__file__).parents[1] / "running" / "suites").glob("*.toml"))


def add_selection(parser: Parser) -> None:
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--seeds", help="only these, separated by commas")


def add_untuned(parser: Parser) -> None:
    parser.add_argument("--untuned", action="store_true", help="ignore what 'fedprompt tune' has chosen")


def add_executor(parser: Parser) -> None:
    """Where cells run, the workers of this machine among it."""
    choices = "; ".join(f"{entry.name}: {entry.help}" for entry in executors().values())
    parser.add_argument("--executor", default="local", choices=tuple(executors()), help=f"{choices} (default: local)")
    add_workers(parser)
    add_cell_timeout(parser)
    parser.add_argument("--gpus-per-cell", type=float, default=1.0, help="on a Ray cluster; 0.25 lets four share one")
    for entry in executors().values():
        if entry.options:
            parser.add_argument(
                f"--{entry.name}",
                dest=_option_name(entry.name),
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help=entry.options,
            )


def _option_name(executor: str) -> str:
    return f"options_of_{executor}"


def _executor_options(args: Namespace) -> tuple[tuple[str, str], ...]:
    """What `--EXECUTOR KEY=VALUE` says; refused if another executor was chosen."""
    chosen: list[tuple[str, str]] = []
    for name in executors():
        for text in getattr(args, _option_name(name), []):
            key, equals, value = text.partition("=")
            if not equals:
                raise UserError(f"--{name} {text!r} is not KEY=VALUE.")
            if name != args.executor:
                raise UserError(f"--{name} {text} needs --executor {name}; this is --executor {args.executor}.")
            chosen.append((key, value))
    return tuple(chosen)


def add_cell_timeout(parser: Parser) -> None:
    parser.add_argument(
        "--cell-timeout", type=float, metavar="SECONDS", help="kill a cell that takes longer, which then fails"
    )


def add_workers(parser: Parser) -> None:
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")


def add_out(parser: Parser) -> None:
    parser.add_argument("--out", type=Path, default=Path("results"), help="results folder (default: results)")


def add_plugins(parser: Parser) -> None:
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with a method")


def add_tracking(parser: Parser) -> None:
    parser.add_argument("--tracking-uri", help="MLflow server or database (default: sqlite in the results folder)")


def add_environment(parser: Parser) -> None:
    add_out(parser)
    add_plugins(parser)
    parser.add_argument("--data-root", type=Path, help="folder with downloaded data sets")
    parser.add_argument("--weights", help="hub, random, or a file (.safetensors, .pth, .npz)")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:N, several such as cuda:0,cuda:1, or auto (default)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per cell (default 1)")
    keep = "GB of frozen tokens that a process keeps for encoders of prompts; 0 computes them in every pass (default 1)"
    parser.add_argument("--token-memory", type=float, default=1.0, metavar="GB", help=keep)
    parser.add_argument(
        "--image-memory",
        type=float,
        default=0.0,
        metavar="GB",
        help="of a GPU, to keep a data set's images if they fit",
    )
    parser.add_argument("--evaluate-all", action="store_true", help="evaluate every client every time, changed or not")


def load_plugins(args: Namespace) -> None:
    from fedprompt.methods import load_plugin

    files = {Path(plugin).resolve() for plugin in args.plugin}
    stems = Counter(file.stem for file in files)
    for plugin in args.plugin:
        if stems[Path(plugin).resolve().stem] > 1:
            raise UserError(f"two plugins are called {Path(plugin).name!r}; give them different file names.")
        load_plugin(plugin)


def tracking_uri(args: Namespace) -> str:
    from fedprompt.harness.recording.tracker import default_uri

    return args.tracking_uri or default_uri(args.out)


def make_environment(args: Namespace) -> "RunEnvironment":
    """Where the command's cells run."""
    from fedprompt.harness.running.environment import RunEnvironment, choose_device

    if args.threads < 1:
        raise UserError(f"--threads {args.threads} is out of range; it must be at least 1.")
    if args.token_memory < 0:
        raise UserError(f"--token-memory {args.token_memory} is out of range; it must be 0 or more GB.")
    if args.image_memory < 0:
        raise UserError(f"--image-memory {args.image_memory} is out of range; it must be 0 or more GB.")
    weights = None if args.weights in (None, "hub", "random") else args.weights
    plugins = tuple(str(Path(plugin).resolve()) for plugin in args.plugin)
    remote = get_executor(getattr(args, "executor", "local")).remote  # its devices are not those of this machine
    device = args.device if remote else choose_device(args.device)
    return RunEnvironment(
        args.out,
        args.data_root,
        weights,
        device,
        args.threads,
        plugins,
        token_memory=int(args.token_memory * 2**30),
        image_memory=int(args.image_memory * 2**30),
        evaluate_all=args.evaluate_all,
        gpus_per_cell=getattr(args, "gpus_per_cell", 1.0),
        cell_timeout=getattr(args, "cell_timeout", None),
        executor_options=_executor_options(args),
    )


def whole_suite(args: Namespace) -> "Suite":
    """The suite with tuned values unless they are unwanted, and with seeds that were asked for beyond its own."""
    from fedprompt.harness.running.suite_file import load_suite
    from fedprompt.harness.tuning.tuned import with_tuned

    load_plugins(args)
    if getattr(args, "workers", 1) < 1:
        raise UserError(f"--workers {args.workers} is out of range; it must be at least 1.")
    suite = load_suite(args.suite, args.weights)
    asked_seeds = _whole_numbers(args.seeds, "--seeds") if getattr(args, "seeds", None) else ()
    if not set(suite.seeds).issuperset(asked_seeds):
        suite = dataclasses.replace(suite, seeds=tuple(dict.fromkeys((*suite.seeds, *asked_seeds))))
    return suite if getattr(args, "untuned", True) else with_tuned(suite, args.out)


def selection(suite: "Suite", args: Namespace) -> "Suite":
    """Only the methods and seeds that were asked for."""
    if getattr(args, "methods", None):
        suite = suite.only(args.methods.split(","))
    if getattr(args, "seeds", None):
        suite = dataclasses.replace(suite, seeds=_whole_numbers(args.seeds, "--seeds"))
    return suite


def selected_suite(args: Namespace) -> "Suite":
    return selection(whole_suite(args), args)


def split_settings(method: str, settings: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """`KEY=VALUE` texts as (parameters, protocol): the method's if it has that parameter, else the protocol's.

    `protocol.KEY` is always the protocol's.
    """
    from fedprompt.harness.federation.protocol import Protocol
    from fedprompt.methods import registry

    method_keys = {field.name for field in dataclasses.fields(registry().get(method).Params)}
    protocol_keys = {field.name for field in dataclasses.fields(Protocol)}
    params: dict[str, str] = {}
    protocol: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting!r} is not KEY=VALUE.")
        name = key.removeprefix("protocol.")
        if name not in protocol_keys and key not in method_keys:
            raise unknown(f"parameter of {method} or field of the protocol", key, method_keys | protocol_keys)
        if key in method_keys:
            params[key] = value
        else:
            protocol[name] = value
    return params, protocol


def _whole_numbers(text: str, option: str) -> tuple[int, ...]:
    message = f"{option} {text!r} must be different whole numbers separated by commas, such as 0,1,2."
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(message) from error
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise UserError(message)
    return numbers
