"""Visual question answering as whole runs: the arms, what they leave, the official accuracy of what was written."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import runs
import torch
from builders import roughen
from marks import slow

from attnorm.cli import train as front
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.scenes import Scenes
from attnorm.run.csv_files import read_csv
from attnorm.tasks.task import task_of
from attnorm.tasks.vqa.answers import accuracy
from attnorm.tasks.vqa.module import views_of
from attnorm.training.module import TrainingModule
from attnorm.training.train import train

# long enough for some answers
TRAINED = (*runs.of("task", "max_steps=30 validations=5"), "callbacks.attention_stats.every_n_steps=0")
FILES = {*runs.FILES, "answers.json", "sentencepiece.model", "samples/validation.results.json"}
WIDTHS, BOXES = [48, 64, 40], [36, 36, 36]  # of the views of the built-in scenes


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A run without views on official files that answers some questions rightly."""
    folder = tmp_path_factory.mktemp("answering") / "run"
    runs.tiny_run(folder, *TRAINED, task="vqa_v2")
    return folder


def results_of(run, file="samples/validation.results.json"):
    """{question id: answer} of a result file, which has nothing else."""
    records = json.loads((run / file).read_text())
    assert all(list(record) == ["question_id", "answer"] for record in records)
    assert len({record["question_id"] for record in records}) == len(records)
    return {record["question_id"]: record["answer"] for record in records}


def metrics_of(run, file="summary.json"):
    content = json.loads((run / file).read_text())
    return content.get("validation", content)["metrics"]


def kept_of(run):
    return json.loads((run / "answers.json").read_text())


def rows_of(split, size, seed=0):
    """[(id, answer, kind)] of the built-in scenes."""
    sizes = {"train_size": size, "valid_size": size, "test_size": size}
    rows = Scenes(**sizes, corpus_seed=seed).rows(split)
    return [(name, json.loads(answers)[0], kind) for name, _, _, answers, kind in rows]


def path_of(part):
    """One of the official files of `runs.vqa_files`."""
    return dict(key.split("=") for key in runs.vqa_files())[f"data.{part}"]


def annotations_of(split="validation"):
    with open(path_of(f"{split}_annotations")) as file:
        return json.load(file)["annotations"]


def plainly(answer):
    """As the official rules make our made-up answers equal: case, article, period."""
    return answer.lower().removeprefix("the ").removesuffix(".")


def averaged(answers, annotations):
    """Accuracy in percent, overall and by answer type."""
    found = {"accuracy": [], "other": [], "yes/no": []}
    for annotation in annotations:
        value = accuracy(answers[annotation["question_id"]], [answer["answer"] for answer in annotation["answers"]])
        found["accuracy"].append(value)
        found[annotation["answer_type"]].append(value)
    return {name: pytest.approx(100 * sum(values) / len(values), abs=0.005) for name, values in found.items()}


# the arms


MCAN = "model=mcan_small"
ARMS = [  # what is typed, the label, the layers that attend
    (("attention.fusion=softmax",), "softmax", {"fusion"}),
    (("attention.fusion=dnas",), "dnas", {"fusion"}),
    (("attention.fusion=hnas",), "hnas", {"fusion"}),
    (("attention=dnas", "model.fusion=single"), "single", set()),
    slow(("model.fusion=concat",), "concat", set()),
    slow(("model.fusion=none",), "none", set()),
    (("model.question=transformer", "attention=dnas"), "dnas_all", {"fusion", "encoder/0"}),
    slow(("model.question=transformer", "model.fusion=single"), "single_softmax", {"encoder/0"}),
    ((MCAN, "attention=hnas"), "hnas_encoder-hnas", {"fusion", "encoder/0", "guided/0", "guided/0/cross"}),
    slow((MCAN, "attention=hnas", "model.fusion=concat"), "concat_hnas", {"encoder/0", "guided/0", "guided/0/cross"}),
    ((MCAN, "model.fusion=none", "attention=dnas"), "none_dnas", {"encoder/0"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "label", "layers"), ARMS)
def test_every_arm_trains_and_says_what_it_is(tmp_path, capsys, typed, label, layers):
    summary = runs.tiny_run(tmp_path, *typed, "task.max_steps=2", "task.validations=1", task="vqa")
    assert summary["state"] == "finished" and summary["attention"] == label
    assert summary["attention_layers"] == len(layers)
    watched = read_csv(tmp_path / "attention.csv") if layers else []
    assert {row["layer"] for row in watched} == layers
    assert {row["step"] for row in watched} == ({"0", "2"} if layers else set())
    alone = "model.fusion=none" in typed
    used = 0 if alone else 1 if "model.fusion=single" in typed else 3
    said = "the question alone (model.fusion=none)" if alone else f"boxes per view: {BOXES[:used]}"
    kept = kept_of(tmp_path)
    idle = "" if layers else "; no site for a normalizer in this model"
    assert f"{len(kept['answers'])} answers; {said}{idle}\n" in capsys.readouterr().out.replace("\n ", " ")
    assert (kept["widths"], kept["boxes"]) == (WIDTHS[:used], BOXES[:used])
    assert list(results_of(tmp_path)) == [f"validation-{number}" for number in range(24)]


@pytest.mark.slow
def test_arms_share_parameters_and_batches_bit_for_bit(monkeypatch, tmp_path):
    seen = {}

    def note(self, batch, index):
        rows, _ = seen.setdefault(arm, ([], {name: value.clone() for name, value in self.model.state_dict().items()}))
        rows.append(batch["rows"].tolist())

    runs.before(monkeypatch, TrainingModule, "training_step", note)
    attention = ("softmax", "dnas", "hnas")
    arms = {name: (f"attention.fusion={name}",) for name in attention}
    arms |= {name: (f"model.fusion={name}",) for name in ("single", "concat", "none")}
    arms["seed"] = ("seed=2",)
    for arm, typed in arms.items():
        short = ("task.max_steps=3", "task.validations=1", "callbacks.attention_stats.every_n_steps=0")
        runs.tiny_run(tmp_path / arm, *typed, *short, task="vqa")
    (rows, first), others = seen["softmax"], {arm: seen[arm] for arm in arms if arm not in ("softmax", "seed")}
    for arm, (its_rows, its) in others.items():
        assert its_rows == rows, arm
        shared = its.keys() & first.keys()
        assert [name for name in shared if not torch.equal(its[name], first[name])] == [], arm
    keys = {arm: set(parameters) for arm, (_, parameters) in others.items()}
    assert keys["dnas"] == set(first)
    assert {name.rpartition(".")[2] for name in keys["hnas"] - set(first)} == {"hybrid"}
    assert keys["none"] < keys["single"] < keys["concat"] < set(first)
    assert all(name.startswith("fusion.attention.") for name in set(first) - keys["concat"])
    other_rows, other = seen["seed"]
    assert other_rows != rows and not torch.equal(other["classifier.weight"], first["classifier.weight"])


def test_the_question_alone_reads_no_features(monkeypatch, tmp_path):
    monkeypatch.setattr(Scenes, "views", None)
    assert runs.tiny_run(tmp_path, "model.fusion=none", task="vqa")["state"] == "finished"


def test_official_files_without_features_are_the_question_alone(tmp_path, capsys):
    assert runs.composed(*runs.tiny_overrides("vqa_v2")).model.fusion == "attention"
    cfg = runs.tiny("data.features=[]", task="vqa_v2")
    assert cfg["model"]["fusion"] == "none"
    train(cfg, tmp_path)
    assert runs.summary_of(tmp_path)["attention"] == "none"
    said = capsys.readouterr().out.replace("\n ", " ")
    assert "5 answers; the question alone (model.fusion=none); no site for a normalizer in this model\n" in said
    assert "fusion: none" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize("typed", [(), ("attention.fusion=dnas",), ("model.fusion=concat",)], ids=str)
def test_what_the_views_show_counts(tmp_path, typed):
    """With other features of the same questions the model gives other scores."""
    recipe = task_of(runs.tiny(*typed, task="vqa"))
    split = recipe.splits()["validation"]
    model = roughen(recipe.model(split.tokenizer), dtype=torch.float32)  # a new one sees the primary view only
    batch = recipe.collator(split)[MicroBatch([0, 1, 2, 3, 4], 5)]
    scores = model(batch["ids"], views_of(batch))
    for number in range(len(WIDTHS)):
        other = model(batch["ids"], views_of({**batch, f"view{number}": batch[f"view{number}"].flip(2)}))
        assert (other - scores).abs().max() > 1e-4
    assert scores.shape == (5, len(recipe.answers))


# what a run leaves behind, and its scores


def test_a_summary_has_accuracy_by_type_and_the_loss(answering):
    summary = runs.summary_of(answering)
    assert (summary["task"], summary["attention"], summary["state"]) == ("vqa", "none", "finished")
    scores = summary["validation"]
    assert (scores["split"], scores["unit"], scores["size"]) == ("validation", "questions", 16)
    assert list(scores["metrics"]) == ["accuracy", "other", "yes/no", "loss"]
    accuracy = runs.logged(answering, "val/accuracy")
    assert list(accuracy) == [6, 12, 18, 24, 30]
    assert summary["best_step"] == max(accuracy, key=accuracy.get)
    rows = runs.selecting(answering)
    assert rows["accuracy"].mean() == pytest.approx(max(accuracy.values()), abs=0.005)
    assert rows["loss_sum"].mean() == pytest.approx(runs.logged(answering, "val/loss")[summary["best_step"]], rel=1e-5)


def test_the_official_evaluation_gives_the_same_scores(monkeypatch, answering):
    results, metrics = answering / "samples/validation.results.json", metrics_of(answering)
    files = (f"references={path_of('validation_annotations')}", f"questions={path_of('validation_questions')}")
    scores = runs.scored_file(monkeypatch, "metric=vqa", f"predictions={results}", *files)
    assert (scores.split, scores.size) == ("validation.results.json", 16)
    del metrics["loss"]
    assert scores.metrics == {**metrics, "missing": 0, "extra": 0} and 0 < metrics["accuracy"] < 100
    assert list(results_of(answering)) == [it["question_id"] for it in annotations_of()]  # numbers, as in these files


def test_the_baseline_always_gives_the_answer_of_most_questions(answering):
    """Not one that many annotators named, each time as the only one."""
    majority = [
        Counter(plainly(answer["answer"]) for answer in record["answers"]).most_common(1)[0][0]
        for record in annotations_of()
    ]
    [(common, count)] = Counter(majority).most_common(1)
    named = Counter(text for r in annotations_of() for text in {plainly(answer["answer"]) for answer in r["answers"]})
    assert named.most_common(1)[0][0] != common and count > 4
    expected = averaged(dict.fromkeys(results_of(answering), common), annotations_of())
    assert runs.summary_of(answering)["validation"]["baselines"] == {f"always {common}": expected}


# the answers to choose from


def test_answers_are_those_frequent_in_the_training_questions_that_are_used():
    counts = Counter(answer for _, answer, _ in rows_of("train", 48))
    expected = sorted((text for text in counts if counts[text] >= 2), key=lambda text: (-counts[text], text))
    assert {answer for _, answer, _ in rows_of("validation", 24)} - set(expected)  # or validation may have helped
    assert kept_of(runs.finished_run("vqa")) == {"answers": expected, "widths": WIDTHS, "boxes": BOXES}
    recipe = task_of(runs.tiny("data.max_train=20", "task.min_count=1", task="vqa"))
    assert set(recipe.answers.texts) == {answer for _, answer, _ in rows_of("train", 20)}
    assert recipe.splits()["train"].counts["known"] == 20


def test_answers_of_validation_are_not_learned(tmp_path):
    asked, annotated = runs.vqa_records(20, 8)
    for annotation in annotated:
        annotation["answers"] = [{"answer": "teal"}] * 10
    typed = runs.write_vqa(tmp_path, "validation", asked, annotated)
    summary = runs.tiny_run(tmp_path / "run", *typed, "task.max_steps=1", "task.validations=1", task="vqa_v2")
    assert kept_of(tmp_path / "run") == {**kept_of_training(), "widths": [], "boxes": []}
    assert summary["validation"]["metrics"]["accuracy"] == 0.0
    assert summary["data"]["validation"]["known"] == 0


def kept_of_training():
    """The answers of at least two training questions, the most frequent first."""
    counts = Counter()
    for record in annotations_of("train"):
        counts[Counter(plainly(answer["answer"]) for answer in record["answers"]).most_common(1)[0][0]] += 1
    return {"answers": sorted((text for text in counts if counts[text] > 1), key=lambda text: (-counts[text], text))}


def test_answers_may_come_from_a_file_which_has_to_be_there(monkeypatch, tmp_path):
    (tmp_path / "answers.txt").write_text("no\nblue\nyes\n")
    runs.tiny_run(tmp_path / "run", f"task.answers={tmp_path}/answers.txt", "task.max_steps=1", task="vqa_v2")
    assert kept_of(tmp_path / "run")["answers"] == ["no", "blue", "yes"]
    assert set(results_of(tmp_path / "run").values()) <= {"no", "blue", "yes"}
    (tmp_path / "answers.txt").unlink()  # the run has kept them
    assert runs.call(monkeypatch, "eval", f"run={tmp_path}/run") == 0
    with pytest.raises(ValueError, match=r"task\.answers: answer list: no such file: none\.json"):
        runs.tiny_run(tmp_path / "other", "task.answers=none.json", task="vqa_v2")


# scoring again


def test_eval_answers_with_the_list_of_the_run_whatever_the_data(monkeypatch, tmp_path):
    run = runs.copied_run(tmp_path, "vqa")
    assert runs.call(monkeypatch, "eval", f"run={run}", "data.corpus_seed=3", f"paths.cache_dir={tmp_path}/cache") == 0
    first = results_of(run, "eval_validation.results.json")
    assert json.loads((run / "eval_validation.json").read_text())["data"]["corpus_seed"] == 3
    kept = kept_of(run)
    renamed = {**kept, "answers": [f"it is {answer}" for answer in kept["answers"]]}
    (run / "answers.json").write_text(json.dumps(renamed))
    assert runs.call(monkeypatch, "eval", f"run={run}", "data.corpus_seed=3", f"paths.cache_dir={tmp_path}/cache") == 0
    assert results_of(run, "eval_validation_2.results.json") == {name: f"it is {text}" for name, text in first.items()}
    assert metrics_of(run, "eval_validation_2.json")["accuracy"] == 0.0


def test_questions_without_annotations_are_answered_and_not_scored(monkeypatch, tmp_path, capsys, answering):
    run = Path(shutil.copytree(answering, tmp_path / "run"))
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test", "data.test_annotations=null") == 0
    assert capsys.readouterr().out.startswith("test: 6 questions\nthe questions have no annotations: ")  # and no table
    assert len(results_of(run, "eval_test.results.json")) == 6
    record = json.loads((run / "eval_test.json").read_text())
    assert (record["size"], record["metrics"], record["baselines"]) == (6, {}, {})
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test") == 0
    assert results_of(run, "eval_test_2.results.json") == results_of(run, "eval_test.results.json")
    expected = averaged(results_of(run, "eval_test.results.json"), annotations_of("test"))
    assert metrics_of(run, "eval_test_2.json").items() >= expected.items()


def features(folder, count=3, width=7, places=True):
    """Folders with features of the images of `runs.vqa_files`, one a view."""
    import numpy as np

    random = np.random.default_rng(0)
    for view in range(count):
        (folder / f"view{view}").mkdir()
        for image in range(31):
            boxes = random.random((3, 2, 2), np.float32) / 2
            geometry = np.concatenate([boxes[:, 0], boxes[:, 1] + 0.5], 1) * 100
            here = {"bbox": geometry, "image_w": 100, "image_h": 100} if places else {}
            np.savez(folder / f"view{view}/{image}.npz", features=random.random((3, width), np.float32), **here)
    return f"data.features=[{','.join(str(folder / f'view{view}') for view in range(count))}]"


def test_eval_says_what_views_a_model_was_made_for(monkeypatch, tmp_path, capsys):
    run = runs.copied_run(tmp_path, "vqa")
    keys = (f"run={run}", "data=vqa_v2", *runs.vqa_files())
    views = features(tmp_path)
    widths = "(view0: 7, view1: 7, view2: 7) than the model (48, 64, 40)"
    for typed, said in (
        ((), "error: fusion='attention': expected 3 views, but got 0\n"),
        (
            (views, "data.max_boxes=50"),
            f"error: validation: data: the views have other numbers of features per box {widths}\n",
        ),
    ):
        assert runs.call(monkeypatch, "eval", *keys, *typed) == 1
        assert capsys.readouterr().err.startswith(said)
    assert runs.files_of(run) == FILES


def test_official_files_with_features_are_fused(tmp_path):
    typed = (features(tmp_path, 2), "data.max_boxes=3", "task.max_steps=2", "attention.fusion=dnas")
    summary = runs.tiny_run(tmp_path / "run", *typed, task="vqa_v2")
    assert (summary["attention"], summary["attention_layers"]) == ("dnas", 1)
    assert (kept_of(tmp_path / "run")["widths"], kept_of(tmp_path / "run")["boxes"]) == ([7, 7], [3, 3])


def test_one_view_reads_and_wants_no_other(tmp_path):
    typed = (features(tmp_path, 3), "data.max_boxes=3", "model.fusion=single", "task.max_steps=1")
    shutil.rmtree(tmp_path / "view2")
    (tmp_path / "view2").mkdir()
    (tmp_path / "view2/other.npz").write_bytes((tmp_path / "view1/0.npz").read_bytes())
    (tmp_path / "view1/7.npz").unlink()
    runs.tiny_run(tmp_path / "run", *typed, task="vqa_v2")
    assert (kept_of(tmp_path / "run")["widths"], kept_of(tmp_path / "run")["boxes"]) == ([7], [3])


def test_views_that_cannot_be_used_are_said_at_once(tmp_path):
    nowhere = (features(tmp_path, 2, places=False), "data.max_boxes=3")
    said = "model.geometry=true: view0 has no box positions; use model.geometry=false"
    assert problems_of(*nowhere) == [said]
    assert runs.tiny(*nowhere, "model.geometry=false", task="vqa_v2")
    first = nowhere[0].partition(",")[0] + "]"
    said = "model.fusion=attention: requires at least 2 views, but data.features has 1; use model.fusion=single"
    assert problems_of(first, "data.max_boxes=3") == [said]


def problems_of(*typed, task="vqa_v2"):
    with pytest.raises(front.ConfigError) as caught:
        runs.tiny(*typed, task=task)
    return caught.value.problems
