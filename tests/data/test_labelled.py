"""Labelled texts: files to rows, rows to ids, and whatever is wrong named by file, line and key."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from builders import Words, tokenizer_settings, write, write_table
from datasets import Dataset

from attnorm.data import prepare
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.labelled_files import LabelledFiles
from attnorm.tasks.classification import ClassificationCollator, ClassificationFeaturizer, keep

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared/data/mnli/valid.jsonl"
LABELS = ["no", "perhaps", "yes"]
CLS, SEP = 2, 3


def file(folder, records, name="x.jsonl"):
    """The records may have different columns in a file of JSON lines."""
    if name.endswith(".jsonl"):
        return write(folder / name, "".join(json.dumps(record) + "\n" for record in records))
    return write_table(folder / name, [record.values() for record in records], [*records[0]])


def source(path, **options):
    return LabelledFiles(**{"train": path, "labels": LABELS, **options})


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.tsv", "x.parquet"])
@pytest.mark.parametrize("numbered", [False, True])
def test_every_format_with_names_or_numbers(tmp_path, name, numbered):
    records = [{"a": f"text {i}", "b": f"more {i}", "c": i if numbered else LABELS[i]} for i in range(3)]
    made = source(file(tmp_path, records, name), text="a", second="b", label="c")
    assert made.check(["train"]) == [] and made.schema.name == "labelled" and made.splits == ("train",)
    assert list(made.rows("train")) == [(f"text {i}", f"more {i}", LABELS[i]) for i in range(3)]
    single = source(file(tmp_path, records, name), text="a", label="c")
    assert list(single.rows("train")) == [(f"text {i}", "", LABELS[i]) for i in range(3)]


def test_labels_that_are_numbers_are_names_and_nothing_else(tmp_path):
    path = file(tmp_path, [{"text": "x", "label": 1}, {"text": "x", "label": "2"}])
    assert [row[2] for row in source(path, labels=["1", "2", "3"]).rows("train")] == ["1", "2"]
    path = file(tmp_path, [{"text": "x", "label": 0}])
    with pytest.raises(ValueError, match=r"x.jsonl:1: label is 0, which is not in data.labels; allowed: 1, 2\."):
        list(source(path, labels=["1", "2"]).rows("train"))


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("perhap", "\"perhap\", which .* Did you mean 'perhaps'"),
        ("Yes", '"Yes"'),
        ("yes ", '"yes "'),
        (5, "5"),
        (-1, "-1"),
        (1.0, "1.0"),
        (True, "true"),
        (None, "empty"),
        ("", "empty"),
        (["no"], r'\["no"\]'),
    ],
)
def test_a_label_outside_the_set_is_located(tmp_path, label, said):
    path = file(tmp_path, [{"text": "x", "label": "no"}, {"text": "x", "label": label}])
    with pytest.raises(ValueError, match=rf"x.jsonl:2: label is {said}") as error:
        list(source(path, labels=[*LABELS, "None", "True"]).rows("train"))
    assert "not in data.labels, or their numbers 0 to 4; allowed: None, True, no, perhaps, yes" in str(error.value)


@pytest.mark.parametrize(
    ("record", "options", "message"),
    [
        ({"text": 3, "label": "no"}, {}, r"x.jsonl:1: text is 3, not text"),
        ({"text": "x", "label": "no", "b": 1}, {"second": "b"}, r"x.jsonl:1: b is 1, not text"),
        ({"text": "x", "label": "no"}, {"second": "text2"}, r"data.second=text2: no such .*Did you mean 'text'"),
        ({"text": "x", "gold": "no"}, {}, r"data.label=label: no such column; allowed: gold, text"),
        ({"txt": "x", "label": "no"}, {}, r"data.text=text: no such column"),
    ],
)
def test_a_wrong_cell_or_column_is_named(tmp_path, record, options, message):
    with pytest.raises(ValueError, match=message):
        list(source(file(tmp_path, [record]), **options).rows("train"))


def test_a_null_second_text_is_none(tmp_path):
    path = file(tmp_path, [{"text": "x", "b": None, "label": "no"}])
    assert list(source(path, second="b").rows("train")) == [("x", "", "no")]


def test_check_names_every_problem(tmp_path):
    made = source(str(tmp_path / "x.xlsx"), labels=["a"], text="a", second=1)
    problems = made.check()
    keys = [p.split("=")[0] for p in problems]
    assert keys == ["data.labels", "data.second", "data.validation", "data.train"]
    assert "set data.holdout above 0" in problems[2] and "unknown format" in problems[3]


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["a", "b", "a"], "data.labels: repeated names: a"), (["a"], "at least two names"), ([], "at least two names")],
)
def test_labels_that_are_none_are_refused_by_source_and_layout(tmp_path, labels, message):
    path = file(tmp_path, [{"text": "x", "label": "a"}])
    (problem,) = source(path, labels=labels).check(["train"])
    assert message in problem
    with pytest.raises(ValueError) as error:
        ClassificationFeaturizer(20, labels)
    assert message in str(error.value)


def test_the_fingerprint_follows_content_columns_and_labels(tmp_path):
    path = file(tmp_path, [{"text": "x", "b": "y", "label": "no"}])
    prints = [
        source(path, **options).fingerprint("train")
        for options in ({}, {"text": "b"}, {"second": "b"}, {"label": "b"}, {"labels": LABELS[::-1]})
    ]
    file(tmp_path, [{"text": "z", "b": "y", "label": "no"}])
    assert len({*prints, source(path).fingerprint("train")}) == 6
    other = file(tmp_path, [{"text": "z", "b": "y", "label": "no"}], "y.jsonl")
    assert source(other).fingerprint("train") == source(path).fingerprint("train")


def cut_by_popping(first, second, room):
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_what_is_kept_of_a_pair_is_what_popping_the_longer_one_leaves():
    for room in range(1, 14):
        for first in range(16):
            for second in range(16):
                assert keep(first, second, room) == cut_by_popping(first, second, room)


def columns(*rows):
    return dict(zip(("text", "second", "label"), map(list, zip(*rows, strict=True)), strict=True))


def test_ids_of_texts_and_pairs():
    fitting = ("a " * 6, "", "no"), ("a " * 3, "b " * 2, "no")
    cut = ("a " * 9, "", "yes"), ("a " * 9, "bb cc", "no")
    table, counts = ClassificationFeaturizer(8, LABELS).encode(
        columns(("a bb", "ccc", "yes"), ("a bb", "", "no"), *cut, *fitting), 0, Words()
    )
    assert table["ids"][:2] == [[CLS, 11, 12, SEP, 13, SEP], [CLS, 11, 12, SEP]]
    assert table["ids"][2:4] == [[CLS, *[11] * 6, SEP], [CLS, 11, 11, 11, SEP, 12, 12, SEP]]
    assert table["ids"][4:] == [[CLS, *[11] * 6, SEP], [CLS, 11, 11, 11, SEP, 11, 11, SEP]]
    assert table["first"] == [4, 4, 8, 5, 8, 5] and table["label"] == [2, 0, 2, 0, 0, 0]
    assert counts == {"truncated": 2, "label no": 4, "label perhaps": 0, "label yes": 2}
    said = ClassificationFeaturizer(8, LABELS).describe({**counts, "kept": 6, "empty": 1})
    assert said == "6 rows (1 empty skipped, 2 truncated; no 66.7%, perhaps 0.0%, yes 33.3%)"


def test_a_label_of_other_data_is_refused():
    with pytest.raises(ValueError, match=r"label 'yess' is not in data.labels; allowed: no, perhaps, yes. Did"):
        ClassificationFeaturizer(8, LABELS).encode(columns(("a", "", "yess")), 0, Words())


def test_lengths_and_labels_decide_the_settings_and_small_lengths_are_refused():
    made = [ClassificationFeaturizer(*given) for given in ((8, LABELS), (9, LABELS), (8, LABELS[::-1]))]
    assert len({json.dumps(layout.settings()) for layout in made}) == 3
    with pytest.raises(ValueError, match=r"model.max_source=4: must be a whole number of at least 5"):
        ClassificationFeaturizer(4, LABELS)


def test_batches_are_padded_and_tell_the_texts_apart():
    layout = ClassificationFeaturizer(12, LABELS)
    table, _ = layout.encode(columns(("a bb", "ccc", "yes"), ("a", "", "no"), ("a b c", "", "perhaps")), 0, Words())
    rows = Dataset.from_dict(table)
    assert layout.lengths(rows).tolist() == [[6], [3], [5]] and layout.weights(rows).tolist() == [1, 1, 1]
    assert layout.lengths(rows).dtype == np.int32 and layout.weights(rows).dtype == np.int64
    batch = ClassificationCollator(rows, 99)[MicroBatch([2, 0], 7, 0)]
    assert batch["ids"].tolist() == [[CLS, 11, 11, 11, SEP, 99], [CLS, 11, 12, SEP, 13, SEP]]
    assert batch["types"].tolist() == [[0] * 6, [0, 0, 0, 0, 1, 1]]
    assert batch["labels"].tolist() == [1, 2] and batch["rows"].tolist() == [2, 0] and batch["divisor"].item() == 7
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_a_file_goes_through_the_cache_cleaned(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    path = file(tmp_path, [{"text": " A  b", "b": "B", "label": "yes"}, {"text": " ", "b": "a", "label": "no"}] * 2)
    layout = ClassificationFeaturizer(8, LABELS)
    tokenizer = tokenizer_settings("wordpiece", file=str(tmp_path / "vocab.txt"))
    made = prepare(
        source(path, second="b"), tokenizer, layout, lowercase=True, max_rows={}, cache_dir=tmp_path, splits=["train"]
    )["train"]
    assert made.texts[:] == {"text": ["a b"] * 2, "second": ["b"] * 2, "label": ["yes"] * 2}
    assert made.rows[:] == {"ids": [[2, 5, 6, 3, 6, 3]] * 2, "first": [4] * 2, "label": [2] * 2}
    assert layout.describe(made.counts) == "2 rows (2 empty skipped, 0 truncated; no 0.0%, perhaps 0.0%, yes 100.0%)"


def test_every_row_is_judged_and_labelled_texts_are_read_as_they_are():
    written = {name: yaml.safe_load((ROOT / f"conf/data/{name}.yaml").read_text()) for name in ("labelled", "squad")}
    assert [it["max_valid"] for it in written.values()] == [None] * 2  # the limit of base.yaml is made for headlines
    assert (written["labelled"]["lowercase"], written["labelled"]["digits"]) == (False, False)


def test_the_real_file():
    if not REAL.is_file():
        pytest.skip("no ../shared/data/mnli/valid.jsonl beside the repository")
    names = ["entailment", "neutral", "contradiction"]
    made = source(str(REAL), text="premise", second="hypothesis", labels=names)
    rows = list(made.rows("train"))
    assert len(rows) == 1000 and {row[2] for row in rows} == set(names)
    table, counts = ClassificationFeaturizer(64, names).encode(columns(*rows), 0, Words())
    assert sum(counts[f"label {name}"] for name in names) == 1000 and max(map(len, table["ids"])) == 64
