"""Digests of the source code on which results depend: of attnorm, and of own modules with all that they import."""

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distribution, packages_distributions
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType

from attnorm.imports import package_of

ATTNORM, DIGITS = "attnorm", 16
INSTALLED = {"site-packages", "dist-packages"}  # names of folders
STANDARD = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
Read = tuple[object, str, list[str]]  # what the module was loaded with, the digest of its file, and what it imports
_read: dict[str, Read] = {}  # so that a file that is edited later does not change the digest of what was imported


def sha256_of(content: bytes) -> str:
    """The first digits of the SHA-256, as `sha256sum` prints it."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


@cache
def digest_of_attnorm() -> str:
    """One digest of all files in the folder of attnorm."""
    folder = Path(__file__).parent
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sha256_of(b"".join(f"{path.relative_to(folder)}\n".encode() + path.read_bytes() for path in files))


def digests_of(names: Iterable[str], inner: Collection[str] = ()) -> dict[str, str]:
    """The digests of modules and of all that they import, directly or not, as far as they are own, by name.

    An own module is one that is not installed, or that was installed from a folder or a repository. Nothing is
    imported. inner: packages of attnorm whose modules count, too.
    """
    left, digests, is_own = list(names), dict[str, str](), {ATTNORM: False}
    is_own |= {top: is_outside(top) or is_local(top) for top in map(package_of, left) if top != ATTNORM}
    while left:
        name = left.pop()
        if (top := package_of(name)) not in is_own:
            is_own[top] = is_outside(top)
        if name in digests or not (is_own[top] or name.startswith(tuple(f"{package}." for package in inner))):
            continue
        if (content := read_module(name)) is not None:
            digests[name] = content[1]
            left += content[2]
        left += [name.rpartition(".")[0]] if "." in name else []
    return dict(sorted(digests.items()))


def recorded(value: object) -> dict[str, list[str]]:
    """The digests by module in the record of a run, which anyone may have written; {} without a record."""
    entries = value.items() if isinstance(value, dict) else ()
    return {
        name: [each for each in digests if isinstance(each, str)]
        for name, digests in entries
        if isinstance(digests, list)
    }


@cache
def is_local(top: str) -> bool:
    """Whether an installed package is from a folder or a repository rather than an index (PEP 610)."""
    if top in sys.stdlib_module_names:
        return False
    texts_of = (distribution(name).read_text("direct_url.json") for name in packages_distributions().get(top, ()))
    return any({"dir_info", "vcs_info"} & json.loads(text).keys() for text in texts_of if text)


def is_outside(top: str) -> bool:
    """Whether a top-level module lies outside the folders of the standard library and of installed packages."""
    file = module_file(top)
    spec = None if file else spec_of(top)
    places = [file] if file else list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]).resolve() if places else Path("/")
    return bool(places) and not STANDARD & {*path.parents} and not INSTALLED & {*path.parts}


def module_file(name: str) -> str | None:
    """The file of a module, which need not have been imported; None without one, as in a notebook."""
    if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
        return str(file)
    spec = spec_of(name)
    return spec.origin if spec and spec.has_location else None


def spec_of(name: str) -> ModuleSpec | None:
    """How a module was imported, or would be, without importing anything; None if there is no such module."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    above = spec_of(name.rpartition(".")[0]) if "." in name else None
    if "." in name and (above is None or above.submodule_search_locations is None):
        return None
    with suppress(KeyError):  # inside a package that is not there
        return PathFinder.find_spec(name, list(above.submodule_search_locations or ()) if above else None)
    return None


def read_module(name: str) -> Read | None:
    """Reads the file of a module, once for each time that it is imported; None without a file that can be read."""
    spec, file = spec_of(name), module_file(name)
    if name in _read and _read[name][0] is spec:
        return _read[name]
    try:
        content = Path(file or "").read_bytes()
    except OSError:
        return None
    package = name if spec and spec.submodule_search_locations is not None else name.rpartition(".")[0]
    try:
        imported = [*imports_in(content, package)]
    except (SyntaxError, ValueError, ImportError):  # an extension module, or one that cannot be imported either
        imported = []
    # what it has at its top level may have been imported by a function; of attnorm, this depends on what else has run
    module = sys.modules.get(name) if package_of(name) != ATTNORM else None
    for value in list(vars(module).values()) if module else ():
        if isinstance(value, ModuleType):
            imported.append(value.__name__)
        elif isinstance(value, (type, FunctionType)) and isinstance(value.__module__, str):
            imported.append(value.__module__)
    _read[name] = spec, sha256_of(content), list(dict.fromkeys(imported))
    return _read[name]


@cache  # a module that is not imported is read each time
def imports_in(content: bytes, package: str) -> tuple[str, ...]:
    """What may be modules in the import statements of a module of a package, also in those inside functions."""
    imported = list[str]()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            imported += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(imported)
