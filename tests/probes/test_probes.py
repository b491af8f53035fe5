"""What each probe draws, asks and scores, against loops over its examples."""

import hashlib
import itertools
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch.nn import functional as F

from attnorm.probes import PROBES, Probe, base, coverage, slots, trigger
from attnorm.probes.arm import Arm
from attnorm.probes.base import assignment, nearest_key
from attnorm.probes.jobs import Cell, cells_of

CELLS = [*(cell for name in PROBES for cell in cells_of(name)), Cell("mqar", "64x64")]
WANTED = {"match", "hub", "demand", "share", "skew", "needle", "max", "sort"}


def title(cell):
    return cell.title


def drawn(cell, count=6, size=None, seed=5):
    probe = cell.probe()
    return probe.batch(count, size or probe.size, torch.Generator().manual_seed(seed))


def with_members(batch, members=2):
    return type(batch)(*(None if x is None else x.expand(members, *x.shape) for x in batch))


def digest():
    """A fingerprint of a small batch of every cell."""
    found = hashlib.sha256()
    for cell in CELLS:
        for tensor in drawn(cell, 3):
            if tensor is not None:
                found.update(repr((cell.title, tuple(tensor.shape), str(tensor.dtype))).encode())
                found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_every_process_draws_the_same_bytes():
    code = "import sys; sys.path.insert(0, sys.argv[1]); from test_probes import digest; print(digest())"
    folder = __file__.rpartition("/")[0]
    ended = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=280)
    assert ended.stdout.strip() == digest(), ended.stderr


@pytest.mark.parametrize("cell", CELLS, ids=title)
def test_a_batch_follows_from_its_generator_and_has_the_sizes_of_the_tests(cell):
    probe = cell.probe()
    assert probe.prediction and probe.source and type(probe).__doc__
    assert probe.size in probe.test_sizes and set(probe.train_sizes) <= set(range(probe.size + 1))
    for size in {probe.size, min(probe.test_sizes), max(probe.test_sizes), *probe.train_sizes}:
        batch = drawn(cell, 3, size)
        again, other = drawn(cell, 3, size), drawn(cell, 3, size, seed=6)
        tensors = [x for x in batch if x is not None]
        assert all(len(x) == 3 for x in tensors)
        assert all(torch.equal(a, b) for a, b in zip(tensors, (x for x in again if x is not None), strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(tensors, (x for x in other if x is not None), strict=True))
        if hasattr(batch, "keys") and cell.name != "trigger":
            assert batch.keys.shape[1] == batch.values.shape[1] == size


@pytest.mark.parametrize("cell", CELLS, ids=title)
def test_rows_of_a_batch_differ_and_its_model_answers_each_with_a_score_for_every_member(cell):
    """Changing the outputs of one member changes its loss and its scores, and those of no other."""
    probe = cell.probe()
    model = probe.model(Arm("softmax"), [1, 2])
    batch = with_members(drawn(cell, 3, min(probe.test_sizes)))
    outputs = model(batch).detach()
    scores = probe.score(outputs, batch)
    assert scores.shape == (2, 3) and scores.isfinite().all() and (scores <= 1).all()
    ceiling = probe.ceiling(drawn(cell, 3))
    assert ceiling is None or (ceiling.shape == (3,) and (ceiling <= 1).all())
    if probe.updates:
        losses, changed = probe.loss(outputs, batch), outputs.clone()
        assert losses.shape == (2,) and losses.isfinite().all() and losses[0] != losses[1]
        changed[1] = changed[1].flip(-1) * 3
        after = probe.loss(changed, batch)
        assert losses[0] == after[0] and losses[1] != after[1]
        assert torch.equal(scores[0], probe.score(changed, batch)[0])


@pytest.mark.parametrize("cell", [it for it in CELLS if it.name in WANTED | {"recall"}], ids=title)
def test_labels_are_in_values_alone_and_say_nothing_of_what_is_wanted(monkeypatch, cell):
    """With other labels, values and targets are renamed and all else stays: queries and keys cannot tell a label, nor
    values which key is wanted."""
    before = drawn(cell)
    real, calls = torch.randint, []

    def renamed(*arguments, **named):
        if arguments[0] != base.LABELS or not isinstance(arguments[1], tuple):
            return real(*arguments, **named)
        calls.append(arguments)
        return (real(*arguments, **named) + 3) % base.LABELS

    monkeypatch.setattr(torch, "randint", renamed)
    after = drawn(cell)
    assert len(calls) == 1
    for field, x, y in zip(before._fields, before, after, strict=True):
        if field == "values":
            assert torch.equal(y, x.roll(3, -1))
        elif field == "targets":
            assert torch.equal(y, (x + 3) % base.LABELS)
        else:
            assert torch.equal(x, y), field


@pytest.mark.parametrize("cell", [it for it in CELLS if it.name in WANTED], ids=title)
def test_the_target_is_the_label_of_the_wanted_key(cell):
    for size in (cell.probe().size, max(cell.probe().test_sizes)):
        batch = drawn(cell, size=size)
        assert batch.wanted is not None and batch.wanted.shape == batch.targets.shape == batch.queries.shape[:2]
        assert torch.equal(batch.values.sum(-1), torch.ones(batch.values.shape[:2]))
        for b, (wanted, targets) in enumerate(zip(batch.wanted.tolist(), batch.targets.tolist(), strict=True)):
            for key, target in zip(wanted, targets, strict=True):
                assert batch.values[b, key, target] == 1


def test_labels_are_spread_evenly_over_all():
    batch = drawn(Cell("match"), 400)
    shares = batch.values.mean((0, 1))
    assert (shares - 1 / base.LABELS).abs().max() < 5 * math.sqrt(1 / base.LABELS / (400 * 16))


# ------------------------------------------------------------------------------------------------------ what is wanted


@pytest.mark.parametrize(
    "cell", [Cell("match"), Cell("hub", "0"), Cell("demand", "4"), Cell("share", "4"), Cell("needle")]
)
def test_the_wanted_key_is_the_one_that_a_query_resembles(cell):
    """The query moves towards its key when the noise goes; it is nearest to it then."""
    cls = type(cell.probe())
    options = {**cls.doses.get(cell.dose, {}), "noise": 0.0}
    batch = cls(**options).batch(5, cell.probe().size, torch.Generator().manual_seed(2))
    assert torch.equal(torch.cdist(batch.queries, batch.keys).argmin(-1), batch.wanted)
    assert nearest_key(batch).min() == assignment_or_one(batch) == 1


def assignment_or_one(batch):
    """Share answered by the assignment, if no key is wanted twice."""
    distinct = all(len(set(row)) == len(row) for row in batch.wanted.tolist())
    return assignment(batch).min() if distinct else 1.0


def test_demand_has_as_many_distinct_wishes_as_queries_and_share_wants_so_many_keys_equally_often():
    for size, factor in ((16, 1), (32, 2)):
        for queries in (16, 12, 8, 4):
            batch = drawn(Cell("demand", str(queries)), size=size)
            assert batch.queries.shape[1] == queries * factor
            assert all(len(set(row)) == queries * factor for row in batch.wanted.tolist())
        for kept in (8, 4, 1):
            for row in drawn(Cell("share", str(kept)), size=size).wanted.tolist():
                assert sorted(Counter(row).values()) == [size // (kept * factor)] * (kept * factor)


def test_skew_wants_one_key_anywhere_with_the_named_probability():
    wanted = drawn(Cell("skew", "0.8"), 2000).wanted
    popular = wanted.mode(1, keepdim=True).values
    places = torch.bincount(popular.flatten(), minlength=16)
    assert places.min() > 0.6 * places.float().mean()
    wanted = (wanted - popular) % 16
    hot = (wanted == 0).float().mean().item()
    assert hot == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / wanted.numel()))
    others = torch.bincount(wanted[wanted > 0], minlength=16)[1:]
    assert others.min() > 0.7 * others.float().mean()


def test_a_hub_is_shifted_by_its_dose():
    """Without noise, the query is unit(key + shift u), so the mean of the queries grows with the shift."""
    means = []
    for dose in ("0", "0.45", "0.9"):
        batch = drawn(Cell("hub", dose), 200)
        torch.testing.assert_close(batch.queries.norm(dim=-1), torch.ones(batch.queries.shape[:2]))
        torch.testing.assert_close(batch.keys.norm(dim=-1), torch.ones(batch.keys.shape[:2]))
        means.append(batch.queries.mean(1).norm(dim=-1).mean().item())
    assert means[0] + 0.1 < means[1] < means[2] - 0.1


def test_needles_are_eight_of_any_number_of_keys():
    for size in (8, 64, 256):
        wanted = drawn(Cell("needle"), size=size).wanted
        assert wanted.shape[1] == 8 and wanted.max() < size
        assert all(len(set(row)) == 8 for row in wanted.tolist())
    assert wanted.max() > 64


def test_max_is_the_largest_priority_of_the_group_whose_keys_may_be_anywhere():
    for size in (8, 128):
        batch = drawn(Cell("max"), size=size)
        for b in range(6):
            for group in range(4):
                members = [j for j in range(size) if batch.keys[b, j, 1 + group] == 1]
                best = max(members, key=lambda j: batch.keys[b, j, 0].item())
                assert batch.wanted[b, group] == best
                assert batch.queries[b, group].tolist() == [float(group == other) for other in range(4)]
    groups = drawn(Cell("max"), 2000).keys[..., 1:]
    assert (groups.mean(0) - 1 / 4).abs().max() < 5 * math.sqrt(3 / 16 / 2000) and groups.amax(1).min() == 1


def test_sort_asks_for_ranks():
    batch = drawn(Cell("sort"))
    for row, wanted in zip(batch.keys.squeeze(-1).tolist(), batch.wanted.tolist(), strict=True):
        assert [row[j] for j in wanted] == sorted(row)
    assert batch.queries[0, :, 0].tolist() == pytest.approx([r / 15 for r in range(16)])


def test_histogram_counts_the_own_kind():
    batch = drawn(Cell("histogram"), 50)
    tokens = batch.queries.argmax(-1).tolist()
    for row, targets in zip(tokens, batch.targets.tolist(), strict=True):
        assert targets == [Counter(row)[token] - 1 for token in row]  # a class from 0 for every count from 1
    assert torch.equal(batch.queries, batch.keys) and torch.equal(batch.queries, batch.values)
    assert batch.targets.max() > 4, "counts vary"


def test_coverage_has_all_six_kinds_and_two_of_them_once_at_any_position():
    for size in (24, 96):
        batch = drawn(Cell("coverage"), 200, size)
        counts = batch.keys.sum(1)
        assert torch.equal(batch.targets, (counts > 0).float()) and (batch.targets.sum(-1) == 6).all()
        assert (counts.gather(1, batch.rare) == 1).all()
        rest = counts.scatter(1, batch.rare, 0.0).sort(-1, descending=True).values[:, :4].mean(0) / (size - 2)
        expected = torch.tensor(coverage.SHARES)
        assert (rest - expected).abs().max() < 0.1 and (rest.diff() < 0).all()
        assert torch.equal(batch.keys, batch.values)
    batch = drawn(Cell("coverage"), 2000, 24)
    is_rare = batch.keys.gather(2, batch.rare.unsqueeze(1).expand(-1, 24, -1)).sum(-1)  # (examples, positions)
    error = (1 / 12 * 11 / 12 / 2000) ** 0.5
    assert (is_rare.mean(0) - 2 / 24).abs().max() < 5 * error


def test_coverage_scores_the_share_of_rare_kinds_among_the_six_most_likely():
    batch = with_members(drawn(Cell("coverage"), 1), 3)
    outputs = 5 * batch.targets.clone()  # all six
    first, second = batch.rare[0, 0].tolist()
    absent = [kind for kind in range(coverage.KINDS) if batch.targets[0, 0, kind] == 0]
    outputs[1, 0, first], outputs[1, 0, absent[0]] = 4, 5
    outputs[2, 0, [first, second]], outputs[2, 0, absent[:2]] = torch.tensor([4.0, 4.0]), torch.tensor([5.0, 5.0])
    assert Cell("coverage").probe().score(outputs, batch).squeeze(-1).tolist() == [1, 0.5, 0]


@pytest.mark.parametrize("dose", ["no BOS", "BOS"])
def test_trigger_answers_with_the_mean_or_with_nothing(dose):
    bos = dose == "BOS"
    batch = drawn(Cell("trigger", dose), 300)
    assert batch.keys.shape[1:] == (16 + bos, 9) and batch.values.shape[1:] == (16 + bos, 8)
    assert torch.equal(batch.keys[..., :8], batch.values)
    for b in range(300):
        vectors = batch.values[b, bos:]
        expected = vectors.mean(0) if batch.queries[b].item() == 1 else torch.zeros(8)
        torch.testing.assert_close(batch.targets[b, 0], expected)
    assert set(batch.queries.unique().tolist()) == {-1, 1}
    if bos:
        assert batch.values[:, 0].abs().max() == 0
    assert batch.keys[..., 8].sum(1).unique().tolist() == [float(bos)], "the BOS key is the marked one"


def test_r2_is_one_for_the_answer_zero_for_nothing_and_the_null_in_between():
    """The variance of the answers is .3 * 8 / M. For the best multiple c of the mean, E|c m - t|^2 is smallest at
    c = .3, so R2 is .3 there."""
    probe, batch = Cell("trigger", "no BOS").probe(), with_members(drawn(Cell("trigger", "no BOS"), 4000), 3)
    answers = torch.stack(
        [batch.targets[0], 0 * batch.targets[0], trigger.SHARE * batch.values[0].mean(1, keepdim=True)]
    )
    scores = probe.score(answers, batch).mean(1).tolist()
    assert scores[0] == 1 and scores[1] == pytest.approx(0, abs=0.1) and scores[2] == pytest.approx(0.3, abs=0.05)
    exact = 1 - ((answers[2] - batch.targets[2]) ** 2).sum() / (batch.targets[2] ** 2).sum()
    assert scores[2] == pytest.approx(exact.item(), abs=0.06)


def test_mqar_asks_once_for_the_value_that_followed_each_key_and_soon_rather_than_late():
    batch = drawn(Cell("mqar", "128x64"), 400)
    for tokens, targets, positions in zip(*(x.tolist() for x in batch), strict=True):
        pairs = dict(zip(tokens[0:16:2], tokens[1:16:2], strict=True))
        assert [pairs[tokens[at]] for at in positions] == targets and len(pairs) == len({*targets}) == 8
        assert all(0 < key < 4096 <= value < 8192 for key, value in pairs.items())
        assert len({*positions}) == 8 and all(at >= 16 and at % 2 == 0 for at in positions)
        assert sum(token > 0 for token in tokens) == 24  # the others are fillers
    first = (batch.positions[:, 0] == 16).float().mean().item()
    expected = 1 / sum(gap**-0.99 for gap in range(1, 57))
    assert first == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / 400))


def test_the_layers_of_mqar_know_positions_and_see_no_later_tokens():
    probe, batch = Cell("mqar", "64x64").probe(), with_members(drawn(Cell("mqar", "64x64"), 1), 1)
    model, [[positions]] = probe.model(Arm("softmax"), [1]), batch.positions.sort().values
    batch, later = batch._replace(positions=positions[None, None]), batch.tokens.clone()
    later[..., positions[2]] = 5
    outputs = model(batch)
    changed = (model(batch._replace(tokens=later)) - outputs).abs().amax((0, 1, 3)) > 0
    assert changed.tolist() == [False, False, True, True]
    model.positions.data.zero_()
    assert (model(batch) - outputs).abs().amax((0, 1, 3)).min() > 0


def test_recall_asks_for_the_label_that_followed_a_name():
    cell = Cell("recall")
    probe = type(cell.probe())(noise=0.0)
    for size in (32, 128):
        batch = probe.batch(5, size, torch.Generator().manual_seed(1))
        for b in range(5):
            for place, target in zip(batch.positions[b].tolist(), batch.targets[b].tolist(), strict=True):
                assert place >= 16
                asked = batch.queries[b, place]
                [name] = [j for j in range(0, 16, 2) if torch.equal(batch.queries[b, j], asked)]
                assert batch.values[b, name + 1, target] == 1 and torch.equal(batch.keys[b, name + 1], asked)
        assert batch.values.sum(-1).sum(-1).tolist() == [8.0] * 5
        assert all(len(set(row)) == 8 for row in batch.positions.tolist())
        assert torch.equal(batch.keys[:, 1:], batch.queries[:, :-1]) and batch.keys[:, 0].abs().max() == 0
        assert (probe.ceiling(batch) == 1).all()


def test_slots_have_the_named_shares_and_clusters_that_lie_together():
    for size in (64, 128):
        batch = drawn(Cell("slots", "exchangeable"), 300, size)
        counts = F.one_hot(batch.targets, 4).sum(1)
        assert (counts / size - torch.tensor(slots.SHARES)).abs().max() <= 1 / size
        at_position = F.one_hot(batch.targets, 4).float().mean(0)  # which says nothing about the cluster
        assert (at_position - torch.tensor(slots.SHARES)).abs().max() < 5 * (0.24 / 300) ** 0.5
        for cluster in range(4):
            points = batch.points[batch.targets == cluster].unflatten(0, (300, -1))
            assert points.var(1).mean().item() == pytest.approx((4 * slots.SPREAD) ** 2, rel=0.15)


def test_exchangeable_slots_are_scored_by_the_smallest_cluster_alone():
    """Found: intersection over union above one half."""
    probe, size = Cell("slots", "exchangeable").probe(), 64
    batch = with_members(drawn(Cell("slots", "exchangeable"), 1, size), 4)
    truth = batch.targets[0, 0]
    smallest = (truth == 3).nonzero().flatten()
    assert len(smallest) == 4
    answers = [truth.roll(0), truth.clone(), truth.clone(), (truth + 1) % 4]
    answers[1][(truth == 0).nonzero().flatten()[:4]] = 3  # 4 of a slot of 8: one half is not more than one half
    answers[2][(truth == 0).nonzero().flatten()[:3]] = 3  # 4 of 7
    outputs = torch.stack([F.one_hot(answer, 4).float() for answer in answers])[:, None]
    assert probe.score(outputs, batch).squeeze(1).tolist() == [1, 0, 1, 1]


# ------------------------------------------------------------------------------------------------ bounds and solvers


@pytest.mark.parametrize(("keys", "queries"), [(5, 5), (8, 3)])
def test_the_assignment_is_the_best_of_all_choices(keys, queries):
    """The length of a key matters if queries are fewer: without its square, long keys would be preferred."""
    batch = type(Cell("match").probe())(noise=0.9).batch(20, keys, torch.Generator().manual_seed(3))
    batch = batch._replace(queries=batch.queries[:, :queries], targets=batch.targets[:, :queries])
    expected, greedy = [], []
    for b in range(20):
        costs = torch.cdist(batch.queries[b], batch.keys[b]).square()
        choices = itertools.permutations(range(keys), queries)
        best = min(choices, key=lambda choice: sum(costs[i, j].item() for i, j in enumerate(choice)))
        labels = batch.values[b].argmax(-1)
        expected.append((labels[list(best)] == batch.targets[b]).float().mean())
        greedy.append((labels[costs.argmin(-1)] == batch.targets[b]).float().mean())
    assert torch.equal(assignment(batch), torch.stack(expected)) and torch.equal(
        nearest_key(batch), torch.stack(greedy)
    )
    assert queries < keys or assignment(batch).mean() > nearest_key(batch).mean()


def test_the_ceiling_is_what_an_exact_answer_scores():
    """For probes that can be solved, right outputs score the ceiling."""
    for cell in (Cell("max"), Cell("sort"), Cell("histogram")):
        batch = drawn(cell)
        right = F.one_hot(batch.targets, base.LABELS).float()[None]
        score = cell.probe().score(right, with_members(batch, 1))
        assert torch.equal(score[0], cell.probe().ceiling(batch)) and (score == 1).all()
    for dose in ("BOS", "no BOS"):
        batch = drawn(Cell("trigger", dose))
        assert torch.equal(Cell("trigger", dose).probe().score(batch.targets[None], with_members(batch, 1))[0],
                           Cell("trigger", dose).probe().ceiling(batch))  # fmt: skip


def test_the_adjusted_rand_index_of_a_case_made_by_hand():
    """Hubert and Arabie's definition: table [[2, 0], [1, 1]] has 1 common pair, rows 1 + 1, columns 3 + 0, 6 pairs."""
    table = torch.tensor([[2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    expected = (1 - 2 * 3 / 6) / ((2 + 3) / 2 - 2 * 3 / 6)
    assert slots.adjusted_rand_index(table).item() == pytest.approx(expected)
    same = torch.diag(torch.tensor([3.0, 2.0, 4.0], dtype=torch.float64))[:, [2, 0, 1]]
    one = torch.tensor([[5.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert slots.adjusted_rand_index(same) == 1 and slots.adjusted_rand_index(one) == 1
    assert slots.adjusted_rand_index(torch.tensor([[3.0, 0.0], [4.0, 0.0]], dtype=torch.float64)) == 0


def test_the_adjusted_rand_index_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    batch = with_members(drawn(Cell("slots", "distinct"), 10), 1)
    outputs = torch.randn(1, 10, 64, 4, generator=torch.Generator().manual_seed(0))
    outputs += 2 * F.one_hot(batch.targets, 4)
    found = Cell("slots", "distinct").probe().score(outputs, batch)[0]
    for b in range(10):
        expected = metrics.adjusted_rand_score(batch.targets[0, b].numpy(), outputs[0, b].argmax(-1).numpy())
        assert found[b].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dose", ["exchangeable", "distinct"])
def test_the_ceiling_of_slots_is_that_of_the_mixture_they_are_drawn_from(dose):
    """With the densities of scipy, cluster by cluster; points that lie apart are all found."""
    metrics = pytest.importorskip("sklearn.metrics")
    probe, batch = Cell("slots", dose).probe(), drawn(Cell("slots", dose), 20, 64)
    ceiling = probe.ceiling(batch)
    for b, (points, clusters) in enumerate(zip(batch.points.numpy(), batch.targets.numpy(), strict=True)):
        density = np.stack([
            (clusters == k).mean() * multivariate_normal(points[clusters == k].mean(0), 0.4**2).pdf(points)
            for k in range(slots.SLOTS)
        ])  # fmt: skip
        taken = density.argmax(0)
        overlap = [(taken[clusters == 3] == k).sum() / ((taken == k) | (clusters == 3)).sum() for k in range(4)]
        wanted = metrics.adjusted_rand_score(clusters, taken) if dose == "distinct" else float(max(overlap) > 0.5)
        assert ceiling[b].item() == pytest.approx(wanted, abs=1e-6)
    assert 0 < ceiling.mean() < 1
    apart = batch._replace(points=batch.points + 20 * batch.targets.unsqueeze(-1))
    assert (probe.ceiling(apart) == 1).all()


def test_the_loss_of_slots_is_the_likelihood_of_their_mixture():
    probe = Cell("slots", "distinct").probe()
    batch = with_members(drawn(Cell("slots", "distinct"), 2), 1)
    model = probe.model(Arm("softmax"), [1])
    outputs = model(batch)
    mean, log_deviation, logit = model.readout(model.slots(batch)[0])[0].split([2, 1, 1], -1)
    weights = logit.squeeze(-1).softmax(-1)
    total = []
    for b in range(2):
        deviation = log_deviation[0, b].clamp(-4, 2).exp()
        normal = torch.distributions.Normal(mean[0, b], deviation.expand(4, 2))
        density = normal.log_prob(batch.points[0, b][:, None]).sum(-1).exp()
        total.append((density * weights[0, b]).sum(-1).log())
    torch.testing.assert_close(probe.loss(outputs, batch)[0], -torch.stack(total).mean(), rtol=1e-5, atol=1e-5)


def test_random_slots_are_exchangeable_and_distinct_ones_are_not():
    batch = with_members(drawn(Cell("slots", "exchangeable"), 2), 1)
    order = [2, 0, 3, 1]
    swapped = batch._replace(starts=batch.starts[:, :, order])
    random, own = (Cell("slots", dose).probe().model(Arm("softmax"), [1]) for dose in ("exchangeable", "distinct"))
    torch.testing.assert_close(random(swapped), random(batch)[..., order], rtol=1e-4, atol=1e-4)
    assert torch.equal(own(swapped), own(batch)), "learned starts do not come from the batch"


def test_rank_trains_nothing_and_equal_rows_score_zero():
    cell = Cell("rank", "depth 2")
    assert cell.probe().updates == 0
    model = cell.probe().model(Arm("uniform"), [1])
    batch = with_members(drawn(cell, 3), 1)
    assert cell.probe().score(model(batch), batch).abs().max() < 1e-5
    assert cell.probe().score(batch.states, batch).min() > 0.8


def test_a_probe_without_a_generator_says_so():
    class Mine(Probe):
        pass

    with pytest.raises(NotImplementedError, match=r"Mine: has no batch\(count, size, generator\)"):
        Mine().model(Arm("softmax"), [1])


def test_a_probe_at_the_causal_site_has_a_causal_model():
    probe = Cell("probe_parts.TinyCausal").probe()
    model = probe.model(Arm("softmax"), [0])
    batch = with_members(probe.batch(3, 5, torch.Generator().manual_seed(0)), 1)
    later = batch._replace(keys=batch.keys.clone(), values=batch.values.clone())
    later.keys[:, :, 3:], later.values[:, :, 3:] = 9.0, 9.0
    changed = (model(later) - model(batch)).abs().amax((0, 1, 3))
    assert (changed[:3] == 0).all() and (changed[3:] > 0).all()
