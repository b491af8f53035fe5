"""What a newcomer sees: our own lines and nothing else."""

import json
import logging
import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import runs

from attnorm.progress import Console
from attnorm.tasks.results import Results
from attnorm.training import console
from attnorm.training.callbacks.progress import Progress
from attnorm.training.run_log import run_log

VALIDATION = re.compile(
    r"step +(\d+)  val loss \d+\.\d{3}  perplexity [\d,]+\.\d  ROUGE-1/2/L \d+\.\d / \d+\.\d / \d+\.\d \(greedy\)"
)


FIRST = ("attention=hnas", "task=gigaword", *runs.tiny_overrides())  # the README's first command


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """What the command printed, and the folder it ran in."""
    folder = tmp_path_factory.mktemp("newcomer")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        assert runs.call(patch, "train", *FIRST) == 0
    return SimpleNamespace(stdout=printed.getvalue()), folder


@pytest.mark.slow
def test_a_first_run_prints_nothing_of_libraries(tmp_path):
    ended = runs.command(str(runs.ROOT / "train.py"), *FIRST, cwd=tmp_path)
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert "Warning" not in ended.stdout and "warn" not in ended.stdout.lower()
    assert "\x1b" not in ended.stdout  # no colours or bars into a file


def test_every_line_of_a_first_run_is_one_of_ours(output):
    ours = [
        r"gigaword with hnas, seed 1",
        r"typed: attention=hnas task=gigaword .*",
        r"configuration: .*/logs/gigaword/hnas/.*/config\.yaml",
        r"encoder hnas; decoder, .*",
        r"training the tokenizer on the train split",  # unless another test has done so
        r"(train|validation) [\d,]+ pairs \(.*\)",
        r"4 updates of at most 1,000 tokens \([\d.]+% padding\), [\d,]+ parameters",
        VALIDATION.pattern,
        r" +(article|title|headline) .*|headline .*",
        r"validation: 20 pairs; beam_size 2, .*",
        r"[┏┡┃│└].*",
        r"ROUGE F1 by rouge-score, .*",
        r"The model scores below the simple baseline lead-8: ROUGE-1 F1 .*",
        r"hybrid weights by update",
        r"Trained with optimizer.hybrid_lr_factor=\d+\. A weight near one half is no evidence .*",
        r"run folder: .*",
        r"",
    ]
    lines = output[0].stdout.splitlines()
    assert [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in ours)] == []


def test_each_validation_is_one_line_with_a_sample_and_the_closing_table_has_rouge_beside_lead_8(output):
    lines = output[0].stdout.splitlines()
    found = [number for number, line in enumerate(lines) if VALIDATION.fullmatch(line)]
    assert [VALIDATION.fullmatch(lines[number])[1] for number in found] == ["2", "4"]
    for number in found:
        assert lines[number + 1].strip().startswith("title ")
        assert lines[number + 2].strip().startswith("headline ")
    [header] = [line for line in lines if "ROUGE-1 F1" in line and line.startswith("┃")]
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == ["", *(f"ROUGE-{n} F1" for n in "12L"), "loss"]
    rows = {cells[0].strip(): cells[1:] for cells in (line.strip("│").split("│") for line in lines if "│" in line[:1])}
    assert re.fullmatch(r" *\d+\.\d\d *", rows["hnas"][0]) and re.fullmatch(r" *\d+\.\d{3} *", rows["hnas"][3])
    assert re.fullmatch(r" *\d+\.\d\d *", rows["lead-8"][2]) and rows["lead-8"][3].strip() == ""


def test_a_model_below_its_baseline_is_told_after_the_tables(output):
    ended, folder = output
    [record] = folder.rglob("summary.json")
    summary = json.loads(record.read_text())
    [warning] = summary["warnings"]
    assert ended.stdout.splitlines()[-2] == warning
    updates = round(summary["steps"] / summary["epochs"])
    assert f"4 updates = {4 / updates:.1f} epochs" in warning
    assert warning.endswith("To train longer, raise task.max_steps.")


def test_a_run_starts_with_what_was_typed_and_ends_with_its_folder_which_is_where_the_readme_says(output):
    """Long lines are not cut off at the width of a terminal that is not there."""
    ended, folder = output
    [run] = (folder / "logs/gigaword/hnas").iterdir()
    _, typed, configuration, attention, *_, last = ended.stdout.splitlines()
    assert attention == "encoder hnas; decoder, cross softmax (autoregressive)"
    assert typed.split() == ["typed:", "attention=hnas", "task=gigaword", *runs.tiny_overrides()]
    assert (folder / configuration.removeprefix("configuration: ")).resolve() == run / "config.yaml"
    assert last.startswith("run folder: ") and (folder / last.removeprefix("run folder: ")).resolve() == run
    assert (run / "figures/hybrid_weights.png").exists() and (run / "hybrid_weights.csv").exists()


SCORES = Results(
    split="test",
    unit="pairs",
    size=12345,
    metrics={"rouge1": 31.239, "rouge2": 12.0, "rougeL": 29.999, "loss": 1.23456},
    baselines={"lead-8": {"rouge1": 20.0, "rouge2": 5.0, "rougeL": 19.0}},
    note="ROUGE [note]",
    settings={"beam_size": 4},
)


LONG = "encoder=hnas_prefix_fenchel_young_entmax15,decoder=my_normalizers:SparseDoublyNormalized"


@pytest.fixture
def screen(monkeypatch, request):
    """What the console prints, as text; on a terminal of 100 columns, or of another width."""
    width, quiet = getattr(request, "param", 100), open("/dev/null", "w")  # noqa: SIM115
    recorder = Console(record=True, width=width, file=quiet, highlight=False, soft_wrap=True)
    monkeypatch.setattr(console, "console", recorder)
    return recorder


def test_scores_have_two_digits_and_the_loss_three_and_a_table_is_divided_only_if_it_is_too_wide(screen):
    console.show_scores(SCORES, "dnas")
    text = screen.export_text()  # which begins anew
    assert "test: 12,345 pairs; beam_size 4" in text and "ROUGE-2 F1" in next(
        it for it in text.splitlines() if "┃" in it
    )
    for shown in ("31.24", "12.00", "30.00", "1.235", "20.00", "ROUGE [note]"):
        assert shown in text
    console.show_scores(SCORES, LONG)
    assert not any("ROUGE-2 F1" in line for line in screen.export_text().splitlines() if line.startswith("┃"))


@pytest.mark.parametrize("text", ["[bold]not markup[/]", "[/]", "a [red] b", "back\\slash ["])
def test_text_that_looks_like_markup_is_shown_as_it_is(screen, text):
    console.show_samples([{"article": text, "title": text, "headline": text}])
    console.show_start(SimpleNamespace(task=SimpleNamespace(name=text), label=text, seed=1), [text], Path(text))
    console.show_scores(SCORES, text)
    assert screen.export_text().count(text) == 8


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\rb", "\u202eba", "\x9b2J", "a\u2028b", "\u200fb"])
def test_control_characters_of_a_text_are_shown_as_escapes(screen, text):
    escaped = json.dumps(text)[1:-1].replace("\\r", "\\u000d")
    console.show_samples([{"article": text, "title": text}])
    console.show_start(SimpleNamespace(task=SimpleNamespace(name=text), label=text, seed=1), [text], Path(text))
    console.show_scores(SCORES, text)
    shown = screen.export_text()
    assert shown.count(escaped) == 7 and text not in shown


@pytest.mark.parametrize("is_terminal", [False, True])
def test_labels_are_whole_in_a_file_where_no_terminal_says_how_wide_it_is(monkeypatch, is_terminal):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)  # of the input and the errors
    stream = StringIO()
    stream.isatty = lambda: is_terminal
    file = Console(file=stream, soft_wrap=True)
    monkeypatch.setattr(console, "console", file)
    console.show_scores(SCORES, LONG)
    assert (LONG in file.file.getvalue()) is not is_terminal


@pytest.mark.parametrize("screen", [60, 80], indirect=True)
@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_table_that_is_too_wide_wraps_labels_and_cuts_nothing(screen, count):
    metrics = {f"metric_{number}": 10.0 + number for number in range(count)}
    baseline = "always a long answer that nobody has given"
    console.show_scores(Results("test", "pairs", 9, metrics, baselines={baseline: metrics}), LONG)
    lines = screen.export_text().splitlines()
    assert max(map(len, lines)) <= screen.width and "…" not in "".join(lines)
    columns = zip(
        *([cell.strip() for cell in line[1:-1].replace("┃", "│").split("│")] for line in lines if line[0] in "┃│"),
        strict=True,
    )
    texts = ["".join(cells) for cells in columns]  # what is wrapped stands in one column
    assert any(LONG in text for text in texts)
    assert any(baseline.replace(" ", "") in text.replace(" ", "") for text in texts)
    for name, value in metrics.items():
        assert any(name in text for text in texts) and sum(line.count(f"{value:.2f}") for line in lines) == 2


@pytest.mark.parametrize("screen", [80], indirect=True)
def test_a_table_that_fits_neither_way_is_divided_by_rows(screen):
    rows = [["probe", *(f"{number}_{LONG}" for number in range(8))]]
    rows += [[f"cell {row}", *(f"+0.{row}{column} ± 0.012 *" for column in range(8))] for row in range(8)]
    console.print_table("Differences", rows)
    lines = screen.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(sum(number in line for line in lines) == 1 for row in rows[1:] for number in row)


@pytest.mark.parametrize("end", ["on_train_end", "on_exception"])
def test_a_bar_ends_with_the_training_however_it_ends(tmp_path, end):
    callback = Progress(tmp_path)
    data = SimpleNamespace(num_training_steps=lambda: 4)
    callback.on_train_start(SimpleNamespace(is_global_zero=True, global_step=0, datamodule=data), None)
    assert callback.bar is not None
    getattr(callback, end)()
    assert callback.bar is None
    getattr(callback, end)()  # as on the other ranks, which have none


def test_a_log_file_that_cannot_be_opened_ends_no_run(tmp_path, capsys):
    (tmp_path / "run").write_text("a file where the folder should be")
    with run_log({}, tmp_path / "run"):
        logging.getLogger("attnorm").warning("the first message")
    assert "the first message" in capsys.readouterr().out
