"""Tokenizers from files of other programs: the ids and the texts are those of their libraries."""

import functools
import io
import json
import pickle
import random
import unicodedata

import numpy as np
import pytest
import runs
import sentencepiece
import tokenizers
from builders import tokenizer_settings
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from attnorm import load_run
from attnorm.data import check_tokenizer
from attnorm.data.tokenizers.base import tokenizer_class
from attnorm.data.tokenizers.library import LibraryTokenizer
from attnorm.errors import DataError
from attnorm.parts import options_of
from attnorm.training.train import train

SCRIPTS = {
    "Latin": (0x41, 0x17F), "Greek": (0x391, 0x3C9), "Cyrillic": (0x410, 0x45F), "Hebrew": (0x5D0, 0x5EA),
    "Arabic": (0x620, 0x64A), "Devanagari": (0x904, 0x94D), "Thai": (0xE01, 0xE4E), "Georgian": (0x10D0, 0x10F0),
    "Hangul": (0xAC00, 0xAC60), "Han": (0x4E00, 0x4E60),
}  # fmt: skip
TRAINING = "the oil price rises again , and the price of gold falls ."


@functools.cache
def texts() -> list[str]:
    """1,000 texts of ten scripts, with words that occur again, digits, marks, and letters that occur once."""
    chance, made = random.Random(0), []
    for first, last in SCRIPTS.values():
        letters = [chr(code) for code in range(first, last + 1) if unicodedata.category(chr(code))[0] in "LM"]
        words = ["".join(chance.choices(letters, k=chance.randint(1, 7))) for _ in range(40)]
        for _ in range(100):
            made.append(" ".join([*chance.choices(words, k=6), chance.choice(["1,234", "(x)!", TRAINING, "a-b"])]))
    return made


@functools.cache
def trained_on() -> list[str]:
    return [*texts()[::4], *[TRAINING] * 20]


def of_sentencepiece(**options) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(trained_on()), model_writer=model, hard_vocab_limit=False, minloglevel=2, num_threads=1,
        character_coverage=0.99, **{"vocab_size": 700, **options},
    )  # fmt: skip
    return model.getvalue()


def of_tokenizers(model, trainer, pre_tokenizer, decoder, normalizer=None) -> bytes:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoder
    if normalizer:
        made.normalizer = normalizer
    made.train_from_iterator(trained_on(), trainer)
    return made.to_str().encode()


def bpe_with_bytes() -> bytes:
    """As Llama 2: no pre-tokenizer, but spaces that are letters, and bytes for other characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=pieces, show_progress=False, limit_alphabet=80)
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    return of_tokenizers(model, trainer, pre_tokenizers.Split("x{99}", "isolated"), decoders.Sequence(back), spaces)


def byte_level() -> bytes:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    return of_tokenizers(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def unigram() -> bytes:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=1200, special_tokens=special, unk_token="<unk>", show_progress=False, max_piece_length=4
    )
    return of_tokenizers(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace())


def wordpiece() -> bytes:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, limit_alphabet=200, show_progress=False)
    cleaning = normalizers.BertNormalizer(lowercase=True)
    model = models.WordPiece(unk_token="[UNK]")
    return of_tokenizers(model, trainer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), cleaning)


def words() -> bytes:
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    model = models.WordLevel(unk_token="[UNK]")
    return of_tokenizers(model, trainer, pre_tokenizers.WhitespaceSplit(), decoders.Fuse())


SENTENCEPIECE = {
    "defaults": {},
    "T5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "user_defined_symbols": "<extra_id_0>"},
    "Llama": {
        "model_type": "bpe",
        "vocab_size": 1200,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "split_digits": True,
    },
    "characters": {"model_type": "char", "pad_id": 3},
    "words": {"model_type": "word", "vocab_size": 200, "unk_id": 5, "bos_id": 7, "eos_id": -1},
    "our ids": {"model_type": "bpe", "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    "no space in front": {"model_type": "bpe", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
}
TOKENIZERS = {"BPE with bytes": bpe_with_bytes, "byte level": byte_level, "Unigram": unigram, "WordPiece": wordpiece,
              "word level": words}  # fmt: skip
LACKING = {
    "defaults": {"pad"}, "T5": {"bos"}, "Llama": {"pad"}, "words": {"pad", "eos"}, "no space in front": {"pad"},
    "BPE with bytes": {"pad"}, "byte level": {"pad", "unk"}, "word level": {"pad", "bos", "eos"},
}  # fmt: skip


@functools.cache
def file_of(kind: str) -> bytes:
    return of_sentencepiece(**SENTENCEPIECE[kind]) if kind in SENTENCEPIECE else TOKENIZERS[kind]()


def read(folder, kind: str) -> LibraryTokenizer:
    """The tokenizer of the settings that a user types, from a file with a name of its library."""
    name, file = ("sentencepiece", "spiece.model") if kind in SENTENCEPIECE else ("huggingface", "tokenizer.json")
    (folder / file).write_bytes(file_of(kind))
    settings = tokenizer_settings(name, file=str(folder))
    assert check_tokenizer(settings) == []
    return tokenizer_class(settings).from_settings(None, **options_of(settings))


def library(kind: str):
    """Functions of the library itself: the ids of a text, their text, and the text of an unknown token."""
    if kind in SENTENCEPIECE:
        model = sentencepiece.SentencePieceProcessor(model_proto=file_of(kind))
        return model.encode, model.decode, "⁇"
    model = tokenizers.Tokenizer.from_str(file_of(kind).decode())
    plain = functools.partial(model.encode, add_special_tokens=False)
    unknown = "<unk>" if "<unk>" in model.get_vocab() else "[UNK]"
    return lambda text: plain(text).ids, functools.partial(model.decode, skip_special_tokens=False), unknown


@pytest.mark.parametrize("kind", [*SENTENCEPIECE, *TOKENIZERS])
def test_ids_and_texts_are_those_of_the_library(tmp_path, kind):
    tokenizer, (encode, decode, unknown) = read(tmp_path, kind), library(kind)
    encoded = tokenizer.encode(texts())
    assert encoded == [encode(text) for text in texts()]
    expected = [" ".join(decode(ids).replace(unknown, "<unk>").split()) for ids in encoded]
    assert [tokenizer.decode(ids) for ids in encoded] == expected
    outer = [tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id]
    assert [tokenizer.decode([outer[0], *ids, *outer[1:]]) for ids in encoded[::99]] == expected[::99]
    ids = {"pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "unk": tokenizer.unk_id}
    lacking = {name for name, number in ids.items() if number >= tokenizer._size}
    assert lacking == LACKING.get(kind, set()) and tokenizer.vocab_size == tokenizer._size + len(lacking)
    assert len({*ids.values()}) == (3 if kind == "byte level" else 4)


@pytest.mark.parametrize("kind", [*SENTENCEPIECE, *TOKENIZERS])
def test_a_copy_is_equal_and_words_are_told_apart(tmp_path, kind):
    tokenizer = read(tmp_path, kind)
    tokenizer.save(tmp_path / "run")
    settings = tokenizer_settings("sentencepiece" if kind in SENTENCEPIECE else "huggingface")
    for copy in (tokenizer_class(settings).load(tmp_path / "run"), pickle.loads(pickle.dumps(tokenizer))):
        assert type(copy) is type(tokenizer) and copy.fingerprint() == tokenizer.fingerprint()
        assert copy.encode(texts()[:3]) == tokenizer.encode(texts()[:3]) and copy.pad_id == tokenizer.pad_id
    [ids] = tokenizer.encode([f"a {TRAINING}"])
    begun = {"BPE with bytes": 2, "byte level": 13, "no space in front": 13}.get(kind, 14)
    assert tokenizer.starts_word(np.array(ids)).sum() == begun and all(map(tokenizer.token, ids))
    assert tokenizer.token(tokenizer.pad_id) == "[pad]"
    assert tokenizer.unknown([TRAINING]) == (0, len(TRAINING.replace(" ", "")))


@pytest.mark.parametrize(("kind", "missing"), [("defaults", 3), ("Llama", 0), ("byte level", 0), ("Unigram", 3)])
def test_characters_that_are_unknown_are_counted(tmp_path, kind, missing):
    assert read(tmp_path, kind).unknown(["the oil☃☃ ☃", "the"]) == (missing, 12)


@pytest.mark.parametrize("kind", ["T5", "Llama", "Unigram", "WordPiece", "byte level"])
def test_special_tokens_in_a_text_are_text(tmp_path, kind):
    tokenizer = read(tmp_path, kind)
    [ids] = tokenizer.encode(["<pad> the <s> </s> [CLS] [SEP] [PAD] <|endoftext|>"])
    assert not {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} & {*ids}


def test_what_is_added_is_said_once_and_a_mask_is_found(tmp_path, caplog):
    caplog.set_level("INFO")
    for _ in range(2):
        assert read(tmp_path, "T5").mask_id is None
    [line] = [record.getMessage() for record in caplog.records]
    size = sentencepiece.SentencePieceProcessor(model_proto=file_of("T5")).get_piece_size()
    added = f"special tokens that the file lacks are added: bos ({size})"
    assert line == f"tokenizer.file={tmp_path}: {added}"
    assert [read(tmp_path, kind).mask_id for kind in ("Unigram", "WordPiece", "byte level")] == [4, 4, None]


def test_a_file_of_another_kind_is_refused(tmp_path):
    def problems(**options):
        return check_tokenizer(tokenizer_settings("huggingface", **options))

    assert problems() == ["tokenizer.file: must name a tokenizer.json, or a folder with one"]
    assert "no huggingface.json or tokenizer.json in this folder" in problems(file=str(tmp_path))[0]
    for content in ("{}", "no", json.dumps({"model": {"type": "Unigram"}})):
        (tmp_path / "tokenizer.json").write_text(content)
        settings = tokenizer_settings("huggingface", file=str(tmp_path))
        with pytest.raises(DataError, match=f"^tokenizer.file={tmp_path}: not a tokenizer.json"):
            tokenizer_class(settings).from_settings(None, **options_of(settings))


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("kind", ["T5"])
def test_a_finished_run_does_without_the_file(tmp_path, kind):
    expected = read(tmp_path, kind)
    name = "sentencepiece" if kind in SENTENCEPIECE else "huggingface"
    data = ("data=chronicles", "data.train_size=4", "data.valid_size=3", "data.words=60", "trainer.max_steps=1")
    train(runs.tiny_language(tmp_path, *data, f"tokenizer={name}", f"tokenizer.file={tmp_path}"), tmp_path / "run")
    for file in ("spiece.model", "tokenizer.json"):
        (tmp_path / file).unlink(missing_ok=True)
    run = load_run(tmp_path / "run")
    assert run.tokenizer.fingerprint() == expected.fingerprint()
    assert run.evaluate().metrics["loss"] > 0 and len(run.generate(["the oil"])) == 1
