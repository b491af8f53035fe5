"""A pretrained model, gently: shares that start at 0, are trained or set, and are hardened at the end."""

import copy
import subprocess
import sys

import pytest
import torch
from integrations.test_transformers import FAMILIES, FURTHER, OF_TWO_TEXTS, built, inputs, outputs, small_bert
from tolerance import rounding

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from attnorm.attention.registry import build_normalizer  # noqa: E402
from attnorm.errors import ConfigError  # noqa: E402
from attnorm.integrations.transformers import (  # noqa: E402
    convert,
    freeze_except,
    from_pretrained,
    harden,
    set_share,
    share_schedule,
)
from attnorm.integrations.transformers.shares import hybrids  # noqa: E402
from attnorm.nn import replace_sdpa  # noqa: E402

AUTOREGRESSIVE = ("gpt2", "llama", "gemma2", "qwen3")


def table(family, encoder="hnas", decoder="hnas_prefix"):
    if family in OF_TWO_TEXTS:
        return {"encoder": encoder, "decoder": decoder}
    return {"decoder": decoder} if family in AUTOREGRESSIVE else {"encoder": encoder}


@pytest.mark.parametrize("family", [name for name in FAMILIES | FURTHER if name != "gpt_oss"])
def test_a_share_of_0_is_softmax_to_the_bit_and_has_its_true_gradient(family):
    batch, real = inputs(family)
    softmax = outputs(convert(built(family), table(family, "softmax", "softmax")), batch, real)
    model = convert(built(family), table(family), share=0.0)
    start = outputs(model, batch, real)
    assert torch.equal(start, softmax)
    assert (start - outputs(built(family), batch, real)).abs().max() <= 2e-6 * max(1.0, float(start.abs().max()))

    model.double()
    shares = [part.trained for part in hybrids(model).values()]
    wide = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(share):
        set_share(model, share)
        return (model(**wide)[0][real] * direction).sum()

    gradient = sum(g.sum() for g in torch.autograd.grad(value(0.0), shares))

    def slope(step):  # one-sided, of third order
        with torch.no_grad():
            values = [value(step * number).item() for number in range(4)]
        return (-11 * values[0] + 18 * values[1] - 9 * values[2] + 2 * values[3]) / (6 * step)

    # t5 bends within a thousandth, and other models compute parts in float32, where a smaller step is lost in rounding
    assert min(abs(gradient.item() / slope(step) - 1) for step in (1e-3, 1e-4)) <= 2e-3


def test_shares_of_1_and_0_become_dnas_and_softmax_and_the_others_stay(tmp_path):
    batch, real = inputs("bart")
    model = convert(built("bart"), table("bart"), share=0.0)
    first, second, third, last = hybrids(model).values()
    with torch.no_grad():
        first.trained.fill_(1.0)
        second.trained.fill_(0.25)
        last.trained.fill_(1.0)
    expected = outputs(model, batch, real)
    hard = outputs(harden(model), batch, real)
    size = float(expected.abs().max())
    torch.testing.assert_close(hard, expected, rtol=0, atol=rounding(torch.float32, depth=4, size=64) * size)
    assert model.config.attnorm["encoder"] == ["dnas", "hnas"]
    assert model.config.attnorm["decoder"] == ["softmax", "dnas_prefix"]
    assert [*hybrids(model).values()] == [second] and third not in [*model.modules()]

    model.save_pretrained(tmp_path)
    again = from_pretrained(type(model), str(tmp_path)).eval()
    assert torch.equal(outputs(again, batch, real), hard)
    with pytest.raises(ValueError, match="BertModel: has not been converted"):
        harden(built("bert"))


def test_only_the_shares_are_trained_if_the_rest_is_frozen():
    model = convert(built("bert"), {"encoder": "hnas"}, share=0.0)
    assert freeze_except(model) == [f"encoder.layer.{layer}.attention.self.attnorm.share" for layer in range(2)]
    assert sum(parameter.requires_grad for parameter in model.parameters()) == 2
    with pytest.raises(ValueError, match="no parameter of BertModel has one of them"):
        freeze_except(model, "head")
    assert sum(parameter.requires_grad for parameter in model.parameters()) == 2
    assert len(freeze_except(model, "attnorm", "pooler")) == 4


@pytest.mark.parametrize(
    ("attention", "settings", "refusal"),
    [
        ("dnas", {}, "no normalizer has a share"),
        ("softmax", {"share": 0.0}, "share=0.0: no site has another normalizer than softmax"),
        (
            {"encoder": ["dnas", "entmax"]},
            {"share": 0.0},
            "share=0.0: allowed: one .* not dnas and",
        ),
        (
            {"encoder": "hnas", "options": {"hnas": {"start": 0.3}}},
            {"share": 0.0},
            r"\['start'\]; use one",
        ),
        ({"encoder": "hnas"}, {"share": 1.5}, "=1.5: allowed: numbers from 0 to 1"),
        ({"encoder": "hnas"}, {}, "form='clamp'"),
        ({"encoder": "hnas", "options": {"hnas": {"fixed": 0.5, "form": "clamp"}}}, {}, "no fixed value"),
    ],
)
def test_what_has_no_share_to_set_is_refused(attention, settings, refusal):
    with pytest.raises((ConfigError, ValueError), match=refusal):
        set_share(convert(built("bert"), attention, **settings), 0.5)


def test_a_schedule_without_a_share_is_refused():
    with pytest.raises(ValueError, match="no normalizer of BertModel has a share"):
        share_schedule(lambda step: 0.5).on_step_end(None, None, None, model=convert(built("bert"), "dnas"))


@pytest.mark.parametrize("name", ["dnas", "entmax", "sigmoid", "ssmax"])
def test_any_normalizer_starts_as_softmax_by_a_mix_and_becomes_itself(name, tmp_path):
    batch, real = inputs("bert")
    close = {"rtol": 0, "atol": 10 * rounding(torch.float32, depth=4, size=64)}
    model = convert(built("bert"), {"encoder": name}, share=0)
    torch.testing.assert_close(outputs(model, batch, real), outputs(built("bert"), batch, real), **close)
    model(**batch)[0][real].square().sum().backward()
    assert all(part.trained.grad.abs().min() > 0 for part in hybrids(model).values())
    set_share(model, 1.0)
    expected = outputs(convert(built("bert"), {"encoder": name}), batch, real)
    torch.testing.assert_close(outputs(model, batch, real), expected, **close)
    torch.testing.assert_close(outputs(harden(model), batch, real), expected, **close)
    assert model.config.attnorm["encoder"] == [name] * 2 and not hybrids(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(outputs(from_pretrained(type(model), str(tmp_path)), batch, real), outputs(model, batch, real))


def test_a_model_with_shares_of_0_is_softmax_without_a_warning(tmp_path, recwarn):
    batch, real = inputs("bert")
    model = harden(convert(built("bert"), {"encoder": "hnas"}, share=0))
    model.save_pretrained(tmp_path)
    recwarn.clear()
    again = type(model).from_pretrained(tmp_path).eval()
    assert not [it for it in recwarn if "records the normalizers" in str(it.message)]
    torch.testing.assert_close(outputs(again, batch, real), outputs(model, batch, real))


def test_a_model_that_uses_another_implementation_does_so_when_it_is_loaded_again(tmp_path):
    batch, real = inputs("bert")
    model = convert(built("bert"), {"encoder": "hnas"})
    of_hnas = outputs(model, batch, real)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    again = from_pretrained(type(model), str(tmp_path)).eval()
    assert torch.equal(outputs(again, batch, real), outputs(model, batch, real))
    again.set_attn_implementation("attnorm")
    assert torch.equal(outputs(again, batch, real), of_hnas) and "implementation" not in again.config.attnorm


def test_the_parameters_of_one_form_are_not_those_of_another():
    for name, first, second in (("hnas", "clamp", "sigmoid"), ("mix", "project", "softmax")):
        saved = build_normalizer(name, form=first).state_dict()
        with pytest.raises(RuntimeError, match="Missing key"):
            build_normalizer(name, form=second).load_state_dict(saved)


@pytest.mark.training
def test_a_pickled_model_is_loaded_in_another_process(tmp_path):
    batch, _ = inputs("bert")
    model = convert(built("bert"), {"encoder": "hnas"})
    torch.save((model, batch), tmp_path / "model.pt")
    code = "import torch; m, b = torch.load('model.pt', weights_only=False); print(m(**b)[0].sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(model(**batch)[0].sum().item(), rel=1e-5)


UNET = {"sample_size": 8, "in_channels": 4, "out_channels": 4, "block_out_channels": (32,), "layers_per_block": 1}
UNET |= {"down_block_types": ("AttnDownBlock2D",), "up_block_types": ("AttnUpBlock2D",)}
LIBRARIES = {  # that call `scaled_dot_product_attention`: a model and its inputs
    "timm": lambda timm: (timm.create_model("test_vit"), torch.randn(2, 3, 160, 160)),
    "diffusers": lambda diffusers: (diffusers.UNet2DModel(**UNET), torch.randn(1, 4, 8, 8), 1),
    "x_transformers": lambda library: (
        library.ContinuousTransformerWrapper(
            max_seq_len=9, attn_layers=library.Encoder(dim=32, depth=2, heads=4, attn_flash=True)
        ),
        torch.randn(2, 9, 32),
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_that_calls_sdpa_starts_as_softmax_and_trains_the_share(library):
    model, *given = LIBRARIES[library](pytest.importorskip(library))
    normalizer = build_normalizer("hnas", form="clamp", start=0)
    before = model.eval()(*given)
    with replace_sdpa(normalizer):
        after = model(*given)
    before, after = (getattr(output, "sample", output) for output in (before, after))
    assert torch.equal(after, before)
    after.square().sum().backward()
    assert normalizer.trained.grad.abs().item() > 0


def test_peft_trains_and_saves_the_shares(tmp_path):
    peft = pytest.importorskip("peft")
    batch, real = inputs("bert")
    settings = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["attnorm"])
    start = convert(built("bert"), {"encoder": "hnas"}, share=0.0)
    model = peft.get_peft_model(copy.deepcopy(start), settings)
    first = outputs(start, batch, real)
    assert torch.equal(outputs(model, batch, real), first)
    model(**batch)[0][real].square().sum().backward()
    assert [bool(part.trained.grad) for part in hybrids(model).values()] == [True, True]
    set_share(model, 0.25)
    trained = outputs(model, batch, real)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(start, tmp_path).eval()
    assert torch.equal(outputs(again, batch, real), trained) and not torch.equal(trained, first)
    for call in (harden, freeze_except):
        with pytest.raises(ValueError, match="model=PeftModel: peft has wrapped it"):
            call(model)
    with pytest.raises(ValueError, match="the adapter has trained normalizers, and the model has none; convert it"):
        peft.PeftModel.from_pretrained(built("bert"), tmp_path)


def test_sentence_transformers_starts_as_softmax_and_trains_the_shares(tmp_path):
    model = pytest.importorskip("sentence_transformers").SentenceTransformer(small_bert(tmp_path), device="cpu")
    texts = ["a b", "b b a a"]
    before = model.encode(texts)
    convert(model[0].model, {"encoder": "hnas"}, share=0.0)
    assert (model.encode(texts) == before).all()
    model(model.preprocess(texts))["sentence_embedding"][:, 0].sum().backward()
    assert [bool(part.trained.grad) for part in hybrids(model).values()] == [True, True]


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("share", [None, lambda step: min(1.0, step / 4)])
def test_the_trainer_sets_or_clamps_the_shares_and_logs_them(tmp_path, share):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2, **FAMILIES["bert"][2])
    model = convert(transformers.BertForSequenceClassification(config), {"encoder": "hnas"}, share=0.0)
    rows = [{"input_ids": torch.full((5,), 3 + row % 2), "labels": row % 2} for row in range(24)]
    arguments = transformers.TrainingArguments(
        **{"output_dir": str(tmp_path), "per_device_train_batch_size": 4, "num_train_epochs": 1},
        **{"logging_steps": 1, "report_to": [], "use_cpu": True, "learning_rate": 0.5, "disable_tqdm": True},
    )
    shown: list[dict] = []  # what a callback that comes later, such as that of wandb, is given
    later = type("Later", (transformers.TrainerCallback,), {"on_log": lambda *_, logs, **__: shown.append({**logs})})
    callbacks = [share_schedule(share), later()]
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    logged = [entry["share.1"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == [logs["share.1"] for logs in shown if "loss" in logs]
    assert len(logged) == 6 and all(0 <= value <= 1 for value in logged)
    assert logged == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0] if share else len({*logged}) > 1
    assert all(0 <= part.trained.item() <= 1 for part in hybrids(model).values())
