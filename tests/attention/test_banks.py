"""Banks: templates outside the input at any site, their weights, their gradients, and which tables are accepted."""

import copy
import re

import pytest
import reference
import torch
from reference import WIDTH, randn
from torch import nn
from torch.testing import assert_close

from attnorm.attention import Mask, MultiHeadAttention, build_normalizer, build_scorer, check_attention
from attnorm.attention.banks import Templates, Vocabulary, share_vocabulary
from attnorm.attention.hooks import Observation
from attnorm.attention.model_sites import Sites, resolve_attention
from attnorm.attention.multihead import Cache
from attnorm.attention.normalizers.ot import OptimalTransport
from attnorm.attention.site import Site

pytestmark = pytest.mark.numerical

STATES, HEADS, SIZE = 8, 2, 6


class Given(nn.Module):
    """A bank of given states."""

    def __init__(self, states):
        super().__init__()
        self.states = nn.Parameter(states)

    def forward(self):
        return self.states


def layer(bank=None, scorer="scaled_dot", **options):
    torch.manual_seed(0)
    size = {"heads": HEADS, "width": STATES // HEADS}
    part = build_scorer(scorer, **(size if scorer in ("additive", "bilinear") else {}))
    return MultiHeadAttention(STATES, HEADS, build_normalizer("ot", **options), part, bank=bank).double()


def observed(module, *args, **kwargs) -> tuple[torch.Tensor, Observation]:
    seen = []
    module.observer = seen.append
    out = module(*args, **kwargs)
    module.observer = None
    return out, seen[0]


# ------------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("order", [1, 2, "exact"])
def test_a_bank_is_the_same_as_keys_of_the_input_without_prior(order):
    """forward with log_prior = -inf for the first keys, in value and gradient, for masks and priors of the input."""
    scores, keys = randn(2, 2, 4, 9, seed=1), randn(2, 2, 9, WIDTH, seed=2)
    allowed = (randn(2, 1, 4, 5, seed=3) > -0.7).contiguous()
    mask = torch.cat([allowed.any(-1, keepdim=True).expand(2, 1, 4, 4), allowed], -1)
    log_prior = randn(2, 1, 4, 5, seed=4)
    all_log_prior = torch.cat([torch.full((2, 1, 4, 4), -torch.inf).double(), log_prior], -1)
    inputs = [x.requires_grad_() for x in (scores, keys)]
    ot = OptimalTransport(0.6, order=order)
    found = ot.forward_with_bank(scores, mask, log_prior=log_prior, keys=keys, scale=0.5, outside=4)
    expected = ot(scores, mask, log_prior=all_log_prior, keys=keys, scale=0.5)
    assert (expected[..., :4].sum(-1) > 1e-3).any()
    assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert_close(reference.gradients(found, inputs), reference.gradients(expected, inputs), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("gamma", [0.05, 0.002], ids=["float64 products", "log domain"])
def test_the_other_ways_to_compute_know_the_bank_too(gamma):
    scores, keys = randn(1, 2, 3, 7, seed=1).float() * gamma, randn(1, 2, 7, WIDTH, seed=2).float()
    log_prior = torch.cat([torch.full((3,), -torch.inf), torch.zeros(4)])
    ot = OptimalTransport(gamma)
    found = ot.forward_with_bank(scores, keys=keys, outside=3)
    assert_close(found, ot(scores, log_prior=log_prior, keys=keys), rtol=1e-4, atol=1e-6)


def test_a_layer_gives_weight_to_its_bank_and_returns_the_mean_of_all_values():
    bank, x = randn(5, STATES, seed=1), randn(2, SIZE, STATES, seed=2)
    module = layer(Given(bank), gamma=0.5)
    real = torch.arange(SIZE) < torch.tensor([[SIZE], [3]])
    for mask in (
        None,
        Mask(queries=real, keys=real),
        Mask(keys=real, causal=True),
        Mask(segments=(torch.arange(SIZE) > 2).long().expand(2, -1)),
    ):
        out, seen = observed(module, x, x, mask)
        everything = torch.cat([bank.expand(2, -1, -1), x], 1)
        k, v = (module._split(it) for it in module.key_value(everything).chunk(2, -1))
        q = module._split(module.query(x))
        allowed = torch.ones(2, 1, SIZE, SIZE, dtype=torch.bool)
        if mask is not None:
            allowed = allowed & mask.dense(SIZE, SIZE)
        expected = torch.zeros(2, HEADS, SIZE, SIZE + 5).double()
        for b in range(2):
            for h in range(HEADS):
                for n in range(SIZE):
                    sources = allowed[b, 0, n].nonzero()[:, 0] + 5
                    targets = torch.cat([torch.arange(5), sources])
                    for i in sources:
                        cost = (k[b, h, targets] - k[b, h, i]).square().mean(-1)
                        moved = ((k[b, h, targets] @ q[b, h, n] / 2 - cost) / 0.5).softmax(0)
                        expected[b, h, n].index_add_(0, targets, moved / len(sources))
        assert_close(torch.cat([seen.outside, seen.weights], -1), expected)
        assert_close(out, module.output((expected @ v).transpose(1, 2).flatten(2)))
        assert seen.k.shape == seen.v.shape == (2, HEADS, SIZE, STATES // HEADS)
        assert seen.scores.shape == seen.weights.shape


@pytest.mark.parametrize("scorer", ["bilinear", "additive", "gaussian"])
def test_a_bank_works_with_every_scorer_and_in_incremental_decoding(scorer):
    module, x = layer(Given(randn(5, STATES, seed=1)), scorer), randn(2, SIZE, STATES, seed=2)
    full = module(x, x, Mask(causal=True))
    cache = Cache(grows=True)
    steps = [module(x[:, i : i + 1], x[:, i : i + 1], Mask(), cache=cache) for i in range(SIZE)]
    assert_close(torch.cat(steps, 1), full)


# ------------------------------------------------------------------------------------------------------------ synonyms


def sentence(normalizer, vocabulary, through_input=True):
    """One layer over the words 0, 2, 4 of a vocabulary in which words 0 and 1 are twins: embeddings, output, record."""
    torch.manual_seed(0)
    tokens = nn.Embedding(8, STATES).double()
    with torch.no_grad():
        tokens.weight[1] = tokens.weight[0]
    bank = Vocabulary(STATES).double() if vocabulary else None
    module = MultiHeadAttention(STATES, HEADS, build_normalizer(normalizer), build_scorer("scaled_dot"), bank=bank)
    share_vocabulary(module, tokens)
    x = nn.functional.layer_norm(tokens(torch.tensor([[0, 2, 4]])), (STATES,))
    out, seen = observed(module.double(), *[x if through_input else x.detach()] * 2)
    return tokens, out, seen


def test_a_synonym_outside_the_input_has_its_twins_weight_and_a_gradient():
    tokens, out, seen = sentence("ot", vocabulary=True)
    assert_close(seen.outside[..., 1], seen.outside[..., 0])
    assert_close(seen.outside[..., 1], seen.weights[..., 0])  # word 0 in the input, with the same norm
    assert (seen.outside[..., 1] > 0.05).all()
    (gradient,) = torch.autograd.grad(out.square().sum(), tokens.weight)
    assert gradient[1].norm() > 0.1 * gradient[0].norm() > 0
    tokens, out, _ = sentence("ot", vocabulary=True, through_input=False)
    (through_bank,) = torch.autograd.grad(out.square().sum(), tokens.weight)
    assert_close(through_bank[1], through_bank[0])  # beside what the twin gets as a word of the input
    assert_close(through_bank[1], gradient[1])
    for normalizer in ("ot", "softmax"):
        tokens, out, _ = sentence(normalizer, vocabulary=False)
        (gradient,) = torch.autograd.grad(out.square().sum(), tokens.weight)
        assert (gradient[1] == 0).all() and gradient[0].norm() > 0


def test_the_vocabulary_belongs_to_the_model_and_survives_a_copy():
    tokens = nn.Embedding(8, STATES)
    model = nn.ModuleDict({"tokens": tokens, "bank": Vocabulary(STATES)})
    share_vocabulary(model, tokens)
    assert [*model.state_dict()] == ["tokens.weight", "bank.norm.weight", "bank.norm.bias"]
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied["tokens"].weight.copy_(randn(8, STATES))
    expected = nn.functional.layer_norm(randn(8, STATES).float(), (STATES,))
    assert_close(copied["bank"](), expected)
    with pytest.raises(ValueError, match="no token embeddings at this site"):
        Vocabulary(STATES)()


# -------------------------------------------------------------------------------------------------------------- tables


SITES = {"encoder": False, "decoder": True, "cross": True}


def test_each_layer_that_uses_its_bank_gets_one_of_its_own():
    tables = resolve_attention(
        {
            "_default_": "ot",
            "encoder": ["ot", "softmax"],
            "bank": {"encoder": "templates"},
            "options": {"templates": {"size": 5}},
        },
        SITES,
    )
    assert tables["bank"] == {"encoder": "templates"} and tables["options"] == {"templates": {"size": 5}}
    assert Sites(tables, SITES).label == "ot+softmax_decoder-ot_cross-ot_bank-encoder-templates"
    built = [Site({**tables, "encoder": name}, "encoder").layer(STATES, 2).bank for name in ("ot", "softmax")]
    assert isinstance(built[0], Templates) and built[0]().shape == (5, STATES) and built[1] is None
    assert Site(tables, "cross").layer(STATES, 2).bank is None


WITH_BANK = {"bank": {"encoder": "templates"}}


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({**WITH_BANK, "encoder": "softmax"}, "attention.bank.encoder=templates: has no effect, because softmax gives"),
        ({"bank": {"encoder": "vocabulry"}}, "attention.bank.encoder=vocabulry: .*Did you mean 'vocabulary'"),
        ({"bank": {"encoder": ["templates"]}}, "attention.bank.encoder=.*: expected a name"),
        ({"bank": "templates"}, r"attention.bank=templates: expected a bank by site, such as \{encoder: vocabulary\}"),
        ({"bank": {"mixer": "templates"}}, "attention.bank.mixer: the model has no such site"),
        ({**WITH_BANK, "options": {"templates": {"size": 0}}}, "^attention.options.templates.size=0: allowed"),
        ({"options": {"templates": {"size": 4}}}, "attention.options.templates: has no effect"),
        (
            {**WITH_BANK, "options": {"templates": {"width": 4}}},
            "^attention.options.templates.width=4: not an option here",
        ),
    ],
)
def test_a_wrong_bank_is_named_with_its_key(tables, problem):
    problems = check_attention({"_default_": "ot", **tables}, SITES)
    assert len(problems) == 1 and re.search(problem, problems[0]), problems
