"""What a plugin may import is documented, exported and enough."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedprompt.methods
from fedprompt.harness.conformance import check_method
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import load_plugin

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/add-a-method.md")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """The plugin of a test is not there afterwards."""
    yield
    fedprompt.methods.registry.cache_clear()


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_documented_names_are_those_exported() -> None:
    page = (ROOT / "docs/add-a-method.md").read_text()
    tables = [page.split(title)[1].split("\n\n")[0] for title in ("| mixin |", "| from `fedprompt.methods` |")]
    lines = [line for table in tables for line in table.splitlines()[2:]]
    names = [name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(names) == sorted(fedprompt.methods.__all__)


def test_every_exported_name_exists() -> None:
    assert [name for name in fedprompt.methods.__all__ if not hasattr(fedprompt.methods, name)] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_examples_import_public_modules_of_the_methods_only(page: str) -> None:
    modules = [module for code in code_blocks(page) for module in re.findall(r"from (fedprompt\S*) import", code)]
    assert modules
    assert [module for module in modules if not re.fullmatch(r"fedprompt\.methods(\.[a-z]\w*)?", module)] == []


def test_a_plugin_gets_by_with_the_public_names(tmp_path: Path) -> None:
    """Prompts, an edit, an option and an error, all from one import."""
    file = tmp_path / "late_prompt.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from fedprompt.methods import HeadedMethod, PromptParams, UserError, option, prompt_init, revised, shallow\n"
        "@dataclass(frozen=True)\n"
        "class LateParams(PromptParams):\n"
        "    length: int = revised(PromptParams, 'length', default=2, low=1)\n"
        "    block: int = option(1, 'block that gets the prompt', low=0)\n"
        "class LatePrompt(HeadedMethod):\n"
        "    name, title, paper = 'late-prompt', 'Late', 'none'\n"
        "    Params = LateParams\n"
        "    def __init__(self, params, backbone, task):\n"
        "        super().__init__(params, backbone, task)\n"
        "        if params.block >= backbone.depth:\n"
        "            raise UserError(f'late-prompt: block = {params.block}, use 0 to {backbone.depth - 1}.')\n"
        "    def init_prompts(self, rng):\n"
        "        vit = self.backbone\n"
        "        return {'prompt': prompt_init((self.params.length, vit.width), vit.patch_size, rng)}\n"
        "    def features(self, theta, batch):\n"
        "        rows = batch.rows(theta['prompt'])\n"
        "        return batch.pad(self.backbone.cls(batch.images, shallow(rows, at=self.params.block)))\n"
    )
    (name,) = load_plugin(file)
    method = fedprompt.methods.registry().get(name)
    assert (method.Params().length, method.paper_policy) == (2, "local")
    assert [result.name for result in check_method(method) if not result.ok] == []
    with pytest.raises(fedprompt.methods.UserError, match="use 0 to 2"):
        toy_federation(method, {"block": 3})
