"""`make release` checks what can be checked before anything is built, and publishes nothing."""

import shutil
import subprocess

import pytest
from light import PROJECT, ROOT
from scripts import load

VERSION = PROJECT["version"]
READY = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2027-01-31\n\n### Added\n\n- A normalizer.\n"


@pytest.fixture
def release():
    return load(".ci/release")


@pytest.fixture
def tree(tmp_path):
    """A tree that is ready for a release."""
    for name in ("pyproject.toml", "CITATION.cff", "src/attnorm/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(READY)
    for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "a"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_a_tree_can_be_ready_and_every_place_with_another_version_is_named(release, tree):
    assert release.problems_of_files(tree, VERSION) == release.problems_of_git(tree, VERSION) == []
    found = release.problems_of_files(tree, "9.9.9")
    places = ["CITATION.cff", "src/attnorm/__init__.py", "CHANGELOG.md"]
    assert [problem.partition(":")[0] for problem in found] == places and all("9.9.9" in it for it in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (READY.replace("## [0", "- More.\n\n## [0"), "[Unreleased] has entries"),
        (READY.replace("2027-01-31", "soon"), "no section"),
        (READY.replace("- A normalizer.", ""), "no section"),
        (READY.replace(VERSION, VERSION.replace(".", "x")), "no section"),
    ],
)
def test_the_changelog_has_to_be_that_of_the_version(release, tree, text, problem):
    (tree / "CHANGELOG.md").write_text(text)
    [found] = release.problems_of_files(tree, VERSION)
    assert problem in found


def test_uncommitted_changes_and_an_old_version_are_found_and_nothing_is_built_then(release, tree, monkeypatch, capsys):
    (tree / "new.txt").touch()
    monkeypatch.setattr(release, "ROOT", tree)
    assert release.main() == 1
    assert capsys.readouterr().err == "error: git: there are changes that are not committed\n"
    assert not (tree / "dist").exists()
    subprocess.run(["git", "tag", f"v{VERSION}"], cwd=tree, check=True)
    assert ["committed" in it or f"v{VERSION}" in it for it in release.problems_of_git(tree, VERSION)] == [True, True]


def test_what_is_ready_is_built_and_checked_and_not_published(release, tree, monkeypatch, capsys):
    steps = []

    def step(command, **options):
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 0, stdout="")
        steps.append(command[2])
        (tree / "dist").mkdir(exist_ok=True)

    monkeypatch.setattr(release, "ROOT", tree)
    monkeypatch.setattr(release.subprocess, "run", step)
    assert release.main() == 0
    assert steps == ["build", "twine", "pytest"]
    assert "twine upload" in capsys.readouterr().out
