"""Masking: exact counts, the configured distributions, and nothing that depends on more than (seed, epoch, row)."""

import numpy as np
import pytest
import torch

from attnorm.data.sampler import MicroBatch
from attnorm.errors import ConfigError, key_of
from attnorm.parts import made
from attnorm.tasks.masking import MaskedLMCollator, Masking, masked_count
from attnorm.tasks.mlm import MaskedLMTaskConfig

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE = 1000


class Tokens:
    """A vocabulary of numbers, where each id that 3 divides continues a word."""

    pad_id, unk_id, bos_id, eos_id, mask_id, vocab_size = PAD, UNK, CLS, SEP, MASK, SIZE

    def starts_word(self, ids):
        return (ids < 5) | (ids % 3 != 0)


class Rows:
    """Blocks of random documents."""

    def __init__(self, rows=40, seed=0, longest=60, documents=4):
        random = np.random.default_rng(seed)
        self.ids, self.documents = [], []
        for _ in range(rows):
            parts = [
                [CLS, *random.integers(5, SIZE, random.integers(1, longest)).tolist(), SEP]
                for _ in range(random.integers(1, documents + 1))
            ]
            self.ids.append([token for part in parts for token in part])
            self.documents.append([len(part) for part in parts])

    def __getitem__(self, rows):
        return {"ids": [self.ids[row] for row in rows], "documents": [self.documents[row] for row in rows]}


def batches(rows, seed=0, **options):
    return MaskedLMCollator(rows, Tokens(), Masking(**options), seed)


def part(rows, epoch=0, divisor=1):
    return MicroBatch(list(rows), divisor, epoch)


def draw(maskable, starts=None, seed=0, **options):
    maskable = np.array(maskable, bool)
    starts = np.ones(len(maskable), bool) if starts is None else np.array(starts, bool)
    return Masking(**options).draw(maskable, starts, np.random.default_rng(seed))


def runs(places):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], places, [False]]).astype(np.int8)))
    return edges[1::2] - edges[::2]


# -------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 1.0])
def test_masked_count_is_the_rounded_share_and_at_least_one(share):
    tokens = np.arange(1, 400)
    assert masked_count(tokens, share).tolist() == [max(1, round(share * count)) for count in tokens.tolist()]
    assert masked_count(20, 0.15) == 3


@pytest.mark.parametrize("share", [0.01, 0.15, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("span_weights", [(1.0,), (1, 0.5, 0.3333), (0, 0, 0, 1)])
def test_exactly_the_share_of_each_row_is_hidden_and_no_special_token(share, span_weights):
    rows = Rows(longest=30)
    batch = batches(rows, mask_prob=share, span_weights=span_weights)[part(range(40))]
    for places, ids in zip(batch["masked_positions"], rows.ids, strict=True):
        ordinary = sum(token >= 5 for token in ids)
        assert places.sum() == max(1, round(share * ordinary))
        special = torch.tensor([token < 5 for token in ids])
        assert not places[: len(ids)][special].any() and not places[len(ids) :].any()


def test_unknown_words_can_be_hidden_and_nothing_where_nothing_can_be():
    assert not draw([0, 0, 0]).any() and not draw([]).any()
    assert not draw([0, 0], whole_words=True).any() and not draw([], whole_words=True).any()
    assert not draw([0, 1, 1, 1, 0], [1, 1, 0, 0, 1], whole_words=True).any()  # a word that is longer than the share
    for word, options, labels in (([UNK], {}, [UNK]), ([7, 9, 9], {"whole_words": True}, [])):
        rows = Rows(1)
        rows.ids, rows.documents = [[CLS, *word, SEP]], [[len(word) + 2]]
        batch = batches(rows, **options)[part([0])]
        assert batch["labels"].tolist() == labels and (labels or batch["ids"].tolist() == rows.ids)


def test_labels_are_the_tokens_at_the_hidden_places_row_after_row():
    rows, chosen = Rows(), [7, 3, 12]
    before = [list(ids) for ids in rows.ids]
    batch = batches(rows)[part(chosen, divisor=99)]
    assert rows.ids == before  # it does not change the rows
    expected = [
        rows.ids[row][index]
        for row, places in zip(chosen, batch["masked_positions"], strict=True)
        for index in places.nonzero()[:, 0].tolist()
    ]
    assert batch["labels"].tolist() == expected
    shown = [ids[: len(rows.ids[row])] for row, ids in zip(chosen, batch["ids"], strict=True)]
    for row, ids, places in zip(chosen, shown, batch["masked_positions"], strict=True):
        untouched = ~places[: len(ids)]
        assert ids[untouched].tolist() == torch.tensor(rows.ids[row])[untouched].tolist()
    assert batch["rows"].tolist() == chosen and batch["divisor"].item() == 99
    shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
    tables = dict.fromkeys(("ids", "masked_positions", "segments"), (3, max(len(rows.ids[row]) for row in chosen)))
    assert shapes == {**tables, "labels": (len(expected),), "rows": (3,), "divisor": ()}
    types = {name: tensor.dtype for name, tensor in batch.items() if name != "masked_positions"}
    assert set(types.values()) == {torch.int64} and batch["masked_positions"].dtype == torch.bool


def test_padding_and_segments():
    rows = Rows(2)
    rows.ids, rows.documents = [[CLS, 9, SEP, CLS, 9, 9, SEP], [CLS, 9, SEP]], [[3, 4], [3]]
    batch = batches(rows)[part([0, 1])]
    assert batch["segments"].tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    assert batch["ids"][1, 3:].tolist() == [PAD] * 4


# ------------------------------------------------------------------------------------------------------- distributions


def expected_spans(budget, weights):
    """The expected number of spans of each length when spans are drawn until `budget` tokens are hidden, the last one
    cut to what is left: by recursion over what is left."""
    probability = np.array(weights) / sum(weights)
    expected = np.zeros((budget + 1, len(weights)))
    for left in range(1, budget + 1):
        for size, p in enumerate(probability, start=1):
            taken = min(size, left)
            expected[left] += p * expected[left - taken]
            expected[left, taken - 1] += p
    return expected[budget]


@pytest.mark.parametrize("weights", [(1, 0.5, 0.3333), (1, 1), (0.1, 0.2, 0.3, 0.4), (0, 1, 1)])
def test_spans_have_the_configured_lengths(weights):
    tokens, budget, draws = 60_000, 30, 400  # so sparse that spans hardly touch
    masking, found = Masking(mask_prob=budget / tokens, span_weights=weights), np.zeros(len(weights) + 3)
    everywhere = np.ones(tokens, bool)
    for seed in range(draws):
        lengths = runs(masking.draw(everywhere, everywhere, np.random.default_rng(seed)))
        assert lengths.sum() == budget
        found += np.bincount(np.minimum(lengths, len(found)), minlength=len(found) + 1)[1:]
    expected = draws * expected_spans(budget, weights)
    assert found[len(weights) :].sum() < 0.01 * found.sum()  # two that touch
    seen = expected > 0
    deviation = ((found[: len(weights)] - expected)[seen] ** 2 / expected[seen]).sum()
    assert deviation < 20  # chi-square with at most 3 degrees of freedom: 1 in 5,000
    assert found[: len(weights)][~seen].sum() < 0.001 * found.sum()


def test_every_place_is_as_likely_and_so_are_the_places_in_short_documents():
    hidden, draws = np.zeros(22), 8000
    maskable = np.array([0, *[1] * 9, 0, 0, *[1] * 9, 0], bool)
    masking = Masking(mask_prob=0.15, span_weights=(1,))
    for seed in range(draws):
        hidden += masking.draw(maskable, maskable, np.random.default_rng(seed))
    expected = draws * 3 / 18
    assert ((hidden[maskable] - expected) ** 2 / expected).sum() < 45  # 17 degrees of freedom: 1 in 5,000
    assert hidden[~maskable].sum() == 0


def test_hidden_tokens_become_mask_another_token_or_stay():
    rows = Rows(300, longest=120)
    actual = batches(rows, mask_prob=0.3, keep_prob=0.15, random_prob=0.25)
    batch = actual[part(range(300))]
    shown, labels = batch["ids"][batch["masked_positions"]].numpy(), batch["labels"].numpy()
    count = len(labels)
    assert count > 8000

    def close(share, expected):
        return abs(share - expected) < 4 * (expected * (1 - expected) / count) ** 0.5

    assert close((shown == MASK).mean(), 0.6)
    assert close((shown == labels).mean(), 0.15 + 0.25 / 995)
    other = shown[(shown != MASK) & (shown != labels)]
    assert close(len(other) / count, 0.25 * 994 / 995)
    assert other.min() >= 5 and other.max() < SIZE and len(set(other.tolist())) > 500


@pytest.mark.parametrize(("keep", "random"), [(0, 0), (1, 0), (0, 1)])
def test_hidden_tokens_may_all_have_one_fate(keep, random):
    batch = batches(Rows(), keep_prob=keep, random_prob=random)[part(range(40))]
    shown, labels = batch["ids"][batch["masked_positions"]], batch["labels"]
    assert (shown == MASK).all() == (keep == random == 0)
    assert (shown == labels).all() == (keep == 1)
    assert (shown >= 5).all() == (keep + random == 1)


def test_a_random_token_is_never_special():
    uniform = np.linspace(0, 1, 50_000, endpoint=False)
    outcome = Masking(keep_prob=0, random_prob=1).replace(np.full(50_000, 9), MASK, np.arange(5, 8), uniform)
    assert np.bincount(outcome)[5:] == pytest.approx([50_000 / 3] * 3, abs=1) and len(np.bincount(outcome)) == 8
    assert set(batches(Rows()).ordinary.tolist()) == set(range(5, SIZE))


# ------------------------------------------------------------------------------------------------- borders and words


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_span_never_crosses_a_special_token(whole_words):
    maskable = np.array([0, 1, 1, 0] * 12, bool)  # documents of two tokens, spans of up to four
    for seed in range(60):
        places = draw(maskable, seed=seed, mask_prob=0.3, span_weights=(0, 0, 0, 1), whole_words=whole_words)
        assert places.sum() == 7 and max(runs(places)) <= 2


def test_a_span_that_fits_nowhere_is_shorter_and_one_that_fits_somewhere_is_not():
    maskable = [0, 1, 1, 0, 0, *[1] * 4, 0, 0, 1, 1, 0]
    for seed in range(30):
        places = draw(maskable, seed=seed, mask_prob=0.5, span_weights=(0, 0, 0, 1))
        assert places.tolist() == [5 <= i < 9 for i in range(14)]


def test_places_that_chance_hardly_finds_are_as_likely_as_each_other():
    maskable, starts = np.zeros(2000, bool), np.array([100, 700, 1500])
    maskable[starts[:, None] + np.arange(4)] = True
    options = {"mask_prob": 1 / 3, "span_weights": (0, 0, 0, 1)}
    first = [int(np.flatnonzero(draw(maskable, seed=seed, **options))[0]) for seed in range(300)]
    counts = [first.count(start) for start in starts]
    assert sum(counts) == 300 and min(counts) > 65


def words(seed, documents=3):
    """maskable, starts_word and the number of the word at each place (-1: special)."""
    random = np.random.default_rng(seed)
    maskable, starts, number = [], [], []
    for _ in range(documents):
        maskable, starts, number = [*maskable, 0], [*starts, 1], [*number, -1]
        for _ in range(random.integers(3, 15)):
            size = int(random.integers(1, 5))
            maskable += [1] * size
            starts += [1] + [0] * (size - 1)
            number += [max(number) + 1] * size
        maskable, starts, number = [*maskable, 0], [*starts, 1], [*number, -1]
    return np.array(maskable, bool), np.array(starts, bool), np.array(number)


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_whole_words_are_hidden_whole_and_as_many_as_fit(share):
    for seed in range(25):
        maskable, starts, number = words(seed)
        places = draw(maskable, starts, seed, mask_prob=share, whole_words=True)
        hidden = set(number[places].tolist())
        assert places.tolist() == [n in hidden and n >= 0 for n in number], seed
        budget = int(masked_count(maskable.sum(), share))
        rest = budget - places.sum()
        assert rest >= 0, seed
        sizes = [int((number == n).sum()) for n in set(number[maskable].tolist()) - hidden]
        assert not sizes or rest < min(sizes), seed  # fewer only where no word is small enough
        if share == 1:
            assert rest == 0, seed


def test_a_piece_that_begins_in_the_middle_of_a_word_is_a_word():
    maskable, starts = [0, 1, 1, 1, 0], [1, 0, 0, 1, 1]
    seen = {
        tuple(draw(maskable, starts, seed, mask_prob=0.66, whole_words=True, span_weights=(1,))) for seed in range(20)
    }
    assert seen == {(False, True, True, False, False)} | ({(False, False, False, True, False)} & seen)


def test_spans_of_whole_words_have_the_configured_lengths():
    counts, weights = np.zeros(3), (1, 2, 1)
    maskable, starts = np.ones(6_000, bool), np.tile([True, False], 3_000)
    masking = Masking(mask_prob=20 / 6_000, span_weights=weights, whole_words=True)
    for seed in range(300):
        lengths = runs(masking.draw(maskable, starts, np.random.default_rng(seed)))
        assert lengths.sum() == 20 and not (lengths % 2).any()
        counts += np.bincount(np.minimum(lengths // 2, 4), minlength=5)[1:4]
    # ten words; a span that is too long for the rest is drawn shorter
    expected = 300 * expected_spans(10, weights)
    assert ((counts - expected) ** 2 / expected).sum() < 20


def test_words_of_a_batch_are_those_of_the_tokenizer():
    rows = Rows(60)
    batch = batches(rows, whole_words=True, mask_prob=0.3)[part(range(60))]
    for ids, places in zip(rows.ids, batch["masked_positions"], strict=True):
        for i in range(1, len(ids)):
            if ids[i] >= 5 and ids[i - 1] >= 5 and ids[i] % 3 == 0:
                assert places[i] == places[i - 1]


# -------------------------------------------------------------------------------------- what decides what is hidden


@pytest.mark.parametrize("whole_words", [False, True])
def test_seed_epoch_and_row_decide_and_nothing_else(whole_words):
    rows = Rows(documents=1)
    result = batches(rows, seed=5, whole_words=whole_words)
    alone = result[part([9], epoch=3, divisor=4)]
    torch.manual_seed(1)
    np.random.seed(1)
    together = batches(rows, seed=5, whole_words=whole_words)[part([30, 2, 9, 9], epoch=3)]
    size = len(rows.ids[9])
    for position in (2, 3):
        assert torch.equal(together["ids"][position, :size], alone["ids"][0])
        assert torch.equal(together["masked_positions"][position, :size], alone["masked_positions"][0])


def test_masks_are_fresh_in_each_epoch_seed_and_row():
    rows = Rows(rows=4, longest=60, documents=1)
    rows.ids = [[CLS, *range(100, 200), SEP]] * 4
    rows.documents = [[102]] * 4
    made = [batches(rows, seed=seed)[part(range(4), epoch)]["ids"].tolist() for seed in range(3) for epoch in range(3)]
    assert len({tuple(ids) for table in made for ids in table}) == 3 * 3 * 4


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"mask_prob": 0}, ["mask_prob"]),
        ({"mask_prob": 1.1, "keep_prob": -0.1, "random_prob": "x"}, ["mask_prob", "keep_prob", "random_prob"]),
        ({"keep_prob": 0.6, "random_prob": 0.6}, ["keep_prob"]),
        ({"span_weights": ()}, ["span_weights"]),
        ({"span_weights": (0, 0)}, ["span_weights"]),
        ({"span_weights": (1, -1, 3)}, ["span_weights"]),
        ({"span_weights": (1, float("nan"))}, ["span_weights"]),
        ({"span_weights": (1, float("inf"))}, ["span_weights"]),
        ({"span_weights": 1.0, "whole_words": "yes", "mask_prob": True}, ["mask_prob", "span_weights", "whole_words"]),
    ],
)
def test_impossible_values_are_named(options, keys):
    with pytest.raises(ConfigError) as error:
        made("task", MaskedLMTaskConfig, {"name": "mlm", **options})
    assert sorted({key_of(problem).partition("[")[0] for problem in error.value.problems}) == [
        f"task.{key}" for key in sorted(keys)
    ]


def test_masking_takes_the_lists_of_a_config_and_a_tokenizer_with_a_mask_token():
    config = made("task", MaskedLMTaskConfig, {"name": "mlm", "span_weights": [1, 2]})
    assert config.span_weights == (1.0, 2.0)
    tokens = Tokens()
    tokens.mask_id = None
    with pytest.raises(ValueError, match=r"no \[MASK\].*tokenizer=wordpiece"):
        MaskedLMCollator(Rows(), tokens, Masking(), 0)
