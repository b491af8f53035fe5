"""What the speed measurements share: the configured model, its equal in `transformers`, and the tables.

The clock and the meter of memory are `rates` and `peak` of `speed.py`.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from attnorm.settings import Settings

PAD, BOS, EOS = 0, 1, 2  # ids of the special tokens in generated data
PEER = "transformers "  # the names of contestants to be compared with begin so, then the attention implementation


def configure(*overrides: str) -> Settings:
    """The configuration of `python train.py <overrides>`."""
    from attnorm.config.compose import composed, plain_settings
    from attnorm.config.read import read_settings

    return read_settings(plain_settings(composed(overrides)), overrides)


def shape_of(cfg: Settings, **changes: Any):
    """The options of the configured model as an instance of its `Config`, with other values for some of them."""
    return replace(cfg.model, **changes)


def build_optimizer(cfg: Settings, model):
    """The configured optimizer of a model, with a fused kernel."""
    return cfg.optimization.build(model, total_steps=1000, fused=True)["optimizer"]


def build_ours(cfg: Settings, vocab_size: int, pad_id: int = PAD, **shape: Any):
    """attnorm's model as configured, but with the learned positions of BART; `shape` replaces more of its keys."""
    from attnorm.models.seq2seq import Seq2Seq

    return Seq2Seq(shape_of(cfg, **{"positions": "learned"} | shape), cfg.attention, vocab_size, pad_id)


def build_peer(shape, vocab_size: int, implementation: str):
    """BART with the same sizes: learned positions, tied output, and as many layers, matrices and norms.

    BART's norms come after each sublayer and after the embeddings, ours (`norm_first: true`) before each sublayer and
    at the end of each stack: the same number of them. BART has no trained output bias, and as many positions in the
    decoder as in the encoder, both with two unused ones: so the numbers of parameters differ slightly.
    """
    from transformers import BartConfig, BartForConditionalGeneration
    from transformers.utils import logging

    logging.set_verbosity_error()
    sizes = {"attention_heads": shape.n_heads, "ffn_dim": shape.ffn_dim}
    config = BartConfig(
        vocab_size=vocab_size,
        d_model=shape.d_model,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()},
        max_position_embeddings=max(shape.max_source, shape.max_target),
        activation_function=shape.activation,
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        activation_dropout=0.0,
        tie_word_embeddings=shape.tie_embeddings,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=EOS,
        attn_implementation=implementation,
    )
    return BartForConditionalGeneration(config)


def equal_models(cfg: Settings, vocab_size: int, implementation: str):
    """Ours and the peer with the same parameters, in float64 without dropout: they must give the same results.

    Ours has its norms where BART has them, which is `norm_first: false` and `embedding_norm: true`.
    """
    ours = build_ours(cfg, vocab_size, norm_first=False, embedding_norm=True, dropout=0.0)
    peer = build_peer(ours.shape, vocab_size, implementation)
    peer.load_state_dict(peer_state(ours))
    return ours.double().eval(), peer.double().eval()


def peer_state(ours) -> dict[str, Any]:
    """The parameters of our post-norm model under BART's names."""
    import torch

    state = {f"model.{name}.weight": ours.tokens.weight for name in ("shared", "encoder.embed_tokens")}
    state |= {"model.decoder.embed_tokens.weight": ours.tokens.weight, "lm_head.weight": ours.tokens.weight}
    state["final_logits_bias"] = ours.output.bias[None]

    def copy(name: str, module) -> None:
        state.update({f"{name}.{key}": value for key, value in module.state_dict().items()})

    def copy_attention(name: str, attention, residual) -> None:
        copy(f"{name}.q_proj", attention.query)
        copy(f"{name}.out_proj", attention.output)
        for key, value in attention.key_value.state_dict().items():
            state[f"{name}.k_proj.{key}"], state[f"{name}.v_proj.{key}"] = value.chunk(2)
        copy(f"{name}_layer_norm", residual.norm)

    positions = max(ours.shape.max_source, ours.shape.max_target)
    for side, stack in (("encoder", ours.encoder), ("decoder", ours)):
        table = stack.embeddings.positions.weight
        state[f"model.{side}.embed_positions.weight"] = torch.zeros(positions + 2, table.shape[1])
        state[f"model.{side}.embed_positions.weight"][2 : 2 + len(table)] = table.detach()
        copy(f"model.{side}.layernorm_embedding", stack.embeddings.norm)
        for number, layer in enumerate(stack.layers):
            name = f"model.{side}.layers.{number}"
            copy_attention(f"{name}.self_attn", layer.attention, layer.attention_residual)
            if side == "decoder":
                copy_attention(f"{name}.encoder_attn", layer.cross, layer.cross_residual)
            copy(f"{name}.fc1", layer.feed_forward[0])
            copy(f"{name}.fc2", layer.feed_forward[2])
            copy(f"{name}.final_layer_norm", layer.feed_forward_residual.norm)
    return state


def parameters(model) -> int:
    """The number of trained parameters; a tied matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def sequences(rows: int, vocab_size: int, seed: int = 0):
    """A table of random pairs as long as newswire ones, source 31 +- 8 and target 9 +- 2 tokens, and their lengths with
    the end tokens, int (rows, 2)."""
    import numpy as np
    from datasets import Dataset

    random = np.random.default_rng(seed)
    counts = random.normal((31, 9), (8, 2), (rows, 2)).round().clip((5, 3), (100, 30)).astype(np.int64)
    columns = [[random.integers(EOS + 1, vocab_size, n).tolist() for n in counts[:, side]] for side in (0, 1)]
    return Dataset.from_dict(dict(zip(("source", "target"), columns, strict=True))), counts + 1


def compare(found: dict[str, list[float]], base: str) -> dict[str, tuple[float, float, float]]:
    """Each contestant's speed over that of `base` in the same round: median, lowest and highest of the rounds."""
    ratios = {name: [a / b for a, b in zip(values, found[base], strict=True)] for name, values in found.items()}
    return {name: (median(values), min(values), max(values)) for name, values in ratios.items()}


def fastest_peer(found: dict[str, list[float]]) -> str:
    """The faster of the peer's attention implementations: what is compared with."""
    return max((name for name in found if name in (f"{PEER}sdpa", f"{PEER}eager")), key=lambda n: median(found[n]))


def ratio_text(ratio: tuple[float, float, float]) -> str:
    """'1.31x (1.25-1.40)': the median and the range over the rounds."""
    return "{:.2f}x ({:.2f}-{:.2f})".format(*ratio)


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as they need, the first two to the left."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        cells = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))]
        print("  " + "  ".join(cells).rstrip())


def verdict(part: str, goal: float, reached: dict[str, float]) -> None:
    """One line: whether every ratio reaches the goal."""
    met = "met" if all(ratio >= goal for ratio in reached.values()) else "NOT met"
    print(f"{part}: goal {goal:.1f}x {met} ({', '.join(f'{name} {ratio:.3f}x' for name, ratio in reached.items())})")
