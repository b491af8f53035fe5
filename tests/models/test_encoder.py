"""The encoder: texts packed into a row are as one text at a time; positions, types and norms as its shape says."""

import pytest
import torch
from builders import PAD, SMALL, attention_tables, build_model, roughen
from marks import few
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close
from visual_builders import normed

from attnorm.attention.normalizers.shared import key_bias
from attnorm.attention.registry import NORMALIZERS, PRIORS
from attnorm.choices import choices
from attnorm.errors import DataError
from attnorm.models.config import EncoderConfig
from attnorm.models.embeddings import Embeddings, sinusoids
from attnorm.models.encoder import Encoder
from attnorm.models.heads import MaskedLM
from attnorm.models.initialize import initialize
from attnorm.parts import class_of

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
VOCABULARY, LONGEST = 13, 6
BLOCKS = [[3, 6, 1, 4], [6, 2], [5, 1, 1, 6, 1]]  # lengths of the texts in each row; what is left is padding
WIDTH = 14


def encoder_shape(**settings):
    sizes = {"d_model": 8, "n_heads": 2, "ffn_dim": 12, "encoder_layers": 2, "max_source": LONGEST, "dropout": 0.0}
    return EncoderConfig(**{**sizes, "type_vocab_size": 2, **settings})


def rough_encoder(normalizer="softmax", priors=(), dtype=torch.float64, options=None, **settings):
    """An encoder in evaluation mode, with noise on every parameter."""
    attention = {**attention_tables(priors={"encoder": list(priors)}, options=options), "encoder": normalizer}
    encoder = Encoder(encoder_shape(**settings), attention, nn.Embedding(VOCABULARY, 8))
    initialize(encoder, 3)
    return roughen(encoder, dtype=dtype)


def packed(padding_is="its own"):
    """ids, real, segments, types of the blocks, each (B, WIDTH), and the slice of each text as (row, slice)."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, VOCABULARY, (len(BLOCKS), WIDTH), generator=generator)
    types = torch.randint(0, 2, ids.shape, generator=generator)
    segments, texts = torch.full_like(ids, 99), []
    for row, lengths in enumerate(BLOCKS):
        start = 0
        for number, length in enumerate(lengths):
            segments[row, start : start + length] = number
            texts.append((row, slice(start, start + length)))
            start += length
        if padding_is == "of the last text":
            segments[row, start:] = len(lengths) - 1
    real = torch.zeros_like(ids, dtype=torch.bool)
    for row, text in texts:
        real[row, text] = True
    return ids.masked_fill(~real, PAD), real, segments, types, texts


def alone(encoder, ids, types, row, text):
    one = ids[row : row + 1, text]
    return encoder(one, torch.ones_like(one, dtype=torch.bool), types=types[row : row + 1, text])[0]


def close(states):
    """The tolerance for the states of `rough_encoder`: two layers, whose longest sums are those of the inner width."""
    shape = encoder_shape()
    return tolerance(states.dtype, depth=shape.encoder_layers, size=shape.ffn_dim, scale=states.abs().max())


# ------------------------------------------------------------------------------------------------------------- packing


@pytest.mark.long
@pytest.mark.parametrize(
    "normalizer, prior",
    # what a prior needs to know of the input, a model with a head tells it: test_mlm.py
    few([*((name, None) for name in NORMALIZERS), *(("dnas", it) for it in PRIORS if it != "unmasked")]),
)
def test_packed_texts_have_the_states_of_one_text_at_a_time(normalizer, prior):
    for dtype in (torch.float32, torch.float64):
        encoder = rough_encoder(normalizer, [prior] if prior else [], dtype)
        ids, real, segments, types, texts = packed()
        states = encoder(ids, real, segments, types)
        assert states.dtype == dtype and states.isfinite().all()
        for row, text in texts:
            assert_close(states[row, text], alone(encoder, ids, types, row, text), **close(states[row, text]))


@pytest.mark.parametrize("priors", [[], ["content", "learned"]], ids=["no prior", "priors"])
@pytest.mark.parametrize("normalizer", ["softmax", "dnas", "hnas", "sinkhorn"])
def test_packing_is_the_same_where_no_table_of_weights_is_made(monkeypatch, normalizer, priors):
    encoder = rough_encoder(normalizer, priors, torch.float32)
    ids, real, segments, types, texts = packed()
    dense = encoder(ids, real, segments, types)
    monkeypatch.setitem(key_bias.DENSE_UP_TO, "cpu", 0)
    calls, find_segments = [], key_bias.Mask._find_segments
    monkeypatch.setattr(key_bias.Mask, "_find_segments", lambda mask: calls.append(1) or find_segments(mask))
    states = encoder(ids, real, segments, types)
    assert calls  # the other path was taken
    for row, text in texts:
        assert_close(states[row, text], dense[row, text], **close(dense[row, text]))


@pytest.mark.parametrize("settings", [{"norm_first": False, "embedding_norm": True}, {"positions": "sinusoidal"}])
@pytest.mark.parametrize("padding_is", ["its own", "of the last text"])
def test_packing_in_every_form_whatever_segment_padding_is_of(padding_is, settings):
    encoder = rough_encoder("hnas", ["learned", "alibi", "content"], **settings)
    ids, real, segments, types, texts = packed(padding_is)
    states = encoder(ids, real, segments, types)
    for row, text in texts:
        assert_close(states[row, text], alone(encoder, ids, types, row, text), **TIGHT)


@pytest.mark.parametrize("normalizer", ["softmax", "dnas"])
def test_a_token_and_the_types_of_a_text_change_this_text_and_no_other(normalizer):
    encoder = rough_encoder(normalizer, ["content"])
    ids, real, segments, _, texts = packed()
    before, changed = encoder(ids, real, segments), ids.clone()
    types, own = torch.zeros_like(ids), torch.zeros_like(real)
    assert torch.equal(encoder(ids, real, segments, types), before)
    own[texts[1]] = True
    changed[0, 4] = 1 + ids[0, 4] % (VOCABULARY - 1)
    for after in (encoder(changed, real, segments), encoder(ids, real, segments, own.long())):
        difference = (after - before).abs().amax(-1)
        assert (difference[own] > 1e-9).all() and not difference[real & ~own].any()


def test_a_row_longer_than_the_table_of_positions_needs_only_its_texts_to_fit():
    encoder = rough_encoder(priors=["learned"], max_source=5)
    ids = torch.ones(1, 14, dtype=torch.long)
    segments = torch.tensor([[0] * 5 + [1] * 2 + [2] * 7])
    real = torch.ones_like(ids, dtype=torch.bool)
    encoder(ids, real & (segments < 2), segments)  # a run of padding may be as long as it likes
    with pytest.raises(DataError, match=r"model\.max_source=5: allowed: at least 7, the tokens of a text"):
        encoder(ids, real, segments)
    with pytest.raises(DataError, match=r"model\.max_source=5: allowed: at least 14, the tokens of a text"):
        encoder(ids, real)


# ------------------------------------------------------------------------------------------------- embeddings and shape


def rough_embeddings(**settings):
    embeddings = Embeddings(nn.Embedding(VOCABULARY, 8), "max_source", encoder_shape(**settings))
    generator = torch.Generator().manual_seed(1)
    for parameter in embeddings.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return embeddings


@pytest.mark.parametrize("embedding_norm", [False, True])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_embeddings_are_token_and_position_and_type(positions, embedding_norm):
    embeddings = rough_embeddings(positions=positions, embedding_norm=embedding_norm)
    ids, _, _, types, _ = packed()
    places = torch.randint(0, LONGEST, ids.shape, generator=torch.Generator().manual_seed(2))
    if positions == "learned":
        expected = embeddings.tokens.weight[ids] + embeddings.positions.weight[places]
    else:
        expected = embeddings.tokens.weight[ids] * 8**0.5 + sinusoids(LONGEST, 8)[places]
    assert embeddings.types.weight.shape == (2, 8)
    for of_types, given in ((embeddings.types.weight[types], {"types": types}), (embeddings.types.weight[0], {})):
        summed = normed(expected + of_types, embeddings.norm) if embedding_norm else expected + of_types
        assert_close(embeddings(ids, positions=places, **given), summed)
    in_order = torch.arange(LONGEST).expand(3, -1)
    few = ids[:, :LONGEST]
    assert torch.equal(embeddings(few, positions=in_order), embeddings(few))
    assert torch.equal(embeddings(few[:, 2:], positions=in_order[:, 2:]), embeddings(few[:, 2:], offset=2))


def test_types_are_refused_where_there_are_none():
    embeddings, ids = rough_embeddings(type_vocab_size=0), torch.ones(1, 3, dtype=torch.long)
    assert embeddings.types is None and "types" not in str(embeddings.state_dict().keys())
    embeddings(ids)
    with pytest.raises(ValueError, match=r"model\.type_vocab_size=0"):
        embeddings(ids, types=torch.zeros_like(ids))


@pytest.mark.parametrize("norm_first", [True, False])
def test_every_norm_has_the_epsilon_of_the_shape(norm_first):
    settings = {"norm_first": norm_first, "embedding_norm": True, "norm_eps": 0.25}
    models = [build_model(**settings), MaskedLM(encoder_shape(**settings), attention_tables(), VOCABULARY, PAD)]
    for model in models:
        norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
        assert len(norms) > 4 and all(module.eps == 0.25 for module in norms)


def test_the_options_of_an_encoder_have_no_decoder():
    shape = EncoderConfig(d_model=8, n_heads=2, ffn_dim=12, encoder_layers=1, max_source=5)
    assert (shape.type_vocab_size, shape.norm_eps) == (0, 1e-5)
    assert Encoder.Config is EncoderConfig and not {"decoder_layers", "max_target"} & set(vars(shape))
    assert class_of("model", choices("model")["bert_tiny"]) is Encoder and Encoder.sites == {"encoder": False}


@pytest.mark.parametrize("missing", ["decoder_layers", "max_target"])
def test_an_encoder_decoder_without_a_decoder_is_refused(missing):
    with pytest.raises(ValueError, match=f"model.{missing}=0"):
        build_model(**{**SMALL, missing: 0})
