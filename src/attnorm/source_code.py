"""The code on which results depend: versions, the commit, and digests of attnorm and of own modules."""

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

DIGITS = 16
HERE = Path(__file__).resolve().parent
STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
NOT_OWN = tuple(f"{path}{os.sep}" for folder in (*STANDARD, str(HERE)) for path in (folder, os.path.realpath(folder)))
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
PACKAGES = (
    *("attnorm", "torch", "pytorch-lightning", "hydra-core", "datasets", "sentencepiece", "tokenizers"),
    "rouge-score",
)
_seen: dict[str, tuple[object, str | None]] = {}  # of each module: its spec, and its digest if it is an own one


def sha256_of(content: bytes) -> str:
    """The first digits of the SHA-256, as `sha256sum` prints it."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


@cache
def stated() -> dict[str, Any]:
    """What records state of the code: the commit and the digest of attnorm, and versions. Results of other versions are
    never refused."""
    versions = {name: version(name) for name in PACKAGES}
    system = {"python": platform.python_version(), "platform": platform.platform()}
    return {"commit": git_state(), "versions": system | versions, "code": digest_of_attnorm()}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(folder: Path = HERE) -> dict | None:
    """The commit of the code in a folder and whether tracked files differ from it; None outside a repository, also for
    a package that is installed inside the folder of another repository.

    Untracked files do not count: results, notebooks and data often lie beside the code.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", ".")
        changed = git("status", "--porcelain", "--untracked-files=no") != ""
        return {"commit": git("rev-parse", "HEAD"), "changed": changed}
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def digest_of_attnorm(package: str = "") -> str:
    """One digest of all files in the folder of attnorm, or of one of its packages."""
    folder = HERE / package
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sha256_of(b"".join(f"{path.relative_to(folder)}\n".encode() + path.read_bytes() for path in files))


def own_modules() -> dict[str, str]:
    """The digests of the own modules that are loaded, by name.

    An own module has a source file outside the standard library, the folders of installed packages, and attnorm. Its
    file is read when it is first seen, for a class that a setting names right after the import. A file that is edited
    later does not change the digest of what was imported.
    """
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name not in _seen or _seen[name][0] is not spec:
            _seen[name] = spec, digest_of_own(name, spec)
    return {name: digest for name, (_, digest) in sorted(_seen.items()) if digest and name in sys.modules}


def edited_modules() -> list[str]:
    """The own modules that are loaded and whose file has changed since it was imported, as in a notebook."""
    imported = own_modules().items()
    return [name for name, digest in imported if digest_of_own(name, sys.modules[name].__spec__) != digest]


def digest_of_own(name: str, spec: object) -> str | None:
    """The digest of the source file of a module; None if it is not an own one."""
    file = getattr(spec, "origin", None)
    if not isinstance(file, str) or not file.endswith(".py") or file.startswith(NOT_OWN) or INSTALLED.search(file):
        return None
    above = sys.modules.get(name.partition(".")[0])  # such as torch, of modules that it has written and compiled
    if INSTALLED.search(str(getattr(getattr(above, "__spec__", None), "origin", None))):
        return None
    if os.path.realpath(file).startswith(NOT_OWN):
        return None
    try:
        return sha256_of(Path(file).read_bytes())
    except OSError:
        return None
