"""SQuAD as whole runs: what they leave, the official scores of what was written, questions without an answer."""

import json
from pathlib import Path

import pytest
import runs
from torch.testing import assert_close

from attnorm.data.sampler import TokenBatches
from attnorm.run.csv_files import read_csv
from attnorm.tasks.squad.metric import score
from attnorm.tasks.task import task_of
from attnorm.training.module import TrainingModule

EXACT = ("model.dropout=0", "trainer.precision=64-true")  # so that only rounding can differ
# long enough for some answers
TRAINED = (*runs.of("task", "max_steps=9 validations=3"), "callbacks.attention_stats.every_n_steps=0")
IMPOSSIBLE = 4  # of the 12 validation questions
OF_PARTS = [f"{part}{name}" for part in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")]


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A run that answers some questions rightly."""
    folder = tmp_path_factory.mktemp("answering") / "run"
    runs.tiny_run(folder, *TRAINED, task="squad")
    return folder


@pytest.fixture(scope="module")
def doubting(tmp_path_factory):
    """A run on questions of which some have no answer."""
    folder = tmp_path_factory.mktemp("doubting") / "run"
    runs.tiny_run(folder, *runs.squad_files(IMPOSSIBLE), "task.no_answer=true", *TRAINED, task="squad")
    return folder


def metrics_of(run, file="summary.json"):
    content = json.loads((run / file).read_text())
    return content.get("validation", content)["metrics"]


def predictions_of(run, file="samples/validation.predictions.json"):
    return json.loads((run / file).read_text())


def gold_of(impossible=0):
    """{id: answers} of the validation file."""
    path = Path(runs.squad_files(impossible)[1].partition("=")[2])
    [article] = json.loads(path.read_text())["data"]
    questions = (question for paragraph in article["paragraphs"] for question in paragraph["qas"])
    return {it["id"]: [answer["text"] for answer in it["answers"]] for it in questions}


@pytest.mark.slow
def test_a_summary_has_loss_exact_match_and_f1(answering):
    summary = runs.summary_of(answering)
    assert summary["data"]["validation"]["windows"] > summary["data"]["validation"]["kept"] == 12
    scores = summary["validation"]
    assert (scores["split"], scores["unit"], scores["size"], scores["settings"]) == ("validation", "questions", 12, {})
    assert set(scores["metrics"]) == {"loss", "exact", "f1"}
    f1 = runs.logged(answering, "val/f1")
    assert list(f1) == [3, 6, 9] and len(set(f1.values())) > 1
    assert runs.selecting(answering)["f1"].mean() == pytest.approx(max(f1.values()))


@pytest.mark.slow
def test_patience_waits_for_f1(monkeypatch, tmp_path):
    original = TrainingModule.log

    def log(self, name, value, *arguments, **options):
        planned = {"val/f1": 10.0 + self.trainer.global_step, "val/loss": 1.0 * self.trainer.global_step}
        return original(self, name, planned.get(name, value), *arguments, **options)

    monkeypatch.setattr(TrainingModule, "log", log)
    summary = runs.tiny_run(tmp_path, "task.validations=4", "callbacks.early_stopping.patience=1", task="squad")
    assert (summary["steps"], summary["best_step"]) == (4, 4)


def test_the_official_score_of_the_written_answers_is_that_of_the_run(monkeypatch, answering):
    validation = runs.squad_files()[1].partition("=")[2]
    answers = answering / "samples/validation.predictions.json"
    scores = runs.scored_file(monkeypatch, "metric=squad", f"predictions={answers}", f"references={validation}")
    metrics = metrics_of(answering)
    del metrics["loss"]
    assert scores.size == 12 and scores.metrics == {**metrics, "missing": 0, "extra": 0}
    assert 0 < metrics["exact"] < 100 and metrics["f1"] > metrics["exact"]


@pytest.mark.slow
def test_eval_with_shorter_answers_and_other_questions(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "squad")
    other = runs.write_squad(tmp_path / "other.json", runs.squad_records(60, 5))
    typed = ("split=test", "task.max_answer=1", "task.n_best=2", f"data.test={other}")
    assert runs.call(monkeypatch, "eval", f"run={run}", *typed) == 0
    predictions = predictions_of(run, "eval_test.predictions.json")
    assert len(predictions) == 5 and all(len(answer.split()) < 2 for answer in predictions.values())
    record = json.loads((run / "eval_test.json").read_text())
    assert record["typed"] == {"task.max_answer": 1, "task.n_best": 2, "data.test": str(other)}


@pytest.mark.slow
def test_a_run_with_impossible_questions_writes_odds_and_scores_both_kinds(doubting):
    assert "samples/validation.null_odds.json" in runs.files_of(doubting)
    odds = predictions_of(doubting, "samples/validation.null_odds.json")
    predictions, gold = predictions_of(doubting), gold_of(IMPOSSIBLE)
    assert odds.keys() == predictions.keys() == gold.keys()
    assert {name for name, text in predictions.items() if not text} == {name for name in odds if odds[name] > 0}
    summary, share = runs.summary_of(doubting), pytest.approx(100 * IMPOSSIBLE / 12)
    assert summary["validation"]["settings"] == {"null_threshold": 0.0}
    assert summary["validation"]["baselines"] == {"never an answer": {"f1": share, "exact": share}}
    assert summary["data"]["validation"]["impossible"] == IMPOSSIBLE


@pytest.mark.slow
def test_another_null_threshold_in_eval_empties_other_answers(monkeypatch, tmp_path, doubting):
    odds = predictions_of(doubting, "samples/validation.null_odds.json")
    middle = sorted(odds.values())[5]
    found = {}
    for number, threshold in enumerate((-1e6, middle, 1e6), start=1):
        assert runs.call(monkeypatch, "eval", f"run={doubting}", f"task.null_threshold={threshold}") == 0
        name = "eval_validation" + (f"_{number}" if number > 1 else "")
        found[threshold] = metrics_of(doubting, f"{name}.json")
        predictions = predictions_of(doubting, f"{name}.predictions.json")
        assert {name for name, text in predictions.items() if not text} == {n for n in odds if odds[n] > threshold}
        assert predictions_of(doubting, f"{name}.null_odds.json") == odds
        expected = score(predictions, list(gold_of(IMPOSSIBLE).items()))
        assert all(found[threshold][name] == pytest.approx(expected[name]) for name in ("exact", "f1"))
    assert found[-1e6]["NoAns_f1"] == 100 and found[-1e6]["exact"] == pytest.approx(100 * 4 / 12)
    assert len({metrics["loss"] for metrics in found.values()}) == 1
    assert len({metrics["best_f1"] for metrics in found.values()}) == 1  # of the answers before any is emptied


def test_the_official_scores_of_version_2_and_the_best_threshold_are_those_of_the_run(monkeypatch, doubting):
    spans = predictions_of(doubting, "samples/validation.spans.json")
    kept = {name: text for name, text in predictions_of(doubting).items() if text}
    assert all(spans.values()) and kept.items() <= spans.items() and len(kept) < len(spans)
    answers, metrics = f"{doubting}/samples/validation", metrics_of(doubting)
    references = f"references={runs.squad_files(IMPOSSIBLE)[1].partition('=')[2]}"
    with_odds = (f"predictions={answers}.spans.json", f"null_odds={answers}.null_odds.json", "null_threshold=0")
    best = ("best_exact", "best_f1", "best_exact_thresh", "best_f1_thresh")
    for typed, names in (((f"predictions={answers}.predictions.json",), ()), (with_odds, best)):
        scores = runs.scored_file(monkeypatch, "metric=squad", references, *typed).metrics
        assert {name: scores[name] for name in (*OF_PARTS, *names)} == pytest.approx(
            {name: metrics[name] for name in (*OF_PARTS, *names)}
        )


@pytest.mark.slow
@pytest.mark.parametrize("impossible", [0, IMPOSSIBLE])
def test_two_processes_judge_as_one(tmp_path, impossible):
    """Also where windows of one question are judged by different processes."""
    typed = (*EXACT, *runs.squad_files(impossible), f"task.no_answer={'true' if impossible else 'false'}")
    typed += ("data.batch_tokens=450", "task.max_steps=8")
    recipe = task_of(runs.tiny(*typed, task="squad"))
    split = recipe.splits()["validation"]
    validations = [TokenBatches(split.lengths, 450, shuffle=False, rank=rank, ranks=2) for rank in (0, 1)]
    asked = [{example for part in parts for example in split.rows[part.rows]["example"]} for parts in validations]
    assert asked[0] & asked[1]  # some question is judged by both
    runs.tiny_run(tmp_path / "one", *typed, task="squad")
    runs.tiny_run(tmp_path / "two", *typed, "trainer.strategy=ddp_fork", "trainer.devices=2", task="squad")
    assert_close(*(runs.parameters(tmp_path / folder) for folder in ("one", "two")), rtol=1e-7, atol=1e-9)
    columns = [name for name in read_csv(tmp_path / "one/metrics.csv")[0] if name.startswith("val/")]
    assert {"val/loss", "val/exact", "val/f1"} <= set(columns) and bool(impossible) == ("val/NoAns_f1" in columns)
    for column in columns:
        one, two = runs.logged(tmp_path / "one", column), runs.logged(tmp_path / "two", column)
        assert list(one) == [4, 8]
        assert_close(one, two, rtol=1e-6, atol=1e-6)
    assert_close(metrics_of(tmp_path / "one"), metrics_of(tmp_path / "two"), rtol=1e-6, atol=1e-6)
