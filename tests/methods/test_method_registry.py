from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fedprompt.core.errors import UserError
from fedprompt.harness.federation.policy import POLICIES
from fedprompt.methods import Method, _registry, load_plugin
from fedprompt.methods._mixins import MIXINS, missing_mixin
from fedprompt.methods._registry import Registry, registry
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune

PLUGIN = """
from fedprompt.methods.head_tune import HeadTune

class Mine(HeadTune):
    name = "mine"
    title = "Mine"
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A plugin registered by one test is not there in the next."""
    registry.cache_clear()
    yield
    registry.cache_clear()


def plugin(folder: Path, text: str = PLUGIN, name: str = "mine.py") -> Path:
    (folder / name).write_text(text)
    return folder / name


def refused(path: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        load_plugin(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def offer(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """An installed package that announces ``value`` as a method."""
    point = EntryPoint("theirs", value, _registry.GROUP)
    monkeypatch.setattr(_registry, "entry_points", lambda group: [point] if group == "fedprompt.methods" else [])


# -- the folder -------------------------------------------------------------------------------------------------------


def test_the_files_of_the_folder_are_found() -> None:
    assert {"head-tune", "fedvpt", "fedvpt-d"} <= set(registry().names())
    assert registry().get("fedvpt") is FedVPT


def test_every_method_can_be_described() -> None:
    for name in registry().names():
        method = registry().get(name)
        assert all((method.title, method.paper, method.payload_formula))


def test_aliases_stand_for_a_method_and_a_policy() -> None:
    assert registry().resolve("local-head") == ("head-tune", "local")
    assert registry().resolve("head-tune-ft") == ("head-tune", "global_then_ft")
    assert registry().resolve("head-tune") == ("head-tune", "")
    assert registry().get("local-head") is HeadTune
    assert not {"local-head", "head-tune-ft"} & set(registry().names())


def test_an_alias_is_no_name_for_another_method() -> None:
    class Copy(HeadTune):
        name = "local-head"

    with pytest.raises(UserError, match="'local-head' is another name of 'head-tune'"):
        registry().add(Copy, "here")


def test_papers_choose_a_policy_there_is() -> None:
    assert {registry().get(name).paper_policy for name in registry().names()} <= set(POLICIES)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown method 'fedvtp'\. Did you mean 'fedvpt'.*--plugin FILE"):
        registry().get("fedvtp")


# -- what may be registered -------------------------------------------------------------------------------------------


def test_a_second_method_of_the_same_name_is_refused() -> None:
    class Copy(HeadTune):
        name = "fedvpt"

    with pytest.raises(UserError, match=r"'fedvpt' is already registered by fedprompt\.methods\.fedvpt"):
        registry().add(Copy, "here")


@pytest.mark.parametrize("value", [3, dict, HeadTune.__init__])
def test_what_is_not_a_method_is_refused(value: type[Method]) -> None:
    with pytest.raises(UserError, match=r"not a subclass of fedprompt\.methods\.Method"):
        Registry().add(value, "here")


def test_a_method_that_lacks_parts_is_refused_and_told_which() -> None:
    class Half(Method):
        name = "half"
        title = "Half"
        paper = "none"

    with pytest.raises(UserError, match="Half lacks Params, init_server, loss, predict, rates"):
        Registry().add(Half, "here")


def test_a_hook_that_would_never_be_called_is_refused() -> None:
    class Clipped(HeadTune):
        name = "clipped"

        def clip_norm(self) -> float:
            return 1.0

    with pytest.raises(UserError, match=r"Clipped defines clip_norm, .* write class Clipped\(HeadTune, Steps\)"):
        Registry().add(Clipped, "here")


@pytest.mark.parametrize("mixin", MIXINS)
def test_no_hook_of_a_mixin_is_missed(mixin: type[Method]) -> None:
    hooks = [name for name in vars(mixin) if not name.startswith("_")]
    assert hooks
    for hook in hooks:
        forgetful = type("Forgetful", (HeadTune,), {"name": "forgetful", hook: vars(mixin)[hook]})
        assert missing_mixin(forgetful) == (hook, mixin)
        assert missing_mixin(type("Right", (forgetful, mixin), {})) is None


# -- a file outside the suite -----------------------------------------------------------------------------------------


def test_a_plugin_file_is_registered(tmp_path: Path) -> None:
    assert load_plugin(plugin(tmp_path)) == ["mine"]
    assert registry().get("mine").title == "Mine"


def test_a_plugin_may_be_loaded_again_after_an_edit(tmp_path: Path) -> None:
    load_plugin(plugin(tmp_path))
    load_plugin(plugin(tmp_path, PLUGIN.replace('"Mine"', '"Mine, edited"')))
    assert registry().get("mine").title == "Mine, edited"


def test_a_plugin_registers_what_it_defines_and_not_what_it_imports(tmp_path: Path) -> None:
    assert load_plugin(plugin(tmp_path, PLUGIN + "\nfrom fedprompt.methods.fedvpt import FedVPT\n")) == ["mine"]


def test_a_plugin_with_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    refused(plugin(tmp_path, PLUGIN.replace('"mine"', '"fedvpt"')), "already registered")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("import no_such_package", "failed to import: ModuleNotFoundError"),
        ("def broken(:", "failed to import: SyntaxError"),
        ("raise ValueError('two\\nlines')", "failed to import: ValueError: two"),
        ("x = 1", "defines no subclass"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(text: str, match: str, tmp_path: Path) -> None:
    refused(plugin(tmp_path, text), match)


def test_what_is_not_a_python_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing.py", "not a Python file")
    refused(plugin(tmp_path, PLUGIN, "mine.txt"), "not a Python file")


# -- installed packages -----------------------------------------------------------------------------------------------


def test_an_entry_point_is_registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugin(tmp_path, PLUGIN, "their_package.py")
    monkeypatch.syspath_prepend(tmp_path)
    offer(monkeypatch, "their_package:Mine")
    assert registry().get("mine").title == "Mine"


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("no_such_package:Mine", "'theirs' = no_such_package:Mine failed to import"),
        ("fedprompt.methods:NoSuch", "failed to import: AttributeError"),
        ("fedprompt.core.rng:derive", "'theirs': .* is not a subclass"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_named(value: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, value)
    with pytest.raises(UserError, match=match):
        registry()
