"""Small decoder-only models and texts, and the files of a GPT-2 tokenizer, for the tests of models and sampling."""

import json
from pathlib import Path

import torch
from builders import roughen

from attnorm.models.config import GPTConfig
from attnorm.models.gpt import GPT

VOCABULARY, LONGEST = 13, 9


def build_gpt(normalizer="softmax", positions="rotary", priors=(), seed=0, **settings):
    """A new float32 model with its initial parameters."""
    sizes = {"d_model": 8, "n_heads": 2, "ffn_dim": 12, "decoder_layers": 2, "max_target": LONGEST, "dropout": 0.0}
    tables = {"decoder": normalizer, "prior": {"decoder": list(priors)}, "scorer": {}, "options": {}}
    return GPT(GPTConfig(**{**sizes, "positions": positions, **settings}), tables, VOCABULARY, seed=seed)


def rough_gpt(*args, dtype=torch.float64, noise=0.4, **settings):
    """The same in evaluation mode, with noise on every parameter."""
    return roughen(build_gpt(*args, **settings), noise, dtype, seed=7)


def texts(rows=3, length=LONGEST, seed=5):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def write_bpe(folder: Path, merges=()) -> int:
    """Writes the vocab.json and merges.txt of a GPT-2 with these pairs merged; returns the size of the vocabulary."""
    from tokenizers import pre_tokenizers

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return len(pieces)
