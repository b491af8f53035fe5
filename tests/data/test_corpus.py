"""From a source to token ids: what is kept and counted, and a cache that is right, whole and bounded in memory."""

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import build_source, tokenizer_settings
from marks import few

from attnorm.data import arrow as tables
from attnorm.data import describe, prepare
from attnorm.data.cache import cached
from attnorm.data.cleaning import clean
from attnorm.data.sources.base import PAIRS, Source
from attnorm.data.tokenizers.sentencepiece import SentencePiece
from attnorm.tasks.pairs import PairFeaturizer

REUTERS = Path(__file__).parents[3] / "shared/data/headlines/reuters"
WORDS = ["The", "U.S.", "grew", "3.5", "%", "in", "1986", ",", "officials", "said", "Tuesday", "."]
TRAIN = [(" ".join(WORDS[i % 5 :] * (1 + i % 3)), " ".join(WORDS[: 2 + i % 4])) for i in range(50)]
TRAIN[7], TRAIN[9] = ("  ", "no article"), ("no title", "\u2028")
WORDS_OF_PAIRS = ("article", "title")


def featurizer(max_source, max_target):
    return PairFeaturizer(max_source, max_target, PAIRS, ("articles", "headlines"))


SETTINGS = tokenizer_settings("sentencepiece", model_type="bpe", vocab_size=60)


class Rows(Source):
    """Rows from a list, which counts how often they are read."""

    splits = ("train", "validation", "test")

    def __init__(self, **splits):
        self.lists = {"train": TRAIN, "validation": TRAIN[:12], "test": TRAIN[:5]} | splits
        self.read = Counter()

    def check(self, splits=("train", "validation")):
        return [f"data.{split}=null: not there" for split in splits if self.lists[split] is None]

    def fingerprint(self, split):
        return repr(self.lists[split])

    def rows(self, split):
        self.read[split] += 1
        yield from self.lists[split]


@pytest.fixture
def make(tmp_path):
    def make(source=None, tokenizer=SETTINGS, **options):
        limits = {"max_source": 30, "max_target": 9}
        layout = featurizer(**{name: options.pop(name, limit) for name, limit in limits.items()})
        defaults = {"lowercase": True, "digits": True, "max_rows": {}, "cache_dir": tmp_path / "cache"}
        return prepare(source or Rows(), tokenizer, layout, **(defaults | options))

    return make


def kept(rows):
    cleaned = [tuple(clean(text, lowercase=True, digits=True) for text in row) for row in rows]
    return [row for row in cleaned if all(row)]


def test_rows_are_cleaned_tokenized_and_cut(make):
    splits = make()
    assert list(splits) == ["train", "validation"]
    train, expected = splits["train"], kept(TRAIN)
    assert train.name == "train" and len(train) == len(train.rows) == len(train.texts) == len(expected) == 48
    for i, texts in enumerate(expected):
        row, cleaned = train.rows[i], train.texts[i]
        assert (cleaned["article"], cleaned["title"]) == texts
        source, target = (train.tokenizer.encode([text])[0] for text in texts)
        assert (row["source"], row["target"]) == (source[:29], target[:8])


def test_counts_and_lengths_agree_with_the_rows(make):
    for split in make().values():
        encoded = [split.tokenizer.encode(texts) for texts in zip(*kept(Rows().lists[split.name]), strict=True)]
        cut = [sum(len(ids) > limit for ids in side) for side, limit in zip(encoded, (29, 8), strict=True)]
        assert all(cut)
        rows = len(Rows().lists[split.name])
        letters = sum(len("".join(text.split())) for side in split.texts.to_dict().values() for text in side)
        assert split.counts == {
            "read": rows, "empty": 2, "kept": rows - 2, "truncated_source": cut[0], "truncated_target": cut[1],
            "unknown_characters": 0, "characters": letters,
        }  # fmt: skip
        assert split.lengths.dtype == np.int32
        assert split.lengths.tolist() == [[len(r["source"]) + 1, len(r["target"]) + 1] for r in split.rows]
        assert (split.weights == split.lengths[:, 1]).all()
        assert (split.lengths.max(axis=0) == (30, 9)).all()


def test_lengths_and_rows_agree_across_arrow_batches(make, monkeypatch):
    whole = make(splits=["train"])["train"]
    monkeypatch.setattr(tables, "BATCH", 7)
    parts = make(splits=["train"], max_source=29)["train"]  # other tokens, the same rows
    again = make(splits=["train"], source=Rows(train=[*TRAIN, ("", "")]), tokenizer=whole.tokenizer)["train"]
    assert again.rows[:] == whole.rows[:] and again.texts[:] == whole.texts[:]
    assert (again.lengths == whole.lengths).all() and (parts.lengths[:, 1] == whole.lengths[:, 1]).all()


def test_describe_is_one_line_a_split(make):
    splits = make()
    counts = splits["train"].counts
    lines = describe(splits, featurizer(30, 9)).splitlines()
    assert lines[0] == (
        f"train 48 pairs (2 empty skipped, {counts['truncated_source']} articles "
        f"and {counts['truncated_target']} headlines truncated)"
    )
    assert lines[1].startswith("validation 10 pairs (2 empty")


def test_max_rows_takes_the_first_kept_pairs_and_reads_no_further(make):
    source = Rows(train=itertools.chain(TRAIN[:11], [pytest.fail]))  # what is not a pair must not be reached
    source.fingerprint = lambda split: split
    train = make(source, max_rows={"train": 9}, splits=["train"])["train"]
    assert train.texts["article"][:] == [article for article, _ in kept(TRAIN)[:9]]
    assert train.counts["read"] == 11 and train.counts["kept"] == 9
    assert len(make(max_rows={"train": 1000, "validation": None})["train"]) == 48


def test_the_second_time_nothing_is_read(make, monkeypatch):
    source = Rows()
    first = make(source)
    assert source.read == {"train": 1, "validation": 1}  # training the tokenizer did not read the text again
    monkeypatch.setattr(Rows, "rows", lambda self, split: pytest.fail("read again"))
    monkeypatch.setattr(tables, "write_tokens", lambda *_, **__: pytest.fail("tokenized again"))
    monkeypatch.setattr(SentencePiece, "train", lambda *_, **__: pytest.fail("trained again"))
    second = make()
    for name in first:
        assert second[name].rows[:] == first[name].rows[:] and second[name].counts == first[name].counts


@pytest.mark.parametrize(
    ("changed", "read", "tokens"),
    [
        ({"lowercase": False}, {"train", "validation"}, {"train", "validation"}),
        ({"digits": False}, {"train", "validation"}, {"train", "validation"}),
        ({"source": Rows(validation=TRAIN[:11])}, {"validation"}, {"validation"}),
        ({"source": Rows(train=TRAIN[:5])}, {"train"}, {"train", "validation"}),  # another tokenizer, too
        ({"max_rows": {"validation": 3}}, {"validation"}, {"validation"}),
        ({"max_source": 29}, set(), {"train", "validation"}),
        ({"max_target": 8}, set(), {"train", "validation"}),
        ({"tokenizer": SETTINGS | {"vocab_size": 50}}, set(), {"train", "validation"}),
        ({"tokenizer": SETTINGS | {"sample": 20}}, set(), {"train", "validation"}),
        ({"splits": ["train", "validation", "test"]}, {"test"}, {"test"}),
    ],
)
def test_a_change_rebuilds_what_depends_on_it_and_no_more(make, monkeypatch, changed, read, tokens):
    make()
    source = changed.get("source") or Rows()
    source.read.clear()
    written, write = [], tables.write_tokens
    monkeypatch.setattr(tables, "write_tokens", lambda *a, **k: written.append(k["what"]) or write(*a, **k))
    make(**(changed | {"source": source}))
    assert set(source.read) == read
    assert {what.removeprefix("tokenizing ") for what in written} == tokens


def test_a_loaded_tokenizer_or_the_vocabulary_of_one_needs_no_train_split(make, tmp_path):
    tokenizer = make()["train"].tokenizer
    source = Rows(train=None)
    test = make(source, tokenizer, splits=["test"])
    assert list(test) == ["test"] and len(test["test"]) == 5 and test["test"].tokenizer is tokenizer
    with pytest.raises(ValueError, match=r"data.train=null: not there"):
        make(source, splits=["test"])  # settings: it would have to be trained
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", *"us.#%,"]))
    settings = tokenizer_settings("wordpiece", file=str(tmp_path / "vocab.txt"))
    split = make(source, settings, splits=["validation"])["validation"]
    assert split.rows[0]["source"][:5] == split.tokenizer.encode(["the u.s."])[0]


def test_all_problems_are_named_at_once(make):
    with pytest.raises(ValueError) as error:
        make(Rows(validation=None), SETTINGS | {"vocab_size": "x"}, max_rows={"train": 0})
    keys = {line.split("=")[0] for line in str(error.value).splitlines()}
    assert keys == {"data.validation", "tokenizer.vocab_size", "data.max_train"}
    with pytest.raises(ValueError, match=r"tokenizer\._target_: is not set"):
        make(tokenizer={})


def test_a_split_without_a_usable_pair_is_refused_every_time(make, tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"the validation split has no pair .*: 2 read, 2 of them empty"):
            make(Rows(validation=[("", "x"), ("x", " ")]))


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(folder):
        (folder / "half").write_text("made")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        cached(tmp_path / "it", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["it.lock"]


@pytest.mark.slow
def test_a_killed_build_is_made_again(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from attnorm.data.cache import cached\n"
        "def build(folder):\n"
        "    (folder / 'half').touch(); print('building', flush=True); time.sleep(60)\n"
        f"cached(Path({str(tmp_path / 'it')!r}), build)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"building\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "it").exists() and (tmp_path / "it.part/half").exists()
    cached(tmp_path / "it", lambda folder: (folder / "whole").touch())
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["it", "it.lock", "it/manifest.json", "it/whole"]


def _build_slowly(folder, builds):
    def build(aside):
        with builds.get_lock():
            builds.value += 1
        time.sleep(0.2)
        (aside / "pid").write_text(str(os.getpid()))

    cached(folder, build)
    assert (folder / "pid").exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_of_processes_that_find_nothing_or_the_same_damage_one_builds(tmp_path, damaged):
    if damaged:
        cached(tmp_path / "it", lambda folder: (folder / "pid").write_text("of an earlier process"))
        harm(tmp_path / "it/pid", "truncated")
    context = multiprocessing.get_context("fork")
    builds = context.Value("i", 0)
    processes = [context.Process(target=_build_slowly, args=(tmp_path / "it", builds)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0] and builds.value == 1


def truncated(content):
    return content[: len(content) // 2]


def flipped(content):
    return content[:-9] + bytes([content[-9] ^ 16]) + content[-8:]


HARM = {"truncated": truncated, "flipped": flipped, "empty": lambda _: b"", "other": lambda _: b"\0{", "deleted": None}


def harm(file, how):
    """Damages a file, or deletes it."""
    if HARM[how] is None:
        file.unlink()
    else:
        file.write_bytes(HARM[how](file.read_bytes()))


@pytest.mark.long
@pytest.mark.parametrize("how", few(HARM, [*HARM][:2]))
def test_a_damaged_file_of_the_cache_is_noticed_and_its_folder_built_again(make, tmp_path, caplog, how):
    whole = make()
    contents = {name: (split.rows[:], split.texts[:], split.counts) for name, split in whole.items()}
    paths = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock")
    assert {path.name for path in paths} == {"table.arrow", "counts.json", "sentencepiece.model", "manifest.json"}
    for path in paths:
        caplog.clear()
        before = path.read_bytes()
        harm(path, how)
        again = make()
        assert {name: (split.rows[:], split.texts[:], split.counts) for name, split in again.items()} == contents
        [message] = caplog.messages
        assert message.startswith(f"the cached {path.parent} is damaged (") and message.endswith("; building it again")
        assert path.read_bytes() == before
        make()
        assert len(caplog.messages) == 1  # only once


def test_a_missing_or_replaced_folder_of_the_cache_is_built_again(make, tmp_path):
    whole = make()
    for folder in [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
        folder.write_text("a file")
        assert make()["train"].rows[:] == whole["train"].rows[:]


def test_an_entry_that_another_user_keeps_to_himself_is_built_beside_it():
    """Root may read everything, so these tests act as another user then."""
    shared, other = Path(tempfile.mkdtemp()), os.geteuid() == 0
    shared.chmod(0o777)
    made = cached(shared / "entry", lambda folder: (folder / "file").write_text("of a colleague"))
    for path in (made, shared / "entry.lock"):
        path.chmod(0)
    if other:
        os.seteuid(65534)
    try:
        mine = cached(shared / "entry", lambda folder: (folder / "file").write_text("mine"))
        assert mine.name == "entry" and mine.parent.parent == shared and (mine / "file").read_text() == "mine"
        assert cached(shared / "entry", lambda folder: 1 / 0) == mine
    finally:
        if other:
            os.seteuid(0)
        made.chmod(0o700)
        shutil.rmtree(shared)


def test_a_build_that_fails_leaves_the_damaged_folder_to_the_next_one(tmp_path):
    cached(tmp_path / "it", lambda folder: (folder / "file").write_text("content"))
    harm(tmp_path / "it/file", "empty")
    with pytest.raises(ZeroDivisionError):
        cached(tmp_path / "it", lambda folder: 1 / 0)
    cached(tmp_path / "it", lambda folder: (folder / "file").write_text("content"))
    assert (tmp_path / "it/file").read_text() == "content"


@pytest.mark.parametrize("how", HARM)
def test_damaged_views_are_made_again(tmp_path, how):
    source = build_source("scenes", train_size=8)
    images = ["train-0", "train-1"]
    expected = source.views("train", tmp_path).read(images)
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert len(paths) == 11  # three arrays of each of three views, what they are, the manifest
    for path in paths[:: 2 if how == "flipped" else 5]:
        harm(path, how)
        for view, wanted in zip(source.views("train", tmp_path).read(images), expected, strict=True):
            assert all(torch.equal(*pair) for pair in zip(view, wanted, strict=True))


def test_the_sample_is_drawn_from_the_whole_split(make, tmp_path):
    rows = [(f"a{i}", f"t{i}") for i in range(10_000)]
    tables.write_rows(iter(rows), tmp_path, row_schema=PAIRS, lowercase=False, digits=False, limit=None, what="")
    sample = list(tables.sample_sentences(tmp_path, WORDS_OF_PAIRS, 2000))
    assert len(set(sample)) == 2000 and sample == list(tables.sample_sentences(tmp_path, WORDS_OF_PAIRS, 2000))
    places = np.array([int(sentence[1:]) for sentence in sample])
    assert (np.histogram(places, bins=10, range=(0, 10_000))[0] > 150).all()
    assert 900 < sum(sentence[0] == "t" for sentence in sample) < 1100
    for count in (None, 20_000, 10**9):
        assert sorted(tables.sample_sentences(tmp_path, WORDS_OF_PAIRS, count)) == sorted(itertools.chain(*rows))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    code = (
        "import datasets, sys\n"
        "from pathlib import Path\n"
        "from attnorm.data import arrow as tables\n"
        "from attnorm.tasks.pairs import PairFeaturizer\n"
        "from attnorm.data.sources.base import PAIRS\n"
        "from attnorm.data.tokenizers.sentencepiece import SentencePiece\n"
        "def anonymous():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith('RssAnon'))\n"
        "tokenizer = SentencePiece.train(['the word'], model_type='bpe', vocab_size=20)\n"
        "peaks = []\n"
        "def rows(count):\n"
        "    for i in range(count):\n"
        "        if i % 1000 == 0: peaks.append(anonymous())\n"
        "        yield 'the word ' * 40, 'the word'\n"
        "folder = Path(sys.argv[1])\n"
        "def build(count):\n"
        "    (folder / f'{count}').mkdir(); (folder / f't{count}').mkdir(); peaks.clear()\n"
        "    tables.write_rows(rows(count), folder / f'{count}', row_schema=PAIRS, lowercase=True, digits=True,\n"
        "                      limit=None, what='')\n"
        "    write = tables.write_tokens\n"
        "    featurizer = PairFeaturizer(100, 9, PAIRS, ('articles', 'headlines'))\n"
        "    write(folder / f'{count}', folder / f't{count}', tokenizer, featurizer, what='')\n"
        "    return max([*peaks, anonymous()])\n"
        "build(10_000); small = build(11_000); print(build(110_000) - small)\n"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("reads the process's memory from /proc")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20, "MB; 100,000 more rows are 33 MB of text"


def test_building_prints_nothing_where_there_is_no_terminal(make, capfd):
    make()
    assert capfd.readouterr() == ("", "")
    assert tables.progress([1], "reading").disable  # not only because it was quick


@pytest.mark.slow
def test_the_real_headlines(make):
    if not REUTERS.is_dir():
        pytest.skip("no ../shared/data/headlines/reuters beside the repository")
    settings = SETTINGS | {"vocab_size": 2000}
    splits = make(build_source("gigaword", dir=str(REUTERS)), settings, max_source=100, max_target=50)
    assert [split.counts["read"] for split in splits.values()] == [11_022, 1_000]
    train = splits["train"]
    assert train.texts[0]["title"] == "bahia cocoa review" == train.tokenizer.decode(train.rows[0]["target"])
