"""Finds methods: files of this folder, packages with the entry-point group ``fedprompt.methods``, single files."""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from fedprompt.core.errors import UserError, unknown
from fedprompt.core.interrupts import Interrupted, ctrl_c_apart, one_line
from fedprompt.methods._contract import Method
from fedprompt.methods._mixins import missing_mixin

GROUP = "fedprompt.methods"


class Alias(NamedTuple):
    """A method under one policy of the head, by the name that papers give it."""

    method: str
    policy: str
    title: str


ALIASES = {
    "local-head": Alias("head-tune", "local", "No prompt, local head"),
    "head-tune-ft": Alias("head-tune", "global_then_ft", "No prompt, fine-tuned head"),
    "promptfl-ft": Alias("promptfl", "none_then_ft", "PromptFL+FT"),
}


class Registry:
    """Methods by name; refuses a second method of the same name and whatever is not a method."""

    def __init__(self) -> None:
        self._methods: dict[str, type[Method]] = {}

    def add(self, method: type[Method], source: str) -> None:
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise UserError(f"{source}: {method!r} is not a subclass of fedprompt.methods.Method.")
        variables = ("name", "title", "paper", "Params")
        missing = [name for name in variables if not hasattr(method, name)] + sorted(method.__abstractmethods__)
        if missing:
            raise UserError(f"{source}: {method.__name__} lacks {', '.join(missing)}.")
        forgotten = missing_mixin(method)
        if forgotten:
            hook, mixin = forgotten[0], forgotten[1].__name__
            raise UserError(
                f"{source}: {method.__name__} defines {hook}, which is only asked of methods that derive from {mixin}; "
                f"write class {method.__name__}({method.__mro__[1].__name__}, {mixin}) (fedprompt.methods.{mixin})."
            )
        if method.name in ALIASES:
            raise UserError(
                f"{source}: method {method.name!r} is another name of {ALIASES[method.name].method!r}; choose another."
            )
        present = self._methods.get(method.name)
        if present is not None and (present.__module__, present.__qualname__) != (
            method.__module__,
            method.__qualname__,
        ):
            raise UserError(
                f"{source}: method {method.name!r} is already registered by {present.__module__}; choose another name."
            )
        self._methods[method.name] = method

    def get(self, name: str) -> type[Method]:
        """The method of this name or alias."""
        method, _ = self.resolve(name)
        return self._methods[method]

    def resolve(self, name: str) -> tuple[str, str]:
        """(method, policy) of a name: an alias stands for a policy of the head, a method's own name for none ("")."""
        if name in ALIASES:
            return ALIASES[name].method, ALIASES[name].policy
        if name not in self._methods:
            raise unknown("method", name, [*self._methods, *ALIASES], "A method of your own: --plugin FILE.")
        return name, ""

    def __contains__(self, name: str) -> bool:
        """Whether a method or an alias has this name."""
        return name in self._methods or name in ALIASES

    def title(self, name: str) -> str:
        """As tables print it."""
        return ALIASES[name].title if name in ALIASES else self.get(name).title

    def names(self, offers: frozenset[str] | None = None) -> list[str]:
        """In the order of tables, without aliases; with ``offers`` of a backbone, only methods that need no more."""
        names = [name for name, method in self._methods.items() if offers is None or method.needs <= offers]
        return sorted(names, key=lambda name: (self._methods[name].order, name))


def _methods_of(module: ModuleType) -> Iterator[type[Method]]:
    """The concrete methods defined (not merely imported) in a module."""
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, Method)
            and value.__module__ == module.__name__
            and "name" in vars(value)
        ):
            yield value


@cache
def registry() -> Registry:
    """The registry of this process, filled on first use."""
    methods = Registry()
    package = importlib.import_module("fedprompt.methods")
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            for method in _methods_of(module):
                methods.add(method, module.__name__)
    for point in entry_points(group=GROUP):
        with _importing(f"entry point {point.name!r} = {point.value}"):
            method = point.load()
        methods.add(method, f"entry point {point.name!r}")
    return methods


@contextmanager
def _importing(source: str) -> Iterator[None]:
    """Whatever the code raises, an exit too, is said in one line with its place; a real Ctrl-C goes on."""
    try:
        with ctrl_c_apart():
            yield
    except Interrupted:
        raise
    except BaseException as error:
        raise UserError(f"{source} failed to import: {one_line(error)}") from error


def load_plugin(path: str | Path) -> list[str]:
    """Register the methods of one Python file; returns their names."""
    file = Path(path).resolve()
    name = f"fedprompt_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file) if file.suffix == ".py" and file.is_file() else None
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {str(path)!r} is not a Python file that can be read.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _importing(f"plugin {str(path)!r}"):
        spec.loader.exec_module(module)
    methods = list(_methods_of(module))
    if not methods:
        raise UserError(f"plugin {str(path)!r} defines no subclass of fedprompt.methods.Method with a name.")
    for method in methods:
        registry().add(method, str(path))
    return [method.name for method in methods]
