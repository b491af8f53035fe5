"""SQuAD's scores: each rule by hand, torchmetrics as a reference for 1.1, counting over all thresholds for 2.0."""

import gzip
import json
import random
import re
import string
from pathlib import Path

import pytest
from datasets import Dataset

from attnorm.data.sources.squad import Squad
from attnorm.tasks.squad.metric import (
    exact_match,
    normalize,
    question_scores,
    read_null_odds,
    read_predictions,
    read_references,
    references,
    score,
    token_f1,
)

REAL = Path(__file__).parents[3] / "shared/data/squad"


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The Cat", "cat"),
        ("a  cat\tand\nan ant", "cat and ant"),
        ("theatre banana Ant", "theatre banana ant"),
        ("the-cat", "thecat"),  # marks go first
        ("a.m.", "am"),
        ("U.S.A. 's", "usa s"),
        ("$1,234.5 (about)", "12345 about"),
        ("\u201cthe\u201d \u2013 caf\u00c9", "\u201c \u201d \u2013 caf\u00e9"),  # not in string.punctuation
        ("\u0130\u00df", "\u0130\u00df".lower()),
        ("a\u00a0the\u2003x", "x"),
        ("The", ""),
        ("!?", ""),
        ("THE_A", "thea"),
        ("", ""),
    ],
)
def test_normalization(answer, normal):
    assert normalize(answer) == normal


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("the Denver Broncos!", "Denver Broncos", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),
        ("Broncos Denver", "Denver Broncos", 0, 1),
        ("x x x", "x y", 0, 2 / 5),  # a repeated word counts as often as both have it
        ("x x", "x x y y", 0, 2 / 3),
        ("cat", "dog", 0, 0),
        ("the", "a", 1, 1),
        ("", "!", 1, 1),
        ("", "dog", 0, 0),
        ("dog", "the", 0, 0),
        ("caf\u00e9", "cafe", 0, 0),
        ("CAF\u00c9", "caf\u00e9", 1, 1),
    ],
)
def test_exact_match_and_f1(prediction, gold, exact, f1):
    assert exact_match(prediction, gold) == exact
    assert token_f1(prediction, gold) == pytest.approx(f1) == token_f1(gold, prediction)


def test_the_best_of_several_answers_counts_for_each_metric_by_itself():
    found = score({"q": "big red dog"}, [("q", ["red dog", "big red dog ran", "x"])])
    assert found == {"exact": 0.0, "f1": pytest.approx(100 * 6 / 7), "total": 1, "missing": 0, "extra": 0}
    assert score({"q": "x"}, [("q", ["red dog", "X"])])["exact"] == 100


def test_impossible_questions_are_right_when_empty_and_make_a_part_of_their_own():
    gold = [("h1", ["x y"]), ("h2", ["z"]), ("n1", []), ("n2", []), ("n3", [])]
    found = score({"h1": "x", "h2": "", "n1": "", "n2": "x", "n3": "the"}, gold)
    assert found["exact"] == pytest.approx(40) and found["f1"] == pytest.approx(100 * (2 / 3 + 2) / 5)
    assert (found["HasAns_exact"], found["HasAns_total"]) == (0, 2)
    assert found["HasAns_f1"] == pytest.approx(100 / 3)
    assert found["NoAns_exact"] == found["NoAns_f1"] == pytest.approx(200 / 3) and found["NoAns_total"] == 3


def test_a_split_without_any_answer_has_no_other_part():
    found = score({"n": "x"}, [("n", [])])
    assert found["NoAns_exact"] == 0 and "HasAns_exact" not in found


def test_questions_without_a_prediction_count_as_wrong_and_are_told(caplog):
    with caplog.at_level("WARNING"):
        found = score({"a": "x"}, [("a", ["x"]), ("b", ["y"]), ("c", [])])
    assert found["exact"] == pytest.approx(100 / 3) and found["missing"] == 2 and found["NoAns_exact"] == 0
    assert "2 questions without a prediction, scored 0: b, c" in caplog.text
    with caplog.at_level("WARNING"):
        odds = score({"a": "x"}, [("a", ["x"]), ("b", ["y"]), ("c", [])], {"a": -1.0, "c": 9.0})
    assert odds["exact"] == odds["best_exact"] == pytest.approx(100 / 3)


def test_predictions_for_other_questions_are_ignored_and_told(caplog):
    gold = [("a", ["x"]), ("b", ["y"]), ("n", [])]
    odds = {"a": -1.0, "b": 0.5, "n": 2.0}
    predictions = {"a": "x", "b": "x", "n": "z"}
    for more in ({}, {"null_odds": odds}):
        alone = score(predictions, gold, **more)
        others = {"null_odds": {**odds, "c": 9.0, "e": -9.0}} if more else {}
        with caplog.at_level("WARNING"):
            found = score({"c": "x", **predictions, "d" * 99: "x"}, gold, **others)
        assert found == {**alone, "extra": 2} and alone["extra"] == 0
        assert f"2 predictions not in the references, ignored: c, {'d' * 60}...\n" in caplog.text


def test_wrong_ids_are_named():
    gold = [("a", ["x"]), ("b", ["y"])]
    message = "no prediction is for a question of the references, which have a, b; the predictions are for c"
    with pytest.raises(ValueError, match=message):
        score({"c": "x"}, gold)
    assert score({}, gold)["missing"] == 2
    with pytest.raises(ValueError, match=r"1 question with a prediction but no null odds: b"):
        score({"a": "x", "b": "x", "c": "x"}, gold, {"a": 1.0})
    with pytest.raises(ValueError, match=r"references repeat questions: a"):
        score({"a": "x"}, [*gold, ("a", ["z"])])
    with pytest.raises(ValueError, match=r"no questions to score"):
        score({}, [])
    with pytest.raises(ValueError, match=r"q0, .*q9, \.\.\."):
        score({f"q{i}": "x" for i in range(11)}, gold)


@pytest.mark.parametrize(
    ("prediction", "answers", "version_1", "version_2"),
    [
        ("the", ["A", "cat"], (100, 0), (0, 0)),  # 1.1 keeps the gold answer "A"; no token is common
        ("", ["a"], (100, 0), (100, 100)),  # of 2.0's gold answers only "" is left
        ("cat", ["a", "the cat"], (100, 100), (100, 100)),
        ("cat", ["a"], (0, 0), (0, 0)),
    ],
)
def test_the_two_official_scripts_differ_in_answers_without_words(prediction, answers, version_1, version_2):
    found = score({"q": prediction}, [("q", answers)])
    assert (found["exact"], found["f1"]) == version_1
    found = score({"q": prediction}, [("q", answers), ("n", [])])
    assert (found["HasAns_exact"], found["HasAns_f1"]) == version_2


WORDS = ["the", "a", "Cat", "cat.", "dog", "dog's", "x-y", "An", "caf\u00e9", "12", "(b)", "\u201cq\u201d"]


def made_up(count, seed, impossible=0.0):
    """Predictions, references, and odds without ties."""
    rng = random.Random(seed)

    def text(least=0):
        words = rng.choices(WORDS, k=rng.randint(least, 5))
        return rng.choice([" ", "  ", "\u00a0"]).join(words)

    gold, predictions = [], {}
    for number in range(count):
        answers = [text(1) + " cat" * rng.randint(0, 1) for _ in range(rng.randint(1, 4))]
        answers = [a if normalize(a) else "dog" for a in answers]
        gold.append((f"q{number}", [] if rng.random() < impossible else answers))
        predictions[f"q{number}"] = rng.choice([text(), rng.choice(answers), rng.choice(answers).upper(), ""])
    odds = {name: rng.gauss(-2 if answers else 1, 3) for name, answers in gold}
    return predictions, gold, odds


def test_torchmetrics_agrees_on_version_1():
    reference = pytest.importorskip("torchmetrics.functional.text.squad").squad
    for seed in range(5):
        predictions, gold, _ = made_up(60, seed)
        expected = reference(
            [{"id": name, "prediction_text": text} for name, text in predictions.items()],
            [{"id": name, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for name, texts in gold],
        )
        found = score(predictions, gold)
        assert found["exact"] == pytest.approx(expected["exact_match"].item(), abs=1e-4)
        assert found["f1"] == pytest.approx(expected["f1"].item(), abs=1e-4)
        assert 0 < found["exact"] < found["f1"] < 100


def words_of(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return [word for word in re.sub(r"\b(?:an?|the)\b", " ", text).split() if word]


def judged_by_loops(prediction, golds):
    """(exact, F1) of one question, by removing common words one by one."""
    found = []
    for gold in [words_of(g) for g in golds if words_of(g)] or [[]]:
        predicted, rest, same = words_of(prediction), list(gold), 0
        for word in predicted:
            if word in rest:
                rest.remove(word)
                same += 1
        if not gold or not predicted:
            f1 = float(gold == predicted)
        else:
            p, r = same / len(predicted), same / len(gold)
            f1 = 2 * p * r / (p + r) if same else 0.0
        found.append((float(gold == predicted), f1))
    return max(e for e, _ in found), max(f for _, f in found)


def test_version_2_against_loops_and_every_threshold():
    for seed in range(6):
        predictions, gold, odds = made_up(50, seed, impossible=0.5)

        def mean(threshold, metric, names=None, predictions=predictions, gold=gold, odds=odds):
            asked = [(n, g) for n, g in gold if names is None or bool(g) == names]
            texts = {n: "" if odds[n] > threshold else predictions[n] for n, _ in asked}
            return 100 * sum(judged_by_loops(texts[n], g)[metric] for n, g in asked) / len(asked)

        found = score(predictions, gold, odds, threshold=0.25)
        for metric, name in enumerate(("exact", "f1")):
            assert found[name] == pytest.approx(mean(0.25, metric))
            assert found[f"HasAns_{name}"] == pytest.approx(mean(0.25, metric, True))
            assert found[f"NoAns_{name}"] == pytest.approx(mean(0.25, metric, False))
            every = [mean(t, metric) for t in [-99.0, *odds.values()]]
            # taking the word-less predictions for impossible questions as wrong, as the official script does here
            assert found[f"best_{name}"] <= max(every) + 1e-9
            assert mean(found[f"best_{name}_thresh"], metric) >= found[f"best_{name}"] - 1e-9
            if all(normalize(predictions[n]) or not predictions[n] for n, g in gold if not g):
                assert found[f"best_{name}"] == pytest.approx(max(every))
        assert found["best_exact"] > found["exact"] or seed


def test_the_best_threshold_by_hand():
    gold = [("h1", ["x"]), ("n1", []), ("h2", ["y"]), ("n2", [])]
    predictions = {"h1": "x", "n1": "x", "h2": "y z", "n2": "x"}
    found = score(predictions, gold, {"h1": -3.0, "n1": 2.0, "h2": -1.5, "n2": 4.0})
    assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, -3.0)
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(100 * (3 + 2 / 3) / 4), -1.5)
    assert found["exact"] == 75.0  # both odds above 1.0 are emptied
    nothing = score({"h1": "no", "n1": "x"}, gold[:2], {"h1": -3.0, "n1": -4.0})
    assert (nothing["best_exact"], nothing["best_exact_thresh"]) == (50.0, 0.0)


def test_odds_equal_to_the_threshold_keep_the_answer():
    gold = [("h", ["x"]), ("n", [])]
    assert score({"h": "x", "n": "x"}, gold, {"h": 1.0, "n": 1.0})["HasAns_exact"] == 100
    assert score({"h": "x", "n": "x"}, gold, {"h": 1.0, "n": 1.0}, threshold=0.9)["HasAns_exact"] == 0
    assert score({"h": "x", "n": ""}, gold)["exact"] == 100


def write(folder, content):
    path = folder / "p.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_files(tmp_path):
    assert read_predictions(write(tmp_path, {"a": "x", "b": ""})) == {"a": "x", "b": ""}
    odds = read_null_odds(write(tmp_path, '{"a": 1, "b": -2.5, "c": Infinity}'))
    assert odds == {"a": 1, "b": -2.5, "c": float("inf")}
    qas = [
        {"id": "a", "question": "?", "answers": [{"text": "x"}, {"text": "y"}]},
        {"id": "b", "question": "?", "answers": [], "is_impossible": True},
    ]
    document = {"data": [{"paragraphs": [{"context": "c", "qas": qas}]}]}
    assert read_references(write(tmp_path, document)) == [("a", ["x", "y"]), ("b", [])]


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_predictions, "{'a': 1}", r"p.json:1: not JSON"),
        (read_predictions, '["x"]', r'p.json: expected one JSON object \{"question id": "answer", ...\}, got a l'),
        (read_predictions, '{"a": "x", "b": 3}', r"p.json: b has 3, not text"),
        (read_predictions, '{"a": null}', r"p.json: a has null, not text"),
        (read_null_odds, '{"a": "1"}', r'p.json: a has "1", not a number; expected \{"question id": 0.5'),
        (read_null_odds, '{"a": true}', r"a has true, not a number"),
        (read_null_odds, '{"a": NaN}', r"p.json: a has NaN, not a number"),
        (read_null_odds, f'{{"a": 1{"0" * 400}}}', r"p.json: a has 10+, not a number"),
        (read_null_odds, f'{{"a": 1{"0" * 5000}}}', r"p.json: .*Exceeds the limit .* digits"),
        (read_predictions, '{"a": "x", "b": "y", "a": "z"}', r'p.json: .*an object has a repeated key, "a"'),
        (read_predictions, "[" * 100_000, r"p.json: JSON nested too deeply"),
        (read_predictions, "{}".encode("utf-16").decode("latin-1"), r"p.json:1: "),
        (read_predictions, "7", r"p.json: expected one JSON object .*, got 7"),
        (read_predictions, '{"a": ["x"]}', r'p.json: a has \["x"\], not text'),
        (read_references, "[" * 100_000, r"p.json: JSON nested too deeply.*a SQuAD file is one JSON object"),
        (read_references, '{"a": "x"}', r"not a SQuAD file"),
        (
            read_references,
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "a", "question": "?"}, {"id": 3}]}]}]}',
            r"p.json: 2 bad records and 0 good ones:\n  a: .*: no answers, .*\n  data\[0\].*id is 3",
        ),
    ],
)
def test_a_file_that_is_none_says_what_is_wrong(tmp_path, read, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, content))


@pytest.mark.parametrize("encode", [str.encode, lambda text: gzip.compress(text.encode())], ids=["plain", "gzipped"])
def test_marks_line_ends_and_compression_do_not_matter(tmp_path, encode):
    (tmp_path / "p.json").write_bytes(encode('\ufeff{\r\n"a": "x"\r\n}\r\n'))
    assert read_predictions(tmp_path / "p.json") == {"a": "x"}


def test_has_an_answer_means_that_there_are_answers(tmp_path):
    """As the 2.0 script has it: is_impossible may be missing or say something else."""

    def read(*records):
        qas = [{"id": f"q{number}", "question": "?", **record} for number, record in enumerate(records)]
        return read_references(write(tmp_path, {"data": [{"paragraphs": [{"context": "c", "qas": qas}]}]}))

    answers = [{"text": "x"}]
    read_all = read({"answers": []}, {"answers": answers}, {"answers": answers, "is_impossible": True})
    assert read_all == [("q0", []), ("q1", ["x"]), ("q2", ["x"])]
    with pytest.raises(ValueError, match=r"1 bad record and 1 good one:\n  q1: .*: no answers"):
        read({"answers": answers}, {})


def test_gold_answers_of_a_prepared_table():
    table = Dataset.from_dict(
        {"id": ["a", "b"], "answers": ['{"texts": ["x"], "starts": [0]}', '{"texts": [], "starts": []}']}
    )
    assert references(table) == [("a", ["x"]), ("b", [])]


def test_the_real_answers_score_full_marks_and_none_is_right_where_there_is_none(tmp_path):
    path = REAL / "dev-v2.0.small.json"
    if not path.is_file():
        pytest.skip("no ../shared/data/squad/dev-v2.0.small.json beside the repository")
    gold = read_references(path)
    assert [name for name, _ in gold] == [row[0] for row in Squad(train=str(path)).rows("train")]
    perfect = score({name: (texts or [""])[-1] for name, texts in gold}, gold)
    assert perfect["exact"] == perfect["f1"] == perfect["NoAns_f1"] == 100 and perfect["total"] == 2228
    bare = json.loads(path.read_text())
    for record in (qa for article in bare["data"] for part in article["paragraphs"] for qa in part["qas"]):
        del record["is_impossible"]
    assert read_references(write(tmp_path, bare)) == gold
    nothing = score({name: "" for name, _ in gold}, gold)
    assert nothing["NoAns_exact"] == 100 and nothing["HasAns_exact"] == 0
    assert nothing["exact"] == pytest.approx(100 * 1104 / 2228)


@pytest.mark.parametrize("threshold", [None, -1.0, 0.0, 0.4, float("inf")])
def test_the_scores_of_questions_have_the_official_mean(threshold):
    """Also for a gold answer that is empty when normalized: there, an answer emptied by the odds is wrong."""
    draw = random.Random(0)
    words = ["the", "cat", "dog", "owl", "a cat", ""]
    gold = [(f"q{n}", draw.choices(words[:-1], k=draw.randint(0, 2))) for n in range(60)]
    gold[0] = ("q0", ["the"])
    predictions = {name: draw.choice(words) for name, _ in gold}
    odds = None if threshold is None else {name: draw.uniform(-1, 1) for name, _ in gold} | {"q0": 2.0}
    limit = 1.0 if threshold is None else threshold
    found, expected = question_scores(predictions, gold, odds, limit), score(predictions, gold, odds, limit)
    for metric in ("exact", "f1"):
        assert sum(found[metric]) / len(gold) == pytest.approx(expected[metric], rel=1e-12)
