"""The command `attnorm figures`: its names, its files, and what it refuses."""

import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import runs
from made_up_runs import make_run
from omegaconf import OmegaConf

from attnorm.cli import main
from attnorm.errors import ConfigError, UserError
from attnorm.experiments.papers import drawing, figures, registry, short_runs
from attnorm.experiments.papers.registry import FIGURES, Settings
from attnorm.imports import locate
from attnorm.run.csv_files import read_csv

QUICK = ("dnas_fig2", "dnas_fig5", "dnas_fig6", "dnas_sinkhorn", "fenchel_fig3", "fenchel_ot")
SVG = "{http://www.w3.org/2000/svg}"


def defaults():
    return OmegaConf.to_container(OmegaConf.load(runs.CONF / "figures.yaml"))


def problems_of(*arguments):
    with pytest.raises(ConfigError) as caught:
        figures.read_figures(list(arguments))
    return caught.value.problems


@pytest.mark.parametrize("name", FIGURES)
def test_every_name_has_a_function_and_reads_settings_that_exist(name):
    figure = FIGURES[name]
    assert callable(locate(f"attnorm.experiments.papers.{figure.function}"))
    assert {*figure.reads} <= {*Settings.__dataclass_fields__} <= {*defaults()}
    assert {*figure.trained} <= {*short_runs.RUNS}
    assert bool(figure.models) == ("model" in figure.reads)


def test_help_lists_the_keys_and_every_name(monkeypatch, capsys):
    assert main.run("figures", ["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{key}: " in printed for key in defaults())
    assert re.findall(r"^  (\w+) ", printed, re.M) == [*FIGURES, "all"]


@pytest.fixture
def installed(tmp_path):
    """Runs `attnorm` in a folder, as it is where the package is installed without its clone."""
    (tmp_path / "one/two").mkdir(parents=True)
    (tmp_path / "one/two/attnorm").symlink_to(runs.ROOT / "src/attnorm")

    def run(folder, *typed):
        command = [sys.executable, "-P", "-m", "attnorm", *typed]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "one/two")}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    return run


@pytest.mark.training  # starts other processes
def test_one_line_says_where_the_figures_are(tmp_path, installed):
    ended = installed(tmp_path, "figures", "dnas_fig2")
    assert ended.returncode == 2 and ended.stdout == ""
    assert re.fullmatch(r"error: the figures of the papers .* of a clone.*: pip install -e .*\n", ended.stderr)


@pytest.mark.slow
@pytest.mark.training
def test_the_working_directory_is_a_clone_unless_it_may_come_from_anyone(tmp_path, installed):
    """It may for a verb that reads runs of others, and in the folder of a run."""
    ended = installed(runs.ROOT, "figures")
    assert ended.returncode == 0 and "dnas_fig2" in ended.stdout
    data = "attnorm.experiments.alignments.bible_alignments.BibleAlignments"
    typed = ["task=translation", f"data._target_={data}", "trainer=cpu"]
    run = make_run(tmp_path / "run", settings={"data._target_": data})
    for folder in (tmp_path, run):
        for name in ("papers/__init__", "papers/figures", "alignments/bible_alignments"):
            (folder / "experiments" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "experiments" / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    for folder, arguments in ((tmp_path, ("eval", "run=run")), (run, ("figures", "all")), (run, ("train", *typed))):
        ended = installed(folder, *arguments)
        assert ended.returncode == 2 and "of a clone of attnorm" in ended.stderr, ended.stderr
        assert not (tmp_path / "mark").exists()
    assert installed(tmp_path, "train", *typed).returncode and (tmp_path / "mark").exists()  # the user's own folder


def test_a_figure_becomes_three_files_and_two_sentences(tmp_path, monkeypatch, capsys):
    assert main.run("figures", ["fenchel_ot", "dnas_fig6", f"out={tmp_path}/new", "draws=2"]) == 0
    printed = capsys.readouterr().out
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {f"{name}.{ending}" for name in ("fenchel_ot", "dnas_fig6") for ending in ("png", "svg", "csv")}
    root = ElementTree.parse(tmp_path / "new" / "dnas_fig6.svg").getroot()
    description = root.find(f"{SVG}desc").text
    assert root.find(f"{SVG}title").text == "dnas_fig6"
    assert "softmax merges both clusters" in description and "over 2 draws" in description
    heading = 'dnas_fig6 ("Doubly-Normalized Attention", Figure 6)\n'
    assert description == " ".join(printed.partition(heading)[2].splitlines()[:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_figure_is_drawn_the_same_way_twice_and_no_label_leaves_it_or_covers_another_panel(tmp_path, name):
    settings = Settings(draws=2)
    found, again, shown = (FIGURES[name].draw(settings) for _ in range(3))
    figure, canvas = shown.figure, shown.figure.bbox
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for box in [*boxes, *(legend.get_window_extent() for legend in figure.legends)]:
        assert box.x0 >= canvas.x0 - 1 and box.x1 <= canvas.x1 + 1
        assert box.y0 >= canvas.y0 - 1 and box.y1 <= canvas.y1 + 1
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other.padded(-1)) for other in boxes[number + 1 :])
    made = [drawing.write(name, it, tmp_path / folder) for it, folder in ((found, "one"), (again, "two"))]
    for first, second in zip(*made, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in found.sentences)
    rows = read_csv(made[0][2])
    assert len(rows) == len(found.rows) and list(rows[0]) == list(found.rows[0])
    numbers = [(row[key], value) for row, given in zip(rows, found.rows, strict=True) for key, value in given.items()]
    assert all(float(text) == pytest.approx(value, rel=1e-7) for text, value in numbers if isinstance(value, float))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("dnas_fig2", "seed=1"), "seed: has no effect on dnas_fig2"),
        (("dnas_fig5", "fenchel_fig3", "lines=3"), "lines: has no effect on dnas_fig5, fenchel_fig3"),
        (("all", "runs=x"), "runs: draw one figure at a time from runs, because they are those of one task"),
        (("dnas_fig2", "data.max_boxes=3"), "data.max_boxes=3: attnorm figures has no such option"),
        (("dnas_fig2", "seeds=3"), "seeds=3: attnorm figures has no such option; it has draws, lines"),
    ],
)
def test_a_key_without_effect_is_refused(arguments, expected):
    [problem] = problems_of(*arguments)
    assert problem.startswith(expected)


def test_all_problems_are_reported_together():
    found = problems_of("dnas_fg2", "dnas_fig1", "lines=0", "out=")
    assert len(found) == 3 and any("dnas_fg2: no such figure" in it and "'dnas_fig2'?" in it for it in found)
    assert any(it.startswith("lines=0: allowed") for it in found)
    assert problems_of() == [f"which figure? allowed: {', '.join([*FIGURES, 'all'])}"]


def test_the_settings_are_those_that_were_typed_and_a_model_of_another_type_is_refused(tmp_path):
    named, settings, out = figures.read_figures(["fenchel_fig4", "runs=[a,b]", "text=3", "tokens=7", "out=1"])
    assert list(named) == ["fenchel_fig4"] and str(out) == "1"
    assert [str(run) for run in settings.runs] == ["a", "b"] and str(settings.text) == "3" and settings.tokens == 7
    named, settings, _ = figures.read_figures(["all", "draws=3"])
    assert named == FIGURES and settings == Settings(draws=3)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for name in ("fenchel_fig4", "fenchel_fig5", "all"):
        figures.read_figures([name, f"model={tmp_path}"])
    [problem] = problems_of("fenchel_fig6", f"model={tmp_path}")
    assert problem == f"model={tmp_path}: a model of type bert; fenchel_fig6 needs t5"


@pytest.mark.training
def test_a_short_run_appears_in_its_folder_once_it_is_finished_and_is_used_again(tmp_path, monkeypatch):
    """Any other folder is left alone."""
    code, folder = 0, tmp_path / "runs"

    def train(command, cwd, **_):
        assert command[1:5] == ["-P", "-m", "attnorm", "train"] and command[-1] == "hydra.run.dir=vqa_dnas"
        (cwd_of := folder / cwd).mkdir(exist_ok=True)
        (cwd_of / "vqa_dnas").mkdir()
        assert not (folder / "vqa_dnas").exists()
        return subprocess.CompletedProcess(command, code, stdout="one\ntwo")

    monkeypatch.setattr(short_runs.subprocess, "run", train)
    assert short_runs.short_run("vqa_dnas", folder).is_dir()
    with pytest.raises(UserError, match="vqa_dnas: not a finished run; remove it"):
        short_runs.short_run("vqa_dnas", folder)
    (folder / "vqa_dnas/summary.json").write_text('{"state": "finished"}')
    with monkeypatch.context() as patch:
        patch.setattr(short_runs.subprocess, "run", lambda *_, **__: pytest.fail("trained again"))
        assert short_runs.short_run("vqa_dnas", folder) == folder / "vqa_dnas"
    code = 1
    shutil.rmtree(folder / "vqa_dnas")
    with pytest.raises(UserError, match="one\ntwo\nvqa_dnas: training failed"):
        short_runs.short_run("vqa_dnas", folder)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.training
def test_a_short_run_is_trained_for_a_figure_that_shows_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(short_runs.RUNS, "vqa_hnas", (*short_runs.RUNS["vqa_hnas"], "task.max_steps=2"))
    monkeypatch.chdir(tmp_path)
    assert main.run("figures", ["dnas_fig3", "out=a=b"]) == 0
    assert (tmp_path / "a=b/runs/vqa_hnas/hybrid_weights.csv").is_file() and (tmp_path / "a=b/dnas_fig3.png").is_file()
    assert {path.name for path in (tmp_path / "a=b/runs").iterdir()} == {"vqa_hnas", "cache"}


@pytest.mark.slow
def test_every_short_run_can_be_composed():
    for name, overrides in short_runs.RUNS.items():
        assert runs.checked(runs.composed(*overrides, *short_runs.ALWAYS)), name


def test_without_transformers_the_figures_of_t5_are_left_out(tmp_path, monkeypatch, capsys):
    drawn = []

    def draw(figure, settings):
        drawn.append(figure.place)
        return drawing.Drawing(None, [], ("", ""))

    monkeypatch.setattr(figures, "has_transformers", lambda: False)
    monkeypatch.setattr(figures, "short_run", lambda name, folder: folder / name)
    monkeypatch.setattr(figures, "write", lambda *_: [])
    monkeypatch.setattr(registry.PaperFigure, "draw", draw)
    figures.draw_figures(["all"])
    assert len(drawn) == len(FIGURES) - 3
    assert "fenchel_fig7: left out" in capsys.readouterr().out
