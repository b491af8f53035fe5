"""Sources: what they give, and that whatever is wrong is named by key, file and line."""

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from builders import build_source, write, write_table
from pyarrow import parquet

from attnorm.choices import choices
from attnorm.config.names import OF_DATA
from attnorm.data.sources import newswire as builtin
from attnorm.data.sources.base import Source
from attnorm.data.sources.gigaword import FILES, Gigaword
from attnorm.errors import ConfigError
from attnorm.parts import RESERVED, class_of
from attnorm.schema import parameters, read_options

ROOT = Path(__file__).parents[2]
REUTERS = ROOT.parent / "shared/data/headlines/reuters"
ROWS = [("a b .", "A"), ('he said "no", twice', "No's"), ("", "empty"), ('"no" , he said', "x")]
ROWS += [("caf\u00e9\x85 x\u2028y", "\u00fc")]


def rush(folder: Path, rows=ROWS, split: str = "train", ending: str = ""):
    for name, column in zip(FILES[split], zip(*rows, strict=True), strict=True):
        write(folder / f"{name}{ending}", "".join(f"{text}\n" for text in column))
    return build_source("gigaword", dir=str(folder))


def source_of(settings: dict) -> Source:
    """The source that the group `data` names."""
    cls = class_of("data", settings, Source)
    return cls(**read_options("data", cls, settings, elsewhere=(*RESERVED, *OF_DATA)))


def test_an_unknown_class_or_option_lists_the_allowed_and_the_nearest():
    with pytest.raises(
        ConfigError, match=r"data._target_=attnorm\S*Gigawort: .* has no Gigawort\. Did you mean 'Gigaword'\?"
    ):
        source_of({"_target_": "attnorm.data.sources.gigaword.Gigawort"})
    with pytest.raises(ConfigError, match=r"data.tittle=x: PairFiles has no such.*Did you mean 'title'\?") as error:
        source_of({"_target_": "attnorm.data.sources.pair_files.PairFiles", "tittle": "x"})
    assert "data.train: must be given" in str(error.value)  # both problems at once


@pytest.mark.parametrize("path", ["attnorm.data.sources.gigaword.Gigaword", "attnorm.data.sources.gigaword:Gigaword"])
def test_a_source_is_named_by_its_path(path):
    shared = {"lowercase": True, "batch_tokens": 9}  # keys of `data` that are not for the source
    source = source_of({"_target_": path, "dir": "x", **shared})
    assert isinstance(source, Gigaword) and source.dir == "x"


def test_a_path_that_is_no_source_is_refused():
    with pytest.raises(ConfigError, match=r"data._target_=no\.such\.Thing: cannot import no\.such"):
        source_of({"_target_": "no.such.Thing"})
    with pytest.raises(ConfigError, match=r"must be a subclass of attnorm\.data\.sources\.base\.Source"):
        source_of({"_target_": "attnorm.data.tokenizers.wordpiece.WordPiece"})


@pytest.mark.parametrize("name", [name for name, settings in choices("data").items() if "_target_" in settings])
def test_each_yaml_holds_the_options_of_its_source_and_their_defaults(name):
    written = yaml.safe_load((ROOT / f"conf/data/{name}.yaml").read_text())
    shared, _ = written.pop("defaults")
    for base in ("base", "cleaned"):  # a source may change what it shares with others
        for key in yaml.safe_load((ROOT / f"conf/data/{base}.yaml").read_text()):
            assert written.pop(key, None) is None or base == "base" or shared == "cleaned"
    known = parameters(class_of("data", written, Source))
    written.pop("_target_")
    assert sorted(written) == sorted(known)
    for option, parameter in known.items():
        if written[option] != "???":
            default = parameter.default
            assert written[option] == (list(default) if isinstance(default, tuple) else default)


def test_newswire_gives_as_many_pairs_as_asked_and_its_fingerprint_follows_parameters_and_generator(monkeypatch):
    def fingerprint(**options):
        return build_source("newswire", **{"train_size": 300, **options}).fingerprint("train")

    plain = fingerprint()
    assert plain == fingerprint(valid_size=7)
    assert plain not in (fingerprint(train_size=301), fingerprint(corpus_seed=1), fingerprint(difficulty="easy"))
    monkeypatch.setattr(
        builtin.newswire, "pair", lambda split, index, seed, level: (f"{split} {index}", f"{seed} {level}")
    )
    assert plain != fingerprint()
    source = build_source("newswire", train_size=3, valid_size=2, corpus_seed=7)
    assert list(source.rows("train")) == [(f"train {number}", "7 hard") for number in range(3)]
    assert list(build_source("newswire", test_size=1, difficulty="easy").rows("test")) == [("test 0", "0 easy")]
    assert len(list(source.rows("validation"))) == 2 and source.check() == []


WRONG = [
    ("newswire", {"train_size": 0}, "data.train_size=0: allowed: whole numbers from 1"),
    ("newswire_text", {"valid_size": True}, "data.valid_size=true: allowed: whole numbers from 1"),
    ("phrases", {"test_size": "x"}, "data.test_size=x: allowed: whole numbers from 1"),
    ("scenes", {"corpus_seed": -1}, "data.corpus_seed=-1: allowed: whole numbers from 0"),
    ("scenes_captions", {"side": 8}, "data.side=8: allowed: whole numbers from 16"),
    ("newswire", {"difficulty": "medium"}, "data.difficulty=medium: allowed: easy, hard"),
    ("chronicles", {"words": 0}, "data.words=0: allowed: whole numbers from 1"),
    ("digits", {"validation": 2}, "data.validation=2: allowed: numbers from 0 and below 1"),
    ("folders", {"folder": "x", "words": 0}, "data.words=0: allowed: whole numbers from 1"),
    ("text", {"files": "x", "document": "page"}, "data.document=page: allowed: line, paragraph, file"),
    ("text", {"files": ["x", 3]}, "data.files=[x,3]: allowed: text that is not empty or a list of"),
    ("text", {"files": "x", "holdout": 1}, "data.holdout=1: allowed: numbers from 0 and below 1"),
    ("pair_files", {"train": "x", "holdout": "a"}, "data.holdout=a: allowed: numbers from 0 and below 1"),
    ("pair_files", {"train": "x", "article": -1}, "data.article=-1: allowed: text that is not empty or whole"),
    ("labelled", {"train": "x", "labels": ["a", "b"], "text": ""}, "data.text=: allowed: text that is not empty or"),
    ("labelled", {"train": "x", "labels": [0, 1]}, "data.labels=[0,1]: allowed: the list of the labels' names"),
    ("hub_pairs", {"path": ""}, "data.path=: allowed: text that is not empty"),
    ("text_hub", {"path": "x", "column": None}, "data.column=null: allowed: text that is not empty"),
    ("vqa_v2", {"train_questions": "q", "train_annotations": "a", "features": "a.h5"}, "a list of paths, one per view"),
    ("caption_files", {"train": "x", "max_boxes": 0}, "data.max_boxes=0: allowed: whole numbers from 1"),
    ("parallel_files", {"dir": "x", "source_language": "a/b", "target_language": "c"}, "part of a file's name, such"),
    *(
        (name, {needed: "x", "skip_bad": "yes"}, "data.skip_bad=yes: allowed: true, false")
        for name, needed in {"gigaword": "dir", "squad": "train", "pair_files": "train", "hub_pairs": "path"}.items()
    ),
]


def test_each_source_has_a_page_and_is_given_a_wrong_option_here():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    sources = {name: it for name, it in choices("data").items() if "_target_" in it}
    named = {name for name in sources if re.search(rf"(data|task)={name}\b|^\| `{name}`", pages, re.M)}
    without = [f"no page of docs/ has data={name}" for name in sources.keys() - named]
    with_options = {name for name, it in sources.items() if parameters(class_of("data", it, Source))}
    without += [f"no row of WRONG is about {name}" for name in with_options - {name for name, *_ in WRONG}]
    assert len(sources) > 15 and not without, without


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_options_are_what_their_annotations_allow(name, options, message):
    with pytest.raises(ConfigError) as error:
        build_source(name, **options)
    assert message in str(error.value)


def test_all_wrong_options_are_named_together():
    with pytest.raises(ConfigError) as error:
        build_source("newswire", train_size=0, valid_size=True, corpus_seed=-1, test_size=3)
    assert sorted(problem.split("=")[0] for problem in error.value.problems) == [
        *("data.corpus_seed", "data.train_size", "data.valid_size")
    ]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_rush_pairs_line_with_line_and_splits_at_newlines_only(tmp_path, ending):
    assert list(rush(tmp_path, ending=ending).rows("train")) == ROWS


def test_rush_prefers_the_plain_file_and_accepts_a_last_line_without_newline(tmp_path):
    source = rush(tmp_path, [("old", "old")], ending=".gz")
    write(tmp_path / "train.article.txt", "\ufeffone\r\ntwo")
    write(tmp_path / "train.title.txt", "1\n2\n")
    assert list(source.rows("train")) == [("one", "1"), ("two", "2")]


def test_rush_test_files_are_optional(tmp_path):
    source = rush(tmp_path)
    rush(tmp_path, split="validation")
    assert source.check() == []
    problems = source.check(["test"])
    assert len(problems) == 2 and all(p.startswith(f"data.dir={tmp_path}: no such file") for p in problems)


def test_the_word_unk_of_the_published_test_files_is_read_as_in_train(tmp_path):
    source = rush(tmp_path)
    texts = {"UNK of UNKNOWN": "<unk> of UNKNOWN", "the UNK": "the <unk>", "a UNK.": "a UNK."}
    assert [source.clean(text, "article") for text in texts] == [*texts.values()]


def test_rush_check_names_all_missing_and_empty_files(tmp_path):
    write(tmp_path / "train.title.txt", "")
    problems = "\n".join(build_source("gigaword", dir=str(tmp_path)).check())
    for name in ("train.article.txt", "valid.article.filter.txt", "valid.title.filter.txt"):
        assert f"no such file: {tmp_path / name}" in problems
    assert f"the file is empty: {tmp_path / 'train.title.txt'}" in problems
    assert build_source("gigaword", dir=str(tmp_path / "no")).check() == [f"data.dir={tmp_path / 'no'}: no such folder"]


def test_rush_files_of_different_length_are_refused_before_the_first_row(tmp_path):
    source = rush(tmp_path)
    write(tmp_path / "train.title.txt", "one\n" * 1234)
    with pytest.raises(ValueError, match=r"train.article.txt has 5 lines but train.title.txt has 1,234"):
        next(source.rows("train"))


def test_damage_after_good_lines_is_located(tmp_path):
    content = gzip.compress(b"".join(b'{"text": "%d", "head": "b"}\n' % i for i in range(9999)))
    (tmp_path / "x.jsonl.gz").write_bytes(content[:-2000])
    with pytest.raises(ValueError, match=r"x.jsonl.gz:\d{4}: damaged compressed"):
        list(pairs(str(tmp_path / "x.jsonl.gz")).rows("train"))


def test_rush_fingerprint_is_of_contents_not_of_place(tmp_path):
    (tmp_path / "copy").mkdir()
    first, second = rush(tmp_path).fingerprint("train"), rush(tmp_path / "copy")
    assert first == second.fingerprint("train")
    write(tmp_path / "copy/train.title.txt", "A\nNo's\nempty\nx\nu\n")
    assert first != second.fingerprint("train")


def test_rush_reads_the_real_files():
    if not REUTERS.is_dir():
        pytest.skip("no ../shared/data/headlines/reuters beside the repository")
    source = build_source("gigaword", dir=str(REUTERS))
    assert source.check() == []
    rows = list(source.rows("train"))
    assert len(rows) == 11_022 and rows[0][1] == "BAHIA COCOA REVIEW"


def table_file(path: Path, rows, columns=("id", "text", "head")) -> str:
    """The rows with a column of numbers before them."""
    return write_table(path, [(number, *row) for number, row in enumerate(rows)], columns)


def pairs(path: str | None, **options):
    return build_source("pair_files", **{"train": path, "article": "text", "title": "head", **options})


@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz", "csv", "csv.gz", "tsv", "tsv.gz", "parquet"])
def test_pairs_reads_every_format(tmp_path, ending):
    source = pairs(table_file(tmp_path / f"x.{ending}", ROWS))
    assert source.check(["train"]) == []
    assert list(source.rows("train")) == ROWS


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_pairs_names_the_columns_that_there_are(tmp_path, ending):
    source = pairs(table_file(tmp_path / f"x.{ending}", ROWS), title="haed")
    with pytest.raises(
        ValueError, match=r"data.title=haed: no such column; allowed: head, id, text\. Did you mean 'head'\?"
    ):
        list(source.rows("train"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"text": "a", "head": "b"}\n\n{"text": \n', r"x.jsonl:3: not JSON"),
        ("x.json", '[\n{"text": "a"}]\n', r"x.json: this file is a JSON list; expected a JSON object on each line$"),
        ("x.json", '"a"\n', r"x.json:1: expected a JSON object on each line, got str$"),
        ("x.json", '{"article": "a", "title": "b"}\n', r"x.json:1: data.article=text: no such column; .* title\.$"),
        ("x.csv", "text;head\na;b\n", r"x.csv:1: the only column is 'text;head'; the columns of a .csv .* commas"),
        ("x.jsonl", '{"text": "\\ud83d", "head": "b"}\n', r"x.jsonl:1: text holds half of a surrogate"),
        ("x.csv", "text,head\na,b, c\n", r"x.csv:2: 3 fields, but the header has 2"),
        ("x.tsv", "text\thead\na\n", r"x.tsv:2: 1 fields"),
        ("x.parquet", "no", r"x.parquet: cannot be read as parquet"),
    ],
)
def test_pairs_locates_what_is_wrong(tmp_path, name, content, message):
    source = pairs(write(tmp_path / name, content))
    with pytest.raises(ValueError, match=message):
        list(source.rows("train"))


def test_pairs_null_is_empty_and_a_quoted_field_may_span_lines(tmp_path):
    assert list(pairs(write(tmp_path / "x.jsonl", '{"text": null, "head": "b"}\n')).rows("train")) == [("", "b")]
    assert list(pairs(write(tmp_path / "x.csv", 'text,head\n"a\nb",c\n')).rows("train")) == [("a\nb", "c")]
    same = table_file(tmp_path / "x.parquet", [(None, "b")])
    assert list(pairs(same).rows("train")) == [("", "b")]
    assert list(pairs(same, article="head").rows("train")) == [("b", "b")]
    parquet.write_table(pa.table({"text": [None] * 70_000 + [1], "head": ["b"] * 70_001}), same)
    with pytest.raises(ValueError, match=r"x.parquet: row 70001: text is 1, not text"):
        list(pairs(same).rows("train"))


def test_pairs_check_names_every_problem(tmp_path):
    path = write(tmp_path / "x.xlsx", "x")
    source = pairs(path, validation="missing.csv", article="a", title=3)
    problems = source.check(["train", "validation", "test"])
    keys = [problem.split("=")[0].removeprefix("data.") for problem in problems]
    assert keys == ["title", "train", "validation", "test"]
    assert "unknown format" in problems[1] and "no such file" in problems[2] and "data.test=null" in problems[3]
    assert source.splits == ("train", "validation")


def test_pairs_fingerprint_follows_contents_and_columns(tmp_path):
    path = table_file(tmp_path / "x.csv", ROWS)
    first = pairs(path).fingerprint("train")
    assert first == pairs(path).fingerprint("train") != pairs(path, title="text").fingerprint("train")
    table_file(tmp_path / "x.csv", ROWS[:3])
    assert first != pairs(path).fingerprint("train")


@pytest.fixture
def hub_folder(tmp_path):
    for name, rows in (("train-00000-of-00002", ROWS[:2]), ("train-00001-of-00002", ROWS[2:]), ("test", ROWS[:1])):
        table_file(tmp_path / f"{name}.parquet", rows)
    return tmp_path


def hub(folder: Path, **options):
    return build_source("hub_pairs", **{"path": str(folder), "article": "text", "title": "head", **options})


def test_hub_reads_a_local_folder_of_parquet_files(hub_folder):
    source = hub(hub_folder)
    assert source.check() == []
    assert list(source.rows("train")) == ROWS
    assert list(source.rows("test")) == ROWS[:1]
    first = source.fingerprint("train")
    assert first == hub(hub_folder).fingerprint("train") != hub(hub_folder, title="id").fingerprint("train")
    table_file(hub_folder / "train-00001-of-00002.parquet", ROWS[:1])
    assert first != source.fingerprint("train")


@pytest.mark.parametrize("single", [True, False])
def test_hub_reads_what_save_to_disk_has_written(tmp_path, single):
    import datasets

    def saved(rows, folder, **options):
        data = datasets.Dataset.from_list([{"text": article, "head": title, "id": 1} for article, title in rows])
        whole = data if single else datasets.DatasetDict({"train": data, "dev": data.select([0])})
        whole.save_to_disk(tmp_path / folder, num_shards=2 if single else {"train": 2, "dev": 1})
        return hub(tmp_path / folder, **options)

    source = saved(ROWS, "with [a] pattern", valid_split="dev")
    assert source.check() == [] and list(source.rows("train")) == ROWS
    if single:
        with pytest.raises(ValueError, match=r"data.valid_split=dev: no such split; allowed: train"):
            list(source.rows("validation"))
    else:
        assert list(source.rows("validation")) == ROWS[:1]
    assert source.fingerprint("train") == saved(ROWS, "again", valid_split="dev").fingerprint("train")
    assert source.fingerprint("train") != saved(ROWS[1:], "other").fingerprint("train")
    with pytest.raises(ValueError, match=r"data.title=title: no such column; allowed: head, id, text"):
        list(hub(tmp_path / "again", title="title").rows("train"))


def test_hub_names_what_is_not_there(hub_folder, tmp_path):
    with pytest.raises(ValueError, match=r"data.article=document: no such column; .*head, id, text"):
        list(hub(hub_folder, article="document").rows("train"))
    with pytest.raises(ValueError, match=r"data.valid_split=dev: .*train"):
        list(hub(hub_folder, valid_split="dev").rows("validation"))
    with pytest.raises(ValueError, match=r"train row 1: id is 0, not text"):
        list(hub(hub_folder, title="id").rows("train"))
    (tmp_path / "none").mkdir()
    assert "no parquet file" in hub(tmp_path / "none").check()[0]
    assert "no such folder" in hub(tmp_path / "absent").check()[0]
    pattern = hub_folder.rename(hub_folder.parent / "hub[1]")  # the library would read a folder hub1
    assert "takes *, ? and [ in the path of a folder for a pattern; rename it" in hub(pattern).check()[0]
    assert hub(pattern.rename(hub_folder)).check() == []
    [problem] = hub(hub_folder, valid_split=None).check()
    assert problem == "data.valid_split=null: the validation split is asked for; name it"


def test_hub_without_a_network_says_so(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match=r"data.path=owner/name: the hub cannot be reached.*data=gigaword"):
        list(hub(Path("owner/name")).rows("train"))
