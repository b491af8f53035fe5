"""Answers: the official normalization quirk by quirk, accuracies by hand, lists and targets against the accuracy."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from attnorm.tasks.vqa.answers import RESTORED, AnswerList, accuracy, compared, credit, normalize, strip, tally

REAL = Path(__file__).parents[3] / "shared/data/vqa_v2_subset"


NORMALIZED = [  # an answer, and what the official script makes of it
    # blanks and capitals
    ("  Yes\n", "yes"),
    ("on\tthe\ntable", "on table"),
    ("red   wine", "red wine"),
    # a mark with a blank on one side goes, in all its places; else a blank takes its place
    ("t-shirt", "t shirt"),
    ("t -shirt", "t shirt"),
    ("black -and-white", "black andwhite"),
    ("black- white", "black white"),
    ("what?", "what"),
    ("cat,dog", "cat dog"),
    ("cat, dog,cow", "cat dogcow"),
    ("a/b", "b"),
    ("x@y!z", "x y z"),
    ("[x] {y}", "x y"),
    ('"stop"', "stop"),
    ("a_b+c=d", "b c d"),
    ("(x)(y)", "x y"),
    ("x<y>z`w", "x y z w"),
    ("x\\y;z", "x y z"),
    # what counts is the answer as it came: the comma's blank is not the dash's
    ("a1,b-c", "a1 b c"),
    ("x/-y-z", "x y z"),  # the blank that the slash leaves is not the dash's either
    # unchanged: marks that are not in the list, periods before a digit, other words
    *((it, it) for it in ("10:30", "50%", "rock'n'roll", "$5 & #3*", "5.5", ".5", "eleven", "theatre", "couldntve")),
    *((it, it) for it in ("don't", "its", "ive", "well", "")),
    # a comma between digits, wherever it stands, makes every mark vanish
    ("1,000", "1000"),
    ("1,000 t-shirts", "1000 tshirts"),
    ("x/y 2,5 z-w", "xy 25 zw"),
    ("1,a-b", "1 b"),
    # periods go, but not before a digit
    ("st. john", "st john"),
    ("5.", "5"),
    ("u.s.a.", "usa"),
    ("v2.0.", "v2.0"),
    ("x." * 40, "x" * 32 + "x." * 8),
    # number words, articles and contractions, word by word and in this order
    ("none", "0"),
    ("Zero", "0"),
    ("seven", "7"),
    ("ten one", "10 1"),
    ("twenty-one", "twenty 1"),
    ("the cat on a mat", "cat on mat"),
    ("an", ""),
    ("dont know", "don't know"),
    ("DONT", "don't"),
    ("couldnt've", "couldn't've"),
    ("couldn'tve", "couldn't've"),
    ("somebody'd", "somebodyd"),
    ("twas", "'twas"),
    ("yall'd've", "y'all'd've"),
    ("'ows'at", "'ow's'at"),
]


def test_each_rule_of_the_normalization():
    for form in ("{}", "\n{}\t"):
        result = [(answer, normalize(form.format(answer))) for answer, _ in NORMALIZED]
        assert [pair for pair, expected in zip(result, NORMALIZED, strict=True) if pair != expected] == []


def test_normalizing_an_answer_again_can_change_it():
    assert normalize("the-a") == "" and normalize("twenty-one") == "twenty 1"
    assert normalize(normalize("x." * 40)) == "x" * 40  # so nothing may be normalized twice
    assert len(RESTORED) == 114 and all(key.replace("'", "") == word.replace("'", "") for key, word in RESTORED.items())


def test_the_credit_is_the_mean_over_those_who_leave_one_out():
    for matches, expected in enumerate([0, 0.3, 0.6, 0.9, *[1] * 7]):
        assert credit(matches, 10) == pytest.approx(expected, abs=1e-12)
        left = [matches - (number < matches) for number in range(10)]
        assert credit(matches, 10) == pytest.approx(sum(min(1, rest / 3) for rest in left) / 10)
    assert credit(1, 1) == 1.0 and credit(0, 1) == 0.0


TEN_YES = ["yes"] * 10
MIXED = ["two", "2", "Two.", "3", "3", "the two", "4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("answer", "answers", "expected"),
    [
        ("yes", TEN_YES, 1),
        (" yes\n", TEN_YES, 1),
        ("Yes", TEN_YES, 0),  # they agree: nothing is normalized
        ("yes.", TEN_YES, 0),
        ("2", ["two"] * 10, 0),
        ("two", ["two "] * 5 + ["two"] * 5, 1),  # blanks are taken off before they are compared
        ("2", ["two "] * 5 + ["two"] * 5, 0),
        ("yes", ["yes"] * 9 + ["Yes"], 1),
        ("Yes!", ["yes"] * 9 + ["no"], 1),
        ("no", ["yes"] * 9 + ["no"], 0.3),
        ("2", MIXED, 1),
        ("two", MIXED, 1),
        ("3", MIXED, 0.6),
        ("three", MIXED, 0.6),
        ("4", MIXED, 0.3),
        ("8", MIXED, 0),
        ("", ["", *TEN_YES[1:]], 0.3),
        ("red", ["red"], 1),
        ("blue", ["red"], 0),
    ],
)
def test_the_accuracy_of_an_answer(answer, answers, expected):
    assert accuracy(answer, answers) == pytest.approx(expected)


def test_what_is_compared():
    assert compared(["one "] * 10) == (["one"] * 10, False)
    assert compared(["one"] * 9 + ["a cat"]) == (["1"] * 9 + ["cat"], True)
    assert strip(" a\tb\n") == "a b"


TEXTS = ["2", "two", "yes", "Yes", "3", "no", "", "it's"]


@pytest.mark.parametrize(
    "answers", [MIXED, TEN_YES, ["two"] * 10, ["yes"] * 5 + ["no"] * 5, ["the"] * 4 + ["x"] * 6, ["red"], ["3"], []]
)
def test_targets_are_the_accuracies_of_the_answers_of_the_list(answers):
    numbers, scores = AnswerList(TEXTS).targets(answers)
    dense = dict(zip(numbers, scores, strict=True))
    for number, text in enumerate(TEXTS):
        assert dense.get(number, 0.0) == pytest.approx(accuracy(text, answers) if answers else 0.0), text
    assert numbers == sorted(numbers) and all(score > 0 for score in scores)


def test_a_list_is_read_from_every_form_and_written(tmp_path):
    texts = ["net", "on top", "\u00e9", ""]
    forms = {
        "a.json": json.dumps(texts),
        "b.json": json.dumps({"on top": 1, "net": 0, "": 3, "\u00e9": 2}),
        "c.json.txt": "net\r\non top\n\u00e9\n\n",
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content.encode())
        made = AnswerList.read(tmp_path / name)
        assert made.texts == texts and len(made) == 4
    (tmp_path / "d.json.gz").write_bytes(gzip.compress(forms["a.json"].encode()))
    assert AnswerList.read(str(tmp_path / "d.json.gz")).texts == texts
    made.write(tmp_path / "e.json")
    assert AnswerList.read(tmp_path / "e.json").texts == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[]", r"a.json: no answers"),
        ("a.json", '["x", 3]', r"a.json: answer 1 is 3, not text"),
        ("a.json", '["x", null]', r"answer 1 is null, not text"),
        ("a.json", '["x", "y", "x"]', r"a.json: repeated answers: 'x'"),
        ("a.json", '{"x": 0, "y": 2}', r"a.json: the numbers of 2 answers must be 0 to 1"),
        ("a.json", '{"x": 0, "y": "1"}', r"the numbers of 2 answers must be 0 to 1"),
        ("a.json", '{"x": false, "y": true}', r"the numbers of 2 answers must be 0 to 1"),
        ("a.json", '"x"', r"a.json: expected a list of answers, or an object"),
        ("a.json", "x\ny", r"a.json:1: not JSON"),
        ("a.txt", "", r"the file is empty"),
        ("a.txt", "x\ny\nx\n", r"repeated answers: 'x'"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        AnswerList.read(tmp_path / name)
    with pytest.raises(ValueError, match="no such file"):
        AnswerList.read(tmp_path / "no.json")


def test_a_list_is_built_from_the_most_frequent_answer_of_each_question():
    questions = [
        ["Two", *["two"] * 9],  # they differ: 2
        ["2"] * 10,
        ["two"] * 10,  # they agree: two
        ["b"] * 10,
        ["b"] * 6 + ["a cat"] * 4,
        ["cat"] * 6 + ["b"] * 4,
        [],
        ["a"] * 6 + ["b"] * 4,  # nothing is left of it
        ["the"] * 6 + ["b"] * 4,
    ]
    assert AnswerList.from_answers(questions, 1).texts == ["2", "b", "cat", "two"]
    assert AnswerList.from_answers(iter(questions), 2).texts == ["2", "b"]
    with pytest.raises(ValueError, match=r"task\.min_count=3: no answer of that many questions"):
        AnswerList.from_answers(questions, 3)


def test_the_widespread_list_and_the_real_answers():
    if not REAL.is_dir():
        pytest.skip("no ../shared/data/vqa_v2_subset beside the repository")
    made = AnswerList.read(REAL / "answers_3129.json")
    assert len(made) == 3129
    annotations = json.loads(gzip.decompress((REAL / "annotations_valid.json.gz").read_bytes()))["annotations"][:3000]
    actual = [[answer["answer"] for answer in item["answers"]] for item in annotations]
    known = Counter(bool(made.targets(answers)[0]) for answers in actual)
    assert known[True] > 0.97 * len(actual)
    for answers in actual[:200]:
        for number, score in zip(*made.targets(answers), strict=True):
            assert accuracy(made.texts[number], answers) == score


def test_a_tally_counts_annotators():
    assert tally(["no", "yes", "yes"]) == "yes (2), no (1)"
    assert tally(["yes"] * 10) == "yes (10)"
    assert (tally(["yes"]), tally([])) == ("yes", "")
