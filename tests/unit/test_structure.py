"""The repository's shape: packages, arrows between them, sizes, and what `import laneway` costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE_DIR: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]

NOT_PACKAGES = {"tests", "examples", "docs", "build", "dist"}
PEERS = ROOT / "benchmarks" / "peers"
"""Programs of an environment of their own: no part of the package."""
LINES_MAX = 500

RANKS = {"storage": 0, "agents": 1, "recovery": 1, "actors": 2, "cluster": 3, "benchmarks": 5}
ROOT_RANK = 4

MAY_IMPORT = {
    "ray": re.compile(
        r"laneway\.((cluster|benchmarks)(\..+)?|actors\.(conversation_actor|ray_calls|store_actor|supervisor_actor))"
    ),
    "duckdb": re.compile(r"laneway\.(storage\.duckdb_(file|query|store)|benchmarks\..+)"),
    "pydantic_ai": re.compile(r"laneway\.agents\.pydantic_ai_(messages|model)"),
}


@dataclass(frozen=True)
class Module:
    name: str
    package: str
    path: Path

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every absolute name that is imported anywhere in the module, with its line."""
        for node in ast.walk(ast.parse(self.path.read_text(), str(self.path))):
            match node:
                case ast.Import(names=names):
                    yield from ((alias.name, node.lineno) for alias in names)
                case ast.ImportFrom(module=module, names=names, level=level):
                    parts = self.package.split(".")
                    base = ".".join(parts[: len(parts) - level + 1]) if level else ""
                    source = ".".join(filter(None, (base, module)))
                    yield from ((f"{source}.{alias.name}", node.lineno) for alias in names)
                case ast.Call(
                    func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield name, node.lineno
                case _:
                    pass


def modules() -> list[Module]:
    found: list[Module] = []
    for package, folder in PACKAGE_DIR.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            found.append(Module(name, package, path))
    return found


MODULES = modules()


def rank(name: str) -> int | None:
    """The layer of a name of ours, None for anything else."""
    first, *rest = name.split(".")
    if first != "laneway":
        return None
    return RANKS.get(rest[0], ROOT_RANK) if rest else ROOT_RANK


def python_folders() -> Iterator[Path]:
    for top in sorted(ROOT.iterdir()):
        if top.is_dir() and not top.name.startswith(".") and top.name not in NOT_PACKAGES:
            if (top / "pyvenv.cfg").exists():
                continue
            yield from {path.parent for path in top.rglob("*.py")} - {PEERS}


def test_each_folder_with_python_is_a_listed_package() -> None:
    folders = {folder.relative_to(ROOT).as_posix() for folder in python_folders()}
    assert folders == set(PACKAGE_DIR.values())
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(PACKAGE_DIR)
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []


def test_only_packages_have_an_init_file() -> None:
    stray = [ROOT / "__init__.py"]
    for name in NOT_PACKAGES - {"build", "dist"}:
        stray += (ROOT / name).rglob("__init__.py")
    assert [path for path in stray if path.exists()] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_arrows_point_down(module: Module) -> None:
    own = rank(module.name)
    assert own is not None
    wrong: list[str] = []
    for name, line in module.imports():
        other = rank(name)
        same_package = name.split(".")[:2] == module.name.split(".")[:2]
        if other is not None and not same_package and own != ROOT_RANK and other >= own:
            wrong.append(f"{module.path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("library", MAY_IMPORT)
def test_a_library_is_imported_where_it_belongs(library: str) -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{line} imports {name}"
        for module in MODULES
        for name, line in module.imports()
        if name.split(".")[0] == library and not MAY_IMPORT[library].fullmatch(module.name)
    ]
    assert wrong == []


def test_the_import_linter_knows_the_same_places() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    for library, pattern in MAY_IMPORT.items():
        about = [item for item in contracts if item.get("forbidden_modules") == [library]]
        (contract,) = (item for item in about if "ignore_imports" in item)
        for line in contract["ignore_imports"]:
            importer, arrow, imported = line.split()
            assert (arrow, imported) == ("->", library)
            assert pattern.fullmatch(importer.replace("**", "anything"))


def test_no_module_is_too_long() -> None:
    paths = [module.path for module in MODULES]
    for folder in (PEERS, ROOT / "examples"):
        paths += folder.rglob("*.py")
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in paths}
    assert {path: count for path, count in lines.items() if count > LINES_MAX} == {}


def test_constraints_pin_each_dependency_within_its_range() -> None:
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    project = PYPROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for text in [text for group in groups for text in group if not text.startswith("laneway")]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


LOADED = (
    "import json, sys; print(json.dumps([name for name in ('ray', 'duckdb', 'pydantic_ai') if name in sys.modules]))"
)


def loaded_after(code: str) -> list[str]:
    """Which heavy libraries a fresh interpreter has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED}"], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_import_laneway_is_light() -> None:
    assert loaded_after("import laneway") == []


@pytest.mark.skipif(
    not any((ROOT / "cluster" / name).exists() for name in ("cli.py", "cli")), reason="there is no command line yet"
)
def test_the_help_page_is_light() -> None:
    code = """
import sys
from laneway.cluster.cli import main
sys.argv = ["laneway", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
    assert loaded_after(code) == []
