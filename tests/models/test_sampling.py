"""Sampling: the tokens of a plain reference, whatever is cached and however the prompts are batched."""

from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from builders import BOS, EOS, PAD, SPECIAL, WithoutCache
from gpt_builders import LONGEST, VOCABULARY, rough_gpt
from simulated_gpu import SimulatedGPU

from attnorm.models.generation import SpecialTokens
from attnorm.models.sampling import Sampling, choose_tokens, random_numbers, sample

pytestmark = pytest.mark.numerical

PROMPTS = [[BOS, 5, 7], [BOS, 9, 4, 3, 8, 6], [BOS], [BOS, 3]]


def talker(normalizer="softmax", positions="rotary", **settings):
    """A model that says different things after different prompts, and ends some of them early."""
    model = rough_gpt(normalizer, positions, tie_embeddings=False, seed=2, **settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter *= 0.1  # large biases would favour one token everywhere
        model.embeddings.tokens.weight *= 3
    return model


def nucleus(scores, temperature, top_p):
    """The probabilities of the tokens that may be drawn, by token, with plain numbers; the first is the likeliest."""
    exps = {token: (torch.tensor(score, dtype=torch.float64) / temperature).exp().item() for token, score in scores}
    total, kept, mass = sum(exps.values()), {}, 0.0
    for token in sorted(exps, key=lambda token: -exps[token]):
        kept[token] = exps[token] / total
        mass += kept[token]
        if mass >= top_p:
            break
    return {token: p / sum(kept.values()) for token, p in kept.items()}


@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_are_drawn_as_often_as_their_probabilities_in_the_nucleus_say(temperature, top_p):
    points = 4001
    for seed in range(5):
        logits = 2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
        logits[3] = -torch.inf
        expected = nucleus(list(enumerate(logits.tolist())), temperature, top_p)
        uniform = (torch.arange(points, dtype=torch.float64) + 0.5) / points
        drawn = choose_tokens(logits.expand(points, -1), uniform, Sampling(temperature, top_p))
        counts = torch.bincount(drawn, minlength=VOCABULARY)
        for token in range(VOCABULARY):
            assert abs(counts[token].item() / points - expected.get(token, 0.0)) <= 1.0 / points
        assert list(dict.fromkeys(drawn.tolist())) == [token for token in expected if counts[token]]


def test_the_nucleus_is_the_smallest_set_that_has_the_mass():
    p = torch.tensor([[0.125, 0.5, 0.25, 0.125]], dtype=torch.float64)
    almost_one = torch.tensor([1 - 2**-53], dtype=torch.float64)
    for top_p, last in ((0.5, 1), (0.51, 2), (0.75, 2), (0.76, 0), (0.875, 0), (0.9, 3), (1.0, 3)):
        assert choose_tokens(p.log(), almost_one, Sampling(top_p=top_p)).tolist() == [last]
    for uniform, token in ((0.0, 1), (0.5, 2), (0.75, 0), (0.875, 3)):  # each interval contains its lower end
        assert choose_tokens(p.log(), torch.tensor([uniform]), Sampling()).tolist() == [token]


def continued(model, prompt, sampling, number):
    """The text after one prompt, by the full model and a plain loop."""
    tokens = list(prompt)
    for draw in random_numbers(sampling, number).tolist():
        if model.longest is not None and len(tokens) > model.longest:
            break
        scores = model(torch.tensor([tokens]))[0, -1]
        allowed = [(token, x) for token, x in enumerate(scores.tolist()) if token not in (PAD, BOS)]
        if sampling.temperature == 0:
            token = max(allowed, key=lambda item: item[1])[0]
        else:
            of = nucleus(allowed, sampling.temperature, sampling.top_p)
            token = next(token for token, mass in zip(of, accumulate(of.values()), strict=True) if mass > draw)
        if token == EOS:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


SAMPLINGS = {
    "greedy": Sampling(temperature=0, max_length=7),
    "free": Sampling(max_length=7, seed=1),
    "nucleus": Sampling(temperature=1.5, top_p=0.8, max_length=7, seed=3),
}


@pytest.mark.long
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("normalizer", "positions"), [("softmax", "rotary"), ("hnas_prefix", "alibi"), ("entmax", "learned")]
)
def test_a_batch_of_prompts_is_continued_as_each_by_a_plain_loop(normalizer, positions, sampling):
    model, sampling = talker(normalizer, positions), SAMPLINGS[sampling]
    actual = sample(model, PROMPTS, SPECIAL, sampling)
    assert actual == [continued(model, prompt, sampling, number) for number, prompt in enumerate(PROMPTS)]
    assert actual == sample(WithoutCache(model), PROMPTS, SPECIAL, sampling)
    for number, prompt in enumerate(PROMPTS):  # neither the batch nor the order matters
        assert sample(model, [prompt], SPECIAL, sampling, [number]) == [actual[number]]
    turned = sample(model, PROMPTS[::-1], SPECIAL, sampling, [3, 2, 1, 0])
    assert turned == actual[::-1]


def test_the_texts_of_these_tests_vary_in_tokens_and_length():
    """Otherwise the comparisons above would compare little."""
    for sampling in SAMPLINGS.values():
        result = [
            text for name in ("softmax", "hnas_prefix") for text in sample(talker(name), PROMPTS, SPECIAL, sampling)
        ]
        assert len(set(map(tuple, result))) >= 3 and len(set(map(len, result))) >= 2
    free = SAMPLINGS["free"]
    assert len({tuple(text) for text in sample(talker(), [PROMPTS[0]] * 8, SPECIAL, free)}) >= 4


def test_the_seed_chooses_the_texts():
    model, prompts = talker(), [PROMPTS[0]] * 4
    first = sample(model, prompts, SPECIAL, Sampling(seed=3, max_length=5))
    assert first == sample(model, prompts, SPECIAL, Sampling(seed=3, max_length=5))
    assert first != sample(model, prompts, SPECIAL, Sampling(seed=4, max_length=5))


def test_texts_end_at_the_end_token_the_length_and_the_last_position():
    model = talker(positions="learned")
    is_end = torch.arange(VOCABULARY) == EOS
    hook = model.output.register_forward_hook(lambda _, __, out: out - 100.0 * is_end)
    lengths = [len(text) for text in sample(model, PROMPTS, SPECIAL, Sampling(max_length=5))]
    assert lengths == [5, LONGEST + 1 - 6, 5, 5]
    hook.remove()
    model.output.register_forward_hook(lambda _, __, out: out + 100.0 * is_end)
    assert sample(model, PROMPTS, SPECIAL, Sampling()) == [[]] * 4


def test_padding_and_begin_are_never_drawn_unless_one_token_is_begin_and_end():
    model = talker()
    model.output.register_forward_hook(lambda _, __, out: out + 100.0 * (torch.arange(VOCABULARY) <= BOS))
    assert min(min(text, default=9) for text in sample(model, PROMPTS, SPECIAL, Sampling())) > BOS
    assert sample(model, PROMPTS, SpecialTokens(PAD, BOS, BOS), Sampling()) == [[]] * 4


def test_prompts_that_cannot_be_continued_are_refused():
    model = talker(positions="learned")
    with pytest.raises(ValueError, match="a prompt without tokens"):
        sample(model, [[BOS], []], SPECIAL, Sampling())
    with pytest.raises(ValueError, match=f"a prompt of 10 tokens, but the model has {LONGEST} positions"):
        sample(model, [[BOS] * 10], SPECIAL, Sampling())
    assert sample(model, [], SPECIAL, Sampling()) == []


def test_sampling_ignores_dropout():
    model = talker(dropout=0.5)
    expected = sample(model, PROMPTS, SPECIAL, Sampling(max_length=5))
    assert sample(model.train(), PROMPTS, SPECIAL, Sampling(max_length=5)) == expected


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_step_waits_for_the_device_once(monkeypatch, sampling):
    """A longer text needs as many more transfers as steps."""
    model, steps, transfers = talker(), [], []
    original = model.next_logits
    monkeypatch.setattr(model, "next_logits", lambda *given: (steps.append(len(transfers)), original(*given))[1])
    for longest in (3, 7):
        with SimulatedGPU() as gpu:
            model.to(torch.device("cpu"))
            gpu.transfers.clear()
            sample(model, PROMPTS, SPECIAL, replace(SAMPLINGS[sampling], max_length=longest))
        assert not gpu.mixed
        transfers.append(gpu.transfers.total())
    assert transfers[1] - transfers[0] == steps.count(1) - steps.count(0) > 0
