"""`eval.py metric=rouge`: texts in files, one per line, scored as a run scores its own headlines."""

import gzip
import json
import re
import shutil

import pytest
import runs
from builders import build_source

from attnorm.data.cleaning import clean
from attnorm.tasks.rouge import METRICS, lead

TEXTS = ["the cat sat", "", "two dogs were running"]
FIRST = ["the cat sat down", "nothing", "two dogs run"]
SECOND = ["a bird", "none", "dogs were running"]


def typed_for(folder, *keys, **contents):
    """`metric=rouge`, files of these texts, and further keys."""
    for name, lines in contents.items():
        text = "".join(f"{line}\n" for line in lines) if isinstance(lines, list) else lines
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    given = {key.partition("=")[0] for key in keys}
    files = {"predictions": "texts", "references": "first"}
    return ["metric=rouge", *keys, *(f"{key}={folder}/{name}" for key, name in files.items() if key not in given)]


def test_rouge_by_hand(monkeypatch, tmp_path, capsys):
    typed = typed_for(tmp_path, texts=TEXTS, first=FIRST)
    found = runs.scored_file(monkeypatch, *typed)
    assert (found.split, found.unit, found.size) == ("texts", "texts", 3)
    assert list(found.metrics)[:3] == ["rouge1", "rouge2", "rougeL"] and len(found.metrics) == 9
    # 3 of 3 and of 4 words; nothing; "two dogs run", stemmed: 3 of 4 and of 3, in another order none
    assert found.metrics["rouge1_precision"] == pytest.approx(100 * (1 + 0 + 3 / 4) / 3)
    assert found.metrics["rouge1_recall"] == pytest.approx(100 * (3 / 4 + 0 + 1) / 3)
    assert found.metrics["rouge1"] == pytest.approx(100 * (6 / 7 + 0 + 6 / 7) / 3)
    plain = runs.scored_file(monkeypatch, *typed, "stemmer=false").metrics
    assert plain["rouge1_recall"] == pytest.approx(100 * (3 / 4 + 0 + 2 / 3) / 3)
    assert runs.call(monkeypatch, "eval", *typed) == 0
    printed = capsys.readouterr().out
    assert "texts: 3 texts" in printed and "with Porter stemmer" in printed
    assert re.search(r"ROUGE-1 F1 +│ +57\.14 ", printed) and "ROUGE-L precision" in printed


def test_the_best_of_several_references_counts_for_each_metric(monkeypatch, tmp_path):
    lists = {"first": ["a b c d e f", "x"], "second": ["c a b", "y"], "texts": ["a b c", "y"]}
    typed = typed_for(tmp_path, f"references=[{tmp_path}/first,{tmp_path}/second]", **lists)
    both = runs.scored_file(monkeypatch, *typed)
    # of "a b c": ROUGE-1 is best against the second, ROUGE-2 (2 of 2, 2 of 5; 1 of 2, 1 of 2) and -L against the first
    assert both.metrics["rouge1"] == pytest.approx(100 * (1 + 1) / 2)
    assert both.metrics["rouge2"] == pytest.approx(100 * (2 * 2 / 7) / 2)
    assert both.metrics["rougeL"] == pytest.approx(100 * (2 * 3 / 9 + 1) / 2)
    assert both.note.endswith("; the best F1 over 2 references counts")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["texts", "texts.gz", "my texts (1), caf\u00e9.txt"])
def test_marks_line_ends_compression_and_names_do_not_matter(monkeypatch, tmp_path, name, ending):
    expected = runs.scored_file(monkeypatch, *typed_for(tmp_path, texts=TEXTS, first=FIRST)).metrics
    content = ("\ufeff" + ending.join(TEXTS)).encode()
    for packed in (content, gzip.compress(content))["gz" in name :]:
        (tmp_path / name).write_bytes(packed)
        assert runs.scored_file(monkeypatch, *typed_for(tmp_path, f"predictions={tmp_path}/{name}")).metrics == expected


def test_texts_of_a_run_score_as_the_run_says(monkeypatch, tmp_path):
    """Its headlines, and those of its baseline, as few updates write no word of a title."""
    run = runs.finished_run()
    record = json.loads((run / "summary.json").read_text())["validation"]
    rows = build_source("newswire", valid_size=20).rows("validation")
    pairs = [[clean(text, lowercase=True, digits=True) for text in pair] for pair in rows]
    shutil.copy(run / "samples/validation.txt", tmp_path / "headlines")
    typed = typed_for(tmp_path, first=[title for _, title in pairs], lead=[lead(article) for article, _ in pairs])
    for name, expected in (("headlines", record["metrics"]), ("lead", record["baselines"]["lead-8"])):
        found = runs.scored_file(monkeypatch, *typed[:1], f"predictions={tmp_path}/{name}", typed[-1]).metrics
        assert [found[metric] for metric in METRICS] == [expected[metric] for metric in METRICS]
    assert min(found.values()) > 0


@pytest.mark.parametrize(
    ("keys", "problems"),
    [
        (["null_odds=x", "questions=x"], ["questions: metric=rouge does not", "null_odds: metric=rouge does not"]),
        (["stemmer=maybe"], ["stemmer=maybe: allowed: true, false"]),
        (["references=[{folder}/first,{folder}/none]"], ["references={folder}/none: no such file"]),
        (["references=[]"], ["references: must be given, as in references=<file>"]),
        (["predictions=[{folder}/texts]"], ["predictions=[{folder}/texts]: expected a single value"]),
        (["task.stemmer=false", "ckpt=last"], ["ckpt: metric scores a file", "task.stemmer: a file has no run"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_keys_that_do_not_go_with_rouge_are_refused(monkeypatch, tmp_path, capsys, keys, problems):
    typed = typed_for(tmp_path, *(key.format(folder=tmp_path) for key in keys), texts=TEXTS, first=FIRST)
    assert runs.call(monkeypatch, "eval", *typed) == 2
    lines = capsys.readouterr().err.splitlines()
    expected = [f"error: {problem}".format(folder=tmp_path) for problem in problems]
    assert [line[: len(text)] for line, text in zip(lines, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"texts": TEXTS, "first": FIRST[:2]}, r"error: \S*texts has 3 lines, but \S*first has 2"),
        ({"texts": "", "first": FIRST}, r"error: \S*texts: there are no lines to score"),
        ({"texts": b"fine\n\xff\n", "first": FIRST}, r"error: \S*texts:2: not UTF-8 text"),
        ({"texts": TEXTS, "first": "a\n".encode("utf-16-le")}, r"error: \S*first: this file is UTF-16-LE, not UTF-8"),
        ({"texts": gzip.compress(b"one\n" * 999)[:-9], "first": FIRST}, r"error: \S*texts:\d+: damaged compressed"),
    ],
    ids=["fewer", "empty", "bytes", "utf-16", "damaged"],
)
def test_files_that_cannot_be_scored_are_named(monkeypatch, tmp_path, capsys, contents, message):
    assert runs.call(monkeypatch, "eval", *typed_for(tmp_path, **contents)) == 1
    printed = capsys.readouterr()
    assert re.match(message, printed.err) and "Traceback" not in printed.err and printed.out == ""
