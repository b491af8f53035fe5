"""The formulas of the normalizers, written a second time as plain loops, and the cases that every normalizer meets.

Nothing here shares code with `src`, so an error has to be made twice to go unseen. A formula takes one (N, M) slice as
nested lists of *numbers*: anything with `+ * /` and `.exp()`. Given float64 torch scalars, autograd yields the
reference gradients; given `decimal.Decimal`, whose exponents have room for exp(-20000), the formula stays exact where
floats overflow. No maximum is subtracted and no logarithm taken: this is the papers' text, not a way to compute it.

[D] "Doubly-Normalized Attention"; [F] "Attention as Inference via Fenchel Duality".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

import torch
from torch.testing import assert_close

BATCH, HEADS, WIDTH = 2, 2, 3


# ---------------------------------------------------------------------------------------------------------- formulas


def softmax_slice(scores, allowed, log_prior):
    """[D] Eq. 1, [F] Eq. 17: w_ij = u_j exp(s_ij) / sum_j' u_j' exp(s_ij')."""
    numerators = [[score.exp() for score in row] for row in scores]
    return _normalize_rows(numerators, allowed, log_prior)


def dnas_slice(scores, allowed, log_prior, b=None, *, prefix=False, per_query=False):
    """[D] Eq. 7-8: xi_ij = exp(s_ij) / sum_i' exp(s_i'j), allowed queries i'; w_ij = u_j xi_ij / sum_j' u_j' xi_ij'.

    With `prefix`, over the queries i' up to i. With b, the sum has N exp(b) more: N is 1, or with `per_query` the
    number of these queries."""
    exponentials = [[score.exp() for score in row] for row in scores]
    xi = [[0] * len(row) for row in scores]
    for i, row in enumerate(exponentials):
        for j, exponential in enumerate(row):
            if allowed[i][j]:
                seen = [exponentials[q][j] for q in range(i + 1 if prefix else len(scores)) if allowed[q][j]]
                virtual = 0 if b is None else (len(seen) if per_query else 1) * b.exp()
                xi[i][j] = exponential / (virtual + sum(seen))
    return _normalize_rows(xi, allowed, log_prior)


def sinkhorn_slice(scores, allowed, log_prior, n_iters=3):
    """[D] Eq. 10: w_ij = a_i exp(s_ij) b_j u_j, where n_iters times b_j = 1 / sum_i a_i exp(s_ij), from a = 1, and then
    a_i = 1 / sum_j exp(s_ij) b_j u_j. A row or column without mass keeps the factor 1."""
    n_queries, n_keys = len(scores), len(scores[0])
    one = scores[0][0] * 0 + 1
    a, b = [one] * n_queries, [one] * n_keys
    for _ in range(n_iters):
        for j in range(n_keys):
            column_sum = 0
            for i in range(n_queries):
                if allowed[i][j]:
                    column_sum = column_sum + a[i] * scores[i][j].exp()
            b[j] = 1 / column_sum if column_sum > 0 else one
        for i in range(n_queries):
            row_sum = 0
            for j in range(n_keys):
                if allowed[i][j]:
                    row_sum = row_sum + scores[i][j].exp() * b[j] * log_prior[i][j].exp()
            a[i] = 1 / row_sum if row_sum > 0 else one
    weights = [[0] * n_keys for _ in range(n_queries)]
    for i in range(n_queries):
        for j in range(n_keys):
            if allowed[i][j]:
                weights[i][j] = a[i] * scores[i][j].exp() * b[j] * log_prior[i][j].exp()
    return weights


def _lists(matrix):
    return [row.unbind() for row in matrix.unbind()]


def _decimals(matrix):
    return [[Decimal(entry) for entry in row] for row in matrix.tolist()]


FORMULAS = {
    "softmax": softmax_slice,
    "dnas": dnas_slice,
    "dnas_prefix": partial(dnas_slice, prefix=True),
    "sinkhorn": sinkhorn_slice,
}
HYBRIDS = {"hnas": "dnas", "hnas_prefix": "dnas_prefix"}


def _normalize_rows(numerators, allowed, log_prior):
    """u_j x_ij / sum_j' u_j' x_ij' over allowed keys; a row without mass is dead and stays 0."""
    n_queries, n_keys = len(numerators), len(numerators[0])
    weights = [[0] * n_keys for _ in range(n_queries)]
    for i in range(n_queries):
        row_sum = 0
        for j in range(n_keys):
            if allowed[i][j]:
                row_sum = row_sum + log_prior[i][j].exp() * numerators[i][j]
        for j in range(n_keys):
            if allowed[i][j] and row_sum > 0:
                weights[i][j] = log_prior[i][j].exp() * numerators[i][j] / row_sum
    return weights


def weights(name, scores, allowed=None, log_prior=None, hybrid_weight=None, numbers=(), lists=_lists):
    """Weights (B, H, N, M) of the normalizer `name`, differentiable in `scores`, `log_prior` and `hybrid_weight`.

    `allowed` bool and `log_prior` broadcast to (B, H, N, M); `hybrid_weight` (1,) or (H,) belongs to hnas, [D] Sec. 6:
    w = v dnas + (1 - v) softmax. `name` may be a formula; of each of `numbers` (H,) it gets that of the head.
    """
    if name in HYBRIDS:
        v = hybrid_weight.reshape(1, -1, 1, 1)
        dnas, softmax = (weights(it, scores, allowed, log_prior, lists=lists) for it in (HYBRIDS[name], "softmax"))
        return v * dnas + (1 - v) * softmax
    formula = FORMULAS.get(name, name)
    allowed = torch.tensor(True) if allowed is None else allowed
    log_prior = torch.zeros((), dtype=scores.dtype) if log_prior is None else log_prior
    allowed, log_prior = allowed.expand(scores.shape), log_prior.expand(scores.shape)
    entries = []
    for b in range(scores.shape[0]):
        for h in range(scores.shape[1]):
            given = lists(scores[b, h]), allowed[b, h].tolist(), lists(log_prior[b, h])
            rows = formula(*given, *(number[h] for number in numbers))
            entries += [float(it) if isinstance(it, Decimal) else it for row in rows for it in row]
    return torch.stack([torch.as_tensor(it, dtype=scores.dtype) for it in entries]).reshape(scores.shape)


def exact_weights(name, scores, allowed=None, log_prior=None, hybrid_weight=None):
    """The same weights in 28-digit decimals: slow, without gradients, right for scores of any size."""
    hybrid_weight = None if hybrid_weight is None else hybrid_weight.detach().double()
    return weights(name, scores.detach().double(), allowed, log_prior, hybrid_weight, lists=_decimals)


def attend(name, q, k, v, allowed=None, log_prior=None, hybrid_weight=None, scale=None):
    """sum_j w_ij v_j with scores scale q_i.k_j; q (B, H, N, D), k and v (B, H, M, D), scale D^-1/2 unless given."""
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.einsum("bhnm,bhmd->bhnd", weights(name, scores, allowed, log_prior, hybrid_weight), v)


def allowed_pairs(batch, n_queries, n_keys, queries=None, keys=None, causal=False, segments=None):
    """The compact mask pair by pair: bool (B, 1, N, M), True = query i may see key j."""
    allowed = torch.zeros(batch, 1, n_queries, n_keys, dtype=torch.bool)
    for b in range(batch):
        for i in range(n_queries):
            for j in range(n_keys):
                live = (queries is None or bool(queries[b, i])) and (keys is None or bool(keys[b, j]))
                past = not causal or j <= i + n_keys - n_queries
                same_text = segments is None or int(segments[b, i]) == int(segments[b, j])
                allowed[b, 0, i, j] = live and past and same_text
    return allowed


# ------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class MaskCase:
    """One mask: its size, its compact fields (None when it has no compact form), and the same as dense bools."""

    n_queries: int
    n_keys: int
    compact: dict | None = None
    dense: torch.Tensor | None = field(default=None, repr=False)

    @property
    def allowed(self):
        """bool, broadcastable to (B, H, N, M)."""
        if self.dense is not None:
            return self.dense
        return allowed_pairs(BATCH, self.n_queries, self.n_keys, **self.compact)

    @property
    def size(self):
        """(N, M)."""
        return self.n_queries, self.n_keys

    @property
    def argument(self):
        """What a normalizer is given: the compact form where there is one, else the dense one."""
        from attnorm.attention import Mask

        return self.allowed if self.compact is None else Mask(**self.compact)

    def argument_of(self, normalizer):
        """`argument`, but dense for a causal mask that the normalizer refuses, because it couples all queries."""
        refused = normalizer.couples_queries == "all" and self.compact is not None and "causal" in self.compact
        return self.allowed if refused else self.argument


def _lengths(size, *lengths):
    return torch.tensor([[position < length for position in range(size)] for length in lengths])


def _random_pairs(seed, n_queries, n_keys):
    return torch.rand(BATCH, HEADS, n_queries, n_keys, generator=torch.Generator().manual_seed(seed)) < 0.5


def _with_dead_rows():
    allowed = _random_pairs(1, 4, 5) | (torch.arange(5) == 0)
    allowed[0, :, 2] = False
    allowed[1, 1, 0] = False
    return allowed


def _with_dead_columns():
    allowed = _random_pairs(2, 4, 5) | (torch.arange(5) == 0)
    allowed[0, :, :, 3] = False
    allowed[1, 0, :, 1] = False
    return allowed


MASKS = {
    "none": MaskCase(4, 5, {}),
    "key_padding": MaskCase(4, 5, {"keys": _lengths(5, 5, 3)}),
    "both_sides": MaskCase(4, 5, {"queries": _lengths(4, 2, 4), "keys": _lengths(5, 4, 3)}),
    "empty_example": MaskCase(4, 5, {"queries": _lengths(4, 4, 0), "keys": _lengths(5, 5, 0)}),
    "causal": MaskCase(5, 5, {"causal": True}),
    "causal_short": MaskCase(3, 5, {"causal": True}),
    "causal_tall": MaskCase(5, 3, {"causal": True}),  # aligned to the end, the first two queries see nothing
    "segments": MaskCase(5, 5, {"segments": torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 2, 2]])}),
    "padded_causal_segments": MaskCase(
        5,
        5,
        {
            "queries": _lengths(5, 5, 4),
            "keys": _lengths(5, 5, 4),
            "causal": True,
            "segments": torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, 1]]),
        },
    ),
    "dead_rows": MaskCase(4, 5, dense=_with_dead_rows()),
    "dead_columns": MaskCase(4, 5, dense=_with_dead_columns()),
    "random": MaskCase(4, 5, dense=_random_pairs(3, 4, 5)),
    "nothing_allowed": MaskCase(4, 5, dense=torch.zeros(1, 1, 1, 1, dtype=torch.bool)),
}

PRIORS = ["none", "key_only", "pairwise", "with_holes"]


def make_log_prior(kind, n_queries, n_keys, dtype=torch.float64):
    """log u of the kind named in PRIORS: None, (B, 1, 1, M), (1, H, N, M), or (B, H, N, M) with -inf."""
    generator = torch.Generator().manual_seed(7)
    if kind == "none":
        return None
    if kind == "key_only":
        return torch.randn(BATCH, 1, 1, n_keys, generator=generator, dtype=dtype)
    if kind == "pairwise":
        return torch.randn(1, HEADS, n_queries, n_keys, generator=generator, dtype=dtype)
    log_prior = torch.randn(BATCH, HEADS, n_queries, n_keys, generator=generator, dtype=dtype)
    log_prior[torch.rand(log_prior.shape, generator=generator) < 0.3] = -torch.inf
    log_prior[0, 0, -1, :] = -torch.inf  # a row without any prior mass: dead, yet still a query of the column step
    log_prior[1, :, :, 0] = -torch.inf  # a key that the prior rules out for every query
    return log_prior


def in_turn(masks=None, priors=None, shift=0) -> Iterator[tuple[str, str]]:
    """(name of a mask, kind of prior): each mask once, with the priors in turn, starting from number `shift`.

    The meanings of a mask and of a prior are checked together in all combinations by the property suite; a slow
    reference only has to meet each of them. Tests of several variants give each its own shift.
    """
    priors = PRIORS if priors is None else list(priors)
    for place, mask in enumerate(MASKS if masks is None else masks):
        yield mask, priors[(place + shift) % len(priors)]


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Adds the names of a case to the error of a failing assertion: for tests that loop over cases."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {', '.join(map(str, names))}")
        raise


# name of the variant -> (registered name, options); the per-head one is given a different weight in each head
VARIANTS = {
    "softmax": ("softmax", {}),
    "dnas": ("dnas", {}),
    "sinkhorn": ("sinkhorn", {"n_iters": 3}),
    "hnas_sigmoid": ("hnas", {"start": 0.3}),
    "hnas_clamp": ("hnas", {"start": 0.7, "form": "clamp"}),
    "hnas_heads": ("hnas", {"per": "head", "heads": HEADS}),
}
PREFIX = {
    "dnas_prefix": ("dnas_prefix", {}),
    "hnas_prefix_sigmoid": ("hnas_prefix", {"start": 0.3}),
    "hnas_prefix_clamp": ("hnas_prefix", {"start": 0.7, "form": "clamp"}),
    "hnas_prefix_heads": ("hnas_prefix", {"per": "head", "heads": HEADS}),
}
ONE_OF_EACH = ["softmax", "dnas", "sinkhorn", "hnas_sigmoid"]


def make(variant, dtype=torch.float64):
    """The module under test as in a layer (here and in `argument` alone a line reaches into src), its parameters in
    `dtype`. Outside of layers, one that couples all queries refuses the causal masks that its formula is tested with.
    """
    from attnorm.attention import build_normalizer
    from attnorm.attention.call_context import in_layer

    name, options = (VARIANTS | PREFIX)[variant]
    module = in_layer(build_normalizer(name, **options)).to(dtype)
    if variant.endswith("_heads"):
        with torch.no_grad():
            next(module.parameters()).copy_(torch.linspace(-1, 2, HEADS, dtype=dtype))
    return module


def hybrid_weight_of(variant, module):
    """v from the trained parameter, by the meaning of `form` alone; None for what is not hnas."""
    name, options = (VARIANTS | PREFIX)[variant]
    if name not in HYBRIDS:
        return None
    (parameter,) = module.parameters()
    flat = parameter.reshape(-1)
    return flat if options.get("form") == "clamp" else 1 / (1 + (-flat).exp())


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make_qkv(n_queries, n_keys, width=WIDTH, dtype=torch.float64, batch=BATCH, heads=HEADS):
    shapes = [(n_queries, width), (n_keys, width), (n_keys, width)]
    return [randn(batch, heads, *shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes, start=11)]


def gradients(output, inputs, seed=5):
    """d<output, fixed random tensor>/d inputs; an input that the output does not depend on has gradient 0.

    The graph is kept, so that several outputs may share it.
    """
    if not output.requires_grad:  # every weight of the reference is the constant 0
        return [torch.zeros_like(x) for x in inputs]
    cotangent = randn(*output.shape, seed=seed).to(output)
    found = torch.autograd.grad(output, inputs, cotangent, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def value_and_gradients(attend, inputs, parameters=()):
    """The output for these inputs, and its gradients to them and to parameters."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = attend(*inputs)
    return [out.detach(), *gradients(out, [*inputs, *parameters])]


def leaves(*tensors):
    """Those that are not None, as leaves that collect gradients (None stays None)."""
    return [None if x is None else x.detach().clone().requires_grad_() for x in tensors]


def assert_same(actual, expected, inputs, **tolerance):
    """A result, or each of a list, has the value and the gradients of another; inputs that are None are left out."""
    inputs, tolerance = [x for x in inputs if x is not None], tolerance or {"rtol": 1e-10, "atol": 1e-10}
    all_wanted = gradients(expected, inputs)
    for result in actual if isinstance(actual, list) else [actual]:
        assert_close(result, expected, **tolerance)
        for found, wanted in zip(gradients(result, inputs), all_wanted, strict=True):
            assert_close(found, wanted, **tolerance)


def observed(layer, *given, **options):
    """What an observer sees of one call of a layer."""
    from attnorm.attention.multihead import observe_all

    seen = []
    with observe_all(layer, lambda _, record: seen.append(record)):
        layer(*given, **options)
    [record] = seen
    return record


def assert_formula(module, expected, *, shift=0, priors=None, scales=(1.5,)):
    """The weights, and `attend` under the compact mask, have the values and gradients of expected(scores, allowed,
    log_prior), with all masks, and priors and scales in turn."""
    for number, (mask, prior) in enumerate(in_turn(priors=priors, shift=shift)):
        given, scale = MASKS[mask], scales[number % len(scales)]
        q, k, v, log_prior = leaves(*make_qkv(*given.size), make_log_prior(prior, *given.size))
        scores, others = q @ k.mT * (WIDTH**-0.5 if scale is None else scale), [log_prior, *module.parameters()]
        wanted = expected(scores, given.allowed, log_prior)
        with case(mask, prior, scale):
            assert_same(module(scores, given.allowed, log_prior=log_prior), wanted, [scores, *others])
            output = module.attend(q, k, v, given.argument_of(module), log_prior=log_prior, scale=scale)
            assert_same(output, wanted @ v, [q, k, v, *others])


def dense_attend(module, q, k, v, mask=None, log_prior=None):
    """The output by the (N, M) weights, without any shortcut."""
    return module.weights_of(q, k, mask, log_prior=log_prior, scale=q.shape[-1] ** -0.5).to(v.dtype) @ v
