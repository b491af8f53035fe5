"""lotformer and espformer: their formulas as loops, with every mask and prior; their options; their scorers.

What every normalizer has to do is checked by the property suite, in test_testing.py.
"""

from itertools import product

import pytest
import torch
from marks import slow
from reference import BATCH, HEADS, MASKS, WIDTH, case, dense_attend, gradients, leaves, make_log_prior, make_qkv, randn
from torch.testing import assert_close

from attnorm.attention import Mask, build_normalizer, check_attention
from attnorm.attention.call_context import in_layer
from attnorm.attention.normalizers.lotformer import LOTFormer

pytestmark = pytest.mark.numerical

SCALE = 0.7
OPTIONS = {"lotformer": {"heads": HEADS, "width": WIDTH, "pivots": 3, "eps": 0.8}, "espformer": {"temperature": 2.0}}
VARIANTS = [
    ("lotformer", {}),
    slow("lotformer", {"half_steps": 1}),
    slow("lotformer", {"half_steps": 4}),
    ("espformer", {}),
    slow("espformer", {"tau": 1.0, "temperature": 0.0}),
]


def make(name, **options):
    torch.manual_seed(3)
    module = in_layer(build_normalizer(name, **{**OPTIONS[name], **options})).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


# ------------------------------------------------------------------------------- the formulas, for one set of queries


def lot_plan(module, q, k, head):
    """q (N, D), k (M, D) -> (N, M): the plans with uniform marginals, glued, and normalized over the keys."""

    def sinkhorn(kernel):
        rows, columns = len(kernel), len(kernel[0])
        for step in range(module.half_steps):
            if step % 2 == 0:
                kernel = [[x / sum(row) / rows for x in row] for row in kernel]
            else:
                sums = [sum(row[c] for row in kernel) for c in range(columns)]
                kernel = [[x / total / columns for x, total in zip(row, sums, strict=True)] for row in kernel]
        return kernel

    pivots = module.pivots[head]
    first = sinkhorn([[(SCALE * (x @ z) / module.eps).exp() for z in pivots] for x in q])
    second = sinkhorn([[(SCALE * (z @ y) / module.eps).exp() for y in k] for z in pivots])
    glued = [[sum(row[r] * second[r][j] for r in range(len(pivots))) for j in range(len(k))] for row in first]
    return torch.stack([torch.stack([x / sum(row) for x in row]) for row in glued])


def esp_plan(module, q, k, head):
    """q (N, D), k (M, D) -> (N, M): for each channel the plan of the soft sorts, averaged with the shares."""
    x, y = SCALE * q, SCALE * k
    n, m = len(x), len(y)

    def soft_sort(values):
        terms = [[(-((v - top) ** 2) / module.tau).exp() for v in values] for top in sorted(values, reverse=True)]
        return [[term / sum(row) for term in row] for row in terms]

    def overlap(a, b):
        return max(0.0, min((a + 1) / n, (b + 1) / m) - max(a / n, b / m)) * n

    overlaps = {(a, b): overlap(a, b) for a, b in product(range(n), range(m)) if overlap(a, b) > 0}
    plans, costs = [], []
    for channel in range(x.shape[1]):
        of_x, of_y = soft_sort(list(x[:, channel])), soft_sort(list(y[:, channel]))
        plan = [
            [sum(of_x[a][i] * share * of_y[b][j] for (a, b), share in overlaps.items()) for j in range(m)]
            for i in range(n)
        ]
        plans.append(torch.stack([torch.stack(row) for row in plan]))
        costs.append(sum((x[i] - y[j]).square().sum().sqrt() * plan[i][j] for i, j in product(range(n), range(m))))
    terms = [(-module.temperature * (cost - min(costs))).exp() for cost in costs]
    return sum(term / sum(terms) * plan for term, plan in zip(terms, plans, strict=True))


PLANS = {"lotformer": lot_plan, "espformer": esp_plan}


def by_loops(name, module, q, k, allowed, log_prior):
    """(B, H, N, M): a plan for the queries that see the same keys. A prior multiplies it and keeps the sums of rows."""
    shape = (*q.shape[:-1], k.shape[-2])
    allowed, weights = allowed.expand(shape), torch.zeros(shape, dtype=q.dtype)
    for b, h in product(range(shape[0]), range(shape[1])):
        for keys in {tuple(row.nonzero().flatten().tolist()) for row in allowed[b, h]} - {()}:
            rows = [i for i, row in enumerate(allowed[b, h]) if tuple(row.nonzero().flatten().tolist()) == keys]
            plan = PLANS[name](module, q[b, h, rows], k[b, h, list(keys)], h)
            if log_prior is not None:
                preferred = plan * log_prior.expand(shape)[b, h][rows][:, list(keys)].exp()
                mass = preferred.sum(-1, keepdim=True)
                plan = plan.sum(-1, keepdim=True) * preferred / torch.where(mass > 0, mass, 1.0)
            at = torch.tensor(rows)[:, None], torch.tensor(keys)
            weights = weights.index_put((torch.tensor(b), torch.tensor(h), *at), plan)
    return weights


def difference(name, module, mask="none", prior="none"):
    """The largest difference of weights, and of gradients of queries, keys and pivots, to those of the loops."""
    given = MASKS[mask]
    q, k, _ = leaves(*make_qkv(*given.size))
    log_prior = make_log_prior(prior, *given.size)
    argument = given.allowed if "causal" in mask else given.argument
    weights = module(SCALE * q @ k.mT, argument, log_prior=log_prior, keys=k, scale=SCALE, queries=q)
    both, inputs = (weights, by_loops(name, module, q, k, given.allowed, log_prior)), [q, k, *module.parameters()]
    found, expected = ([w.detach(), *gradients(w, inputs)] for w in both)
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_weights_and_gradients_equal_the_loops(name, options):
    module = make(name, **options)
    preferring = [("none", "key_only"), ("both_sides", "pairwise"), ("segments", "with_holes")]
    for mask, prior in [*((mask, "none") for mask in MASKS), *preferring]:
        with case(mask, prior):
            assert difference(name, module, mask, prior) < 1e-9


# ------------------------------------------------------------------------------------- what the formulas have to do


def test_a_hard_sort_is_a_permutation_and_its_cheapest_plan_is_chosen():
    q = torch.tensor([[0.0, 3.0], [1.0, 1.0], [2.0, 2.0]]).double()[None, None]
    k = torch.tensor([[2.0, 9.0], [0.0, 5.0], [1.0, 7.0]]).double()[None, None]
    given = {"keys": k, "scale": 1.0, "queries": q}
    by_first, by_second = [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    cost = {str(plan): (torch.cdist(q, k)[0, 0] * torch.tensor(plan)).sum() for plan in (by_first, by_second)}
    best = min((by_first, by_second), key=lambda plan: cost[str(plan)])
    weights = build_normalizer("espformer", tau=1e-6, temperature=1e4).double()(q @ k.mT, **given)
    assert_close(weights[0, 0], torch.tensor(best).double(), rtol=0, atol=1e-9)
    mean = build_normalizer("espformer", tau=1e-6, temperature=0).double()(q @ k.mT, **given)
    assert_close(mean[0, 0], torch.tensor([by_first, by_second]).double().mean(0), rtol=0, atol=1e-9)


def test_a_query_that_is_a_key_has_a_gradient_without_nan():
    """The distance of equal points has no derivative."""
    q = randn(1, 1, 4, WIDTH, seed=1).requires_grad_()
    weights = make("espformer")(q @ q.mT, keys=q, scale=SCALE, queries=q)
    (weights * randn(1, 1, 4, 4, seed=2)).sum().backward()
    assert q.grad.isfinite().all() and q.grad.abs().max() > 0


def test_lotformer_never_builds_the_weights(monkeypatch):
    module, (q, k, v) = make("lotformer"), make_qkv(30, 30)
    real, texts = torch.arange(30)[None] < torch.tensor([[28], [20]]), (torch.arange(30) // 10).expand(BATCH, -1)
    log_prior = make_log_prior("key_only", 30, 30)
    cases = [(mask, prior) for mask in (None, Mask(real, real), Mask(real, real, segments=texts)) for prior in (0, 1)]
    expected = [dense_attend(module, q, k, v, mask, log_prior if p else None) for mask, p in cases]
    monkeypatch.setattr(LOTFormer, "weights", None)
    for (mask, p), wanted in zip(cases, expected, strict=True):
        assert_close(module.attend(q, k, v, mask, log_prior=log_prior if p else None), wanted, rtol=0, atol=1e-10)


# --------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("name", PLANS)
def test_a_scorer_that_is_not_a_dot_product_and_an_autoregressive_site_are_refused(name):
    tables = {"encoder": name, "scorer": {"encoder": "additive"}}
    [problem] = check_attention(tables, {"encoder": False})
    assert problem == (
        f"attention.scorer.encoder=additive: not defined with attention.encoder={name}, which uses the queries and the "
        "scale of the dot products; use scaled_dot, dot or bilinear"
    )
    assert check_attention({"encoder": name, "scorer": {"encoder": "bilinear"}}, {"encoder": False}) == []
    [problem] = check_attention({"decoder": name}, {"decoder": True})
    assert problem.startswith(f"attention.decoder={name}: {name} couples queries and would leak the future")
