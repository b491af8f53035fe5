"""Blocks: every token of every document once, in pieces that fit, packed tightly, from a source to batches."""

import itertools

import numpy as np
import pytest
from builders import tokenizer_settings

from attnorm.data import prepare
from attnorm.data.packing import best_fit
from attnorm.data.sampler import TokenBatches
from attnorm.data.sources.newswire import NewswireText
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.data.tokenizers.wordpiece_trainer import pipeline
from attnorm.tasks.masking import MaskedLMCollator, Masking
from attnorm.tasks.mlm import PackedFeaturizer

SENTENCES = [f"the {a} of {b} met {c} ." for a in ("oil", "men") for b in "xyz" for c in ("us", "them")]

WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


@pytest.fixture(scope="module")
def tokenizer():
    """That of BERT, which reads nothing where a text has control characters only."""
    trained = WordPiece.from_settings(lambda count: iter(SENTENCES * 3), vocab_size=60)
    return WordPiece(pipeline(trained._tokenizer.get_vocab(), lowercase=True))


def texts(count=300, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 50))) for _ in range(count)]


def pieces_of(columns):
    """The pieces in the blocks, as tuples of ids, block by block."""
    for ids, documents in zip(columns["ids"], columns["documents"], strict=True):
        assert sum(documents) == len(ids)
        cuts = np.cumsum([0, *documents])
        yield [tuple(ids[start:end]) for start, end in itertools.pairwise(cuts)]


def naive_best_fit(lengths, room):
    bins = []
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fitting = [b for b in bins if sum(lengths[i] for i in b) + lengths[number] <= room]
        if fitting:
            max(fitting, key=lambda b: sum(lengths[i] for i in b)).append(number)
        else:
            bins.append([number])
    return bins


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("room", [16, 50])
def test_best_fit_puts_each_thing_into_one_bin_with_room(seed, room):
    lengths = np.random.default_rng(seed).integers(1, room + 1, 200).tolist()
    bins = best_fit(lengths, room)
    assert sorted(number for numbers in bins for number in numbers) == list(range(200))
    assert max(sum(lengths[number] for number in numbers) for numbers in bins) <= room
    assert bins == sorted(sorted(numbers) for numbers in bins)
    naive = naive_best_fit(lengths, room)
    fills = [sorted(sum(lengths[number] for number in numbers) for numbers in result) for result in (bins, naive)]
    assert fills[0] == fills[1]


def test_best_fit_of_little():
    assert best_fit([], 9) == []
    assert best_fit([9, 9], 9) == [[0], [1]]
    assert best_fit([4, 6, 4, 6], 10) in ([[0, 1], [2, 3]], [[0, 3], [1, 2]])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("max_length", [3, 11, 40])
def test_every_token_of_every_document_comes_once_between_its_special_tokens(tokenizer, packed, max_length):
    documents = [*texts(), "", "\u200b", "the"]
    columns, counts = PackedFeaturizer(max_length, packed, 0.15).encode({"text": documents}, 0, tokenizer)
    pieces = [piece for block in pieces_of(columns) for piece in block]
    inner = max_length - 2
    expected, encoded = [], tokenizer.encode(documents)
    for ids in encoded:
        cut = [ids[start : start + inner] for start in range(0, len(ids), inner)]
        assert [token for part in cut for token in part] == ids
        expected += [(tokenizer.bos_id, *part, tokenizer.eos_id) for part in cut]
    assert sorted(pieces) == sorted(expected)  # packed or apart, whole, and nothing lost
    if not packed:
        assert pieces == expected and all(len(documents) == 1 for documents in columns["documents"])
    assert max(map(len, columns["ids"])) <= max_length
    assert counts == {
        "documents": 303,
        "wordless": 2,
        "cut": sum(len(ids) > inner for ids in encoded),
        "blocks": len(columns["ids"]),
        "tokens": sum(map(len, pieces)),
    }


def test_packed_blocks_are_nearly_full(tokenizer):
    layout = PackedFeaturizer(64, True, 0.15)
    _, counts = layout.encode({"text": texts(3000)}, 0, tokenizer)
    assert counts["tokens"] / (counts["blocks"] * 64) > 0.98
    _, apart = PackedFeaturizer(64, False, 0.15).encode({"text": texts(3000)}, 0, tokenizer)
    assert apart["tokens"] / (apart["blocks"] * 64) < 0.75
    assert layout.describe(counts | {"empty": 5}).startswith(f"3,000 documents in {counts['blocks']:,} blocks of 64")


def test_a_batch_without_a_token_has_no_blocks(tokenizer):
    for packed in (False, True):
        columns, counts = PackedFeaturizer(9, packed, 0.15).encode({"text": ["\u200b"]}, 0, tokenizer)
        assert columns == {"ids": [], "documents": []} and counts["wordless"] == 1


def test_the_share_does_not_enter_the_key_of_the_cache():
    plain = PackedFeaturizer(64, True, 0.15).settings()
    assert plain == PackedFeaturizer(64, True, 0.5).settings()
    assert plain not in (PackedFeaturizer(65, True, 0.15).settings(), PackedFeaturizer(64, False, 0.15).settings())


@pytest.mark.parametrize(("max_length", "shown"), [(2, "2"), (0, "0"), ("9", "9"), (None, "null"), (True, "true")])
def test_a_length_in_which_no_token_fits_is_refused(max_length, shown):
    with pytest.raises(ValueError, match=f"max_length={shown}: must be a whole number of at least 3"):
        PackedFeaturizer(max_length, True, 0.15)


@pytest.mark.long
@pytest.mark.parametrize(("packed", "share"), [(False, 0.4), (True, 0.15)])
def test_from_a_source_to_masked_batches(tmp_path, packed, share):
    layout = PackedFeaturizer(48, packed, share)
    source = NewswireText(train_size=300, valid_size=20)
    tokenizer = tokenizer_settings("wordpiece", vocab_size=400)
    splits = prepare(source, tokenizer, layout, max_rows={}, cache_dir=tmp_path)
    train = splits["train"]
    assert train.tokenizer.mask_id == 4 and train.tokenizer.unk_id not in train.rows[0]["ids"]
    lengths = [len(ids) for ids in train.rows["ids"]]
    assert train.lengths.tolist() == [[length] for length in lengths] and train.lengths.dtype == np.int32
    ordinary = [sum(token not in (2, 3) for token in ids) for ids in train.rows["ids"]]
    assert train.weights.tolist() == [max(1, round(share * tokens)) for tokens in ordinary]
    assert train.weights.dtype == np.int64
    assert "300 documents in" in layout.describe(train.counts)

    batches = MaskedLMCollator(train.rows, train.tokenizer, Masking(mask_prob=share), seed=1)
    for part in list(TokenBatches(train.lengths, 2000, weights=train.weights))[:5]:
        batch = batches[part]
        assert len(batch["labels"]) == batch["divisor"].item() == batch["masked_positions"].sum()
        assert batch["rows"].tolist() == part.rows
        for ids, segments, row in zip(batch["ids"], batch["segments"], part.rows, strict=True):
            real = ids != train.tokenizer.pad_id
            assert real.sum() == lengths[row]
            documents = train.rows[row]["documents"]
            expected = [i for i, length in enumerate(documents) for _ in range(length)]
            padding = len(ids) - len(expected)
            assert segments.tolist() == expected + [len(documents)] * padding
