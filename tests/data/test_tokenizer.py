"""Cleaning and tokenizers: text comes back as it went in, and `<unk>` is one token."""

import functools
import json
import os
import pickle
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import runs
from builders import tokenizer_settings
from omegaconf import OmegaConf

from attnorm.choices import choices
from attnorm.data import check_tokenizer
from attnorm.data.cleaning import clean
from attnorm.data.tokenizers.base import tokenizer_class
from attnorm.data.tokenizers.sentencepiece import SentencePiece
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.data.tokenizers.wordpiece_trainer import pipeline
from attnorm.errors import DataError
from attnorm.parts import options_of
from attnorm.schema import parameters

ROOT = Path(__file__).parents[2]
REUTERS = ROOT.parent / "shared/data/headlines/reuters/train.article.txt"
NOUNS = ["minister", "océan", "talks", "oil", "### barrels", "u.s. troops", "-lrb- cia -rrb-", "<unk>", "日本", "½ ﬁｘ"]
VERBS = ["meet", "rises ##.# percent in", "do n't back", "leave", "say <unk>"]
SENTENCES = [f"{a} {v} the {b} ." for a in NOUNS for v in VERBS for b in NOUNS]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *"#.,'-<>$[]:/", "cafe", "the"]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request):
    return SentencePiece.train(SENTENCES, model_type=request.param, vocab_size=120)


def vocabulary(folder: Path, pieces) -> str:
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return str(folder / "vocab.txt")


@pytest.fixture
def wordpiece(tmp_path):
    return WordPiece.from_settings(file=vocabulary(tmp_path, [*SPECIAL, *PIECES, "", ""]))


@pytest.mark.parametrize(
    ("text", "lowercase", "digits", "expected"),
    [
        (" The\tU.S.\u00a0 \u2028grew 3.5%\r\n", True, True, "the u.s. grew #.#%"),
        ("The 7 Ümläuts \u0665 x\u00b2", True, True, "the # ümläuts # x\u00b2"),
        ("The  7", False, True, "The #"),
        ("The  7", True, False, "the 7"),
        (" \u2003\x85 ", True, True, ""),
    ],
)
def test_clean(text, lowercase, digits, expected):
    assert clean(text, lowercase=lowercase, digits=digits) == expected


@pytest.mark.slow
def test_cleaning_twice_is_cleaning_once_for_every_character():
    text = " ".join(f"{chr(c)}A{chr(c)}" for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    once = clean(text, lowercase=True, digits=True)
    assert clean(once, lowercase=True, digits=True) == once


def test_sentencepiece_gives_back_what_it_read(trained):
    assert [trained.decode(ids) for ids in trained.encode(SENTENCES)] == SENTENCES
    scrambled = ["".join(reversed(sentence.replace("<unk>", ""))) for sentence in SENTENCES]
    scrambled = [" ".join(text.split()) for text in scrambled]
    assert [trained.decode(ids) for ids in trained.encode(scrambled)] == scrambled
    assert trained.encode(["", "  "]) == [[], []]


def test_sentencepiece_special_ids_are_fixed_dropped_and_never_read_from_text(trained):
    assert (trained.pad_id, trained.bos_id, trained.eos_id, trained.unk_id) == (0, 1, 2, 3)
    [ids] = trained.encode(["the oil"])
    assert trained.decode([1, *ids, 2, 0, 0]) == "the oil"
    [ids] = trained.encode(["<pad> <s> </s>"])
    assert not {0, 1, 2} & set(ids)


def test_sentencepiece_literal_unk_is_one_token(trained):
    [ids] = trained.encode(["<unk>"])
    assert ids == [trained.unk_id]
    [ids] = trained.encode(["<unk> <unk> say <unk>"])
    assert ids.count(trained.unk_id) == 3
    assert trained.decode(ids) == "<unk> <unk> say <unk>"
    assert not any("unk" in piece for piece in trained._pieces[4:])  # nothing was learnt from it


UNSPELLED = ["☃", "oil☃", "☃oil", "o▁l", "▁", "▅", "o\0l", "☃☃o☃", "oil"]


@pytest.mark.parametrize("word", UNSPELLED)
def test_each_character_that_cannot_be_spelled_is_one_unk(trained, word):
    """The other characters of the word are kept, in both tokenizers."""
    for tokenizer in (trained, train(SENTENCES)):
        [ids] = tokenizer.encode([f"the {word} talks"])
        known = "".join(letter for letter in word if letter in "oil")
        unknown = len(word) - len(known)
        assert ids.count(tokenizer.unk_id) == unknown
        assert "".join(tokenizer.decode(ids).replace("<unk>", "").split()) == f"the{known}talks"
        assert tokenizer.unknown(["the talks", f"{word} <unk> {word}"]) == (2 * unknown, 8 + 2 * len(word))


@pytest.mark.parametrize("word", [word for word in UNSPELLED if "\0" not in word])  # which BERT removes
def test_a_vocabulary_of_bert_reads_a_word_as_it_does_there(word):
    """A word with an unknown character is unknown as a whole."""
    tokenizer = WordPiece(pipeline(train(SENTENCES)._tokenizer.get_vocab(), lowercase=True))
    [ids] = tokenizer.encode([f"the {word} talks"])
    assert ids.count(tokenizer.unk_id) == (word != "oil")
    assert tokenizer.decode(ids) == f"the {'oil' if word == 'oil' else '<unk>'} talks"
    assert tokenizer.unknown([word])[0] == len(word) * (word != "oil")


def test_a_rare_character_in_a_text_without_spaces_is_one_unk():
    common = "今天天气很好我们去公园玩吧"
    tokenizer = SentencePiece.train([common] * 50, model_type="unigram", vocab_size=30)
    [ids] = tokenizer.encode(["今天龘龘很好"])
    assert ids.count(tokenizer.unk_id) == 2 and tokenizer.unknown(["今天龘龘很好"]) == (2, 6)
    assert tokenizer.decode(ids).replace(" ", "") == "今天<unk><unk>很好"


def test_a_trained_wordpiece_keeps_the_vowel_signs_and_the_words_of_every_script():
    texts = ["नमस्ते दुनिया", "مرحبا بالعالم", "می\u200cخواهم", "今天天气很好", "Ελλάδα naïve", "ข่าววันนี้ดีมาก" * 10]
    tokenizer = train([text.lower() for text in texts] * 3, vocab_size=400)
    for text in texts[:5]:
        assert tokenizer.decode(tokenizer.encode([text.lower()])[0]) == text.lower()
    for text in texts:  # also words of more than a hundred characters, which are cut
        assert tokenizer.unk_id not in tokenizer.encode([text])[0]


def test_sentencepiece_word_by_word_is_the_library_on_whole_sentences(trained):
    known = [sentence for sentence in SENTENCES if "<unk>" not in sentence]
    assert trained.encode(known) == trained._processor.encode(known, out_type=int)


def test_forgetting_words_changes_nothing(trained, monkeypatch):
    monkeypatch.setattr("attnorm.data.tokenizers.base.REMEMBERED", 3)
    expected = [trained.encode([sentence])[0] for sentence in SENTENCES]
    assert trained.encode(SENTENCES) == expected


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece_training_is_deterministic(model_type):
    twice = [SentencePiece.train(iter(SENTENCES), model_type=model_type, vocab_size=90).to_bytes() for _ in range(2)]
    assert twice[0] == twice[1]


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "trained wordpiece"])
def test_saved_and_pickled_tokenizers_are_the_same(kind, trained, wordpiece, tmp_path):
    tokenizer = {"sentencepiece": trained, "wordpiece": wordpiece}.get(kind) or train()
    tokenizer.save(tmp_path / "saved")
    for copy in (type(tokenizer).load(tmp_path / "saved"), pickle.loads(pickle.dumps(tokenizer))):
        assert (type(copy), copy.mask_id) == (type(tokenizer), tokenizer.mask_id)
        assert copy.fingerprint() == tokenizer.fingerprint()
        assert copy.encode(["the [SEP] <unk> oil ##.#"]) == tokenizer.encode(["the [SEP] <unk> oil ##.#"])


def test_loading_from_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer.json: missing; it should contain the tokenizer \(WordPiece\)"):
        WordPiece.load(tmp_path)
    SentencePiece.train(SENTENCES, model_type="bpe", vocab_size=120).save(
        tmp_path
    )  # a piece that is no UTF-8 is found after the model has been read
    torn = (tmp_path / "sentencepiece.model").read_bytes().replace(b"<s>", b"<\xff>", 1)
    for content in (b"no", torn):
        (tmp_path / "sentencepiece.model").write_bytes(content)
        with pytest.raises(DataError, match=r"sentencepiece.model: not a sentencepiece model"):
            SentencePiece.load(tmp_path)
    (tmp_path / "sentencepiece.model").write_text("")
    with pytest.raises(DataError, match=r"sentencepiece.model: the file is empty"):
        SentencePiece.load(tmp_path)


def test_one_text_instead_of_a_list_is_refused(wordpiece):
    with pytest.raises(TypeError, match="list of texts"):
        wordpiece.encode("the")


@pytest.mark.parametrize(
    "text",
    [
        "the u.s. grew ##.# percent in #### , up $ #,### .",
        "he did n't win -- the vice-president 's mid-### <unk> , <unk> .",
        "the -lrb- cia -rrb- met at #:## a.m. , may ## , ####",
    ],
)
def test_wordpiece_restores_the_spacing_of_headlines(wordpiece, text):
    [ids] = wordpiece.encode([text])
    assert ids.count(wordpiece.unk_id) == text.count("<unk>")
    assert wordpiece.decode([wordpiece.bos_id, *ids, wordpiece.eos_id, wordpiece.pad_id]) == text


def test_wordpiece_special_ids_come_from_the_vocabulary_and_never_from_text(wordpiece):
    assert (wordpiece.pad_id, wordpiece.unk_id, wordpiece.bos_id, wordpiece.eos_id) == (0, 1, 2, 3)
    assert wordpiece.vocab_size == len(SPECIAL + PIECES)
    [ids] = wordpiece.encode(["a [SEP] b"])
    assert wordpiece.decode(ids) == "a [ sep ] b" and 3 not in ids
    assert wordpiece.decode(wordpiece.encode(["the ☃"])[0]) == "the <unk>"


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        (["[PAD]", "[UNK]", "a"], r"tokenizer.file=.*vocab.txt: the vocabulary does not contain \[CLS\], \[SEP\]$"),
        (["x", "a", "b", "a", "", ""], r"vocab.txt:2: 'a' is repeated in this vocabulary"),
    ],
)
def test_wordpiece_names_what_a_vocabulary_lacks_or_repeats(tmp_path, pieces, problem):
    with pytest.raises(ValueError, match=problem):
        WordPiece.from_settings(file=vocabulary(tmp_path, pieces))


def test_wordpiece_lowercases_as_the_file_or_the_option_says(tmp_path):
    def text(pieces, **options):
        tokenizer = WordPiece.from_settings(file=vocabulary(tmp_path, pieces), **options)
        return tokenizer.decode(tokenizer.encode(["The Café"])[0])

    assert text(SPECIAL + PIECES) == "the cafe"
    assert text(SPECIAL + PIECES, lowercase=False) == "<unk> <unk>"
    assert text([*SPECIAL, *PIECES, "The"]) == "The <unk>"
    assert text([*SPECIAL, *PIECES, "The"], lowercase=True) == "the cafe"


def test_wordpiece_ignores_padding_truncation_and_special_words_of_a_tokenizer_json(wordpiece, tmp_path):
    stored = json.loads(wordpiece.to_bytes())
    stored["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    stored["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    stored["added_tokens"] = [{"id": 3, "content": "[SEP]", **flags}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    read = WordPiece.from_settings(file=str(tmp_path / "tokenizer.json"))
    texts = ["the", "a b c d e f", "abcdef", "[SEP]"]
    assert read.encode(texts) == wordpiece.encode(texts)
    cased = WordPiece.from_settings(file=str(tmp_path / "tokenizer.json"), lowercase=False)
    assert cased.decode(cased.encode(["The the"])[0]) == "<unk> the"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer.file=.*tokenizer.json: not a tokenizer.json"):
        WordPiece.from_settings(file=str(tmp_path / "tokenizer.json"))


def problems_of(name, **options):
    return check_tokenizer(tokenizer_settings(name, **options))


def test_check_tokenizer_names_every_problem(tmp_path):
    path = "attnorm.data.tokenizers.wordpiece.WordPeice"
    assert "has no WordPeice. Did you mean 'WordPiece'?" in check_tokenizer({"_target_": path})[0]
    assert "Did you mean 'vocab_size'?" in problems_of("sentencepiece", vocabsize=3)[0]
    problems = problems_of("sentencepiece", model_type="unigramm", vocab_size=0, sample=1.5)
    assert problems == [
        "tokenizer.model_type=unigramm: allowed: unigram, bpe",
        "tokenizer.vocab_size=0: allowed: whole numbers from 1",
        "tokenizer.sample=1.5: allowed: whole numbers from 1 or null",
    ]
    problems = problems_of("wordpiece", file=str(tmp_path / "vocab.txt"), lowercase="yes")
    assert problems == ["tokenizer.lowercase=yes: allowed: true, false or null"]
    assert "no such file" in problems_of("wordpiece", file=str(tmp_path / "vocab.txt"))[0]
    assert "no vocab.txt or tokenizer.json in this folder" in problems_of("wordpiece", file=str(tmp_path))[0]
    assert "must be a vocab.txt or a tokenizer.json" in problems_of("wordpiece", file="vocab.bin")[0]
    assert "null trains one" in problems_of("wordpiece", file="")[0]
    assert problems_of("wordpiece", file=3) == ["tokenizer.file=3: allowed: text or null"]
    problems = problems_of("wordpiece", vocab_size=0, sample=-1, lowercase=3)
    assert [p.key for p in problems] == [f"tokenizer.{k}" for k in ("vocab_size", "sample", "lowercase")]
    assert problems_of("wordpiece") == problems_of("wordpiece", sample=None) == []
    assert problems_of("wordpiece", file=vocabulary(tmp_path, SPECIAL)) == []
    assert problems_of("sentencepiece", sample=None) == []


@pytest.mark.parametrize("name", sorted(choices("tokenizer")))
def test_each_yaml_holds_the_options_of_its_tokenizer_and_their_defaults(name):
    written = OmegaConf.to_container(OmegaConf.load(ROOT / f"conf/tokenizer/{name}.yaml"), resolve=True)
    must_be_given = ["tokenizer.file"] if name in ("gpt2", "huggingface") else []
    assert [problem.partition(":")[0] for problem in check_tokenizer(written)] == must_be_given
    defaults = {option: item.default for option, item in parameters(tokenizer_class(written).from_settings).items()}
    assert options_of(written) == {option: value for option, value in defaults.items() if option != "draw"}


@pytest.mark.parametrize(("model", "pieces"), [("bert_tiny", 8000), ("bert_base", 30_522)])
def test_a_bert_model_decides_how_many_pieces_are_trained(model, pieces):
    assert runs.plain("task=mlm", f"model={model}")["tokenizer"]["vocab_size"] == pieces
    assert runs.plain("task=mlm", f"model={model}", "tokenizer.vocab_size=77")["tokenizer"]["vocab_size"] == 77


# ------------------------------------------------------------------------------------------------- a trained WordPiece

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train(sentences=SENTENCES, **options):
    return WordPiece.from_settings(lambda count: iter(sentences), **{"vocab_size": 100, **options})


def test_sentencepiece_from_a_file_is_the_one_that_was_saved_there(tmp_path):
    trained = SentencePiece.train(SENTENCES, model_type="bpe", vocab_size=60)
    trained.save(tmp_path)
    for file in (tmp_path, tmp_path / SentencePiece.FILE):
        options = {"file": str(file)}
        assert not SentencePiece.needs_training(options) and SentencePiece.check(options) == []
        assert SentencePiece.from_settings(None, **options).to_bytes() == trained.to_bytes()
    assert SentencePiece.check({"file": f"{tmp_path}/no"}) == [
        f"tokenizer.file={tmp_path}/no: no such file: {tmp_path}/no"
    ]
    (tmp_path / "empty").mkdir()
    said = f"tokenizer.file={tmp_path}/empty: no sentencepiece.model in this folder"
    assert SentencePiece.check({"file": f"{tmp_path}/empty"}) == [said]


def test_a_trained_wordpiece_begins_with_the_special_tokens_and_spells_its_text():
    tokenizer = train()
    assert [tokenizer._tokenizer.id_to_token(i) for i in range(5)] == BERT
    ids = tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id
    assert ids == (0, 1, 2, 3, 4)
    assert tokenizer.vocab_size == 100
    for sentence, encoded in zip(SENTENCES, tokenizer.encode(SENTENCES), strict=True):
        assert encoded.count(tokenizer.unk_id) == sentence.count("<unk>")
        assert not {0, 2, 3, 4} & set(encoded)
    [ids] = tokenizer.encode(["[MASK] [CLS]"])
    assert not {0, 2, 3, 4} & set(ids)


def test_a_trained_wordpiece_learns_the_frequent_words_and_nothing_from_unk():
    tokenizer = train(["the barrels <unk> <unk>"] * 9 + ["x y z unked"], vocab_size=60)
    assert [len(ids) for ids in tokenizer.encode(["the", "barrels", "<unk>"])] == [1, 1, 1]
    vocabulary = tokenizer._tokenizer.get_vocab()
    assert not {"<", ">", "un", "unk", "##nk"} & set(vocabulary)
    assert "##z" not in vocabulary  # begins a word and never continues one


def test_a_trained_wordpiece_lowercases_unless_told_not_to():
    text = ["The Café the cafe"] * 3
    assert train(text, vocab_size=40).encode(["The Café"]) == train(text, vocab_size=40).encode(["the café"])
    cased = train(text, vocab_size=40, lowercase=False)
    assert cased.encode(["The Café"]) != cased.encode(["the cafe"])
    assert cased.unk_id not in cased.encode(["The Café"])[0]


def test_sample_is_what_is_drawn_from_the_train_split():
    asked = []

    def draw(count):
        asked.append(count)
        return iter(SENTENCES)

    WordPiece.from_settings(draw, vocab_size=100, sample=7)
    assert set(asked) == {7}


TRAINING = """
import random
from attnorm.data.tokenizers.wordpiece import WordPiece
numbers = random.Random(0)
letters = [chr(c) for c in [*range(97, 123), *range(0x3b1, 0x3c9), *range(0x4e00, 0x4e00 + 1200)]]
words = ["".join(numbers.choices(letters[:50], k=numbers.randint(1, 8))) for _ in range(300)] + letters[50:]
text = [" ".join(numbers.choices(words, k=10)) for _ in range(1500)]
print(WordPiece.from_settings(lambda n: iter(text), vocab_size=1700).fingerprint())
"""


@pytest.mark.slow
def test_wordpiece_training_gives_the_same_bytes_in_every_process():
    actual = set()
    for seed in range(4):  # also with another number of threads
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(1 + seed % 3)}
        run = subprocess.run(
            [sys.executable, "-c", TRAINING], env=environment, capture_output=True, text=True, check=True
        )
        actual.add(run.stdout)
    assert len(actual) == 1


@pytest.mark.slow
def test_forking_after_wordpiece_training_prints_no_warning():
    code = TRAINING + "import os\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\n"
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == ""


TRAINERS = {
    "unigram": functools.partial(SentencePiece.train, SENTENCES, model_type="unigram"),
    "bpe": functools.partial(SentencePiece.train, SENTENCES, model_type="bpe"),
    "wordpiece": train,
}


@pytest.mark.parametrize("kind", TRAINERS)
def test_the_least_vocabulary_that_works_is_named(kind):
    with pytest.raises(ValueError, match=r"tokenizer.vocab_size=9: too small .* least that works is \d+") as error:
        TRAINERS[kind](vocab_size=9)
    least = int(str(error.value).split()[-1])
    assert TRAINERS[kind](vocab_size=least).vocab_size == least
    with pytest.raises(ValueError, match=f"least that works is {least}"):
        TRAINERS[kind](vocab_size=least - 1)


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_vocabulary_shrinks_to_the_data_which_alone_is_said(kind, caplog, capfd):
    tokenizer = TRAINERS[kind](vocab_size=5000)
    assert tokenizer.vocab_size < 1000
    assert f"tokenizer.vocab_size=5000: the training text yields only {tokenizer.vocab_size} tokens" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_wordpiece_spells_the_most_frequent_characters_of_a_text_with_too_many():
    rare = [chr(0x4E00 + i) for i in range(2000)]
    tokenizer = train(["the cat"] * 5 + rare + rare[700:], vocab_size=1100)
    spelled = [tokenizer.unk_id not in ids for ids in tokenizer.encode(rare)]
    assert not any(spelled[:700]) and sum(spelled) == sum(spelled[700:]) == 1000 - len(set("thecat"))


# --------------------------------------------------------------------------- the mask token, word starts, and offsets


def test_what_a_tokenizer_lacks_or_needs(wordpiece, trained, tmp_path):
    assert wordpiece.mask_id is None and trained.mask_id is None
    assert WordPiece.from_settings(file=vocabulary(tmp_path, [*SPECIAL, "x", "[MASK]"])).mask_id == 5
    with pytest.raises(ValueError, match=r"a SentencePiece has no character offsets; use tokenizer=wordpiece"):
        trained.encode_with_offsets("the")
    for options in ({}, {"vocab_size": 9}, {"file": None}):
        assert SentencePiece.needs_training(options) and WordPiece.needs_training(options)
    assert not WordPiece.needs_training({"file": "vocab.txt"})


def test_the_folder_of_a_model_is_as_good_as_its_file(wordpiece, tmp_path):
    (tmp_path / "a").mkdir()
    wordpiece.save(tmp_path / "a")
    assert problems_of("wordpiece", file=str(tmp_path / "a")) == []
    assert WordPiece.from_settings(file=str(tmp_path / "a")).fingerprint() == wordpiece.fingerprint()
    vocabulary(tmp_path / "a", [*SPECIAL, "only", "these"])
    assert WordPiece.from_settings(file=str(tmp_path / "a")).vocab_size == 6  # vocab.txt comes first
    (tmp_path / "a/vocab.txt").write_text("")
    assert "the file is empty" in problems_of("wordpiece", file=str(tmp_path / "a"))[0]


def test_wordpiece_says_which_pieces_start_a_word(wordpiece):
    pieces = ["the", "c", "##a", "##f", "#", "[CLS]", "[UNK]", "##z"]
    ids = np.array([[wordpiece._tokenizer.token_to_id(piece) for piece in pieces]])
    assert wordpiece.starts_word(ids).tolist() == [[not (len(p) > 2 and p.startswith("##")) for p in pieces]]


def test_sentencepiece_says_which_pieces_start_a_word(trained):
    for sentence in SENTENCES:
        [ids] = trained.encode([sentence])
        starts = trained.starts_word(np.array(ids))
        assert starts.sum() == len(sentence.split()) and starts.dtype == bool
        words = np.split(np.array(ids), np.flatnonzero(starts)[1:])
        assert [trained.decode(word) for word in words] == sentence.split()
    assert trained.starts_word(np.arange(4)).all()


OFFSETS = [
    ("the  Cafe,\tthe", ["the", "Cafe", ",", "the"]),
    ("Café the", ["Café", "the"]),
    ("Cafe\u0301 cafe\u0301\u0301, x", ["Cafe\u0301", "cafe\u0301\u0301", ",", "x"]),
    ("\u2003the日本the ", ["the", "日", "本", "the"]),
    ("İa", ["İ", "a"]),
    ("<unk> the<unk>", ["<unk>", "the", "<", "u", "n", "k", ">"]),
    (f"the {'a' * 101} {'b' * 2}", ["the", "a" * 101, "b", "b"]),
    ("ab☃c, the", ["ab☃c", ",", "the"]),
    ("a\u200bb", ["a", "b"]),
    ("\u200b", []),
    ("", []),
    ("[SEP] x", ["[", "S", "E", "P", "]", "x"]),
    ("😀 the", ["😀", "the"]),
]


@pytest.mark.parametrize(("text", "slices"), OFFSETS)
def test_offsets_are_in_the_characters_of_the_text(tmp_path, text, slices):
    tokenizer = WordPiece.from_settings(file=vocabulary(tmp_path, [*SPECIAL, *PIECES, "日", "本"]), lowercase=True)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert [text[start:end] for start, end in offsets] == slices
    assert ids == tokenizer.encode([text])[0]
    for piece, part in zip(ids, slices, strict=True):
        letters = "".join(c for c in unicodedata.normalize("NFD", part.lower()) if not unicodedata.combining(c))
        if piece != tokenizer.unk_id:
            assert tokenizer._tokenizer.id_to_token(piece).removeprefix("##") == letters
    assert tokenizer.encode_with_offsets(text) == (ids, offsets)  # from memory


def test_offsets_of_cased_text_with_separate_accents(tmp_path):
    pieces = [*SPECIAL, "e", "##\u0301", "x"]
    tokenizer = WordPiece.from_settings(file=vocabulary(tmp_path, pieces), lowercase=False)
    assert tokenizer.encode_with_offsets("x e\u0301") == ([6, 4, 5], [(0, 1), (2, 3), (3, 4)])


def test_forgetting_offsets_changes_nothing(wordpiece, monkeypatch):
    monkeypatch.setattr("attnorm.data.tokenizers.wordpiece.REMEMBERED", 3)
    for sentence in SENTENCES:
        assert wordpiece.encode_with_offsets(sentence)[0] == wordpiece.encode([sentence])[0]
        assert len(wordpiece._placed) < 20


@pytest.mark.slow
def test_real_headlines_come_back():
    if not REUTERS.is_file():
        pytest.skip("no ../shared/data/headlines/reuters beside the repository")
    lines = REUTERS.read_text(encoding="utf-8").split("\n")[:3000]
    texts = [clean(line, lowercase=True, digits=True) for line in lines]
    tokenizer = SentencePiece.train(texts, model_type="unigram", vocab_size=1000)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(texts)] == texts
