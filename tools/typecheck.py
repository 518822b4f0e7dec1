"""mypy for packages whose folders do not have their import names: `fedprompt.core` lives in core/.

mypy knows nothing of setuptools' `package-dir`, so it is given every file with the name that it is imported by.
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mypy.build import build
from mypy.main import process_options
from mypy.modulefinder import BuildSource


def sources(folder: str, package: str) -> Iterator[BuildSource]:
    for path in sorted(Path(folder).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        yield BuildSource(str(path), ".".join(filter(None, (package, *parts))).removesuffix(".__init__"))


package_dir: dict[str, str] = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
folders = {folder: package for package, folder in package_dir.items()} | {"benchmarks": "", "tools": ""}
files = [source for folder, package in folders.items() for source in sources(folder, package)]
_, options = process_options(["--fast-module-lookup", "--command", "", *sys.argv[1:]])
# Given a library path, mypy leaves out this folder, whose `datasets` other packages would take for Hugging Face's.
result = build(files, options, alt_lib_path="tools")
print("\n".join(result.errors) or f"Success: no issues found in {len(files)} source files")
raise SystemExit(bool(result.errors))
