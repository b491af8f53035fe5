"""Greedy and beam search: equal to plain searches written here, whatever is cached and however articles are batched."""

import copy
import functools
from dataclasses import replace

import pytest
import torch
from builders import BOS, EOS, FIRST_WORD, PAD, SPECIAL, WithoutCache, rough_model, sources
from marks import few
from simulated_gpu import SimulatedGPU

from attnorm.models import generation
from attnorm.models.generation import Decoding, generate

pytestmark = pytest.mark.numerical

PLACEMENTS = ["softmax", "dnas", "hnas", "dnas_prefix", "hnas_prefix", "cross_only", "slack", "counting", "free_sums"]
ARTICLES = [6, 4, 1, 5]  # words
DECODINGS = {
    "greedy": Decoding(max_length=8),
    "greedy_blocked": Decoding(no_repeat_ngram=2, min_length=3, max_length=8),
    "beams": Decoding(beam_size=3, max_length=7),
    "long": Decoding(beam_size=3, length_penalty=2.0, no_repeat_ngram=1, min_length=2, max_length=7),
    "short": Decoding(beam_size=4, length_penalty=0.0, no_repeat_ngram=3, max_length=6),
}


@functools.cache
def talker(placement="softmax", vocab_size=11, eos=2.5, **settings):
    """A random model in float64 that says different things of different articles and ends some of them early."""
    model = rough_model(placement, noise=0.6, seed=1, tie_embeddings=False, vocab_size=vocab_size, **settings)
    model.output.bias.data[EOS] += eos
    return model


def articles(lengths=ARTICLES, **settings):
    """One padded batch, and the same articles one at a time without padding."""
    batch = sources(lengths, **settings)
    return batch, [batch[row : row + 1, : length + 1] for row, length in enumerate(lengths)]


# --------------------------------------------------------------------------------------------------- plain searches


def next_log_p(model, article, tokens):
    """log p of each next token by the full model."""
    states = model(article, torch.tensor([[BOS, *tokens]]))
    return model.logits(states)[0, -1].log_softmax(-1).tolist()


def may_follow(tokens, token, decoding):
    """Whether the token may come behind these."""
    if token in (PAD, BOS):
        return False
    if len(tokens) == decoding.max_length:
        return token == EOS
    if token == EOS:
        return len(tokens) >= decoding.min_length
    n, longer = decoding.no_repeat_ngram, [*tokens, token]
    ngrams = [tuple(longer[i : i + n]) for i in range(len(longer) - n + 1)]
    return not n or len(set(ngrams)) == len(ngrams)


def continuations(model, article, tokens, decoding):
    """[(log p, token)] of what may come next."""
    log_p = next_log_p(model, article, tokens)
    return [(log_p[token], token) for token in range(len(log_p)) if may_follow(tokens, token, decoding)]


def rank(log_p, tokens, decoding):
    return log_p / (len(tokens) + 1) ** decoding.length_penalty


@torch.no_grad()
def plain_beam_search(model, article, decoding):
    """The best headline: `beam_size` hypotheses go on; one that ends among that many best is finished."""
    beams, going_on, finished = decoding.beam_size, [(0.0, [])], []
    while going_on and len(finished) < beams:
        longer = []
        for score, tokens in going_on:
            following = continuations(model, article, tokens, decoding)
            longer += [(score + log_p, tokens, token) for log_p, token in following]
        longer.sort(key=lambda candidate: -candidate[0])
        finished += [(rank(score, tokens, decoding), tokens) for score, tokens, token in longer[:beams] if token == EOS]
        going_on = [(score, [*tokens, token]) for score, tokens, token in longer if token != EOS][:beams]
    return max(finished)[1]


@torch.no_grad()
def every_headline(model, article, decoding):
    """[(log p, tokens)] of all headlines that there are."""
    every, going_on = [], [(0.0, [])]
    while going_on:
        score, tokens = going_on.pop()
        for log_p, token in continuations(model, article, tokens, decoding):
            if token == EOS:
                every.append((score + log_p, tokens))
            else:
                going_on.append((score + log_p, [*tokens, token]))
    return every


def best_of(every, decoding):
    return max((rank(log_p, tokens, decoding), tokens) for log_p, tokens in every)[1]


# ------------------------------------------------------------------------------------------------------------- equals


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_greedy_equals_a_plain_search_of_each_article(placement):
    model, (batch, each) = talker(placement), articles()
    actual = generate(model, batch, SPECIAL, DECODINGS["greedy"])
    assert actual == [plain_beam_search(model, article, DECODINGS["greedy"]) for article in each]


@pytest.mark.long
@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("placement", few(PLACEMENTS, ("softmax", "hnas_prefix")))
def test_a_batch_of_articles_cached_or_not_equals_a_plain_beam_search_of_each(placement, decoding):
    model, (batch, each) = talker(placement), articles()
    outcome = generate(model, batch, SPECIAL, DECODINGS[decoding])
    assert outcome == [plain_beam_search(model, article, DECODINGS[decoding]) for article in each]
    assert outcome == generate(WithoutCache(model), batch, SPECIAL, DECODINGS[decoding])


@pytest.mark.parametrize("placement", few(PLACEMENTS, ("softmax", "hnas_prefix")))
def test_the_headlines_of_these_tests_vary_in_words_and_length(placement):
    """Otherwise the comparisons above would compare little."""
    found = [generate(talker(placement), articles()[0], SPECIAL, decoding) for decoding in DECODINGS.values()]
    assert all(len(set(map(tuple, headlines))) >= 2 for headlines in found)  # one article is not as the others
    assert sum(len(set(map(len, headlines))) >= 2 for headlines in found) >= 3  # some finish while others go on


@pytest.mark.long
@pytest.mark.parametrize("no_repeat_ngram, count", [(0, 3 + 9 + 27), (2, 3 + 9 + 24)])  # 2: less 3 3 3, 4 4 4, 5 5 5
@pytest.mark.parametrize("placement", ["softmax", "dnas_prefix"])
def test_beams_for_every_headline_there_is_find_the_best_of_all(placement, no_repeat_ngram, count):
    """With as many beams as headlines nothing is pruned, and an article is not done before all have ended."""
    model, (batch, each) = talker(placement, vocab_size=6, eos=0.5), articles([6, 4, 1], vocab_size=6)
    rules = Decoding(beam_size=3 + 9 + 27, no_repeat_ngram=no_repeat_ngram, max_length=3)
    every = [every_headline(model, article, rules) for article in each]
    assert [len(headlines) for headlines in every] == [count] * 3
    for length_penalty in (0.0, 1.0, 3.0):
        decoding = replace(rules, length_penalty=length_penalty)
        assert generate(model, batch, SPECIAL, decoding) == [best_of(headlines, decoding) for headlines in every]


def test_the_best_headline_depends_on_the_length_penalty():
    model, (batch, _) = talker(vocab_size=6, eos=0.5), articles(vocab_size=6)
    every = (generate(model, batch, SPECIAL, Decoding(39, penalty, max_length=3)) for penalty in (0.0, 1.0, 3.0))
    words = [sum(map(len, headlines)) for headlines in every]
    assert words[0] < words[2] and words == sorted(words)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_preference_proposed_from_the_words_so_far_moves_with_its_beam(decoding):
    """Beams are reordered and articles finish; the embeddings that the decoder's prior looks at have to follow."""
    preference = {"encoder": ["content"], "decoder": ["content", "t5"], "cross": ["content"]}
    model, (batch, each) = talker.__wrapped__("dnas_prefix", priors=preference), articles()
    for name, parameter in model.named_parameters():
        if "prior" in name:
            parameter.data *= 5.0  # so uneven that another beam's states would be noticed
    found = generate(model, batch, SPECIAL, DECODINGS[decoding])
    assert found == [plain_beam_search(model, article, DECODINGS[decoding]) for article in each]
    assert found == generate(WithoutCache(model), batch, SPECIAL, DECODINGS[decoding])


# --------------------------------------------------------------------------------------------------------- the limits

BEAMS = pytest.mark.parametrize("beam_size", [1, 3])


@BEAMS
@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_comes_twice(n, beam_size):
    model, (batch, _) = rough_model(tie_embeddings=False), articles()
    model.output.bias.data[EOS] -= 100.0
    model.output.bias.data[5] += 30.0  # 5 5 5 ... unless it may not
    free = generate(model, batch, SPECIAL, Decoding(beam_size, max_length=7))
    assert free == [[5] * 7] * len(ARTICLES)
    for headline in generate(model, batch, SPECIAL, Decoding(beam_size, no_repeat_ngram=n, max_length=7)):
        ngrams = list(zip(*(headline[start:] for start in range(n)), strict=False))
        assert len(headline) == 7 and len(ngrams) == len(set(ngrams)) == 8 - n


@BEAMS
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("limit", "eos"), [("min_length", 100.0), ("max_length", -100.0)])
def test_a_limit_is_the_length_where_every_end_comes_too_early_or_none_comes(limit, eos, length, beam_size):
    found = generate(talker(eos=eos), articles()[0], SPECIAL, Decoding(beam_size, **{limit: length}))
    assert [len(headline) for headline in found] == [length] * len(ARTICLES)


@BEAMS
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("cached", [True, False])
def test_max_length_is_cut_to_the_models_positions(cached, positions, beam_size):
    model = talker(eos=-100.0, max_target=5, positions=positions)
    chosen = model if cached else WithoutCache(model)
    found = generate(chosen, articles()[0], SPECIAL, Decoding(beam_size, max_length=30))
    assert [len(headline) for headline in found] == [4] * len(ARTICLES)  # the begin token takes a position


@pytest.mark.parametrize("cached", [True, False])
@BEAMS
def test_padding_begin_and_end_are_never_part_of_a_headline(beam_size, cached):
    model, (batch, _) = rough_model(tie_embeddings=False, noise=0.6, seed=1), articles()
    model.output.bias.data[[PAD, BOS]] += 50.0
    model.output.bias.data[EOS] += 25.0
    for decoding in (Decoding(beam_size, max_length=6), Decoding(beam_size, min_length=4, max_length=6)):
        found = generate(model if cached else WithoutCache(model), batch, SPECIAL, decoding)
        assert all(len(headline) == decoding.min_length for headline in found)
        assert min(map(min, found)) >= FIRST_WORD


def test_more_beams_than_headlines_find_the_best_of_all():
    model, (batch, each) = talker(vocab_size=5, eos=0.0), articles(vocab_size=5)
    decoding = Decoding(beam_size=6, no_repeat_ngram=1, max_length=2)  # 3, 4, 3 4 and 4 3: fewer than the beams
    every = [every_headline(model, article, decoding) for article in each]
    assert [len(headlines) for headlines in every] == [4] * len(ARTICLES)
    assert generate(model, batch, SPECIAL, decoding) == [best_of(headlines, decoding) for headlines in every]


def test_a_forbidden_hypothesis_never_counts_as_finished():
    """The beams beside the only headline that there is have probability zero at every step."""
    model, (batch, _) = talker(vocab_size=4), articles(vocab_size=4)
    found = generate(model, batch, SPECIAL, Decoding(beam_size=8, min_length=8, max_length=8))
    assert found == [[FIRST_WORD] * 8] * len(ARTICLES)


def test_generation_ignores_dropout():
    plain, model = talker(), rough_model(noise=0.6, seed=1, tie_embeddings=False, dropout=0.5)
    model.load_state_dict(plain.state_dict())
    given = articles()[0], SPECIAL, DECODINGS["beams"]
    assert generate(model.train(), *given) == generate(plain, *given)


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_step_waits_for_the_device_once(monkeypatch, decoding):
    forbid, steps = generation._forbid, []
    monkeypatch.setattr(generation, "_forbid", lambda *given: (steps.append(1), forbid(*given)))
    with SimulatedGPU() as gpu:
        model, source = (item.to(torch.device("cpu")) for item in (copy.deepcopy(talker()), articles()[0]))
        gpu.transfers.clear()
        generate(model, source, SPECIAL, DECODINGS[decoding])
    assert gpu.transfers.total() == len(steps) > 1 and not gpu.mixed
