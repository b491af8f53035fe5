"""GPT-2's byte-level BPE: the ids of transformers, and the texts again."""

import json
import pickle
import shutil

import numpy as np
import pytest
from gpt_builders import write_bpe

from attnorm.data.tokenizers.base import check_tokenizer
from attnorm.data.tokenizers.bpe import ByteBPE
from attnorm.data.tokenizers.wordpiece_trainer import pipeline
from attnorm.errors import DataError

PATH = "attnorm.data.tokenizers.bpe.ByteBPE"
TEXTS = ["the cat's  café, isn't it? 1,234 – ☃ naïve", "", "a <|endoftext|> b", "the\n\ncat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A vocab.json and a merges.txt with a few merges, as GPT-2 has them."""
    folder = tmp_path_factory.mktemp("gpt2")
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "c"), ("a", "t"), ("Ġc", "at"), ("'", "s"), ("Ġ", "a")]
    write_bpe(folder, merges)
    return folder


@pytest.fixture(scope="module")
def bpe(folder):
    return ByteBPE.from_settings(file=str(folder))


def test_the_ids_are_those_of_transformers_for_words_with_a_space_in_front(folder, bpe):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    reference = transformers.GPT2Tokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    for text in (TEXTS[0], TEXTS[3]):
        assert bpe.encode([text])[0] == reference(" " + " ".join(text.split()))["input_ids"]
    reference.save_pretrained(folder / "saved")
    if (folder / "saved" / "tokenizer.json").is_file():
        assert ByteBPE.from_settings(file=str(folder / "saved")).encode(TEXTS) == bpe.encode(TEXTS)


def test_texts_are_restored(bpe):
    assert [bpe.decode(ids) for ids in bpe.encode(TEXTS)] == [" ".join(text.split()) for text in TEXTS]
    [ids] = bpe.encode(["the <unk> cat"])
    assert ids.count(bpe.unk_id) == 1 and bpe.decode(ids) == "the <unk> cat"
    assert bpe.decode([bpe.bos_id, *ids, bpe.eos_id, bpe.pad_id]) == "the <unk> cat"
    assert bpe.starts_word(np.array(bpe.encode(["the cats"])[0])).tolist() == [True, True, False]
    assert bpe.token(bpe.eos_id) != "the" and bpe.token(ids[0]) == "the"


def test_special_tokens_are_in_the_vocabulary_and_never_come_from_text(bpe):
    assert bpe.bos_id == bpe.eos_id == bpe.vocab_size - 1 == 264
    every = "".join(map(chr, [*range(1, 0xD800), *range(0xE000, 0x11000, 7), 0x10FFFF]))
    actual = {number for ids in bpe.encode([*TEXTS, every]) for number in ids}
    assert not actual & {bpe.pad_id, bpe.unk_id, bpe.eos_id} and len({bpe.pad_id, bpe.unk_id, bpe.eos_id}) == 3


def test_saved_and_pickled_tokenizers_are_the_same(bpe, tmp_path):
    bpe.save(tmp_path)
    for again in (ByteBPE.load(tmp_path), pickle.loads(pickle.dumps(bpe))):
        assert again.encode(TEXTS) == bpe.encode(TEXTS) and again.fingerprint() == bpe.fingerprint()


def test_files_that_are_no_bpe_are_named(folder, tmp_path):
    def problems(**options):
        return check_tokenizer({"_target_": PATH, **options})

    assert problems(file=str(folder)) == []
    assert "must name a tokenizer.json" in problems()[0]
    assert "no tokenizer.json, and no vocab.json and merges.txt, in this folder" in problems(file=str(tmp_path))[0]
    assert "no such file" in problems(file=str(tmp_path / "x.json"))[0]
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(DataError, match=f"tokenizer.file={tmp_path}: not a tokenizer.json"):
        ByteBPE.from_settings(file=str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(pipeline({"[UNK]": 0}, lowercase=True).to_str())
    with pytest.raises(DataError, match="this tokenizer is a WordPiece, not the byte-level BPE of GPT-2"):
        ByteBPE.from_settings(file=str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    shutil.copy(folder / "merges.txt", tmp_path)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary["ÿ"], vocabulary["<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(DataError, match=r"the vocabulary does not contain <\|endoftext\|>, ÿ"):
        ByteBPE.from_settings(file=str(tmp_path))
