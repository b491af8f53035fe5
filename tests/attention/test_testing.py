"""check_normalizer: sound normalizers pass, every planted fault is found by the property that is about it."""

import functools
import re
from dataclasses import replace

import pytest
import torch
from marks import FEW, slow
from torch import nn

from attnorm.attention import Normalizer, build_normalizer
from attnorm.attention.masking import dense_mask
from attnorm.attention.normalizers.base import (
    AT_MOST_ONE,
    add_log_prior,
    dot_scores,
    logsumexp_over_queries,
    masked_scores,
    softmax_over_keys,
    upcast,
)
from attnorm.attention.normalizers.shared.key_bias import DENSE_UP_TO
from attnorm.attention.normalizers.shared.running_logsumexp import running_logsumexp
from attnorm.attention.registry import NORMALIZERS
from attnorm.attention.testing import PROPERTIES, Report, Result, check_normalizer
from attnorm.attention.testing.agreement import kinked
from attnorm.attention.testing.cases import Subject
from attnorm.attention.testing.report import Failure

pytestmark = pytest.mark.numerical

SIZES = {"heads": 2, "state_width": 8}
OPTIONS = {
    "forgetting": SIZES,
    "asentmax": SIZES,
    "lotformer": {"heads": 2, "width": 8, "pivots": 3},
    "fusedmax": {"lam": 0.3},
    "constrained_softmax": {"upper": 0.5},
    "constrained_sparsemax": {"upper": 0.5},
}
MORE = [  # other options than the defaults
    ("hnas", {"start": 0.3, "per": "head", "heads": 2}),
    ("hnas", {"start": 1.0, "form": "clamp"}),
    ("sinkhorn", {"n_iters": 1}),
    ("fenchel", {"order": 1}),
    ("fenchel", {"order": "exact"}),
    ("constrained_softmax", {"upper": 0.3}),
    ("sink", {"start": 1.5, "heads": 2}),
    ("ssmax", {"plus_one": True, "bias": True, "heads": 2}),
    ("sigmoid", {"bias": -1.0, "learn": True}),
    ("dnas_slack", {"per_query": True, "heads": 2}),
    ("dnas_slack_prefix", {"per_query": True, "start": -1.0}),
    ("mix", {"members": ["forgetting", "selective", "softmax"], **SIZES}),
]


def checked(make, *properties, **settings) -> Report:
    """The report, whether it passed or not; nothing is printed."""
    caught = []

    class Kept(Report):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            caught.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnorm.attention.testing.check.Report", Kept)
        try:
            check_normalizer(make, properties=properties or None, print_report=False, **settings)
        except AssertionError as error:
            assert str(error) == str(caught[0]) and not caught[0].passed  # nothing was printed, so it is all there
    return caught[0]


@functools.cache
def everything(make) -> Report:
    """All properties of a class, checked once for all tests; the report is to be read only."""
    return checked(make)


# ------------------------------------------------------------------------------------------------------- sound ones


def id_of(case):
    name, options = case
    return " ".join([name, *(f"{key}={value}" for key, value in options.items())])


DEFAULTS = [(name, OPTIONS.get(name, {})) for name in NORMALIZERS]


@pytest.mark.parametrize("name", FEW)
def test_a_normalizer_of_ours_keeps_its_promises(name):
    make = functools.partial(build_normalizer, name, **OPTIONS.get(name, {}))
    assert check_normalizer(make, lengths=[(33, 65)], print_report=False).passed


LINEAR = [  # those of linear/test_memory_linear.py are compared there
    ("dnas_slack", {"start": 0.8}),
    ("dnas_slack", {"per_query": True, "heads": 2}),
    ("sink", {"start": 0.7, "heads": 2}),
    ("ssmax", {"bias": True, "heads": 2}),
    ("forgetting", SIZES),
]


@pytest.mark.parametrize("case", LINEAR, ids=id_of)
def test_attend_without_a_table_of_weights_equals_forward(case, monkeypatch):
    """The way that pays at large lengths, taken at all of them."""
    monkeypatch.setitem(DENSE_UP_TO, "cpu", 0)
    about = ["attend_equals_forward_times_values", "padding_never_matters"]
    make = functools.partial(build_normalizer, case[0], **case[1])
    assert check_normalizer(make, properties=about, lengths=[(33, 65), (40, 40)], print_report=False).passed


@pytest.mark.slow
@pytest.mark.parametrize("case", DEFAULTS + MORE, ids=id_of)
def test_a_normalizer_of_ours_keeps_its_promises_at_the_lengths_that_users_check(case):
    name, options = case
    assert check_normalizer(lambda: build_normalizer(name, **options), print_report=False).passed


@pytest.mark.slow
def test_another_seed_and_other_sizes():
    report = check_normalizer(
        lambda: build_normalizer("hnas", per="head", heads=3), seed=1, heads=3, lengths=[(9, 4)], print_report=False
    )
    assert report.passed and "seed 1" in report.title


# ----------------------------------------------------------------------------------------------------- planted faults


class Softmax(Normalizer):
    """Plain and sound; the faults are planted in it."""

    proportional_to_prior = True

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return softmax_over_keys(add_log_prior(masked_scores(scores, mask), log_prior)).to(scores.dtype)


class DNAS(Normalizer):
    """Plain and sound, like Softmax."""

    couples_queries, key_shift_invariant, least_mass, proportional_to_prior = "all", True, 1.0, True

    def weights(self, s, given):
        return softmax_over_keys(add_log_prior(s - logsumexp_over_queries(s), given.log_prior))


class Prefix(DNAS):
    """The column step over the queries so far."""

    couples_queries, query_equivariant = "past", False

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        c = running_logsumexp(s.masked_fill(s == -torch.inf, torch.finfo(s.dtype).min))
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype)

    def step(self, scores, mask=None, state=None, *, log_prior=None):
        s = masked_scores(scores, mask)
        state = torch.full_like(s, -torch.inf) if state is None else state
        new = s.new_full((*s.shape[:-1], s.shape[-1] - state.shape[-1]), -torch.inf)
        state = torch.logaddexp(torch.cat([state, new], -1), s)
        c = state.masked_fill(state == -torch.inf, 0.0)
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype), state


class Sigmoid(Normalizer):
    """w_ij = u_j sigmoid(s_ij) / sum_j' u_j', over the allowed keys j'."""

    total, proportional_to_prior = AT_MOST_ONE, True

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        even = torch.zeros_like(s).masked_fill(s == -torch.inf, -torch.inf)
        return (s.sigmoid() * softmax_over_keys(add_log_prior(even, log_prior))).to(scores.dtype)


class Linear(Normalizer):
    """w_ij = u_j s_ij: of either sign, and rows sum to anything."""

    total, proportional_to_prior, prior_scale_invariant = None, True, False

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        w = s.masked_fill(s == -torch.inf, 0.0)
        return (w if log_prior is None else w * log_prior.to(s.dtype).exp()).to(scores.dtype)


class KeyGates(Softmax):
    """A bias per key from the state of the key."""

    needs_states = "keys"

    def __init__(self, heads, state_width):
        super().__init__()
        self.gate = nn.Linear(state_width, heads)

    def features(self, states):
        return nn.functional.linear(states, self.gate.weight).mT[..., None]

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None, features=None):
        s = add_log_prior(masked_scores(scores, mask), log_prior)
        return softmax_over_keys(s + features.mT).to(scores.dtype)


class QueryScales(KeyGates):
    """A temperature per query from the state of the query, and another one from the query itself."""

    needs_states = "queries"
    needs_queries = True

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None, queries=None, features=None):
        heat = features.sigmoid() + upcast(queries)[..., :1].sigmoid()
        s = masked_scores((1 + heat) * upcast(scores), mask)
        return softmax_over_keys(add_log_prior(s, log_prior)).to(scores.dtype)


class CoupledHeads(Softmax):
    """All heads have the weights of the mean of their scores."""

    couples_heads = True

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        mean = s.masked_fill(s == -torch.inf, 0.0).mean(1, keepdim=True).expand(scores.shape)
        return super().forward(mean, mask, log_prior=log_prior).to(scores.dtype)


class Temperatures(Softmax):
    """One learned temperature per head."""

    def __init__(self, heads: int):
        super().__init__()
        self.temperature = nn.Parameter(torch.linspace(0.5, 1.5, heads))

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = upcast(scores) / self.temperature[:, None, None]
        return super().forward(s, mask, log_prior=log_prior).to(scores.dtype)


@pytest.mark.parametrize(
    "sound", [*map(slow, (Softmax, DNAS, Prefix, Sigmoid, Temperatures, KeyGates, QueryScales)), Linear, CoupledHeads]
)
def test_what_the_faults_are_planted_in_is_sound(sound):
    assert everything(sound).passed, everything(sound)


def declared(name, cls, **facts):
    """A subclass that declares something else."""
    return type(name, (cls,), facts)


DeclaredNoneButPast = declared("DeclaredNoneButPast", Prefix, couples_queries="none")
DeclaredNoneButAll = declared("DeclaredNoneButAll", DNAS, couples_queries="none")
DeclaredPastButAll = declared("DeclaredPastButAll", DNAS, couples_queries="past")
StricterThanNeeded = declared("StricterThanNeeded", Softmax, couples_queries="all")
PastButNone = declared("PastButNone", Softmax, couples_queries="past")
MisspeltCoupling = declared("MisspeltCoupling", Softmax, couples_queries="future")
DeclaresShiftInvariance = declared("DeclaresShiftInvariance", Softmax, key_shift_invariant=True)
DeclaresLeastMass = declared("DeclaresLeastMass", Softmax, least_mass=1.0)
MisspeltStates = declared("MisspeltStates", KeyGates, needs_states="key")
HeadsCoupledUndeclared = declared("HeadsCoupledUndeclared", CoupledHeads, couples_heads=False)
DeclaresCoupledHeads = declared("DeclaresCoupledHeads", Softmax, couples_heads=True)
LinearDeclaresScaleInvariance = declared("LinearDeclaresScaleInvariance", Linear, prior_scale_invariant=True)
TotalsTheWrongWayRound = declared("TotalsTheWrongWayRound", Softmax, total=(1.0, 0.0))


def altered(name, cls, alter):
    """A subclass whose weights are alter(sound weights, scores)."""

    def forward(self, scores, mask=None, **given):
        return alter(super(made, self).forward(scores, mask, **given), scores)

    made = type(name, (cls,), {"forward": forward})
    return made


Noisy = altered("Noisy", Softmax, lambda w, scores: w + 1e-10 * torch.rand_like(w) * w)
WrongTotal = altered("WrongTotal", Softmax, lambda w, scores: 2 * w)
DetachedGradient = altered("DetachedGradient", Softmax, lambda w, scores: w.detach())
MoreThanOneForLargeScores = altered(
    "MoreThanOneForLargeScores", Sigmoid, lambda w, scores: w * (1 + (scores.detach() > 100))
)


LinearOnDeadRows = altered("LinearOnDeadRows", Linear, lambda w, scores: w.where((w != 0).any(-1, keepdim=True), 1.0))
WritesIntoTheScores = altered("WritesIntoTheScores", Softmax, lambda w, scores: (scores.detach().mul_(1.01), w)[1])


def fed(name, change, cls=Softmax):
    """A subclass whose `forward` gets change(scores, mask, log_prior) in place of these."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s, mask, log_prior = change(scores, mask, log_prior)
        return super(made, self).forward(s, mask, log_prior=log_prior).to(scores.dtype)

    made = type(name, (cls,), {"forward": forward})
    return made


def of_all_scores(factor):
    """Multiplies the scores by a factor that is computed from all of them, padding included."""
    return lambda s, mask, u: ((upcast(s) * factor(upcast(s))).to(s.dtype), mask, u)


def prior_twice(s, mask, u):
    return s, mask, None if u is None else 2 * u


def prior_without_holes(s, mask, u):
    return s, mask, None if u is None else u.clamp(min=-9)


PriorBeforeTheColumnStep = fed(
    "PriorBeforeTheColumnStep", lambda s, mask, u: (add_log_prior(upcast(s), u), mask, None), DNAS
)
IgnoresThePrior = fed("IgnoresThePrior", lambda s, mask, u: (s, mask, None))
DependsOnKeyOrder = fed("DependsOnKeyOrder", lambda s, mask, u: (upcast(s) - 0.1 * torch.arange(s.shape[-1]), mask, u))
DependsOnQueryOrder = fed("DependsOnQueryOrder", of_all_scores(lambda s: 1 + 0.1 * torch.arange(s.shape[-2])[:, None]))
NormalizedByTheBatch = fed("NormalizedByTheBatch", of_all_scores(lambda s: 1 / s.detach().abs().amax().clamp(min=1.0)))
PaddedKeysShiftTheScores = fed("PaddedKeysShiftTheScores", of_all_scores(lambda s: s.mean(-1, keepdim=True).sigmoid()))
DeclaresProportionality = fed("DeclaresProportionality", prior_twice, DNAS)
LinearCountsThePriorTwice = fed("LinearCountsThePriorTwice", prior_twice, Linear)
LinearWithoutHoles = fed("LinearWithoutHoles", prior_without_holes, Linear)


def attending(name, change=lambda out, q, v: out, without=None):
    """A subclass of Softmax whose `attend` gives change(sound output, q, v), and ignores one of its inputs."""

    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        given = {"mask": mask, "log_prior": log_prior, "scale": scale}
        out = super(made, self).attend(q, k, v, **{key: it for key, it in given.items() if key != without})
        return change(out, q, v)

    made = type(name, (Softmax,), {"attend": attend})
    return made


AttendLeaks = attending("AttendLeaks", lambda out, q, v: out + 0.1 * v.mean(-2, keepdim=True))
AttendIgnoresTheMask = attending("AttendIgnoresTheMask", without="mask")
AttendIgnoresThePrior = attending("AttendIgnoresThePrior", without="log_prior")
AttendIgnoresTheScale = attending("AttendIgnoresTheScale", without="scale")
AttendDependsOnKeyOrder = attending("AttendDependsOnKeyOrder", lambda out, q, v: out + 1e-3 * v[..., :1, :])
AttendDependsOnQueryOrder = attending(
    "AttendDependsOnQueryOrder", lambda out, q, v: out * (1 + 1e-3 * torch.arange(q.shape[-2]).to(q)[:, None])
)


class FiniteFill(DNAS):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s, allowed = upcast(scores), dense_mask(mask, scores)
        s = s if allowed is None else s.masked_fill(~allowed, -1e4)
        return add_log_prior(s - s.logsumexp(-2, keepdim=True), log_prior).softmax(-1).to(scores.dtype)


class PaddedQueriesInTheColumnStep(DNAS):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        s = s - upcast(scores).logsumexp(-2, keepdim=True)
        return softmax_over_keys(add_log_prior(s, log_prior)).to(scores.dtype)


class ColumnsOfAllTexts(DNAS):
    """The column step also sees the queries of other texts in the row."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        live = (s > -torch.inf).any(-1, keepdim=True)
        c = upcast(scores).masked_fill(~live, torch.finfo(s.dtype).min).logsumexp(-2, keepdim=True)
        return softmax_over_keys(add_log_prior(s - c, log_prior)).to(scores.dtype)


class NaNOnDeadRows(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return add_log_prior(masked_scores(scores, mask), log_prior).softmax(-1).to(scores.dtype)


class NaNInTheGradientOfDeadRows(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return add_log_prior(masked_scores(scores, mask), log_prior).softmax(-1).nan_to_num(0.0).to(scores.dtype)


class StepForgets(Prefix):
    def step(self, scores, mask=None, state=None, *, log_prior=None):
        return super().step(scores, mask, None, log_prior=log_prior)


class AttendWithoutDefaultScale(Softmax):
    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        return super().attend(q, k, v, mask, log_prior=log_prior, scale=scale or 1.0)


class LongAttendIsWrong(Softmax):
    """A fast path from 100 x 100 on that forgets the gradient of its keys."""

    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        k = k.detach() if q.shape[-2] * k.shape[-2] >= 100 * 100 else k
        return super().attend(q, k, v, mask, log_prior=log_prior, scale=scale)


class PriorOnTheWeights(Softmax):
    """u multiplies the weights and nothing normalizes them again."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        w = super().forward(scores, mask)
        return w if log_prior is None else w * log_prior.exp().to(w.dtype)


class Float16Inside(DNAS):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        c = logsumexp_over_queries(masked_scores(scores, mask))
        s = (masked_scores(scores, mask).half() - c.half()).to(torch.promote_types(scores.dtype, torch.float32))
        return softmax_over_keys(add_log_prior(s, log_prior)).to(scores.dtype)


class ComputedInTheDtypeOfTheScores(DNAS):
    """Right in float32; in 16 bits each operation rounds."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        allowed = dense_mask(mask, scores)
        s = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        log_prior = None if log_prior is None else log_prior.to(s.dtype)
        return softmax_over_keys(add_log_prior(s - logsumexp_over_queries(s), log_prior))


class ReturnsFloat32(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return super().forward(upcast(scores), mask, log_prior=log_prior)


class RoughSixteenBitAttend(Softmax):
    """In 16 bits the scores are rounded to 16 bits as well."""

    def attend(self, q, k, v, mask=None, *, log_prior=None, scale=None):
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        scores = dot_scores(q, k, scale).to(q.dtype)
        return self(scores, mask, log_prior=log_prior).to(v.dtype) @ v


class WritesIntoThePrior(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        if log_prior is not None:
            log_prior.detach().sub_(1.0)
        return super().forward(scores, mask, log_prior=log_prior)


class DropsInTraining(Softmax):
    def forward(self, scores, mask=None, **given):
        return super().forward(scores, mask, **given) * (0.9 if self.training else 1.0)


class NegativeWeights(Softmax):
    """Rows sum to 1, as declared."""

    proportional_to_prior = False

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        w = super().forward(upcast(scores), mask, log_prior=log_prior)
        allowed = w > 0
        mean = w.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
        return ((3 * w - 2 * mean) * allowed).to(scores.dtype)


class DetachedParameter(Softmax):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        scores = (upcast(scores) * self.temperature.detach().to(upcast(scores).dtype)).to(scores.dtype)
        return super().forward(scores, mask, log_prior=log_prior)


class SoftmaxWithAConstantGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s):
        ctx.p = softmax_over_keys(s)
        return ctx.p.clone()

    @staticmethod
    def backward(ctx, g):
        return ctx.p * (g - (ctx.p * g).sum(-1, keepdim=True))


class ConstantGradient(Normalizer):
    def weights(self, s, given):
        return SoftmaxWithAConstantGradient.apply(add_log_prior(s, given.log_prior))


class Overflows(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        e = add_log_prior(masked_scores(scores, mask), log_prior).exp()
        sums = e.sum(-1, keepdim=True)
        return (e / sums.masked_fill(sums == 0, 1.0)).to(scores.dtype)


class UsesKeysUndeclared(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        scores = scores if keys is None else scores + keys.square().sum(-1)[..., None, :].to(scores.dtype)
        return super().forward(scores, mask, log_prior=log_prior)


class FeaturesOfTheSequence(KeyGates):
    def features(self, states):
        found = super().features(states)
        return found - found.mean(2, keepdim=True)


class FeaturesWithoutHeads(KeyGates):
    def features(self, states):
        return super().features(states)[:, :1]


class UnusedStates(KeyGates):
    def forward(self, scores, mask=None, *, features, **given):
        return super().forward(scores, mask, features=0 * features, **given)


class RemainderOfNothing(Softmax):
    total = (0.0, 2.0)

    def remainder_value(self):
        return torch.zeros(2, 4)


class OneRemainderForAllHeads(Softmax):
    def remainder_value(self):
        return torch.zeros(1, 4)


class CoupledExamples(CoupledHeads):
    def forward(self, scores, mask=None, **given):
        return super().forward(scores, mask, **given) + 1e-3 * scores[-1:, -1:].sum()


class MoreThanOne(Sigmoid):
    """The length is forgotten."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = add_log_prior(masked_scores(scores, mask), log_prior)
        return s.sigmoid().to(scores.dtype)


class Raises(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        if scores.shape[-1] == 1:
            raise RuntimeError("one key is too few")
        return super().forward(scores, mask, log_prior=log_prior)


COUPLING = "couples_queries_as_declared"
FEATURES = "features_are_those_of_single_positions"
ATTEND = "attend_equals_forward_times_values"
FAULTS = [  # the fault, the property that is about it, what its failing case says
    (
        FiniteFill,
        "masked_entries_are_zero",
        r"case: padded keys \(dense\).*\n.*masked weights\[1, \d, \d, [456]\]: expected 0, got",
    ),
    (FiniteFill, "mask_equals_shorter_input", r"without 0 queries and 3 keys"),
    (FiniteFill, "dead_rows_give_zero", r"weights of a dead row"),
    (PaddedQueriesInTheColumnStep, "mask_equals_shorter_input", r"case: padded queries and keys \(dense\), no prior"),
    (ColumnsOfAllTexts, "mask_equals_shorter_input", r"case: segments \(Mask\)"),
    (PaddedQueriesInTheColumnStep, "padding_never_matters", r"padded queries and keys"),
    (PriorBeforeTheColumnStep, "a_key_prior_changes_the_weights", r"key prior.*\n.*log_prior is ignored"),
    (PriorBeforeTheColumnStep, "the_prior_multiplies_the_weights", r"no mask, key prior.*\nweights\["),
    (NaNOnDeadRows, "dead_rows_give_zero", r"weights of a dead row\[.*expected 0, got nan.*logsumexp_over_queries"),
    (NaNOnDeadRows, "no_prior_no_weight", r"got nan"),
    (NaNInTheGradientOfDeadRows, "dead_rows_give_zero", r"gradient of the weights by .*got nan"),
    (DeclaredNoneButPast, COUPLING, r"changing query 0 moved a weight in row 1 by .* own row only"),
    (DeclaredNoneButAll, COUPLING, r"moved a weight in row"),
    (DeclaredPastButAll, COUPLING, r"changing query 1 moved a weight in row 0 .*no earlier row"),
    (DeclaredPastButAll, "no_leak_in_causal_use", r"from position \d on changed\nattend\["),
    (StricterThanNeeded, COUPLING, r"stricter than needed; declare 'none'"),
    (PastButNone, COUPLING, r"stricter than needed; declare 'none'"),
    (MisspeltCoupling, COUPLING, r"couples_queries='future': allowed: 'none', 'past', 'all'"),
    (AttendLeaks, "no_leak_in_causal_use", r"attend\["),
    (StepForgets, "step_equals_full_pass", r"step for query 1"),
    (AttendIgnoresTheMask, ATTEND, r"case: padded keys.*\nattend against forward.*\nattend\["),
    (AttendIgnoresTheMask, "padding_never_matters", r"attend\["),
    (AttendIgnoresThePrior, ATTEND, r"no mask, key prior"),
    (AttendIgnoresThePrior, "a_key_prior_changes_the_weights", r"\nattend: log_prior is ignored"),
    (AttendIgnoresTheScale, ATTEND, r"scale 0.3"),
    (AttendWithoutDefaultScale, ATTEND, r"without a scale: the default is D \*\* -0.5"),
    (LongAttendIsWrong, ATTEND, r"128 queries, 128 keys.*\n.*\ngradient of attend by k\["),
    (IgnoresThePrior, "a_key_prior_changes_the_weights", r"weights: log_prior is ignored"),
    (PriorOnTheWeights, "rows_sum_to_total", r"key prior.*\nrow sum"),
    (PriorOnTheWeights, "a_row_constant_prior_changes_nothing", r"log_prior of shape \(2, 2, 5, 1\).*\nweights\["),
    (Float16Inside, "weights_are_computed_in_float32_or_wider", r"float32\n.*half gave a torch.float16"),
    (ComputedInTheDtypeOfTheScores, "weights_are_computed_in_float32_or_wider", r"bfloat16.*\n.*same rounded inputs"),
    (ReturnsFloat32, "results_have_the_shape_and_dtype_of_the_inputs", r"expected the dtype torch.bfloat16"),
    (RoughSixteenBitAttend, "sixteen_bit_attend_is_as_accurate_as_softmax", r"relative error \d.*torch's softmax"),
    (WritesIntoTheScores, "inputs_are_left_alone", r"forward wrote into its input\nscores\["),
    (WritesIntoThePrior, "inputs_are_left_alone", r"forward wrote into its input\nlog_prior\["),
    (Noisy, "the_same_call_gives_the_same_bits", r"the same call twice\nweights\["),
    (DropsInTraining, "the_same_call_gives_the_same_bits", r"in eval against in train mode"),
    (WrongTotal, "rows_sum_to_total", r"expected 1, got 2, difference 1.0e\+00"),
    (NegativeWeights, "weights_are_not_negative", r"expected 0, got -"),
    (DependsOnKeyOrder, "keys_may_be_reordered", r"keys in the order \[.*\]\nweights\["),
    (DependsOnQueryOrder, "queries_may_be_reordered", r"queries in the order \[.*\]\nweights\["),
    (AttendDependsOnQueryOrder, "self_attention_is_permutation_equivariant", r"states in the order \[.*\]\nattend\["),
    (AttendDependsOnKeyOrder, "self_attention_is_permutation_equivariant", r"no mask, states.*\nstates in the order"),
    (AttendDependsOnKeyOrder, "learned_queries_are_permutation_invariant", r"values in the order \[.*\]\nattend\["),
    (DependsOnKeyOrder, "learned_queries_are_permutation_invariant", r"values in the order \[.*\]\nattend\["),
    (DetachedGradient, "gradients_equal_finite_differences", r"by scores\[.*central difference.*got 0 \(autograd\)"),
    (DetachedParameter, "gradients_equal_finite_differences", r"by temperature\[\]: expected"),
    (
        ConstantGradient,
        "second_derivatives_are_right_or_refused",
        r"second derivative of weights: expected 0.5",
    ),
    (Overflows, "extreme_scores_stay_finite", r"scores times 1e4\n"),
    (DeclaresShiftInvariance, "a_key_shift_changes_nothing", r"shifted by a number per key"),
    (DeclaresLeastMass, "every_key_keeps_its_least_mass", r"mass of a key\["),
    (DeclaresProportionality, "the_prior_multiplies_the_weights", r"key prior"),
    (UsesKeysUndeclared, "keys_are_used_only_if_declared", r"keys and scale given to forward"),
    (NormalizedByTheBatch, "examples_and_heads_are_independent", r"last head of the last example changed"),
    (HeadsCoupledUndeclared, "examples_and_heads_are_independent", r"the last head of the last example changed"),
    (DeclaresCoupledHeads, "examples_and_heads_are_independent", r"showed no coupling: declare couples_heads = False"),
    (CoupledExamples, "examples_and_heads_are_independent", r"head \d of the last example changed"),
    (FeaturesOfTheSequence, FEATURES, r"of the state 0 alone"),
    (FeaturesWithoutHeads, FEATURES, r"expected the shape \(2, 2, 7, 'F'\), got \(2, 1"),
    (UnusedStates, FEATURES, r"changed no weight; declare needs_states = 'none'"),
    (MisspeltStates, FEATURES, r"needs_states='key': allowed: 'none', 'queries', 'keys'"),
    (RemainderOfNothing, "rows_sum_to_total", r"total=\(0.0, 2.0\): declare a total of at most 1"),
    (OneRemainderForAllHeads, "rows_sum_to_total", r"remainder_value: expected the shape \(2, \d\), got \(1, 4\)"),
    (PaddedKeysShiftTheScores, "padding_never_matters", r"filled with numbers around 1e6"),
    (MoreThanOne, "rows_sum_to_total", r"row sum, declared total = \(0.0, 1.0\)\[\d, \d, \d\]: expected 1, got [2-9]"),
    (MoreThanOneForLargeScores, "extreme_scores_stay_finite", r"scores .*1e4\nrow sum.*expected 1, got [12]"),
    (LinearWithoutHoles, "no_prior_no_weight", r"weights without prior or masked\["),
    (LinearCountsThePriorTwice, "the_prior_multiplies_the_weights", r"key prior"),
    (LinearOnDeadRows, "no_prior_no_weight", r"expected 0, got 1"),
    (LinearDeclaresScaleInvariance, "a_row_constant_prior_changes_nothing", r"the same for all keys\nweights\["),
    (TotalsTheWrongWayRound, "rows_sum_to_total", r"total=\(1.0, 0.0\): expected a number, a pair .* or None"),
    (
        Raises,
        "rows_sum_to_total",
        r"case: no mask, a single key.*\nraised RuntimeError at test_testing.py:\d+: one key",
    ),
]


@pytest.mark.parametrize(("faulty", "name", "words"), FAULTS, ids=lambda x: getattr(x, "__name__", str(x))[:60])
def test_a_planted_fault_is_found_by_the_property_that_is_about_it(faulty, name, words):
    report = checked(faulty, name)
    [failure] = report.failures
    assert failure.name == name and failure.meaning == PROPERTIES[name].__doc__
    assert re.search(words, failure.detail), failure.detail


def test_every_property_has_found_a_planted_fault():
    assert {name for _, name, _ in FAULTS} == set(PROPERTIES)


@pytest.mark.parametrize(
    ("faulty", "only"),
    [
        (StricterThanNeeded, {"couples_queries_as_declared"}),
        slow(StepForgets, {"step_equals_full_pass"}),
        slow(DeclaresLeastMass, {"every_key_keeps_its_least_mass"}),
        slow(DeclaresShiftInvariance, {"a_key_shift_changes_nothing"}),
        slow(DeclaresProportionality, {"the_prior_multiplies_the_weights"}),
        slow(DependsOnKeyOrder, {"keys_may_be_reordered"}),
        slow(NegativeWeights, {"weights_are_not_negative"}),
        slow(RoughSixteenBitAttend, {"sixteen_bit_attend_is_as_accurate_as_softmax"}),
        slow(LongAttendIsWrong, {"attend_equals_forward_times_values"}),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_no_other_property_blames_a_fault_that_is_about_one(faulty, only):
    assert {failure.name for failure in everything(faulty).failures} == only


class Kinked(Softmax):
    """Weights in proportion to u (max(s, 0) + 0.05): sound, with kinks at 0."""

    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = masked_scores(scores, mask)
        log_x = (s.clamp(min=0.0) + 0.05).log().masked_fill(s == -torch.inf, -torch.inf)
        return softmax_over_keys(add_log_prior(log_x, log_prior)).to(scores.dtype)


class DetachedKinked(Kinked):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        w = super().forward(scores, mask, log_prior=log_prior)
        return w + 0.1 * (w.detach() - w)


def test_a_kink_is_told_from_a_wrong_gradient():
    subject, wrong = (Subject(cls, 0, "cpu", 2, ()) for cls in (Kinked, DetachedKinked))
    case = subject.case("no mask", 5, 7)
    on_a_kink = replace(case, own_scores=case.scores.index_fill(-1, torch.tensor([2]), 0.0))
    assert not kinked(subject, case)
    assert kinked(subject, on_a_kink)
    with pytest.raises(Failure, match=r"by scores\["):
        kinked(wrong, case)
    report = checked(Kinked, "gradients_equal_finite_differences")
    assert report.passed, str(report)


# ---------------------------------------------------------------------------------------------------------- the report


def test_the_report_of_a_sound_normalizer(capsys):
    report = check_normalizer(Softmax, properties=["rows_sum_to_total", "step_equals_full_pass"])
    assert isinstance(report, Report) and report.passed and not report.failures
    text = """Softmax(): 2 properties, seed 0
ok    rows_sum_to_total: every row with an allowed key sums to the declared `total`
skip  step_equals_full_pass: (declared couples_queries = 'none': a cached query needs no state)
1 ok, 0 failed, 1 skipped
"""
    assert capsys.readouterr().out == text == f"{report}\n"


def test_the_report_of_a_faulty_normalizer(capsys):
    with pytest.raises(AssertionError) as error:
        check_normalizer(WrongTotal, properties=["weights_are_not_negative", "rows_sum_to_total"])
    text = """WrongTotal(): 2 properties, seed 0
ok    weights_are_not_negative: no weight is below 0
FAIL  rows_sum_to_total: every row with an allowed key sums to the declared `total`
      case: no mask, no prior; 2 examples, 2 heads, 5 queries, 7 keys, float64
      row sum[0, 0, 0]: expected 1, got 2, difference 1.0e+00 (allowed 1.0e-06)
      The rows sum to numbers from 2 to 2. If this is intended, declare total = 2.
1 ok, 1 failed, 0 skipped
"""
    printed = capsys.readouterr().out
    assert re.sub(r"row sum\[\d, \d, \d\]", "row sum[0, 0, 0]", printed) == text
    summary = "1 ok, 1 failed, 0 skipped; failed: rows_sum_to_total"
    assert str(error.value) == f"WrongTotal(): 2 properties, seed 0: {summary} (see the report printed above)"


class MaskIsATensor(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        s = upcast(scores).masked_fill(~mask, -torch.inf)
        return softmax_over_keys(add_log_prior(s, log_prior)).to(scores.dtype)


class MaskIsATensorInWeights(Normalizer):
    def weights(self, s, given):
        return softmax_over_keys(add_log_prior(s.masked_fill(~given.mask, -torch.inf), given.log_prior))


class NeedsKeysUndeclared(Softmax):
    def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
        return super().forward(scores + 0 * keys.sum(), mask, log_prior=log_prior)


@pytest.mark.parametrize(
    ("faulty", "first", "words"),
    [
        (MaskIsATensor, 0, "The mask is None here, and a dense mask works; use masked_scores(scores, mask)."),
        (MaskIsATensorInWeights, 0, "a dense mask works; the scores of `weights` are masked already."),
        (NeedsKeysUndeclared, 0, "declare needs_keys = True"),
        (FiniteFill, 1, "masked weights"),
        (NaNOnDeadRows, 2, "weights of a dead row"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_first_cause_is_the_only_failure_and_what_builds_on_it_is_not_tested(faulty, first, words):
    report = checked(faulty)
    cause, rest = list(PROPERTIES)[first], len(PROPERTIES) - first - 1
    assert [result.status for result in report.results] == ["ok"] * first + ["failed"] + ["not tested"] * rest
    [failure] = report.failures
    assert failure.name == cause and words in failure.detail
    assert str(report).endswith(
        f"\nnot tested, because {cause} failed: {rest} other properties\n"
        f"{first} ok, 1 failed, 0 skipped, {rest} not tested"
    )


@pytest.mark.parametrize(
    ("faulty", "name", "declare"),
    [
        (Sigmoid, "rows_sum_to_total", "total = AT_MOST_ONE"),
        (WrongTotal, "rows_sum_to_total", "total = 2"),
        (PriorOnTheWeights, "rows_sum_to_total", 'total = (0.0, float("inf"))'),
        (Linear, "rows_sum_to_total", "total = None"),
        (NegativeWeights, "weights_are_not_negative", "total = None"),
        (DeclaredNoneButAll, "couples_queries_as_declared", "couples_queries = 'all'"),
        (DeclaredNoneButPast, "couples_queries_as_declared", "couples_queries = 'past'"),
        (DependsOnKeyOrder, "keys_may_be_reordered", "key_equivariant = False"),
        (DependsOnQueryOrder, "queries_may_be_reordered", "query_equivariant = False"),
        (DeclaresShiftInvariance, "a_key_shift_changes_nothing", "key_shift_invariant = False"),
        (DeclaresLeastMass, "every_key_keeps_its_least_mass", "least_mass = 0.0"),
        (DeclaresProportionality, "the_prior_multiplies_the_weights", "proportional_to_prior = False"),
        (LinearDeclaresScaleInvariance, "a_row_constant_prior_changes_nothing", "prior_scale_invariant = False"),
        (UsesKeysUndeclared, "keys_are_used_only_if_declared", "needs_keys = True"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_a_failure_says_what_to_declare_and_with_it_the_property_holds(faulty, name, declare):
    """The declaration is read from the report, made, and tried."""
    cls = type("Undeclared", (faulty,), {"total": 1.0}) if faulty in (Sigmoid, Linear) else faulty
    [failure] = checked(cls, name).failures
    assert f"If this is intended, declare {declare}" in failure.detail
    attribute, value = declare.split(" = ", 1)
    declared = type("Declared", (cls,), {attribute: eval(value, {"AT_MOST_ONE": AT_MOST_ONE})})
    assert checked(declared, name).passed


def test_a_declared_total_decides_which_properties_apply():
    names = ["rows_sum_to_total", "weights_are_not_negative", "a_row_constant_prior_changes_nothing"]
    assert {result.status for result in checked(Linear, *names).results} == {"skipped"}
    assert {result.status for result in checked(Sigmoid, *names).results} == {"ok"}


@pytest.mark.parametrize("heads", [2, 3])
def test_a_constructor_that_needs_the_number_of_heads_gets_it(heads):
    made = []

    class Counted(Temperatures):
        def __init__(self, heads: int):
            super().__init__(heads)
            made.append(heads)

    assert checked(Counted, "rows_sum_to_total", heads=heads).passed
    assert checked(lambda heads=None: Counted(7 if heads is None else heads), "inputs_are_left_alone").failures
    assert made == [heads, 7]  # a default is left to the factory, right or wrong


def test_nothing_is_printed_when_nobody_wants_to_read(capsys):
    check_normalizer(Softmax, properties=["rows_sum_to_total"], print_report=False)
    assert capsys.readouterr().out == ""


def test_results_say_which_property_and_why():
    report = everything(StricterThanNeeded)
    assert [result.name for result in report.results] == list(PROPERTIES)
    assert {result.status for result in report.results} == {"ok", "failed", "skipped", "not tested"}
    assert all(isinstance(result, Result) and result.meaning for result in report.results)
    assert all(result.detail for result in report.results if result.status != "ok")


@pytest.mark.parametrize("properties", [["rows_sum_to_totl"], "rows_sum_to_totl"])
def test_an_unknown_property_is_refused_with_the_right_ones(properties):
    with pytest.raises(
        ValueError, match=r"'rows_sum_to_totl': allowed: .*rows_sum_to_total, .*Did you mean 'rows_sum_to_total'"
    ):
        check_normalizer(Softmax, properties=properties)


@pytest.mark.parametrize("factory", [lambda: nn.Softmax(-1), lambda: None, lambda: Softmax])
def test_a_factory_of_something_else_is_refused(factory):
    with pytest.raises(ValueError, match=r"expected an attnorm\.attention\.Normalizer"):
        check_normalizer(factory)


def test_the_check_leaves_the_random_numbers_of_the_caller_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with torch.no_grad():
        assert check_normalizer(DNAS, properties=["gradients_equal_finite_differences"], print_report=False).passed
    assert torch.equal(torch.rand(2), expected)


def test_random_parameters_are_those_of_the_seed():
    made = []

    class Random(Softmax):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.rand(()))
            made.append(self.temperature.item())

    for seed in (1, 1, 2):
        checked(Random, "rows_sum_to_total", seed=seed)
    assert made[0] == made[1] != made[2]


def test_a_class_that_is_not_differentiable_is_checked_in_eval_mode_without_gradients():
    modes = set()

    class Hard(Softmax):
        differentiable, proportional_to_prior = False, False

        def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
            modes.add(self.training)
            w = super().forward(upcast(scores), mask, log_prior=log_prior)
            hard = torch.zeros_like(w).scatter(-1, w.argmax(-1, keepdim=True), 1.0) * (w > 0)
            return hard.detach().to(scores.dtype)

    report = checked(Hard)
    assert report.passed, str(report)
    [skipped] = [result for result in report.results if result.name == "gradients_equal_finite_differences"]
    assert skipped.detail == "declared differentiable = False"
    assert modes == {False}


def test_a_class_that_needs_keys_gets_those_behind_the_scores():
    class NeedsKeys(Softmax):
        needs_keys, proportional_to_prior = True, False

        def forward(self, scores, mask=None, *, log_prior=None, keys=None, scale=None):
            assert scale is not None
            lengths = upcast(keys).square().sum(-1)[..., None, :].to(upcast(scores).dtype)
            return super().forward((upcast(scores) - 0.1 * lengths).to(scores.dtype), mask, log_prior=log_prior)

    report = checked(NeedsKeys, *(name for name in PROPERTIES if name != "weights_are_computed_in_float32_or_wider"))
    assert report.passed, str(report)
    assert sum(result.status == "skipped" for result in report.results) == 7
