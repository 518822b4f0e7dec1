"""Commands as README and docs print them, taken apart and checked without running anything."""

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from fedprompt.backbones.weights import backbone_spec
from fedprompt.core.errors import UserError
from fedprompt.core.fields import build
from fedprompt.datasets import dataset_names, parse_partition
from fedprompt.harness.cli import build_parser
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.running.suite_file import suite_names
from fedprompt.methods import ALIASES, registry

ROOT = Path(__file__).parents[2]
STARTS = r"(?:fedprompt |make |python examples/)"
LINE = re.compile(rf"^(?: {{4}}|[A-Z_]+=\S+ )*({STARTS}.*)$|-- +(fedprompt .*)$")
INLINE = re.compile(rf"`({STARTS}[^`]*)`")
STANDS_FOR = {  # what a reader puts in place of a word in capitals
    **{
        "SUITE": "smoke",
        "METHOD": "fedvpt",
        "[NAME]": "fedvpt",
        "DATASET": "glyph-100",
        "folder:PATH": "folder:.",
        "NAME": "fedvpt",
    },
    "...": "",
}
OWN = {"methods": {"fedvpt-prox"}, "suites": {"mine.toml"}, "data": {"pets"}}  # of a plugin, or of the reader
ELSEWHERE = {
    "--data-root": "data",
    "--root": "data",
    "folder:PATH": "images",
    "--storage": "a database",
    "--tracking-uri": "a server",
}
ELSEWHERE |= {
    "cuda": "a GPU",
    "cuda:0,cuda:1,cuda:2,cuda:3": "GPUs",
    "ray": "a cluster",
    "slurm": "a cluster",
    "pretrain": "minutes",
}


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands(page: str, markdown: str) -> Iterator[Command]:
    """Every command in indented or fenced code, comments removed and `&&` taken apart, and every one in backticks."""
    code = re.sub(r"\\\n\s*", "", markdown)
    for line in code.splitlines():
        if found := LINE.search(line):
            text = re.split(r"\s+#", found[1] or found[2])[0]
            yield from (Command(page, part.strip()) for part in text.split("&&"))
    yield from (Command(page, " ".join(text.split())) for text in INLINE.findall(code))


def fault(command: Command) -> str:
    """What is wrong with it; empty if every word of it means something."""
    words = [STANDS_FOR.get(word, word) for word in shlex.split(command.text)]
    words = [word for word in words if word]
    if words[0] == "make":
        return _fault_of_make(words[1:])
    if words[0] == "python":
        return "" if (ROOT / words[1]).is_file() else f"there is no {words[1]}"
    if len(words) == 2:  # named in a sentence, perhaps without what it must be given
        return "" if words[1] in _command_names() else f"there is no command {words[1]}"
    try:
        arguments = build_parser().parse_args(words[1:])
        _check_names(arguments)
    except (UserError, SystemExit) as error:
        return str(error)
    return ""


def needs(command: Command) -> str:
    """What it takes that a test does not have; empty if a test can run it."""
    words = shlex.split(command.text)
    real_data = [word for word in words if word.startswith(("paper", "cpu-", "clip-base")) or word in _public_data()]
    return next((what for word, what in ELSEWHERE.items() if word in words), "data" if real_data else "")


def _command_names() -> list[str]:
    action = next(action for action in build_parser()._actions if action.choices)
    return list(action.choices or ())


def _public_data() -> set[str]:
    return {name for name in dataset_names() if not name.startswith("glyph")}


def _fault_of_make(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, equals, _ = word.partition("=")
        wanted = rf"^{re.escape(name)} \?=" if equals else rf"^{re.escape(name)}:.*##"
        if not re.search(wanted, makefile, re.MULTILINE):
            return f"the Makefile has no {'variable' if equals else 'target'} {name}"
    return ""


def _check_names(arguments: Namespace) -> None:
    """Methods, data sets, partitions, suites, backbones and parameters by name; values by their ranges."""
    given = vars(arguments)
    methods = {*registry().names(), *ALIASES, *OWN["methods"]}
    asked = [given.get("method"), given.get("name") if arguments.parser.prog.endswith("methods") else None]
    for name in filter(None, [*asked, *(given.get("methods") or "").split(",")]):
        if name not in methods:
            raise UserError(f"there is no method {name}")
    suite = given.get("suite")
    if suite and suite not in {*suite_names(), *OWN["suites"]} and not (ROOT / suite).is_file():
        raise UserError(f"there is no suite {suite}")
    data = given.get("dataset") or (given.get("name") if "partition" in given or "root" in given else None)
    if data and data not in {*dataset_names(), *OWN["data"]} and not data.startswith("folder:"):
        raise UserError(f"there is no data set {data}")
    if given.get("partition"):
        parse_partition(given["partition"])
    if given.get("backbone") and not given["backbone"].startswith("clip:"):
        backbone_spec(given["backbone"], "random", given.get("image_size"))
    for setting in given.get("settings") or ():
        key, _, value = setting.partition("=")
        cls = registry().get(given["method"]).Params
        owner = cls if key in {field.name for field in fields(cls)} else Protocol
        build(owner, {key: value}, "parameters")
