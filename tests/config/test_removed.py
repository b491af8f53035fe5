"""What was removed is refused with the sentence that says what became of it."""

import pytest

from attnorm.cli import main
from attnorm.removed import REMOVED

PLANTED = (
    *("doktor", "sweep serch", "report wach", "eval wach", "probe wach", "data=boks", "attention=hnass", "run.skip"),
    *("trainer.plugs", "task.sise", "data.sise", "optimizer.rate", "callbacks.progress.sise", "dekoding"),
)


@pytest.mark.parametrize("name", [*REMOVED, *PLANTED])
def test_a_removed_name_gives_its_sentence(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(REMOVED, name, REMOVED.get(name, f"{name} was removed; see docs/page.md"))
    verb, _, key = name.rpartition(" ")
    if "=" in name:
        code = main.run("train", [name])
    elif verb or "." in name or name == "dekoding":
        code = main.run(verb or "train", [f"{key}=1"])
    else:
        monkeypatch.setattr("sys.argv", ["attnorm", name])
        code = main.main()
    assert code == 2
    assert f"error: {REMOVED[name]}" in capsys.readouterr().err.splitlines()
    assert not any(tmp_path.iterdir())
