"""predictions/*.parquet: the scores of single examples, of which the reported metrics are the means."""

import hashlib
import json
import math
from types import SimpleNamespace

import pytest
import runs
import torch
from datasets import Dataset
from pyarrow import parquet
from tolerance import rounding

from attnorm.run.checkpoint import load_weights
from attnorm.run.csv_files import read_csv
from attnorm.run.writing import RunWriter
from attnorm.tasks import results
from attnorm.tasks.results import Predictions, Results, hash_of_image
from attnorm.tasks.rouge import Rouge
from attnorm.tasks.squad import metric as squad_metric
from attnorm.tasks.task import selection_half, task_of
from attnorm.tasks.vqa.answers import accuracy

IMPOSSIBLE = 4
RUNS = {  # name: (task, settings); batches so small that their sizes and their padding differ
    "gigaword": ("gigaword", ("data.batch_tokens=200",)),
    "mlm": ("mlm", ("data.batch_tokens=200",)),
    "mlm_unpacked": ("mlm", ("data.batch_tokens=200", "task.packed=false")),
    "squad": ("squad", ("data.batch_tokens=200",)),
    "squad_2": ("squad", (*runs.squad_files(IMPOSSIBLE), "task.no_answer=true", "data.batch_tokens=200")),
    "classify": ("classify", ("data.batch_tokens=64",)),
    "vqa": ("vqa", ("data.batch_tokens=64",)),
    "vqa_v2": ("vqa_v2", ("data.batch_tokens=40",)),
}
COMMON = ["id", "group", "input", "input_hash", "reference", "output"]
EVERY = pytest.mark.parametrize("name", RUNS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """name -> run folder, trained when it is first asked for."""
    folder, done = tmp_path_factory.mktemp("predictions"), {}

    def run(name):
        if name not in done:
            task, settings = RUNS[name]
            done[name] = folder / name
            runs.tiny_run(done[name], *settings, task=task)
        return done[name]

    return run


def columns(run, stem="validation", without=("selecting",)):
    table = parquet.read_table(run / f"predictions/{stem}.parquet")
    return {name: values for name, values in table.to_pydict().items() if name not in without}


def restored(name, run):
    """(recipe, module with the best weights in evaluation mode, validation split)."""
    task, settings = RUNS[name]
    recipe = task_of(runs.tiny(*settings, task=task))
    split = recipe.splits()["validation"]
    module = recipe.module(recipe.model(split.tokenizer), split.tokenizer, split)
    load_weights(module.model, run / "checkpoints/best.ckpt")
    module.model.eval()
    return recipe, module, split


def mean(values):
    return sum(values) / len(values)


def aggregated(found):
    """Every metric that can be computed from the columns, as docs/runs.md says."""
    loss = sum(found["loss_sum"]) / sum(found["n_tokens"])
    metrics = {"loss": loss, "perplexity": math.exp(loss)}
    if "correct" in found:  # a ratio: blocks have different numbers of masked tokens
        return metrics | {"accuracy": 100 * sum(found["correct"]) / sum(found["n_tokens"])}
    for name in ("rouge1", "rouge2", "rougeL", "exact", "f1", "accuracy"):
        if name in found:
            metrics[name] = mean(found[name])
    if "accuracy" in found and isinstance(found["reference"][0], str):
        from sklearn.metrics import f1_score

        metrics["macro_f1"] = 100 * f1_score(found["reference"], found["output"], average="macro")
    if "has_answer" in found:
        for part, wanted in (("HasAns", True), ("NoAns", False)):
            for name in ("exact", "f1"):
                pairs = zip(found[name], found["has_answer"], strict=True)
                metrics[f"{part}_{name}"] = mean([score for score, has in pairs if has is wanted])
        gold = dict(zip(found["id"], found["reference"], strict=True))
        spans, odds = (dict(zip(found["id"], found[name], strict=True)) for name in ("span", "null_odds"))
        for name in ("exact", "f1"):
            scores = {i: score / 100 for i, score in zip(found["id"], found[f"span_{name}"], strict=True)}
            best = squad_metric.best_threshold(spans, scores, gold, odds)
            metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = best
    for kind in {*found.get("answer_type", ())} - {""}:
        pairs = zip(found["accuracy"], found["answer_type"], strict=True)
        metrics[kind] = mean([score for score, answer_type in pairs if answer_type == kind])
    return metrics


def assert_reported(found, metrics, visual):
    """The official accuracy of VQA is rounded to two digits; nothing else is rounded."""
    computed = aggregated(found)
    assert metrics.keys() <= computed.keys()
    for name, value in metrics.items():
        if name in ("loss", "perplexity"):  # batches are summed in float32
            expected = pytest.approx(value, rel=rounding(torch.float32, size=len(found["id"])))
        else:
            expected = pytest.approx(value, abs=0.005 + 1e-9) if visual else pytest.approx(value, rel=1e-12, abs=1e-12)
        assert computed[name] == expected, name


@EVERY
def test_the_reported_metrics_follow_from_the_rows(made, name):
    run = made(name)
    _, _, split = restored(name, run)
    found, summary = columns(run), runs.summary_of(run)["validation"]
    rows = len(split) if "mlm" in name else len(split.texts)
    assert {len(column) for column in found.values()} == {rows}
    assert_reported(found, summary["metrics"], visual="vqa" in name)
    assert max(found["loss_sum"]) > 0 and len(set(found["loss_sum"])) > rows / 2  # not one mean for all


@EVERY
def test_the_best_checkpoint_is_selected_on_half_of_the_groups(made, name):
    """So the monitored loss of the validation that selected it follows from the rows of that half."""
    run = made(name)
    found = columns(run, without=())
    halves = [{group for group, its in zip(found["group"], found["selecting"], strict=True) if its is is_selecting}
              for is_selecting in (True, False)]  # fmt: skip
    assert halves[0].isdisjoint(halves[1]) and 0 <= len(halves[0]) - len(halves[1]) <= 1
    summary, rows = runs.summary_of(run), runs.selecting(run)
    [loss] = [float(row["val/loss"]) for row in read_csv(run / "metrics.csv")
              if row["val/loss"] and int(row["step"]) == summary["best_step"]]  # fmt: skip
    expected = rows["loss_sum"].sum() / rows["n_tokens"].sum()
    assert loss == pytest.approx(expected, rel=rounding(torch.float32, depth=3, size=len(found["id"])))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_the_half_is_fixed_whatever_the_order(size):
    groups = [f"image {number}" for number in range(size)]
    half = selection_half(groups)
    assert len(half) == (size + 1) // 2
    assert half == selection_half([*reversed(groups), *groups])
    assert size < 1000 or 400 < len(half & set(groups[:500])) * 2 < 600


@EVERY
def test_the_table_names_the_checkpoint_and_the_inputs(made, name):
    run = made(name)
    checkpoint = run / "checkpoints/best.ckpt"
    recorded = json.loads(parquet.read_schema(run / "predictions/validation.parquet").metadata[results.CHECKPOINT])
    assert recorded == {
        "update": runs.load(run, "best")["global_step"],
        "sha256": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
    }
    hashes = columns(run)["input_hash"]
    assert len(set(hashes)) == len(hashes) and all("-" in it for it in hashes) is (name == "vqa")
    assert runs.summary_of(run)["data_fingerprints"].keys() == {"train", "validation"}


def test_inputs_and_pixels_that_change_have_other_hashes():
    task, rows = task_of(runs.tiny()), [{"article": f"article {row}", "title": "news"} for row in range(12)]
    before = task.input_hashes(SimpleNamespace(texts=Dataset.from_list(rows)))
    rows[5] = {**rows[5], "article": "another article"}
    after = task.input_hashes(SimpleNamespace(texts=Dataset.from_list(rows)))
    assert [row for row in range(12) if before[row] != after[row]] == [5] and len(set(before)) == 12
    pixels = torch.arange(48, dtype=torch.uint8).reshape(4, 4, 3)
    other = pixels.clone()
    other[3, 3, 2] += 1
    hashes = [hash_of_image(it) for it in (pixels, other, pixels.reshape(2, 8, 3), pixels.float())]
    assert len(set(hashes)) == 4 and hash_of_image(pixels.clone()) == hashes[0]
    assert hash_of_image(pixels.permute(2, 0, 1)) == hash_of_image(pixels.permute(2, 0, 1).contiguous())


@EVERY
def test_eval_with_other_batches_gives_the_same_rows_under_its_own_name(monkeypatch, made, name):
    run = made(name)
    before = (run / "predictions/validation.parquet").read_bytes()
    assert runs.call(monkeypatch, "eval", f"run={run}", "data.batch_tokens=3000") == 0
    assert (run / "predictions/validation.parquet").read_bytes() == before
    first, second = columns(run), columns(run, "eval_validation")
    assert first.keys() == second.keys()
    for column, values in first.items():
        if isinstance(values[0], float):
            close = rounding(torch.float32, depth=4, size=300)
            assert second[column] == pytest.approx(values, rel=close, abs=close, nan_ok=False), column
        else:
            assert second[column] == values, column
    record = json.loads((run / "eval_validation.json").read_text())
    assert_reported(second, record["metrics"], visual="vqa" in name)


def test_headlines_have_the_rouge_of_each_one(made):
    run = made("gigaword")
    found = columns(run)
    assert list(found) == [*COMMON, "rouge1", "rouge2", "rougeL", "loss_sum", "n_tokens"]
    assert found["id"] == found["group"] == [str(row) for row in range(20)]
    assert found["output"] == (run / "samples/validation.txt").read_text().splitlines()
    rouge = Rouge(stemmer=True)
    for row in range(20):
        scores = rouge([found["output"][row]], [found["reference"][row]])
        assert scores == pytest.approx({name: found[name][row] for name in scores})


@pytest.mark.parametrize("name", ["mlm", "mlm_unpacked"])
def test_a_row_of_mlm_is_a_block_with_its_masked_tokens(made, name):
    found = columns(made(name))
    _, _, split = restored(name, made(name))
    assert list(found) == [name for name in COMMON if name != "input"] + ["accuracy", "loss_sum", "n_tokens", "correct"]
    assert len(found["id"]) == len(split) and sum(found["n_tokens"]) == split.weights.sum()
    for reference, output, count, correct, percent in zip(
        *(found[column] for column in ("reference", "output", "n_tokens", "correct", "accuracy")), strict=True
    ):
        assert len(reference) == len(output) == count > 0
        assert correct <= sum(a == b for a, b in zip(reference, output, strict=True))  # decoded, tokens can be alike
        assert percent == pytest.approx(100 * correct / count)


@pytest.mark.parametrize("name", ["squad", "squad_2"])
def test_questions_have_their_official_scores_and_those_on_one_passage_a_group(made, name):
    run = made(name)
    found = columns(run)
    odds = ["has_answer", "null_odds", "span", "span_exact", "span_f1"] if name == "squad_2" else []
    assert list(found) == [*COMMON, "exact", "f1", "loss_sum", "n_tokens", *odds]
    answers = json.loads((run / "samples/validation.predictions.json").read_text())
    assert dict(zip(found["id"], found["output"], strict=True)) == answers
    assert max(found["n_tokens"]) > min(found["n_tokens"]) == 1  # windows
    _, _, split = restored(name, run)
    contexts = list(split.texts["context"])
    groups = dict(zip(contexts, found["group"], strict=True))
    assert found["group"] == [groups[context] for context in contexts]
    assert len(set(groups.values())) == len(groups)
    none = dict.fromkeys(found["id"], 0.0)  # the odds that turn the rules of 2.0 on
    for number, question in enumerate(found["id"]):
        references = [(question, found["reference"][number])]
        official = squad_metric.score(
            {question: answers[question]}, references, none if name == "squad_2" else None, threshold=1.0
        )
        assert (found["exact"][number], found["f1"][number]) == (official["exact"], official["f1"])


def test_labels_and_answers_are_right_or_wrong(made):
    found = columns(made("classify"))
    assert list(found) == [*COMMON, "accuracy", "loss_sum", "n_tokens"]
    pairs = zip(found["reference"], found["output"], strict=True)
    assert found["accuracy"] == [100.0 * (wanted == given) for wanted, given in pairs]
    assert 0 < sum(found["accuracy"]) < 100 * len(found["id"])


@pytest.mark.parametrize("name", ["vqa", "vqa_v2"])
def test_questions_on_images_are_grouped_by_image(made, name):
    run = made(name)
    found = columns(run)
    assert list(found) == [*COMMON, "accuracy", "loss_sum", "n_tokens", "answer_type"]
    _, _, split = restored(name, run)
    assert found["group"] == list(split.texts["image"]) and found["input"] == list(split.texts["question"])
    assert len(set(found["group"])) < len(found["group"])
    for wanted, given, percent in zip(found["reference"], found["output"], found["accuracy"], strict=True):
        assert percent == pytest.approx(100 * accuracy(given, wanted))


def test_questions_without_annotations_have_answers_but_no_scores(monkeypatch, made):
    run = made("vqa_v2")
    assert runs.call(monkeypatch, "eval", f"run={run}", "split=test", "data.test_annotations=null") == 0
    table = parquet.read_table(run / "predictions/eval_test.parquet")
    found = table.to_pydict()
    assert list(found) == [*COMMON, "accuracy", "loss_sum", "n_tokens", "answer_type"]
    assert found["accuracy"] == found["loss_sum"] == [None] * 6 and found["reference"] == [[]] * 6
    assert all(found["output"]) and str(table.schema.field("loss_sum").type) == "double"
    again = parquet.read_table(run / "predictions/validation.parquet").schema
    assert table.schema.equals(again.remove(again.get_field_index("selecting")))


def predictions(inputs=("short", "texts")):
    return Predictions([7, "b"], ["x", "y"], ["x", ""], {"accuracy": [100.0, None]}, [0.5, 2.0], [1, 3], inputs=inputs)


def test_long_inputs_are_left_out_and_never_cut(monkeypatch):
    monkeypatch.setattr(results, "LONGEST_INPUT", 5)
    assert predictions().table().column("input").to_pylist() == ["short", "texts"]
    assert "input" not in predictions(("short", "longer")).table().column_names
    assert "input" not in predictions(None).table().column_names


def test_an_unfinished_table_leaves_an_earlier_one_in_place(monkeypatch, tmp_path):
    scored = Results("test", "rows", 2, {}, predictions=predictions())
    assert RunWriter(tmp_path).write_results(scored, "test") == ["predictions/test.parquet"]
    before = (tmp_path / "predictions/test.parquet").read_bytes()

    def fail(table, file):
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(parquet, "write_table", fail)
    with pytest.raises(OSError, match="no space"):
        RunWriter(tmp_path).write_results(scored, "test")
    assert (tmp_path / "predictions/test.parquet").read_bytes() == before
    assert RunWriter(tmp_path).write_results(Results("test", "rows", 2, {}), "other") == []
