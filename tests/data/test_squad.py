"""SQuAD files: what they give, and that every bad record is named together with the others."""

import gzip
import json
from pathlib import Path

import pytest

from attnorm.data.sources.squad import ScoredQuestion, Squad, SquadQuestion, read_squad

REAL = Path(__file__).parents[3] / "shared/data/squad"
CONTEXT = "The cat sat. A cat slept under caf\u00e9 tables."


def answer(text, start):
    return {"text": text, "answer_start": start}


def question(name, *answers, **more):
    return {"id": name, "question": f"what is {name} ?", "answers": list(answers), **more}


def document(*questions, context=CONTEXT):
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def source(folder, content, name="x.json", **options):
    path = folder / name
    text = (content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return Squad(train=str(path), **options)


def problem(folder, content, **options):
    with pytest.raises(ValueError) as error:
        list(source(folder, content, **options).rows("train"))
    return str(error.value)


GOOD = question("one", answer("cat", 4), answer("The cat", 0))


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_rows_are_the_questions_with_their_answers_as_json(tmp_path, name):
    impossible = question("two", is_impossible=True, plausible_answers=[answer("cat", 4)])
    made = source(tmp_path, document(GOOD, impossible), name)
    assert made.check(["train"]) == [] and made.splits == ("train",) and made.schema.name == "questions"
    one, two = made.rows("train")
    assert one[:3] == ("one", CONTEXT, "what is one ?")
    assert json.loads(one[3]) == {"texts": ["cat", "The cat"], "starts": [4, 0]}
    assert two[0] == "two" and json.loads(two[3]) == {"texts": [], "starts": []}
    context = "  \u2028A\tb\u00e9 \U0001f600  c "  # every character is kept
    content = "\ufeff" + json.dumps(document(question("q", answer("c", 11)), context=context))
    assert [row[1] for row in source(tmp_path, content, name).rows("train")] == [context]


BAD = [
    (question("b", answer("cat", 5)), "the answer 'cat' is not at character 5 of the context, which has 'at ' there"),
    (question("b", answer("dog", 4)), "which has 'cat' there; it does not occur in it"),
    (question("b", answer("cat", 4000)), "at character 4000 of the context, which has '' there; it occurs at 4, 15"),
    (question("b", answer("s.", -2)), "at character -2 of the context"),
    (question("b", answer("Cat", 4)), "it does not occur in it"),
    (question("b", answer("cat", 4), answer("x", 0)), "qas[1]: the answer 'x' is not at"),
    (question("b", answer("", 4)), "b: data[0].paragraphs[0].qas[1].answers[0].text is empty"),
    (question("b", answer("cat", "4")), "b: data[0].paragraphs[0].qas[1].answers[0].answer_start is '4', not a whole"),
    (question("b", answer("cat", True)), "answer_start is true, not a whole number"),
    (question("b", {"text": "cat"}), "answers[0].answer_start is missing"),
    (question("b", answer(7, 4)), "b: data[0].paragraphs[0].qas[1].answers[0].text is 7, not text"),
    (question("b", "cat"), "b: data[0].paragraphs[0].qas[1].answers[0] is 'cat', not an object"),
    (question("b"), "b: data[0].paragraphs[0].qas[1]: no answers, and is_impossible is not true"),
    ({"id": "b", "question": "x"}, "b: data[0].paragraphs[0].qas[1]: no answers, and is_impossible is not true"),
    (question("b", answer("cat", 4)) | {"question": " \n"}, "b: data[0].paragraphs[0].qas[1].question is empty"),
    (question("b", answer("cat", 4)) | {"question": "\ud83d"}, "qas[1].question holds half of a surrogate pair"),
    (question("b", answer("cat", 4), is_impossible=True), "qas[1]: is_impossible is true, but it has answers"),
    (question("b", answer("cat", 4), is_impossible="no"), "qas[1].is_impossible is 'no', not true or false"),
    (question("b") | {"answers": {"text": ["cat"]}}, "b: data[0].paragraphs[0].qas[1].answers is an object with"),
    (question("one", answer("cat", 4)), "one: data[0].paragraphs[0].qas[1] has the id of data[0].paragraphs[0].qas[0]"),
    ({"question": "x"}, "  data[0].paragraphs[0].qas[1].id is missing"),
    (question(12), "data[0].paragraphs[0].qas[1].id is 12, not text"),
    (["b"], "  data[0].paragraphs[0].qas[1] is a list of 1, not an object"),
]


@pytest.mark.parametrize(("record", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_bad_record_is_named_with_the_reason_and_can_be_left_out(tmp_path, caplog, record, message):
    content = json.dumps(document(GOOD, record, question("last", answer("sat", 8))))
    said = problem(tmp_path, content)
    assert message in said and "1 bad record and 2 good ones" in said and "data.skip_bad=true" in said
    assert str(tmp_path / "x.json") in said
    with caplog.at_level("WARNING"):
        rows = list(source(tmp_path, content, skip_bad=True).rows("train"))
    assert [row[0] for row in rows] == ["one", "last"]
    assert message in caplog.text and "1 bad record" in caplog.text


def test_a_file_without_a_good_record_is_refused_even_when_bad_records_are_skipped(tmp_path):
    said = problem(tmp_path, document(question("b")), skip_bad=True)
    assert "1 bad record and 0 good ones (data.skip_bad=true would skip all)" in said and "no answers" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["data"].append(3), "data[1] is 3, not an object"),
        (lambda d: d["data"].append({"paragraphs": {}}), "data[1].paragraphs is an object with nothing in it, not a"),
        (lambda d: d["data"][0]["paragraphs"].append({"context": "x"}), "data[0].paragraphs[1].qas is missing"),
        (lambda d: d["data"][0]["paragraphs"].append({"qas": []}), "data[0].paragraphs[1].context is missing"),
    ],
)
def test_a_wrong_shape_is_named_by_its_place_and_counts_as_one_record(tmp_path, change, message):
    content = document(GOOD)
    change(content)
    said = problem(tmp_path, content)
    assert message in said and "1 bad record and 1 good" in said
    assert len(list(source(tmp_path, content, skip_bad=True).rows("train"))) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [', r"x.json:1: not JSON \(.* at column 11\); a SQuAD file is one JSON object"),
        ('{"id": 1}\n{"id": 2}\n', r"x.json:2: not JSON"),
        ("[]", r"not a SQuAD file, it contains a list of 0; a SQuAD file is one JSON object"),
        ({"answers": 1}, r"it contains an object with 'answers'; a SQuAD file"),
        ({"data": {}}, r"it contains an object with 'data'"),
    ],
)
def test_what_is_no_squad_file_says_what_was_expected_even_when_bad_records_are_skipped(tmp_path, content, message):
    for skip_bad in (False, True):
        with pytest.raises(ValueError, match=message):
            list(source(tmp_path, content, skip_bad=skip_bad).rows("train"))


def test_a_text_that_is_not_utf8_is_located(tmp_path):
    (tmp_path / "x.json").write_bytes(b'{\n"data": "\xe4"}')
    with pytest.raises(ValueError, match=r"x.json:2: not UTF-8 text"):
        list(Squad(train=str(tmp_path / "x.json")).rows("train"))


def test_check_names_every_problem(tmp_path):
    made = source(tmp_path, "", validation=str(tmp_path / "no.json"))
    keys = [p.split("=")[0] for p in made.check(["train", "validation", "test"])]
    assert keys == ["data.train", "data.validation", "data.test"]
    assert made.splits == ("train", "validation")
    assert Squad(train=None, validation="x").splits == ("validation",)


def test_the_fingerprint_follows_content_and_skip_bad_not_the_place(tmp_path):
    first = source(tmp_path, document(GOOD)).fingerprint("train")
    assert first == source(tmp_path, document(GOOD), "copy.json").fingerprint("train")
    assert first != source(tmp_path, document(GOOD), skip_bad=True).fingerprint("train")
    assert first != source(tmp_path, document(question("one", answer("cat", 15)))).fingerprint("train")


def test_scoring_does_not_ask_where_the_answers_stand(tmp_path):
    content = document(question("q", {"text": "anything"}))
    path = Path(source(tmp_path, content).named["train"])
    scored = read_squad(path, ScoredQuestion)
    assert [question.texts for question in scored.good.values()] == [["anything"]] and scored.bad == []
    assert len(read_squad(path, SquadQuestion).bad) == 1


@pytest.mark.parametrize(
    ("name", "rows", "impossible"), [("dev-v1.1.first24articles.json", 5696, 0), ("dev-v2.0.small.json", 2228, 1104)]
)
def test_the_real_files(name, rows, impossible):
    if not (REAL / name).is_file():
        pytest.skip(f"no ../shared/data/squad/{name} beside the repository")
    made = list(Squad(train=str(REAL / name)).rows("train"))
    assert len(made) == rows
    answers = [json.loads(row[3]) for row in made]
    assert sum(not answer["texts"] for answer in answers) == impossible
    for row, actual in zip(made, answers, strict=True):
        for text, start in zip(actual["texts"], actual["starts"], strict=True):
            assert row[1][start : start + len(text)] == text
