"""Documents: from text files, from a column of a hub dataset, from the built-in corpus."""

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from builders import write, write_table
from pyarrow import parquet

from attnorm.data.sources.hub import TextHub
from attnorm.data.sources.newswire import STORIES, NewswireText
from attnorm.data.sources.text_files import TextFiles

TEXT = "\ufeffone a\none b\x85\u2028c\n\n \t\ntwo a\ntwo b\n\n\n\nthree"
LINES = ["one a", "one b\x85\u2028c", "two a", "two b", "three"]
PARAGRAPHS = ["one a one b c", "two a two b", "three"]


def documents(source, split="train") -> list[str]:
    rows = list(source.rows(split))
    assert all(isinstance(row, tuple) and len(row) == len(source.schema.columns) for row in rows)
    return [text for (text,) in rows]


def text(files, **options):
    return TextFiles(**{"files": files, "holdout": 0, **options})


# ------------------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["a.txt", "a", "a.txt.gz", "a.md"])
def test_a_document_is_a_line_a_paragraph_or_the_file(tmp_path, name):
    path = write(tmp_path / name, TEXT)
    assert [line.rstrip("\n") for line in documents(text(path))] == LINES
    assert [" ".join(p.split()) for p in documents(text(path, document="paragraph"))] == PARAGRAPHS
    assert documents(text(path, document="file")) == [TEXT.removeprefix("\ufeff")]


@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz", "json.gz", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("document", ["line", "file"])
def test_a_table_has_a_document_in_each_row_of_a_column(tmp_path, ending, document):
    path = tmp_path / f"a.{ending}"
    write_table(path, [(str(i), body) for i, body in enumerate(["x y", "z", "", "w"])], ("id", "body"))
    source = text(str(path), column="body", document=document)
    assert source.check(["train"]) == []
    assert documents(source) == ["x y", "z", "", "w"]
    with pytest.raises(ValueError, match=r"data.column=bdoy: no such column; .*Did you mean 'body'\?"):
        documents(text(str(path), column="bdoy"))


def test_files_folders_and_globs_in_the_order_in_which_they_are_named(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden", ".git/x.txt", "sub/.d.txt", "sub/deep/e.txt.gz", "[1].txt"):
        write(tmp_path / name, f"in {name}")
    folder = str(tmp_path)
    inside = ["in [1].txt", "in a.txt", "in b.txt", "in sub/c.txt", "in sub/deep/e.txt.gz"]
    assert documents(text(folder)) == inside
    assert documents(text([f"{folder}/b.txt", folder])) == ["in b.txt", *(d for d in inside if d != "in b.txt")]
    assert documents(text(f"{folder}/*.txt")) == inside[:3]
    assert documents(text([f"{folder}/**/*.txt"])) == inside[:4]
    assert documents(text(f"{folder}/[ab].txt")) == inside[1:3]
    assert documents(text(f"{folder}/[1].txt")) == inside[:1]
    (tmp_path / "empty").mkdir()
    assert documents(text(f"{folder}/*")) == inside[:3]  # a glob names files, not the folders beside them


# -------------------------------------------------------------------------------------------------------------- splits


def numbered(tmp_path, count):
    return write(tmp_path / "n.txt", "".join(f"document {i}\n" for i in range(count)))


@pytest.mark.parametrize("holdout", [0.05, 0.1, 1 / 3, 0.5, 0.9])
def test_a_share_of_the_documents_evenly_spread_is_held_out(tmp_path, holdout):
    source = TextFiles(files=numbered(tmp_path, 400), holdout=holdout)
    train, held_out = documents(source), documents(source, "validation")
    everything = [f"document {i}\n" for i in range(400)]
    assert sorted(train + held_out, key=everything.index) == everything
    places = [everything.index(document) for document in held_out]
    assert len(places) == pytest.approx(400 * holdout, abs=1)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert max(gaps) - min(gaps) <= 1
    assert documents(source, "validation") == held_out
    assert source.splits == ("train", "validation") and source.check() == []


def test_files_of_its_own_make_a_validation_split_and_leave_train_whole(tmp_path):
    train, dev = numbered(tmp_path, 40), write(tmp_path / "dev.txt", "dev\n")
    source = TextFiles(files=train, validation=dev, test=[dev])
    assert source.splits == ("train", "validation", "test") and source.check(source.splits) == []
    assert len(documents(source)) == 40
    assert documents(source, "validation") == documents(source, "test") == ["dev\n"]


def test_a_share_that_holds_out_no_document_is_refused(tmp_path):
    source = TextFiles(files=numbered(tmp_path, 5), holdout=0.05)
    assert len(documents(source)) == 5
    with pytest.raises(ValueError, match=r"data.holdout=0.05: no row is left for the validation split.* has 5"):
        documents(source, "validation")


def test_a_split_without_files_is_named(tmp_path):
    path = numbered(tmp_path, 5)
    assert text(path).splits == ("train",)
    assert text(path).check(["train"]) == []
    [problem] = text(path).check(["train", "validation", "test"][:2])
    assert problem.startswith("data.validation=null: the validation split is asked for")
    assert text(path).check(["test"]) == ["data.test=null: the test split is asked for; name its files"]
    assert text([]).check(["train"]) == ["data.files=[]: the train split is asked for; name its files"]


def test_fingerprints_follow_contents_and_settings_and_not_places(tmp_path):
    first, second = numbered(tmp_path / "a", 40), numbered(tmp_path / "b", 40)
    plain = TextFiles(files=first)
    assert plain.fingerprint("train") == TextFiles(files=[second]).fingerprint("train")
    prints = {plain.fingerprint("train"), plain.fingerprint("validation")}
    for options in ({"holdout": 0.1}, {"document": "paragraph"}, {"column": "x"}, {"validation": second}):
        prints.add(TextFiles(files=first, **options).fingerprint("train"))
    prints.add(TextFiles(files=[first, second]).fingerprint("train"))
    prints.add(TextFiles(files=write(tmp_path / "n.jsonl", Path(first).read_bytes())).fingerprint("train"))
    write(tmp_path / "b/n.txt", "other")
    prints.add(TextFiles(files=second).fingerprint("train"))
    assert len(prints) == 9
    added = [TextFiles(files=first, validation=second, holdout=share) for share in (0.05, 0.5)]
    assert added[0].fingerprint("validation") == added[1].fingerprint("validation")


# -------------------------------------------------------------------------------------------------------------- checks


def test_all_problems_show_before_reading(tmp_path):
    good = numbered(tmp_path, 5)
    empty = write(tmp_path / "empty.txt", "")
    broken = write(tmp_path / "broken.jsonl", "")
    (tmp_path / "none").mkdir()
    source = TextFiles(
        files=[f"{tmp_path}/*.md", f"{tmp_path}/absent.txt", empty, good, broken, f"{tmp_path}/none"],
        validation=f"{tmp_path}/nothing",
    )
    problems = source.check()
    opening = [p.replace(str(tmp_path), "").split(": ")[:2] for p in problems]
    assert opening == [
        ["data.files=/*.md", "no file matches"],
        ["data.files=/absent.txt", "no such file"],
        ["data.files=/empty.txt", "the file is empty"],
        ["data.files=/broken.jsonl", "the file is empty"],
        ["data.files=/none", "no file in this folder"],
        ["data.validation=/nothing", "no such file"],
    ]
    held_out = TextFiles(files=f"{tmp_path}/no")  # its files are checked once
    assert len(held_out.check()) == len(held_out.check(["validation"])) == 1


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"good\nno\0t", r":2: a NUL byte \(character 3 of the line\)"),
        (b"\x89PNG\r\n", r":1: not UTF-8 text \(character 1 of the line is the byte 0x89\)"),
        (b"a\nb\nc\xe4d\0", r":3: not UTF-8 text \(character 2 of the line is the byte 0xe4\)"),
        (b"x" * 8191 + b"\0", r":1: a NUL byte \(character 8192 of the line\)"),
    ],
)
def test_what_is_not_text_is_named_by_file_line_and_byte(tmp_path, name, content, where):
    path = write(tmp_path / name, content)
    [problem] = text(path).check(["train"])
    assert problem.startswith(f"data.files={path}: {path}:")
    with pytest.raises(ValueError, match=where):
        raise ValueError(problem)


def test_a_character_across_the_end_of_what_is_looked_at_is_text(tmp_path):
    assert text(write(tmp_path / "a.txt", "x" * 8191 + "é" * 9)).check(["train"]) == []
    late = text(write(tmp_path / "b.txt", b"x" * 9000 + b"\n\xe4\n"))
    assert late.check(["train"]) == []
    with pytest.raises(ValueError, match=r"b.txt:2: not UTF-8 text \(character \d+ of the line is the byte 0xe4\)"):
        documents(late)


def test_many_bad_files_of_a_folder_are_counted(tmp_path):
    for i in range(25):
        write(tmp_path / f"{i:02}.bin", b"\0")
    problems = text(str(tmp_path)).check(["train"])
    assert len(problems) == 11 and problems[-1].endswith("15 more files with problems")


def test_a_file_of_train_in_another_split_is_refused(tmp_path):
    train, dev = numbered(tmp_path, 5), write(tmp_path / "dev.txt", "x")
    (tmp_path / "sub").mkdir()
    again = f"{tmp_path}/sub/../n.txt"
    [problem] = TextFiles(files=train, validation=[dev, again]).check()
    assert problem == f"data.validation={again}: also in data.files: {again}"
    [problem] = TextFiles(files=str(tmp_path), test=dev).check(["test"])
    assert "also in data.files" in problem


# ------------------------------------------------------------------------------------------------ the hub, and newswire


def test_a_column_of_parquet_files(tmp_path):
    for name, rows in (("train", ["a", "b", None]), ("validation", ["c"])):
        parquet.write_table(pa.table({"body": rows, "id": list(range(len(rows)))}), tmp_path / f"{name}.parquet")
    source = TextHub(path=str(tmp_path), column="body", test_split=None)
    assert source.check() == [] and source.splits == ("train", "validation")
    assert documents(source) == ["a", "b", ""] and documents(source, "validation") == ["c"]
    assert source.fingerprint("train") != TextHub(path=str(tmp_path), column="id").fingerprint("train")
    with pytest.raises(ValueError, match=r"data.column=text: no such column; allowed: body, id"):
        documents(TextHub(path=str(tmp_path)))


def test_newswire_documents_are_stories_of_like_events():
    from attnorm.data.synthetic.newswire import story

    source = NewswireText(train_size=45, valid_size=7, corpus_seed=3)
    train = documents(source)
    assert len(train) == 45 and len(documents(source, "validation")) == 7
    assert train[:30] == documents(NewswireText(train_size=30, corpus_seed=3))  # more documents keep the first ones
    drawn = [story("train", i, 3, "easy") for i in range(60 * STORIES)]
    items = {f"{s.headline} . {s.article}": s.event for s in drawn}
    alike = 0
    for document in train:
        inside = [item for item in items if item in document]
        assert len(inside) == STORIES and sum(map(len, inside)) + STORIES - 1 == len(document)
        alike += len({items[item] for item in inside}) == 1
    assert len(set(train)) == 45 and alike > 5
    prints = [NewswireText(**options).fingerprint("train") for options in ({"train_size": 45}, {"train_size": 44})]
    assert NewswireText(train_size=45, valid_size=3).fingerprint("train") == prints[0] != prints[1]
    assert NewswireText().fingerprint("validation") not in prints
