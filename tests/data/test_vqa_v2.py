"""VQA v2: official files to rows, and whatever does not fit together named."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from builders import build_source

from attnorm.data.sources.vqa_v2 import VqaV2, read_annotations, read_vqa_questions

REAL = Path(__file__).parents[3] / "shared/data/vqa_v2_subset"


def question(number, image=70, **changes):
    return {"question_id": number, "image_id": image, "question": f"what is {number}?"} | changes


def annotation(number, image=70, answers=10, **changes):
    texts = [{"answer": f"a{i}", "answer_confidence": "yes", "answer_id": i + 1} for i in range(answers)]
    record = {"question_id": number, "image_id": image, "answers": texts, "answer_type": "other"}
    return record | {"question_type": "what is", "multiple_choice_answer": "a0"} | changes


def files(folder, questions, annotations, ending="json"):
    """Paths of the two files. What is no list is written as it is."""
    paths = []
    for part, records in (("questions", questions), ("annotations", annotations)):
        content = {"info": {}, part: records} if isinstance(records, list) else records
        text = (content if isinstance(content, str) else json.dumps(content)).encode()
        paths.append(folder / f"{part}.{ending}")
        paths[-1].write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    return {"train_questions": str(paths[0]), "train_annotations": str(paths[1])}


def rows(folder, questions, annotations):
    return list(VqaV2(**files(folder, questions, annotations)).rows("train"))


GOOD = [question(1), question(2, 71)], [annotation(2, 71), annotation(1, answer_type="yes/no")]


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_rows_are_the_questions_with_their_annotations(tmp_path, ending):
    source = VqaV2(**files(tmp_path, *GOOD, ending))
    assert source.check(["train"]) == [] and source.splits == ("train",) and source.schema.name == "visual"
    one, two = source.rows("train")
    assert one == ("1", "70", "what is 1?", json.dumps([f"a{i}" for i in range(10)]), "yes/no")
    assert two[:3] == ("2", "71", "what is 2?") and two[4] == "other"


def test_texts_and_ids_keep_every_character(tmp_path):
    asked = [question("q\u00e9", "img/1", question=" What\u2028 is\n it? ")]
    answers = [{"answer": f" \u00e9 {i}\n"} for i in range(10)]
    ((name, image, text, cell, _),) = rows(
        tmp_path, asked, [annotation("q\u00e9", "img/1", answers=0) | {"answers": answers}]
    )
    assert (name, image, text) == ("q\u00e9", "img/1", " What\u2028 is\n it? ")
    assert json.loads(cell) == [f" \u00e9 {i}\n" for i in range(10)]


def test_a_test_split_may_come_without_annotations(tmp_path):
    paths = files(tmp_path, *GOOD)
    source = VqaV2(train_questions=None, train_annotations=None, test_questions=paths["train_questions"])
    assert source.splits == ("test",) and source.check(["test"]) == []
    assert [row[3:] for row in source.rows("test")] == [("[]", ""), ("[]", "")]
    with_them = VqaV2(**paths, test_questions=paths["train_questions"], test_annotations=paths["train_annotations"])
    assert list(with_them.rows("test")) == list(with_them.rows("train"))
    assert source.fingerprint("test") != with_them.fingerprint("test")


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


BAD = [
    ([question(1), question(3)], [annotation(1)], "1 bad record and 1 good one .*:\n  question 3 has no annotation"),
    ([question(1)], [annotation(1), annotation(3)], "the annotation of 3 has no question"),
    ([question(1, 70)], [annotation(1, 71)], "question 1 is on image 70, but its annotation on image 71"),
    ([question(1)], [annotation(3)], "contains no annotation for any question of .*; they belong to different"),
    ([question(1), without(question(2), "image_id")], GOOD[1], r"2: questions\[1\]\.image_id is missing"),
    ([without(question(1), "question_id")], GOOD[1], r"  questions\[0\]\.question_id is missing"),
    ([without(question(1), "question")], GOOD[1], r"1: questions\[0\]\.question is missing"),
    ([question(1, question=" ")], GOOD[1], r"1: questions\[0\]\.question is empty"),
    ([question(1, question=3)], GOOD[1], r"1: questions\[0\]\.question is 3, not text"),
    ([question(1, question="\ud83d")], GOOD[1], r"question holds half of a surrogate pair"),
    ([question(1.5)], GOOD[1], r"question_id is 1.5, not a number or text"),
    ([question(True)], GOOD[1], r"question_id is true, not a number or text"),
    ([question(1, image="")], GOOD[1], r"image_id is '', not a number or text"),
    ([question(1), question("1")], GOOD[1], r"1: questions\[1\] has the id of questions\[0\]"),
    (["what?"], GOOD[1], r"  questions\[0\] is 'what\?', not an object"),
    (GOOD[0], [annotation(1), annotation(1)], r"1: annotations\[1\] has the id of annotations\[0\]"),
    (GOOD[0], [annotation(1, answers=9)], r"1: annotations\[0\]\.answers has 9 entries, not 10"),
    (GOOD[0], [annotation(1, answers=11)], r"1: annotations\[0\]\.answers has 11 entries, not 10"),
    (GOOD[0], [annotation(1) | {"answers": "yes"}], r"answers is 'yes', not a list"),
    (GOOD[0], [annotation(1) | {"answers": ["yes"] * 10}], r"answers\[0\] is 'yes', not an object"),
    (GOOD[0], [annotation(1) | {"answers": [{"answer": 3}] * 10}], r"answers\[0\]\.answer is 3, not text"),
    (GOOD[0], [without(annotation(1), "answer_type")], r"answer_type is missing"),
    (GOOD[0], [without(annotation(1), "question_type")], r"question_type is missing"),
    (GOOD[0], [without(annotation(1), "image_id")], r"annotations\[0\]\.image_id is missing"),
    ([], GOOD[1], r"questions.json: contains no questions"),
    ({"data": []}, GOOD[1], r'questions.json: not an official VQA file: expected one JSON object {"questions": \['),
    ("[]", GOOD[1], r"questions.json: not an official VQA file"),
    ({"questions": {}}, GOOD[1], r"questions.json: not an official VQA file"),
    ("{", GOOD[1], r"questions.json:1: not JSON"),
    ({"annotations": []}, GOOD[1], r"questions.json: expected a file of questions, but this one contains annotations"),
    (GOOD[0], {"questions": []}, r"annotations.json: expected a file of annotations, but this one contains questions"),
]


@pytest.mark.parametrize(("questions", "annotations", "message"), BAD, ids=[message[:40] for _, _, message in BAD])
def test_what_does_not_fit_is_named(tmp_path, questions, annotations, message):
    with pytest.raises(ValueError, match=message) as error:
        rows(tmp_path, questions, annotations)
    assert str(tmp_path) in str(error.value)


def test_ten_of_the_bad_records_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"13 bad records and 0 good ones .*:\n  0: questions\[0\]") as error:
        rows(tmp_path, [question(i, question="") for i in range(13)], GOOD[1])
    assert "questions[9]" in str(error.value) and "questions[10]" not in str(error.value)
    assert "(data.skip_bad=true skips them):\n" in str(error.value) and "\n  and 3 more" in str(error.value)
    with pytest.raises(ValueError, match=r"11 bad records and 1 good one .*:\n  question 2 has no annotation") as error:
        rows(tmp_path, [question(i) for i in range(1, 13)], [annotation(1)])
    assert "\n  and 1 more" in str(error.value)


def test_files_are_read_as_records(tmp_path):
    paths = files(tmp_path, *GOOD)
    asked = read_vqa_questions(Path(paths["train_questions"]))[1]
    annotated = read_annotations(Path(paths["train_annotations"]))[1]
    assert (asked.id, asked.image, asked.question) == ("2", "71", "what is 2?")
    assert (annotated.id, annotated.image, annotated.texts) == ("1", "70", [f"a{i}" for i in range(10)])
    assert (annotated.answer_type, annotated.question_type) == ("yes/no", "what is")


def test_check_names_every_problem(tmp_path):
    paths = files(tmp_path, *GOOD)
    source = VqaV2(
        train_questions=paths["train_questions"],
        train_annotations=paths["train_questions"],
        validation_questions=str(tmp_path / "no.json"),
        features=[str(tmp_path / "no.h5"), str(tmp_path), str(tmp_path / "questions.json")],
    )
    problems = source.check(["train", "validation", "test"])
    keys = [problem.split("=")[0].removeprefix("data.") for problem in problems]
    assert keys[:3] == [f"features[{number}]" for number in range(3)]
    assert keys[3:] == ["train_annotations", "validation_questions", "validation_annotations", "test_questions"]
    said = "\n".join(problems)
    assert "this is the file of the questions" in said and "name its file of annotations" in said
    assert "no .npz file in this folder" in said and "unknown format" in said and "no such file" in said
    assert VqaV2(**paths, features=None).check(["train"]) == VqaV2(**paths, features=[]).check(["train"]) == []


def test_the_fingerprint_follows_both_files_not_their_place(tmp_path):
    (tmp_path / "b").mkdir()
    first = VqaV2(**files(tmp_path, *GOOD))
    same = VqaV2(**files(tmp_path / "b", *GOOD), features=["x"], max_boxes=3).fingerprint("train")
    assert first.fingerprint("train") == same
    others = [
        VqaV2(**files(tmp_path, GOOD[0][:1], GOOD[1])).fingerprint("train"),
        VqaV2(**files(tmp_path, GOOD[0], GOOD[1][:1])).fingerprint("train"),
    ]
    assert len({same, *others}) == 3


def test_views_are_those_of_the_files(tmp_path):
    for name, width in (("a", 3), ("b", 2)):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "COCO_train2014_000000000070.jpg.npz", features=np.ones((2, width)))
    paths = files(tmp_path, *GOOD)
    views = build_source("vqa_v2", **paths, features=[str(tmp_path / "a"), str(tmp_path / "b")], max_boxes=5).views(
        "train", tmp_path / "cache"
    )
    assert views.names == ["a", "b"] and views.widths == [3, 2] and views.boxes == [5, 5]
    views.check(["70"])
    with pytest.raises(ValueError, match=r"a: no features of 1 image: 71"):
        views.check(["70", "71"])
    (tmp_path / "b/COCO_train2014_000000000070.jpg.npz").rename(tmp_path / "b/72.npz")
    views = build_source("vqa_v2", **paths, features=[str(tmp_path / name) for name in "ab"]).views("train", tmp_path)
    with pytest.raises(ValueError, match=r"(?s)/a: no features of 1 image: 71\n.*/b: no features of 2 images: 70, 71$"):
        views.check(["70", "71"])
    assert build_source("vqa_v2", **paths).views("train", tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_the_real_files():
    if not REAL.is_dir():
        pytest.skip("no ../shared/data/vqa_v2_subset beside the repository")
    source = build_source(
        "vqa_v2",
        train_questions=None,
        train_annotations=None,
        validation_questions=str(REAL / "questions_valid.json.gz"),
        validation_annotations=str(REAL / "annotations_valid.json.gz"),
    )
    assert source.check(["validation"]) == []
    made = list(source.rows("validation"))
    assert len(made) == 8977 and len({row[0] for row in made}) == 8977
    assert {row[4] for row in made} == {"yes/no", "number", "other"}
    assert all(len(json.loads(row[3])) == 10 for row in made)


def test_bad_records_and_those_that_do_not_fit_are_left_out_and_counted(tmp_path, caplog):
    asked = [question(1), question(2, question=" "), question(3), question(4, 80), question(1), question(6)]
    annotated = [annotation(n) for n in (1, 2, 4, 5)] + [annotation(3, answers=9), annotation(6)]
    paths = files(tmp_path, asked, annotated)
    with pytest.raises(ValueError, match=r"2 bad records and 4 good ones \(data.skip_bad=true skips them\)"):
        list(VqaV2(**paths).rows("train"))
    source = VqaV2(**paths, skip_bad=True)
    assert [row[0] for row in source.rows("train")] == ["1", "6"]
    assert [message.split(": ")[1].split(" (")[0] for message in caplog.messages] == [
        "2 bad records and 4 good ones",  # questions: one empty, an id twice
        "1 bad record and 5 good ones",  # annotations: nine answers
        "4 bad records and 2 good ones",  # 3 has no annotation, 2 and 5 no question, 4 is on another image
    ]
    assert source.fingerprint("train") != VqaV2(**paths).fingerprint("train")
    with pytest.raises(
        ValueError, match=r"\(data.skip_bad=true would skip all\):\n  2: questions\[0\]\.question is empty"
    ):
        list(VqaV2(**files(tmp_path, asked[1:2], annotated), skip_bad=True).rows("train"))
