"""The accuracy of visual question answering: by hand, by types, and on the real annotations."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from datasets import Dataset

from attnorm.tasks.vqa.metric import Reference, read_predictions, read_references, references, results, score

REAL = Path(__file__).parents[3] / "shared/data/vqa_v2_subset"
GOLD = [
    Reference("1", ["yes"] * 10, "yes/no", "is the"),
    Reference("2", ["two"] * 3 + ["3"] * 2 + ["x", "y", "z", "v", "w"], "number", "how many"),
    Reference("3", ["a red car"] * 9 + ["bus"], "other", "what is"),
    Reference("4", ["no"] * 10, "yes/no", "what is"),
]


def test_the_accuracy_overall_and_by_types():
    found = score({"1": "yes", "2": "3", "3": "Red car.", "4": "No"}, GOLD)
    counts = {"total": 4, "missing": 0, "extra": 0}
    types = {"how many": 60.0, "is the": 100.0, "what is": 50.0}
    by_answer = {"number": 60.0, "other": 100.0, "yes/no": 50.0}
    assert found == {"accuracy": 65.0, "answer_types": by_answer, "question_types": types, **counts}  # 1, 0.6, 1, 0


def test_each_is_rounded_to_two_digits():
    gold = [Reference(str(i), ["yes"] * 10, "yes/no", "is") for i in range(3)]
    found = score({"0": "yes", "1": "no", "2": "no"}, gold)
    assert found["accuracy"] == 33.33 and found["answer_types"] == {"yes/no": 33.33}
    assert found["question_types"] == {"is": 33.33}


def test_types_that_are_not_known_are_not_listed():
    found = score({"1": "yes"}, [Reference("1", ["yes"]), Reference("2", ["no"], "yes/no")])
    assert found["accuracy"] == 50.0 and found["answer_types"] == {"yes/no": 0.0} and found["question_types"] == {}


def test_missing_predictions_are_wrong_counted_and_named(caplog):
    with caplog.at_level("WARNING"):
        found = score({"3": "red car"}, GOLD)
    assert found["accuracy"] == 25.0 and found["missing"] == 3 and found["total"] == 4
    assert "3 questions without a prediction, scored 0: 1, 2, 4" in caplog.text
    caplog.clear()
    score({it.id: "x" for it in GOLD}, GOLD)
    assert caplog.text == ""


def test_predictions_for_other_questions_are_ignored_and_told(caplog):
    predictions = {"1": "yes", "2": "3", "3": "red car", "4": "no"}
    with caplog.at_level("WARNING"):
        found = score({"7": "x", **predictions, "8": "x"}, GOLD)
    assert found == {**score(predictions, GOLD), "extra": 2}
    assert "2 predictions not in the references, ignored: 7, 8" in caplog.text


@pytest.mark.parametrize(
    ("predictions", "gold", "message"),
    [
        ({"7": "x"}, GOLD, "no prediction is for a question of the references, which have 1, 2, 3, 4; .* are for 7$"),
        ({"1": 3}, GOLD, "the answer to question 1 is 3, not text"),
        ({"1": None}, GOLD, "the answer to question 1 is null, not text"),
        ({}, [], "no questions to score"),
        ({}, [*GOLD, GOLD[1], GOLD[1]], "repeat questions: 2$"),
        ({}, [*GOLD, Reference("5", [])], "1 question without an annotator's answer: 5"),
        ({str(i): "x" for i in range(20, 40)}, GOLD, "the predictions are for 20, 21, .*, 29, ...$"),
    ],
)
def test_what_cannot_be_scored_is_named(predictions, gold, message):
    with pytest.raises(ValueError, match=message):
        score(predictions, gold)


def test_references_come_from_a_table():
    asked = {"id": ["1", "2"], "image": ["i", "i"], "question": ["q", "q"]}
    table = Dataset.from_dict({**asked, "answers": ['["yes"]', '["a", "b"]'], "kind": ["yes/no", ""]})
    assert references(table) == [Reference("1", ["yes"], "yes/no", ""), Reference("2", ["a", "b"], "", "")]


def test_result_files_are_written_as_they_are_read(tmp_path):
    predictions = {"25": "caf\u00e9", "test-3": "no", "007": "x"}
    text = results(predictions)
    first, second, _ = json.loads(text)
    assert first == {"question_id": 25, "answer": "caf\u00e9"} and second["question_id"] == "test-3"
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    assert read_predictions(tmp_path / "r.json") == predictions


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"1": "yes"}', r'r.json: expected a JSON list \[\{"question_id": 1, .*, got'),
        ('[{"question_id": 1}]', r"r.json: record 0 is .*expected"),
        ('[{"question_id": 1, "answer": "x"}, ["a"]]', r"r.json: record 1 is"),
        ('[{"question_id": 1.5, "answer": "x"}]', r"record 0: question_id is 1.5, not a number or text"),
        ('[{"question_id": true, "answer": "x"}]', r"question_id is true"),
        ('[{"question_id": 1, "answer": 3}]', r"record 0: the answer to question 1 is 3, not text"),
        ('[{"question_id": 1, "answer": "x"}, {"question_id": "1", "answer": "y"}]', r"record 1: question 1 is ans"),
        ("x", r"r.json:1: not JSON"),
        ("[" * 100_000, r"r.json: JSON nested too deeply"),
        (f'[{{"question_id": 1{"0" * 5000}, "answer": "x"}}]', r"r.json: .*Exceeds the limit .* digits"),
        ('[{"question_id": 1, "answer": "x", "answer": "y"}]', r'r.json: .*an object has a repeated key, "answer"'),
        ('[[{"question_id": 1, "answer": "x"}]]', r"r.json: record 0 is"),
    ],
)
def test_what_is_no_result_file_is_refused(tmp_path, content, message):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_predictions(tmp_path / "r.json")


@pytest.mark.slow
def test_the_prior_of_the_question_types_on_the_real_files():
    if not REAL.is_dir():
        pytest.skip("no ../shared/data/vqa_v2_subset beside the repository")
    gold = read_references(REAL / "annotations_valid.json.gz")
    train = json.loads(gzip.decompress((REAL / "annotations_train.json.gz").read_bytes()))["annotations"]
    counts = defaultdict(Counter)
    for record in train:
        counts[record["question_type"]][record["multiple_choice_answer"]] += 1
    prior = {it.id: counts[it.question_type].most_common(1)[0][0] for it in gold}
    found = score(prior, gold)
    assert found["accuracy"] == 32.99 and found["total"] == 8977
    assert found["answer_types"] == {"number": 27.11, "other": 8.99, "yes/no": 63.99}
