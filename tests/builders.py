"""Small models, articles and headlines for the tests of models, decoding and tasks."""

import collections
import csv
import gzip
import io
import json
import re
import zlib
from types import SimpleNamespace

import pyarrow as pa
import torch
from pyarrow import parquet

from attnorm.choices import choices
from attnorm.data.featurizer import pad
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import Source
from attnorm.models.config import TransformerConfig
from attnorm.models.generation import Decoding, SpecialTokens, generate
from attnorm.models.recurrent.seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from attnorm.models.seq2seq import Seq2Seq
from attnorm.parts import class_of

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3
SPECIAL = SpecialTokens(PAD, BOS, EOS)
SITES = ("encoder", "decoder", "cross")
SMALL = {"d_model": 8, "n_heads": 2, "ffn_dim": 12, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}

PLACEMENTS = {  # what may stand at (encoder, decoder, cross)
    "softmax": ("softmax", "softmax", "softmax"),
    "dnas": ("dnas", "softmax", "softmax"),
    "hnas": ("hnas", "softmax", "softmax"),
    "dnas_prefix": ("dnas", "dnas_prefix", "dnas_prefix"),
    "hnas_prefix": ("hnas", "hnas_prefix", "hnas_prefix"),
    "decoder_only": ("softmax", "dnas_prefix", "softmax"),
    "cross_only": ("softmax", "softmax", "hnas_prefix"),
    "slack": ("dnas_slack", "dnas_slack_prefix", "dnas_slack_prefix"),
    "counting": ("ssmax", "sigmoid", "relu"),
    "free_sums": ("softpick", "sink", "sigmoid"),
    "prefix_encoder": ("dnas_prefix", "softmax", "dnas_prefix"),
}


def attention_tables(placement="softmax", priors=None, options=None, scorers=None):
    """The attention tables of a placement; `priors` {site: [names]}, `scorers` {site: name}."""
    return {
        **dict(zip(SITES, PLACEMENTS[placement], strict=True)),
        "prior": {site: (priors or {}).get(site, []) for site in SITES},
        "scorer": {**dict.fromkeys(SITES, "scaled_dot"), **(scorers or {})},
        "options": options or {},
    }


def build_model(placement="softmax", *, priors=None, options=None, scorers=None, vocab_size=11, seed=0, **shape):
    """A new float32 model with its initial parameters."""
    shape = TransformerConfig(**{**SMALL, "max_source": 10, "max_target": 12, **shape})
    return Seq2Seq(shape, attention_tables(placement, priors, options, scorers), vocab_size, PAD, seed=seed)


def roughen(model, noise=0.3, dtype=torch.float64, seed=0):
    """Evaluation mode, with noise on every parameter, so that biases and norms count too.

    The noise depends on the name of the parameter, so that variants of a model have the same."""
    model = model.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
            if not name.endswith("hybrid"):  # a clamped one has to stay in [0, 1]
                parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def rough_model(placement="softmax", *, noise=0.3, sharpness=1.0, **settings):
    """The same in float64 and evaluation mode, with noise. sharpness: multiplies the scores of the next token when the
    output matrix is not tied."""
    model = roughen(build_model(placement, **settings), noise)
    if not model.shape.tie_embeddings:
        model.output.weight.data *= sharpness
    return model


def rough_lstm(normalizer="softmax", priors=(), vocab_size=11, noise=0.5, scorer="scaled_dot", **shape):
    """A random LSTM encoder-decoder in float64 that says different things of different sources."""
    attention = attention_tables(priors={"cross": list(priors)}, scorers={"cross": scorer}) | {"cross": normalizer}
    sizes = {"d_model": 8, "n_heads": 2, "decoder_layers": 2, "dropout": 0.0, "max_source": 10, "max_target": 12}
    return roughen(LSTMSeq2Seq(LSTMSeq2SeqConfig(**sizes | shape), attention, vocab_size, PAD), noise)


class WithoutCache:
    """A model that computes all positions again for each new token."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def new_cache(self):
        return SimpleNamespace(length=0, select=lambda rows: None)

    def decode(self, target, memory, real, cache):
        return self.model.decode(target, memory, real)

    def next_logits(self, ids, cache):
        return self.model(ids)[:, -1]


def generated_with_and_without_cache(model, lengths, **decoding):
    """What two beams find for articles of so many words, which a cache does not change."""
    found, again = (
        generate(each, sources(lengths), SPECIAL, Decoding(beam_size=2, **decoding))
        for each in (model, WithoutCache(model))
    )
    assert found == again
    return found


def users_module(folder, monkeypatch, text):
    """The name of a module of this text that can be imported."""
    name = f"users_module_{folder.name}".replace("-", "_")
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return name


def random_words(lengths, vocab_size=11, seed=0):
    """A list of word ids for each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(FIRST_WORD, vocab_size, (length,), generator=generator).tolist() for length in lengths]


def sources(lengths, seed=0, vocab_size=11):
    """Padded articles of so many words, int (B, N), each with the end token."""
    return pad([[*words, EOS] for words in random_words(lengths, vocab_size, seed)], PAD)


def targets(lengths, seed=100, vocab_size=11):
    """Padded headlines of so many words behind the begin token, int (B, T)."""
    return pad([[BOS, *words] for words in random_words(lengths, vocab_size, seed)], PAD)


def build_source(name: str, **options: object) -> Source:
    """The data source of conf/data/<name>.yaml with these options, and its own defaults for all others."""
    return class_of("data", choices("data")[name], Source)(**options)


def tokenizer_settings(name: str, **options: object) -> dict[str, object]:
    """The settings of the tokenizer of conf/tokenizer/<name>.yaml with these options alone."""
    return {"_target_": choices("tokenizer")[name]["_target_"], **options}


class Words:
    """A tokenizer whose tokens are the matches of a pattern; `number` gives an id to the text of each."""

    pad_id, bos_id, eos_id = 0, 2, 3

    def __init__(self, pattern=r"\S+", number=len):
        self.pattern, self.number = pattern, number

    def encode_with_offsets(self, text):
        matches = list(re.finditer(self.pattern, text))
        return [10 + self.number(match[0]) for match in matches], [match.span() for match in matches]

    def encode(self, texts):
        return [self.encode_with_offsets(text)[0] for text in texts]


def gathered(task, batches, *parts):
    """The metrics of parts that were judged in several places, as after a gathering over ranks."""
    outputs, sums = [], collections.Counter()
    for rows in parts:
        evaluated(task, batches, rows)
        outputs += task.outputs
        sums.update(task.sums)
    task.begin_validation()
    task.outputs, task.sums = outputs, dict(sums)
    return task.metrics()


def write(path, content):
    """Writes text or bytes, packed if the name ends in .gz; the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def write_table(path, rows, columns, encoding="utf-8"):
    """Writes rows in the format that the ending says (json, jsonl, csv, tsv, parquet; packed if .gz follows).

    columns: their names, None for a file without a header. Returns the path as text."""
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    if ending == "parquet":
        parquet.write_table(pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows]), path)
        return str(path)
    file = io.StringIO()
    if ending in ("json", "jsonl"):
        file.writelines(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    elif ending == "csv":
        csv.writer(file).writerows([*([columns] if columns else []), *rows])
    else:
        file.writelines("\t".join(map(str, row)) + "\n" for row in [*([columns] if columns else []), *rows])
    return write(path, file.getvalue().encode(encoding, "surrogateescape"))


def evaluated(task, batches, *parts):
    """The metrics of a task's module after a validation on these batches, each given by its rows."""
    task.begin_validation()
    for rows in parts:
        task.validation_step(batches[MicroBatch(rows, len(rows))], 0)
    return task.metrics()
