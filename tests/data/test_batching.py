"""Batches: every row once an epoch, within the budget, in an order that only (seed, epoch) decides, resumable."""

import itertools

import numpy as np
import pytest
import torch

from attnorm.data.featurizer import pad
from attnorm.data.loader import ResumableLoader
from attnorm.data.sampler import MicroBatch, TokenBatches, cut_by_tokens
from attnorm.tasks.pairs import PairCollator

PAD, BOS, EOS = 0, 1, 2
BUDGET = 400
LAYOUTS = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)]  # (accumulation, ranks)


def random_lengths(rows=200, seed=0):
    """int (rows, 2): source and target tokens, with ties."""
    random = np.random.default_rng(seed)
    return np.stack([random.integers(2, 25, rows), random.integers(2, 9, rows)], axis=1)


class Table:
    """Rows of token ids; row number r is written into its words."""

    def __init__(self, lengths):
        self.columns = {
            name: [[10 + row] * (length - 1) for row, length in enumerate(column)]
            for name, column in zip(("source", "target"), lengths.T.tolist(), strict=True)
        }

    def __getitem__(self, rows):
        return {name: [column[row] for row in rows] for name, column in self.columns.items()}


def updates(lengths, accumulation=1, ranks=1, epoch=0, seed=0, budget=BUDGET):
    """The rows of each update: [update][part], over all accumulation steps and ranks."""
    per_rank = []
    for rank in range(ranks):
        sampler = TokenBatches(lengths, budget, seed=seed, accumulation=accumulation, rank=rank, ranks=ranks)
        sampler.set_epoch(epoch)
        parts = list(sampler)
        assert len(parts) == len(sampler)
        per_rank.append([parts[start : start + accumulation] for start in range(0, len(parts), accumulation)])
    return [list(itertools.chain(*same_update)) for same_update in zip(*per_rank, strict=True)]


def rows_of(update):
    return sorted(itertools.chain.from_iterable(part.rows for part in update))


# ----------------------------------------------------------------------------------------------------------- an epoch


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_without_shuffling_the_ranks_share_every_row_and_the_order_is_that_of_any_epoch(ranks):
    lengths, dealt = random_lengths(), []
    for rank in range(ranks):
        sampler = TokenBatches(lengths, BUDGET, shuffle=False, rank=rank, ranks=ranks)
        first = list(sampler)
        sampler.set_epoch(5)
        assert list(sampler) == first and len(first) == len(sampler)
        dealt += first
    assert rows_of(dealt) == list(range(200))
    whole = list(TokenBatches(lengths, BUDGET, shuffle=False))
    assert sorted(part.rows for part in dealt) == sorted(part.rows for part in whole)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_keeps_the_token_budget_and_wastes_little_of_it(shuffle):
    lengths = random_lengths()
    sizes = [
        len(part.rows) * int(lengths[part.rows].max(0).sum()) for part in TokenBatches(lengths, BUDGET, shuffle=shuffle)
    ]
    assert max(sizes) <= BUDGET
    assert sorted(sizes)[len(sizes) // 2] > 0.7 * BUDGET


@pytest.mark.parametrize("accumulation, ranks", LAYOUTS)
def test_an_update_is_the_same_rows_however_many_devices_and_pieces_share_it(accumulation, ranks):
    lengths = random_lengths()
    for epoch in (0, 1):
        whole = updates(lengths, epoch=epoch)
        shared = updates(lengths, accumulation, ranks, epoch)
        assert list(map(rows_of, shared)) == list(map(rows_of, whole))
        assert sorted(itertools.chain.from_iterable(map(rows_of, shared))) == list(range(200))  # once an epoch


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
def test_a_last_batch_with_few_rows_does_not_change_the_order_of_the_others(parts):
    changed = 0
    for rows in range(160, 200):  # the last batch has 1, 2, ... rows
        lengths = random_lengths(rows)
        whole, shared = updates(lengths), updates(lengths, parts)
        last = TokenBatches(lengths, BUDGET).cuts
        if last[-1] - last[-3] < 2 * parts:
            continue  # too few rows for both
        different = [rows_of(a) != rows_of(b) for a, b in zip(whole, shared, strict=True)]
        assert sum(different) in (0, 2) and sum(different) // 2 == (last[-1] - last[-2] < parts)
        changed += any(different)
    assert changed


@pytest.mark.parametrize("accumulation, ranks", [(1, 1), (3, 1), (2, 2)])
def test_a_limit_ends_every_epoch_after_so_many_updates(accumulation, ranks):
    """Without a limit, all epochs have as many batches, which are the same when they are iterated again."""
    sampler, counts = TokenBatches(random_lengths(), BUDGET, accumulation=accumulation, ranks=ranks), set()
    for epoch in range(6):
        sampler.set_epoch(epoch)
        sampler.limit = None
        whole = list(sampler)
        counts.add(len(whole))
        for limit in (1, 3, 10**6):
            sampler.limit = limit
            assert list(sampler) == whole[: limit * accumulation] and len(sampler) == len(list(sampler))
    assert counts == {len(sampler)} and len(sampler) % accumulation == 0


@pytest.mark.parametrize("accumulation, ranks", LAYOUTS)
def test_every_part_is_an_equal_share_and_knows_the_target_tokens_of_its_update(accumulation, ranks):
    lengths = random_lengths()
    for update in updates(lengths, accumulation, ranks):
        assert len(update) == accumulation * ranks
        sizes = [len(part.rows) for part in update]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        tokens = sum(int(lengths[row, 1]) for row in rows_of(update))
        assert {part.divisor for part in update} == {tokens}


def test_the_order_is_decided_by_seed_and_epoch_alone():
    lengths = random_lengths()
    torch.manual_seed(1)
    np.random.seed(1)
    order = {key: updates(lengths, seed=key[0], epoch=key[1]) for key in [(0, 0), (0, 1), (1, 0), (1, 1)]}
    torch.manual_seed(2)
    np.random.seed(2)
    for (seed, epoch), result in order.items():
        assert updates(lengths, seed=seed, epoch=epoch) == result
    for first, second in itertools.combinations(order.values(), 2):
        assert first != second
        assert sorted(map(rows_of, first)) != sorted(map(rows_of, second))  # rows of equal lengths change batches


def test_batches_of_short_and_long_rows_are_mixed_over_the_epoch():
    lengths = random_lengths()
    longest = [int(lengths[rows_of(update), 0].max()) for update in updates(lengths)]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


@pytest.mark.parametrize("accumulation, ranks", [(1, 4), (4, 1), (2, 2)])
def test_fewer_rows_than_parts_are_refused(accumulation, ranks):
    with pytest.raises(ValueError, match="3 rows cannot be split into 4 parts"):
        TokenBatches(random_lengths(3), BUDGET, accumulation=accumulation, ranks=ranks)
    TokenBatches(random_lengths(4), BUDGET, accumulation=accumulation, ranks=ranks)
    TokenBatches(random_lengths(ranks), BUDGET, shuffle=False, accumulation=accumulation, ranks=ranks)
    with pytest.raises(ValueError, match="rows cannot be split into"):
        TokenBatches(random_lengths(ranks - 1), BUDGET, shuffle=False, ranks=ranks)


@pytest.mark.parametrize("rows", [4, 5, 9])
def test_each_device_has_something_to_validate(rows):
    dealt = [list(TokenBatches(random_lengths(rows), 10**6, shuffle=False, rank=rank, ranks=4)) for rank in range(4)]
    assert min(map(len, dealt)) == 1
    assert rows_of(itertools.chain.from_iterable(dealt)) == list(range(rows))


@pytest.mark.parametrize("budget", [50, 400, 5000])
def test_padding_is_the_share_of_cells_without_a_token(budget):
    lengths = random_lengths()
    sampler = TokenBatches(lengths, budget)
    tokens = cells = 0
    for part in sampler:
        sources, targets = lengths[part.rows, 0].tolist(), lengths[part.rows, 1].tolist()
        for source, target in zip(sources, targets, strict=True):
            tokens += source + target
            cells += max(sources) + max(targets)
    assert sampler.padding() == pytest.approx(1 - tokens / cells, rel=1e-12)


# ----------------------------------------------------------------------------------------------- the cuts and collating


def sized(*totals):
    """Rows with one target token and so many tokens in all."""
    return np.array([[total - 1, 1] for total in totals])


@pytest.mark.parametrize(
    "lengths, budget, at_least, expected",
    [
        pytest.param(sized(5, 5, 5, 5), 10, 1, [0, 2, 4], id="exactly_full"),
        pytest.param(sized(5, 5, 5, 5), 9, 1, [0, 1, 2, 3, 4], id="one_token_short"),
        pytest.param(sized(5, 5, 5), 100, 1, [0, 3], id="all_in_one"),
        pytest.param(sized(3, 3, 30, 3), 10, 1, [0, 2, 3, 4], id="a_row_over_the_budget_is_alone"),
        pytest.param(sized(30), 10, 1, [0, 1], id="only_a_row_over_the_budget"),
        pytest.param(sized(5, 5, 5), 0, 1, [0, 1, 2, 3], id="no_budget"),
        pytest.param(sized(2, 2, 9, 2), 12, 1, [0, 2, 3, 4], id="a_long_row_makes_all_long"),
        pytest.param(sized(9, 9, 9, 9, 9, 9), 10, 3, [0, 3, 6], id="at_least_above_the_budget"),
        pytest.param(sized(9, 9, 9, 9, 9), 10, 3, [0, 5], id="the_last_joins"),
        pytest.param(sized(2, 2, 2, 2, 9, 9, 9, 9), 8, 3, [0, 4, 8], id="the_last_joins_the_batch_before"),
        pytest.param(sized(2, 2, 2, 2, 2, 9), 10, 2, [0, 4, 6], id="the_last_gets_a_row_of_the_batch_before"),
        pytest.param(sized(5, 5), 100, 2, [0, 2], id="as_many_rows_as_at_least"),
        pytest.param(np.array([[8, 1], [1, 8]]), 31, 1, [0, 1, 2], id="source_and_target_are_padded_apart"),
        pytest.param(np.array([[8, 1], [1, 8]]), 32, 1, [0, 2], id="source_and_target_just_fit"),
    ],
)
def test_cuts(lengths, budget, at_least, expected):
    assert cut_by_tokens(lengths, budget, at_least) == expected


@pytest.mark.parametrize("at_least", [1, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_a_cut_comes_only_where_the_next_row_would_be_too_much(seed, at_least):
    lengths = random_lengths(60, seed)
    cuts = cut_by_tokens(lengths, 150, at_least)
    assert cuts[0] == 0 and cuts[-1] == 60
    for start, stop in itertools.pairwise(cuts[:-1]):
        assert stop - start >= at_least
    for start, stop in itertools.pairwise(cuts[:-2]):  # the last batches may have joined, or share their rows
        assert stop - start == at_least or (stop - start) * lengths[start:stop].max(0).sum() <= 150
        assert (stop + 1 - start) * lengths[start : stop + 1].max(0).sum() > 150
    assert cuts[-1] - cuts[-2] >= at_least


def test_a_batch_holds_the_rows_with_their_special_tokens_and_padding():
    batches = PairCollator(Table(np.array([[3, 2], [2, 4], [1, 1]])), PAD, BOS, EOS)
    batch, empty = batches[MicroBatch([1, 0], divisor=6)], batches[MicroBatch([2], 1)]
    assert empty["source"].tolist() == [[EOS]] and empty["target"].tolist() == [[BOS, EOS]]
    assert batch["source"].tolist() == [[11, EOS, PAD], [10, 10, EOS]]
    assert batch["target"].tolist() == [[BOS, 11, 11, 11, EOS], [BOS, 10, EOS, PAD, PAD]]
    assert batch["rows"].tolist() == [1, 0] and batch["divisor"].item() == 6
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_pad_fills_behind_each_row_to_the_longest():
    assert pad([[7], [], [8, 9]], 5).tolist() == [[7, 5], [5, 5], [8, 9]]
    assert pad([[7], [], [8, 9]], 5, 1, 2).tolist() == [[1, 7, 2, 5], [1, 2, 5, 5], [1, 8, 9, 2]]
    assert pad([[7], []], 5, end=2).tolist() == [[7, 2], [2, 5]] and pad([[7], []], 5, 1).tolist() == [[1, 7], [1, 5]]


# ------------------------------------------------------------------------------------------------------------- resuming


def loader(num_workers=0, accumulation=2):
    lengths = random_lengths(80)
    return ResumableLoader(
        PairCollator(Table(lengths), PAD, BOS, EOS), TokenBatches(lengths, 200, accumulation=accumulation), num_workers
    )


def epoch_of(batches, epoch):
    """The row numbers of an epoch's batches, as Lightning iterates."""
    batches.sampler.set_epoch(epoch)
    return [batch["rows"].tolist() for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_stopped_in_mid_epoch_goes_on_with_the_next_batch(num_workers):
    whole = loader()
    expected = [epoch_of(whole, epoch) for epoch in range(3)]
    stopped = loader(num_workers)
    stopped.sampler.set_epoch(1)
    iterator = iter(stopped)
    seen = [next(iterator)["rows"].tolist() for _ in range(3)]
    state = stopped.state_dict()  # workers have fetched further by now
    iterator.close()
    assert seen == expected[1][:3]

    resumed = loader(num_workers)
    resumed.load_state_dict(state)
    assert epoch_of(resumed, 1) == expected[1][3:]
    assert resumed.state_dict() == {"epoch": 1, "handed_out": len(expected[1]), "accumulation": 2}
    assert epoch_of(resumed, 2) == expected[2]  # the next epoch is a whole one
    assert epoch_of(resumed, 1) == expected[1]  # and only the first iteration was a resumed one


def test_a_resumed_run_can_be_stopped_and_resumed_again():
    expected, batches = epoch_of(loader(), 0), loader()
    seen = []
    for count in (2, 4, 1):
        state = batches.state_dict()
        batches = loader()
        batches.load_state_dict(state)
        iterator = iter(batches)
        seen += [next(iterator)["rows"].tolist() for _ in range(count)]
    assert seen == expected[:7]


def test_a_run_stopped_at_the_end_of_an_epoch_goes_on_with_the_next_epoch():
    batches = loader()
    finished = epoch_of(batches, 0)
    assert len(finished) == len(batches) == batches.state_dict()["handed_out"]
    resumed = loader()
    resumed.load_state_dict(batches.state_dict())
    assert epoch_of(resumed, 1) == epoch_of(loader(), 1)

    repeated = loader()
    repeated.load_state_dict(batches.state_dict())
    assert epoch_of(repeated, 0) == []  # nothing of this epoch is left


def test_iterating_draws_nothing_from_the_global_random_stream():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    epoch_of(loader(), 0)
    assert torch.equal(torch.rand(3), expected)
