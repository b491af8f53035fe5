"""Hierarchical and flat attention over documents: the formulas sentence by sentence, padding, and their sites."""

import pytest
import torch
from builders import PAD, roughen
from reference import randn
from torch.testing import assert_close
from visual_builders import attend_by_loops

from attnorm.models.documents import DocumentConfig, Flat, Hierarchical

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
WIDTH, VOCABULARY, LABELS, QUERIES = 8, 20, 3, 2
DOCUMENTS = [[[3, 4, 5], [6], [7, 8, 9, 3]], [[10, 11]], [[12, 13], [14, 15, 16]]]  # sentences of ids


def tables(word="softmax", sentence="softmax", priors=()):
    sites = {"word": word, "sentence": sentence}
    return {**sites, "prior": {site: list(priors) for site in sites}, "scorer": {}, "options": {}}


def model(kind, word="softmax", sentence="softmax", priors=(), **settings):
    """A model in float64 and evaluation mode, with noise on every parameter."""
    shape = DocumentConfig(d_model=WIDTH, word_width=6, n_heads=2, queries=QUERIES, max_tokens=9, **settings)
    return roughen(kind(shape, tables(word, sentence, priors), VOCABULARY, PAD, LABELS))


def batch(documents=DOCUMENTS, extra=0):
    """ids and sentences, padded to the longest document and `extra` more."""
    longest = max(sum(map(len, document)) for document in documents) + extra
    ids, sentences = torch.full((2, len(documents), longest), PAD)
    for row, document in enumerate(documents):
        flat = [(word, number) for number, sentence in enumerate(document) for word in sentence]
        for position, (word, number) in enumerate(flat):
            ids[row, position], sentences[row, position] = word, number
    return ids, sentences


def recurrent(encoder, states):
    """A bidirectional GRU over one sequence (N, D), one direction after the other, by torch's own cell."""
    gru, outputs = encoder.gru, []
    for suffix, order in (("", 1), ("_reverse", -1)):
        cell = torch.nn.GRUCell(gru.input_size, gru.hidden_size).double()
        cell.load_state_dict({key: getattr(gru, f"{key}_l0{suffix}") for key in cell.state_dict()})
        state, result = torch.zeros(1, gru.hidden_size, dtype=torch.float64), []
        for x in states[::order] if order == 1 else states.flip(0):
            state = cell(x[None], state)
            result.append(state[0])
        outputs.append(torch.stack(result[::order]))
    return torch.cat(outputs, -1)


def pooled(pool, name, states):
    """The vector of one sequence (N, W)."""
    outputs = attend_by_loops(pool.attention, name, pool.queries[None], states[None], None, None)
    return (outputs[0].flatten() @ pool.joined.weight.T + pool.joined.bias).tanh()


@pytest.mark.parametrize(("word", "sentence"), [("softmax", "softmax"), ("dnas", "softmax"), ("hnas", "dnas")])
def test_attention_equals_its_formula_sentence_by_sentence_or_over_all_words(word, sentence):
    tall, flat, expected = model(Hierarchical, word, sentence), model(Flat, word), []
    for document in DOCUMENTS:
        words = [tall.embedding.weight[sentence] for sentence in document]
        vectors = torch.stack([pooled(tall.word, word, recurrent(tall.word_encoder, item)) for item in words])
        of_all = recurrent(flat.word_encoder, flat.embedding.weight[[word for part in document for word in part]])
        expected.append((
            tall.classifier(pooled(tall.sentence, sentence, recurrent(tall.sentence_encoder, vectors))),
            flat.classifier(pooled(flat.word, word, recurrent(flat.sentence_encoder, of_all))),
        ))  # fmt: skip
    for made, scores in zip((tall, flat), zip(*expected, strict=True), strict=True):
        assert_close(made(*batch()), torch.stack(scores), **TIGHT)


@pytest.mark.parametrize("kind", [Flat, Hierarchical])
@pytest.mark.parametrize("name", ["softmax", "dnas", "fusedmax", "sparsemax"])
@pytest.mark.parametrize("priors", [(), ("content", "learned")])
def test_a_document_has_the_same_scores_alone_and_beside_others(kind, name, priors):
    made = model(kind, name, name, priors)
    together = made(*batch(extra=2) if not priors else batch())
    for row, document in enumerate(DOCUMENTS):
        assert_close(together[row : row + 1], made(*batch([document])), rtol=1e-7, atol=1e-7)


def test_the_sentence_numbers_of_padding_do_not_matter():
    made, (ids, sentences) = model(Hierarchical, "dnas", "dnas"), batch(extra=1)
    changed = sentences.masked_fill(ids == PAD, 7)
    assert torch.equal(made(ids, changed), made(ids, sentences))


def test_words_meet_words_of_other_sentences_only_through_sentence_vectors():
    """The gradient of a sentence vector by the words: none from other sentences, at any normalizer of the site word."""
    made, (ids, sentences) = model(Hierarchical, "dnas", "dnas"), batch()
    words, real = randn(*ids.shape, 6).requires_grad_(), ids != PAD
    vectors = made.word(made.encode_words(words, real, sentences), real, sentences)
    [gradient] = torch.autograd.grad(vectors[0, 1].sum(), words)
    inside = (sentences[0] == 1) & real[0]
    assert gradient[0, inside].any() and not gradient[0, ~inside].any() and not gradient[1:].any()


def test_sites_sizes_and_equal_starts():
    assert Hierarchical.sites == {"word": False, "sentence": False} and Flat.sites == {"word": False}
    assert Hierarchical.site_layers({}) == {"word": 1, "sentence": 1}
    shape = DocumentConfig(d_model=WIDTH, word_width=6, n_heads=2)
    flat, tall = (kind(shape, tables("dnas"), VOCABULARY, PAD, LABELS) for kind in (Flat, Hierarchical))
    added = {name for name in tall.state_dict() if name not in flat.state_dict()}
    assert {name.partition(".")[0] for name in added} == {"sentence"}  # what the other one has is the same
    for name, value in flat.state_dict().items():
        assert torch.equal(value, tall.state_dict()[name])
    with pytest.raises(ValueError, match="d_model=9: must be even"):
        DocumentConfig(d_model=9, word_width=6, n_heads=3)


def test_learned_queries_start_with_unit_variance_and_depend_only_on_the_seed():
    """Smaller ones would give nearly uniform weights, which training is slow to change."""
    shape = DocumentConfig(d_model=64, word_width=6, n_heads=2, queries=64)

    def queries(kind, name, seed):
        return kind(shape, tables(name), VOCABULARY, PAD, LABELS, seed).word.queries.detach()

    actual = queries(Hierarchical, "softmax", 3)
    spread = (2 * actual.numel()) ** -0.5  # the standard error of a standard deviation of 1
    assert abs(actual.std() - 1) < 5 * spread and abs(actual.mean()) < 5 * actual.numel() ** -0.5
    assert torch.equal(actual, queries(Flat, "dnas", 3))
    assert not torch.equal(actual, queries(Hierarchical, "softmax", 4))
