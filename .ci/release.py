"""`make release`: checks that a version can be released, and builds its files into dist/. It publishes nothing."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Builds and checks the files; 1 with all problems together if something is not ready."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if found := [*problems_of_files(ROOT, version), *problems_of_git(ROOT, version)]:
        print(*(f"error: {problem}" for problem in found), sep="\n", file=sys.stderr)
        return 1
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", "dist"], cwd=ROOT, check=True
    )  # the wheel from the sdist
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "dist").iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], cwd=ROOT, check=True)
    test = ["-m", "pytest", "-m", "slow", "tests/test_light.py"]
    subprocess.run([sys.executable, *test], cwd=ROOT, check=True)
    print(f"\nattnorm {version} is ready and not published. To publish it:")
    print(f"git tag v{version} && git push origin v{version}")
    print(f"{sys.executable} -m twine upload {' '.join(files)}")
    return 0


def problems_of_files(root: Path, version: str) -> list[str]:
    """What in the files of a tree is not ready for a release of this version, that of pyproject.toml."""
    found = []
    for name, pattern in (("CITATION.cff", r"^version: (.*)$"), ("src/attnorm/__init__.py", r'^__version__ = "(.*)"$')):
        [stated] = re.findall(pattern, (root / name).read_text(), re.M)
        if stated != version:
            found.append(f"{name}: version {stated}, but pyproject.toml has {version}")
    parts = re.split(r"^## (.*)\n", (root / "CHANGELOG.md").read_text(), flags=re.M)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if "- " in sections.pop("[Unreleased]", ""):
        found.append(f"CHANGELOG.md: [Unreleased] has entries; move them to a section [{version}] - <date>")
    title = next((it for it in sections if re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", it)), None)
    if title is None or "- " not in sections[title]:
        found.append(f"CHANGELOG.md: no section [{version}] - <year>-<month>-<day> with entries")
    return found


def problems_of_git(root: Path, version: str) -> list[str]:
    """What in the repository is not ready: changes that are not committed, or a tag of this version."""
    found = []
    if git(root, "status", "--porcelain"):
        found.append("git: there are changes that are not committed")
    if git(root, "tag", "--list", f"v{version}"):
        found.append(f"git: the tag v{version} exists; choose another version in pyproject.toml")
    return found


def git(root: Path, *arguments: str) -> str:
    """What a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
