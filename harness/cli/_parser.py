"""The parser: names, options and examples of every command."""

import argparse
import difflib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from fedprompt.harness.cli import _commands as commands
from fedprompt.harness.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line, with the nearest right word."""

    def error(self, message: str) -> NoReturn:
        near = ""
        if message.startswith("unrecognized") or "invalid choice" in message:
            known = self._words()
            near = next((n for word in message.replace("'", " ").split() if (n := self._near(word, known))), "")
            near = f" Did you mean {near}?" if near else ""
        raise UserError(f"{message}.{near} See '{self.prog} --help'.")

    def _words(self) -> list[str]:
        """Options and choices, those of subcommands included: it is the main parser that meets a stray option."""
        words = list(self._option_string_actions)
        for action in self._actions:
            words += action.choices or ()
            for parser in action.choices.values() if isinstance(action.choices, dict) else ():
                words += parser._words()
        return words

    @staticmethod
    def _near(word: str, words: list[str]) -> str:
        return "" if word in words else next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), "")


def build_parser() -> Parser:
    parser = Parser(
        prog="fedprompt",
        allow_abbrev=False,
        description="Benchmark suite for personalised federated learning by prompt tuning.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  fedprompt methods\n  fedprompt run --method fedvpt --dataset glyph-domains "
        "--partition domains:m=2\n  fedprompt bench embedded --workers 2\n  fedprompt report embedded",
    )
    parser.add_argument("--version", action="version", version=f"fedprompt {version('fedprompt-bench')}")
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    run = _command(sub, "run", commands.run, "run one cell", _RUN_EXAMPLES)
    run.add_argument("--method", "-m", required=True, help="see 'fedprompt methods'")
    run.add_argument("--dataset", "-d", required=True, help="see 'fedprompt datasets'")
    run.add_argument("--partition", "-p", required=True, help="such as domains:m=2 or classes:s=10,clients=100")
    run.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=_SET_HELP)
    run.add_argument("--rounds", type=int, help="communication rounds (protocol default 100)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--backbone", "-b", default="micro-vit", help="micro-vit or a plain timm ViT by name")
    run.add_argument("--image-size", type=int, help="default: the backbone's own")
    _site_options(run)
    _tracking_option(run)
    run.add_argument("--restart", action="store_true", help="throw away what this cell has and start over")

    bench = _command(sub, "bench", commands.bench, "run all cells of a suite, then report", _BENCH_EXAMPLES)
    bench.add_argument("suite", help="a suite's name or a .toml file")
    bench.add_argument("--executor", default="local", choices=("local", "ray"))
    bench.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    _choice_options(bench)
    bench.add_argument("--untuned", action="store_true", help="leave out what 'fedprompt tune' has chosen")
    _site_options(bench)
    _tracking_option(bench)
    bench.add_argument("--restart", action="store_true", help="start every cell of the suite over")

    report = _command(sub, "report", commands.report, "tables of a suite from what MLflow holds", ["report embedded"])
    report.add_argument("suite", help="a suite's name or a .toml file")
    report.add_argument("--weights", help="the weights file the suite was run with, where it was one of yours")
    report.add_argument("--untuned", action="store_true", help="of the runs without tuned values")
    _out_option(report)
    _plugin_option(report)
    _tracking_option(report)

    tune = _command(sub, "tune", commands.tune, "choose learning rates on held-out data", _TUNE_EXAMPLES)
    tune.add_argument("suite", help="a suite's name or a .toml file")
    tune.add_argument("--methods", help="only these, separated by commas")
    tune.add_argument("--sampler", default="grid", choices=("grid", "tpe"), help="the methods' own grids, or TPE")
    tune.add_argument("--trials", type=int, help="budget of each study (default: the suite's)")
    tune.add_argument("--storage", help="Optuna's database (default: optuna.db in the results folder)")
    tune.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    _site_options(tune)
    _tracking_option(tune)

    plan = _command(sub, "plan", commands.plan, "what a suite costs, before it is run", _PLAN_EXAMPLES)
    plan.add_argument("suite", help="a suite's name or a .toml file")
    _choice_options(plan)
    plan.add_argument("--flops", type=float, help="sustained FLOPS of another machine, instead of measuring this one")
    plan.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: cores)")
    plan.add_argument("--untuned", action="store_true", help="leave out what 'fedprompt tune' has chosen")
    _site_options(plan)

    methods = _command(sub, "methods", commands.methods, "what methods there are; one in detail", ["methods fedvpt"])
    methods.add_argument("name", nargs="?")
    _plugin_option(methods)

    datasets = _command(
        sub,
        "datasets",
        commands.datasets,
        "what data sets there are; one in detail",
        ["datasets", "datasets glyph-domains --partition domains:m=2 --plot who-has-what.png"],
    )
    datasets.add_argument("name", nargs="?")
    datasets.add_argument("--partition", help="show how it is dealt to clients")
    datasets.add_argument("--seed", type=int, default=0)
    datasets.add_argument("--plot", type=Path, metavar="FILE", help="draw who has what (.png or .pdf)")
    datasets.add_argument("--data-root", type=Path, help="folder with downloaded data sets")

    prepare = _command(sub, "prepare", commands.prepare, "check or fetch a data set", ["prepare cifar100 --root data"])
    prepare.add_argument("name")
    prepare.add_argument("--root", type=Path, help="where its files are, or shall be put (not for folder:PATH)")
    prepare.add_argument("--skip-bad", action="store_true", help="leave unreadable images out instead of stopping")

    check = _command(
        sub, "check", commands.check, "the conformance suite on a method", ["check fedvpt", _PLUGIN_EXAMPLE]
    )
    check.add_argument("method")
    check.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=_SET_HELP)
    _plugin_option(check)

    sync = _command(sub, "sync", commands.sync, "record finished runs that MLflow has not seen", ["sync"])
    _out_option(sync)
    _tracking_option(sync)

    pretrain = _command(
        sub,
        "pretrain",
        commands.pretrain,
        "train an embedded backbone anew",
        ["pretrain --out m.safetensors", "pretrain micro-clip --out c.safetensors"],
    )
    pretrain.add_argument("backbone", nargs="?", default="micro-vit", choices=("micro-vit", "micro-clip"))
    pretrain.add_argument("--out", type=Path, required=True, help="where to write the weights (.safetensors)")
    pretrain.add_argument("--steps", type=int, help="fewer steps for a trial")
    pretrain.add_argument("--seed", type=int, default=0)

    perf = _command(sub, "perf", commands.perf, "speed, side by side in one run", ["perf", "perf --repeats 15"])
    perf.add_argument("--repeats", type=int, default=7, help="turns of each way (default 7)")
    return parser


_SET_HELP = "a parameter of the method or a field of the protocol; may be given again"
_RUN_EXAMPLES = [
    "run --method fedvpt --dataset glyph-domains --partition domains:m=2 --rounds 5",
    "run -m fedvpt-d -d glyph-100 -p classes:s=5,clients=20 --set lr=0.05 --set epochs=2 --seed 1",
    "run -m fedvpt -d cifar100 -p classes:s=10 --data-root data -b vit_tiny_patch16_224 --image-size 128 "
    "--weights vit_tiny.safetensors",
]
_BENCH_EXAMPLES = ["bench smoke", "bench embedded --workers 2", "bench mine.toml --methods fedvpt,fedvpt-d --seeds 0"]
_TUNE_EXAMPLES = ["tune embedded", "tune embedded --methods fedvpt,pfedpg --sampler tpe --trials 20"]
_PLAN_EXAMPLES = ["plan embedded", "plan paper --flops 60e12"]
_PLUGIN_EXAMPLE = "check mine --plugin mine.py"


def _command(sub: Any, name: str, function: Any, help: str, examples: list[str]) -> Parser:
    lines = "\n".join(f"  fedprompt {example}" for example in examples)
    parser: Parser = sub.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"examples:\n{lines}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=function)
    return parser


def _choice_options(parser: Parser) -> None:
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--seeds", help="only these, separated by commas")


def _out_option(parser: Parser) -> None:
    parser.add_argument("--out", type=Path, default=Path("results"), help="results folder (default: results)")


def _plugin_option(parser: Parser) -> None:
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with a method")


def _tracking_option(parser: Parser) -> None:
    parser.add_argument("--tracking-uri", help="MLflow server or database (default: sqlite in the results folder)")


def _site_options(parser: Parser) -> None:
    _out_option(parser)
    _plugin_option(parser)
    parser.add_argument("--data-root", type=Path, help="folder with downloaded data sets")
    parser.add_argument("--weights", help="hub, random, or a file (.safetensors, .pth, .npz)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a cell (default 1)")
