"""Reading files that users have: encodings, gzip, headers or none, bad rows left out, and what cannot be read."""

import csv
import glob
import gzip
import json
import lzma
import os
import random
import re

import numpy as np
import pyarrow as pa
import pytest
from builders import build_source, write, write_table
from pyarrow import parquet

from attnorm.data.readers import text as files
from attnorm.data.readers.feature_files import FeatureFiles

PAIRS = ("article", "title")
ROWS = [("café au lait", "Füße"), ("naïve “words”", "€ 5"), ("plain", "text")]


def table(path, rows=ROWS, header=PAIRS, encoding="utf-8"):
    return write_table(path, rows, header, encoding)


def sources(folder, encoding="utf-8", rows=ROWS, **options):
    """Each source that reads text files, with these rows as its train split; and what it should give for a row."""
    options |= {} if encoding == "utf-8" else {"encoding": encoding}
    for ending in ("jsonl", "csv", "tsv"):
        yield build_source("pair_files", train=table(folder / f"x.{ending}", rows, encoding=encoding), **options), tuple
        labelled = table(folder / f"l.{ending}", [(a, "no") for a, _ in rows], ("text", "label"), encoding)
        made = build_source("labelled", train=labelled, labels=["no", "yes"], **options)
        yield made, lambda row: (row[0], "", "no")
        yield build_source("text", files=labelled, holdout=0, **options), lambda row: (row[0],)
    for name, column in (("train.article.txt", 0), ("train.title.txt", 1)):
        write(folder / name, "".join(f"{row[column]}\n" for row in rows).encode(encoding, "surrogateescape"))
    yield build_source("gigaword", dir=str(folder), **options), tuple
    plain = str(folder / "train.article.txt")
    yield build_source("text", files=plain, holdout=0, **options), lambda row: (f"{row[0]}\n",)


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
def test_every_source_of_text_files_reads_any_encoding(tmp_path, encoding):
    for source, expected in sources(tmp_path, encoding):
        assert source.check(["train"]) == []
        assert list(source.rows("train")) == [expected(row) for row in ROWS]


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "rot13", "", 3, None, "undefined"])
def test_an_encoding_that_is_none_is_a_problem(tmp_path, encoding):
    for source, _ in sources(tmp_path):
        source.encoding = encoding
        [problem] = source.check(["train"])
        assert problem.startswith(f"data.encoding={encoding}: not a text encoding of Python; allowed: utf-8,")
    assert "Did you mean 'utf-8'?" in files.encoding_problem("utf-9")[0]


def test_an_encoding_for_parquet_alone_is_refused(tmp_path):
    path = str(tmp_path / "x.parquet")
    parquet.write_table(pa.table({"article": ["a"], "title": ["b"]}), path)
    lines = table(tmp_path / "x.jsonl", encoding="cp1252")
    for source in (
        build_source("pair_files", train=path, encoding="cp1252"),
        build_source("text", files=path, column="title", encoding="cp1252"),
    ):
        assert source.check(["train"]) == [
            "data.encoding=cp1252: has no effect on parquet files, whose text is always UTF-8"
        ]
    assert build_source("pair_files", train=path, validation=lines, encoding="cp1252").check() == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_how_one_of_several_files_is_read(tmp_path, encoding):
    train, validation = table(tmp_path / "x.csv", encoding=encoding), table(tmp_path / "y.csv")
    for source in (
        build_source("pair_files", train=train, validation=validation),
        build_source("pair_files", train=validation, validation=train),
    ):
        assert source.check() == []
        assert [*source.rows("train")] == [*source.rows("validation")] == ROWS


def test_utf_8_is_not_read_as_utf_16(tmp_path):
    """Bytes of ASCII are Chinese characters in it."""
    paths = {"train": table(tmp_path / "x.csv", encoding="utf-16-le"), "validation": table(tmp_path / "y.csv")}
    source = build_source("pair_files", **paths, encoding="utf-16-le")
    [problem] = source.check()
    advice = "convert it to utf-16-le, or set data.encoding=utf-8 if all files are"
    assert problem.endswith(f"y.csv: this file is UTF-8, not utf-16-le; {advice}")
    with pytest.raises(ValueError, match="this file is UTF-8, not utf-16-le"):
        list(source.rows("validation"))


def test_a_column_whose_name_occurs_twice_is_refused(tmp_path):
    path = write(tmp_path / "x.csv", "article,title,title\na,b,c\n")
    with pytest.raises(ValueError, match=r"x.csv:1: data.title=title: 2 columns have this name"):
        list(build_source("pair_files", train=path).rows("train"))
    assert list(build_source("text", files=path, column="article", holdout=0).rows("train")) == [("a",)]


def test_a_table_with_tabs_has_quotes_if_all_names_of_its_header_have_them(tmp_path):
    row = '"a ""b"" c"\t"d\te"'
    path = write(tmp_path / "x.tsv", f'"article"\t"title"\n{row}\n')
    assert list(build_source("pair_files", train=path).rows("train")) == [('a "b" c', "d\te")]
    path = write(tmp_path / "y.tsv", 'article\ttitle\n"a" b\t"c"\n')
    assert list(build_source("pair_files", train=path).rows("train")) == [('"a" b', '"c"')]
    path = write(tmp_path / "z.tsv", '"a"\t"b"\n')
    assert list(build_source("pair_files", train=path, article=0, title=1).rows("train")) == [('"a"', '"b"')]


ADVICE = "not utf-8; convert it to utf-8, or set data.encoding="


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("an article\n".encode("utf-16-le"), f"this file is UTF-16-LE, {ADVICE}utf-16-le if all files are"),
        ("an article\n".encode("utf-16-be"), f"this file is UTF-16-BE, {ADVICE}utf-16-be if all files are"),
        (b"article\rtitle\ra\rb\r", "its lines end in a carriage return alone (\\r); convert the line ends to \\n"),
        (gzip.compress(b"an article\n")[:12], "damaged compressed file: Compressed file ended"),
    ],
    ids=["UTF-16-LE", "UTF-16-BE", "CR", "gzip"],
)
def test_a_file_that_is_no_text_in_lines_is_reported_as_what_it_is(tmp_path, content, message):
    for source, _ in sources(tmp_path, skip_bad=True):  # what is wrong with a whole file cannot be left out
        for path in tmp_path.iterdir():
            path.write_bytes(content)
        problems = source.check(["train"])
        assert problems and all(message in problem for problem in problems)
        with pytest.raises(ValueError) as error:
            list(source.rows("train"))
        assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.csv.xz"])
@pytest.mark.parametrize("packed", [bytes, gzip.compress, lzma.compress])
def test_compression_is_recognised_by_content_and_not_by_name(tmp_path, name, packed):
    (tmp_path / name).write_bytes(packed(b"article,title\na,b\n"))
    source = build_source("pair_files", train=str(tmp_path / name))
    assert source.check(["train"]) == [] and list(source.rows("train")) == [("a", "b")]
    write(tmp_path / "y.json", packed(b"[1]"))
    assert files.read_json(tmp_path / "y.json") == [1]


def test_line_and_byte_of_what_cannot_be_decoded(tmp_path):
    """Also behind the first chunk that is read, and in encodings in which a line is not its bytes up to \\n."""
    before = "ä line\n" * 300_000
    for encoding, bad in (("utf-8", b"\xff"), ("utf-16-le", b"\x00\xdc"), ("shift_jis", b"\xff")):
        text = before if encoding != "shift_jis" else before.replace("ä", "あ")
        path = tmp_path / "x.txt"
        path.write_bytes(text.encode(encoding) + "ab".encode(encoding) + bad + "\nlast\n".encode(encoding))
        actual = list(files.path_lines(path, encoding))
        assert len(actual) == 300_002 == files.count_lines(path, encoding) and actual[-1] == "last\n"
        said = "UTF-8" if encoding == "utf-8" else encoding
        position = f"character 3 of the line is the byte 0x{bad[0]:02x}"
        advice = "convert it, or set data.encoding if all files are in another one"
        told = f"{path}:300001: not {said} text ({position}); {advice}"
        assert str(actual[300_000]) == told


# bad rows


def test_bad_lines_stop_every_source_or_are_left_out_and_counted(tmp_path, caplog):
    rows = [("good", "row"), ("b\udce4d", "row"), ("another", "good one"), ("last", "b\udcff")]  # bytes, not characters
    for source, _ in sources(tmp_path, rows=rows):
        said = r":\d: not UTF-8 text \(character \d+ of the line is the byte 0x(e4|ff)\).*data.skip_bad=true"
        with pytest.raises(ValueError, match=said):
            list(source.rows("train"))
    for source, expected in sources(tmp_path, rows=rows, skip_bad=True):
        caplog.clear()
        assert source.check(["train"]) == []
        result = list(source.rows("train"))
        bad = 4 - len(result)
        assert result[:2] == [expected(rows[0]), expected(rows[2])] and bad in (1, 2)  # some do not read the last cell
        [message] = caplog.messages
        assert message.startswith(f"{bad} bad row{'s' * (bad > 1)} and {len(result)} good ones (skipped):")
        assert "is the byte 0xe4" in message and str(tmp_path) in message


def test_a_line_with_a_nul_byte_is_bad(tmp_path, caplog):
    for name in ("x.csv", "x.tsv"):
        path = table(tmp_path / name)
        write(tmp_path / name, (tmp_path / name).read_text().replace("plain", "pl\0in"))
        with pytest.raises(ValueError, match=rf"{name}:4: a NUL byte \(character 3 of the line\), so this is not text"):
            list(build_source("pair_files", train=path).rows("train"))
        assert list(build_source("pair_files", train=path, skip_bad=True).rows("train")) == ROWS[:2]


@pytest.mark.parametrize(
    ("name", "content", "bad"),
    [
        ("x.jsonl", '{"article": "a", "title": "b"}\n{"article": 1, "title": "b"}\n', r"x.jsonl:2: article is 1, not"),
        ("x.jsonl", '{"article": "a", "title": "b"}\n[]\n', r"x.jsonl:2: expected a JSON object"),
        ("x.jsonl", '{"article": "a", "title": "b"}\n{"article": "a"}\n', r":2: data.title=title: no such column"),
        ("x.jsonl", '{"article": "a", "title": "b"}\n{"a":' + "[" * 100_000, r"x.jsonl:2: JSON nested too deeply"),
        ("x.jsonl", '{"article": "a", "title": "b"}\n{"a": ' + "1" * 5000 + "}", r"x.jsonl:2: cannot be read as JSON"),
        ("x.csv", "article,title\na,b\na\n", r"x.csv:3: 1 fields, but the header has 2"),
        ("x.csv", 'article,title\n"a"b,c\na,b\n', r"x.csv:2: ',' expected after '\"'"),
        ("x.csv", 'article,title\na,b\n"c,d\ne,f\n', r":4: unexpected end of data, in the row that begins in line 3"),
    ],
    ids=["number", "list", "column", "deep", "digits", "fields", "quote", "open quote"],
)
def test_a_bad_row_is_located_or_left_out(tmp_path, caplog, name, content, bad):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=bad):
        list(build_source("pair_files", train=path).rows("train"))
    assert list(build_source("pair_files", train=path, skip_bad=True).rows("train")) == [("a", "b")]
    assert "1 bad row and 1 good one (skipped)" in caplog.text


def test_labels_and_hub_cells_that_are_bad_are_left_out(tmp_path, caplog):
    path = write(tmp_path / "x.csv", "text,label\na,no\nb,nope\nc,yes\n")
    source = build_source("labelled", train=path, labels=["no", "yes"], skip_bad=True)
    assert [row[2] for row in source.rows("train")] == ["no", "yes"] and "x.csv:3: label is" in caplog.text
    parquet.write_table(pa.table({"article": ["a", "b"], "title": [1, 2]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train row 1: title is 1, not text .*would skip all 2 rows"):
        list(build_source("hub_pairs", path=str(tmp_path), skip_bad=True).rows("train"))


def test_a_wrong_column_name_is_not_a_reason_to_leave_out_every_row(tmp_path):
    path = table(tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match=r"data.title=titel: no such column.*Did you mean 'title'"):
        list(build_source("pair_files", train=path, title="titel", skip_bad=True).rows("train"))


# several files


@pytest.mark.parametrize("name", ["pair_files", "labelled", "text"])
def test_a_split_may_have_several_files_and_globs(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    rows = [(f"text {number}", "no") for number in range(6)]
    for file, part in (("b.csv", rows[:2]), ("a[1].jsonl", rows[2:4]), ("c.csv", rows[4:])):
        table(tmp_path / file, part)

    def source(files, **options):
        columns = {"labelled": {"labels": ["no", "yes"], "text": "article", "label": "title"}}
        columns["text"] = {"column": "article", "holdout": 0}
        split = "files" if name == "text" else "train"
        return build_source(name, **{split: files}, **columns.get(name, {}), **options)

    def texts(*given):
        return [row[0] for row in source(*given).rows("train")]

    every = [text for text, _ in rows]
    assert texts(["b.csv", "a[1].jsonl", "c.csv"]) == every == texts(["b.csv", "a[1].jsonl", "*.csv"])
    assert texts("*.csv") == every[:2] + every[4:]
    assert source(["b.csv", "*.csv"]).fingerprint("train") == source("*.csv").fingerprint("train")
    prints = [source(files).fingerprint("train") for files in ("b.csv", "*.csv", ["c.csv", "b.csv"], "*.*")]
    assert len({*prints}) == 4
    whole = (tmp_path / "c.csv").read_text()
    write(tmp_path / "c.csv", whole.replace("text 5", "text 6"))
    assert source("*.csv").fingerprint("train") != prints[1]
    write(tmp_path / "c.csv", whole)
    found = glob.glob
    monkeypatch.setattr(glob, "glob", lambda *names, **options: sorted(found(*names, **options), reverse=True))
    assert texts("*.csv") == every[:2] + every[4:]
    problems = source(["b.csv", "x*.csv", "absent.csv"]).check(["train"])
    assert [problem.partition(": ")[2] for problem in problems] == ["no file matches", "no such file: absent.csv"]
    write(tmp_path / "c.csv", "article,title\na\n")
    with pytest.raises(ValueError, match=r"c.csv:2: 1 fields, but the header has 2"):
        texts(["b.csv", "c.csv"])


# nested columns

CHATS = [
    {"messages": [{"content": "a b"}, {"content": "c"}], "meta": {"note": "plain"}, "a.b": "dots"},
    {"messages": [{"content": None}, {"content": "d"}], "meta": None, "a.b": "dots"},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "folder", "saved"])
def test_a_column_inside_another_one_is_named_by_the_way_to_it(tmp_path, kind):
    import datasets

    def chats(rows, **columns):
        path = tmp_path / ("train.jsonl" if kind == "jsonl" else "train.parquet")
        if kind == "jsonl":
            write(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        elif kind == "saved":
            datasets.Dataset.from_list(rows).save_to_disk(tmp_path)
        else:
            parquet.write_table(pa.Table.from_pylist(rows), path)
        of_folder = kind in ("folder", "saved")
        given = {"path": str(tmp_path)} if of_folder else {"train": str(path)}
        return build_source("hub_pairs" if of_folder else "pair_files", **given, **columns)

    source = chats(CHATS, article="messages[0].content", title="messages[1].content")
    assert source.check(["train"]) == [] and list(source.rows("train")) == [("a b", "c"), ("", "d")]
    named = chats(CHATS, article="meta.note", title="a.b")
    assert list(named.rows("train")) == [("plain", "dots"), ("", "dots")]
    assert named.fingerprint("train") != source.fingerprint("train")
    for title, said in (
        ("massages[0].content", "data.title=massages[0].content: no such column"),
        ("messages[2].content", "messages[2].content: no item 2 in [{"),
        ("messages[1].text", 'messages[1].text: no entry text in {"content": "c"'),
        ("messages.content", "messages.content: no entry content in [{"),
        ("messages[1]", 'messages[1] is {"content": "c"'),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            list(chats(CHATS, article="messages[0].content", title=title).rows("train"))
    short = [CHATS[0], {**CHATS[1], "messages": []}]
    skipping = chats(short, article="messages[0].content", title="messages[1].content", skip_bad=True)
    assert list(skipping.rows("train")) == [("a b", "c")]


def test_a_nested_column_of_a_csv_file_is_no_column(tmp_path):
    path = table(tmp_path / "x.csv", [("[]", "a")], ("messages", "title"))
    with pytest.raises(ValueError, match=r"x.csv:1: data.article=messages\[0\]: no such column"):
        list(build_source("pair_files", train=path, article="messages[0]").rows("train"))


# columns by number


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_columns_by_number_are_those_of_a_file_without_a_header(tmp_path, ending):
    path = table(tmp_path / f"x.{ending}", [("1", *row) for row in ROWS], header=None)
    source = build_source("pair_files", train=path, article=1, title=2)
    assert source.check(["train"]) == [] and list(source.rows("train")) == ROWS
    assert list(build_source("text", files=path, column=1, holdout=0).rows("train")) == [row[:1] for row in ROWS]
    named = build_source("labelled", train=path, labels=["x", "y"], text=1, label=0)
    assert [row[2] for row in named.rows("train")] == ["y"] * 3  # the number of a label
    with pytest.raises(ValueError, match=r":1: data.title=3: no such column; there are 3, numbered from 0"):
        list(build_source("pair_files", train=path, article=1, title=3).rows("train"))
    write(tmp_path / f"x.{ending}", path and "a,b\nc\n".replace(",", "," if ending == "csv" else "\t"))
    with pytest.raises(ValueError, match=r":2: 1 fields, but the first row has 2"):
        list(build_source("pair_files", train=path, article=0, title=1).rows("train"))


def test_numbers_and_names_do_not_mix_and_numbers_are_not_for_named_columns(tmp_path):
    path, lines = table(tmp_path / "x.csv"), table(tmp_path / "x.jsonl")
    [problem] = build_source("pair_files", train=path, article=0).check(["train"])
    assert problem.startswith("data.article=0: a number is for files without a header; give all columns by number")
    problems = build_source("pair_files", train=path, validation=lines, article=0, title=1).check()
    assert [p.split(":")[0] for p in problems] == ["data.article=0", "data.title=1"] and "x.jsonl" in problems[0]
    assert len(build_source("text", files=[path, lines], column=0).check()) == 1


def test_long_fields_are_read(tmp_path):
    path = table(tmp_path / "x.csv", [("x" * 200_000, "y")])
    assert csv.field_size_limit() > 131_072
    [(article, _)] = build_source("pair_files", train=path).rows("train")
    assert len(article) == 200_000


# held-out rows and fingerprints


@pytest.mark.parametrize("name", ["pair_files", "labelled", "text"])
def test_a_share_of_train_is_held_out(tmp_path, name):
    path = table(tmp_path / "x.csv", [(f"text {i}", "no") for i in range(60)])
    options = {
        "pair_files": {"train": path},
        "labelled": {"train": path, "labels": ["no", "yes"], "text": "article", "label": "title"},
        "text": {"files": path, "column": "article"},
    }[name]
    source = build_source(name, **options, holdout=0.1)
    assert source.check() == [] and source.splits == ("train", "validation")
    train, held_out = list(source.rows("train")), list(source.rows("validation"))
    assert (len(train), len(held_out)) == (54, 6)
    assert sorted(train + held_out) == sorted(build_source(name, **options, holdout=0).rows("train"))
    prints = [build_source(name, **options, holdout=s).fingerprint("train") for s in (0, 0.1, 0.2)]
    assert len({*prints, source.fingerprint("validation")}) == 4
    [problem] = build_source(name, **options, holdout=0).check()
    assert problem.startswith("data.validation=null: the validation split is asked for") and "data.holdout" in problem


def test_fingerprints_of_settings_that_existed_before_are_what_they_were(tmp_path):
    path = write(tmp_path / "x.csv", "article,title\na,b\n")
    expected = files.digest(["pairs", 1, ".csv", "article", "title"], tmp_path / "x.csv")
    assert build_source("pair_files", train=path, validation=path).fingerprint("train") == expected
    assert build_source("pair_files", train=path).fingerprint("train") == expected
    expected = files.digest(["labelled", 1, ".csv", ["text", "label"], ["a", "b"]], tmp_path / "x.csv")
    assert build_source("labelled", train=path, labels=["a", "b"]).fingerprint("train") == expected
    expected = files.digest(["text", 1, "line", "text", ["train", 0.05], [".csv"]], tmp_path / "x.csv")
    assert build_source("text", files=path).fingerprint("train") == expected


def test_encoding_and_skip_bad_change_the_fingerprint_and_another_spelling_does_not(tmp_path):
    for source, _ in sources(tmp_path):
        prints = set()
        for encoding, skip_bad in (("utf-8", False), ("latin-1", False), ("utf-8", True), ("latin-1", True)):
            source.encoding, source.skip_bad = encoding, skip_bad
            prints.add(source.fingerprint("train"))
        source.encoding, source.skip_bad = "UTF8", False
        assert len(prints) == 4 and source.fingerprint("train") in prints


# attacks


def test_a_line_longer_than_what_is_read_at_once(tmp_path):
    lines = ["x" * 3_000_000 + "\n", "y\n", "z" * 2_500_000]
    path = tmp_path / "x.txt"
    write(path, "".join(lines))
    assert list(files.read_lines(path)) == lines and files.count_lines(path) == 3
    write(path, lines[0][:-1] + "\0" + "w" * 3_000_000 + "\nnext\n")
    first, second = files.path_lines(path)
    assert "x.txt:1: a NUL byte (character 3000001" in str(first) and second == "next\n"


def test_what_is_no_readable_file_is_one_line(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    write(tmp_path / "empty.csv", "")
    secret = tmp_path / "secret.csv"
    table(secret)
    secret.chmod(0)
    said = {"folder": "not a file", "pipe": "not a file", "empty": "the file is empty", "absent": "no such file"}
    said |= {"secret": "no permission to read"} if os.geteuid() else {}
    for name, words in said.items():
        path = str(tmp_path / f"{name}.csv")
        for source in (build_source("pair_files", train=path), build_source("squad", train=path)):
            assert source.check(["train"]) == [f"data.train={path}: {words}: {path}"]
    long = f"{tmp_path}/{'x' * 300}.csv"
    [problem] = build_source("pair_files", train=long).check(["train"])
    assert problem.startswith("data.train=") and "name too long" in problem


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.tsv", "x.txt", "x.parquet", "x.json", "vqa.json"])
def test_random_damage_gives_rows_or_an_error_that_names_the_file(tmp_path, name):
    """Bytes of a good file, plain or gzipped, changed, cut or replaced at random."""
    path, numbers = tmp_path / name, random.Random(name)
    if name == "x.parquet":
        parquet.write_table(pa.table({"article": ["some words"] * 99, "title": ["more"] * 99}), path)
    elif name == "x.json":
        qa = {"id": "1", "question": "why", "answers": [{"text": "some", "answer_start": 0}]}
        write(path, json.dumps({"data": [{"paragraphs": [{"context": "some text", "qas": [qa]}]}]}))
    elif name == "vqa.json":
        write(path, json.dumps({"questions": [{"question_id": 1, "image_id": 2, "question": "why"}]}))
    else:
        table(path, ROWS * 5)
    good = path.read_bytes()
    options = {"x.txt": ("text", {"files": str(path)}), "x.json": ("squad", {"train": str(path)})}
    options["vqa.json"] = ("vqa_v2", {"train_questions": None, "train_annotations": None, "test_questions": str(path)})
    source_name, options = options.get(name, ("pair_files", {"train": str(path)}))
    split = "test" if name == "vqa.json" else "train"
    seen = {"rows": 0, "errors": 0}
    for trial in range(150):
        content = bytearray(gzip.compress(good, mtime=0) if trial % 3 == 0 else good)
        for _ in range(numbers.choice([1, 3, 30])):
            content[numbers.randrange(len(content))] = numbers.choice([0, 10, 13, 34, 92, 255, numbers.randrange(256)])
        if trial % 5 == 0:
            content = content[: numbers.randrange(1, len(content))]
        path.write_bytes(numbers.randbytes(500) if trial % 7 == 0 else content)
        source = build_source(source_name, **options, skip_bad=trial % 2 == 0)
        try:
            assert all(problem.startswith("data.") for problem in source.check([split]))
            seen["rows"] += bool(list(source.rows(split)))
        except ValueError as error:
            assert str(path) in str(error) and (str(error).count("\n") <= 1 or name.endswith(".json"))
            seen["errors"] += 1
    assert seen["errors"] > 10 and (seen["rows"] or "gz" in name)


def test_a_damaged_parquet_file_of_a_folder_is_an_error_that_names_the_folder(tmp_path):
    path, numbers, errors = tmp_path / "train.parquet", random.Random(0), 0
    table = pa.table({"article": ["some words"] * 99, "title": ["more"] * 99})
    for metadata in ("5", '{"info": 5}', '{"info": {"features": 5}}', "{"):
        parquet.write_table(table.replace_schema_metadata({"huggingface": metadata}), path)
        with pytest.raises(ValueError, match=f"^data.path={tmp_path}"):
            list(build_source("hub_pairs", path=str(tmp_path)).rows("train"))
    parquet.write_table(table, path)
    good = path.read_bytes()
    for _ in range(20):
        content = bytearray(good)
        for _ in range(5):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
        path.write_bytes(content)
        try:
            list(build_source("hub_pairs", path=str(tmp_path)).rows("train"))
        except ValueError as error:
            assert str(error).startswith(f"data.path={tmp_path}")
            errors += 1
    assert errors > 10


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_features_are_errors_that_name_image_and_file(tmp_path, compressed):
    numbers, save = random.Random(0), np.savez_compressed if compressed else np.savez
    path = tmp_path / "1.npz"
    save(path, x=np.ones((4, 6), np.float32), bbox=np.full((4, 4), 0.5, np.float32))
    good = path.read_bytes()
    views = FeatureFiles([tmp_path], 9)
    errors = 0
    for _ in range(300):
        content = bytearray(good)
        for _ in range(numbers.choice([1, 5])):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
        path.write_bytes(content[: numbers.randrange(1, len(content))] if numbers.random() < 0.3 else content)
        try:
            views.read(["1"])
        except ValueError as error:
            assert f"{path}: image 1: " in str(error)
            errors += 1
    assert errors > 100
