"""What each key of the configuration accepts, in words that an error can quote."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attnorm.models import MODELS
from attnorm.models.vqa.config import FUSIONS, QUESTIONS
from attnorm.tasks import RECIPES


@dataclass(frozen=True)
class Rule:
    """What a key accepts, and how to say it."""

    accepts: Callable[[Any], bool]
    allowed: str

    def __or__(self, other: "Rule") -> "Rule":
        return Rule(lambda value: self.accepts(value) or other.accepts(value), f"{self.allowed} or {other.allowed}")


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def integer(least: int, most: int | None = None) -> Rule:
    bounds = f"from {least}" + (f" to {most}" if most is not None else "")
    return Rule(
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least and (most is None or v <= most),
        f"whole numbers {bounds}",
    )


def number(above: float | None = None, least: float | None = None, below: float | None = None) -> Rule:
    words = [f"above {above}"] * (above is not None) + [f"from {least}"] * (least is not None)
    words += [f"below {below}"] * (below is not None)
    return Rule(
        lambda v: (
            is_number(v)
            and (above is None or v > above)
            and (least is None or v >= least)
            and (below is None or v < below)
        ),
        f"numbers {' and '.join(words)}",
    )


def one_of(*values: Any) -> Rule:
    return Rule(lambda v: v in values and not isinstance(v, bool), ", ".join(map(str, values)))


NULL = Rule(lambda v: v is None, "null")
FLAG = Rule(lambda v: isinstance(v, bool), "true, false")
TEXT = Rule(lambda v: isinstance(v, str) and v != "", "text")
WORDS = Rule(lambda v: isinstance(v, list) and all(isinstance(word, str) for word in v), "a list of words")
LIMIT = NULL | integer(1) | number(above=0, below=1)
DURATION = Rule(
    lambda v: isinstance(v, str) and re.fullmatch(r"(\d+:){3}\d+", v) is not None and any(map(int, v.split(":"))),
    "DD:HH:MM:SS, longer than no time",
)
PAIR = Rule(
    lambda v: isinstance(v, list) and len(v) == 2 and all(is_number(b) and 0 <= b < 1 for b in v), "two of [0, 1)"
)

RULES: dict[str, Rule] = {
    "seed": integer(0, 2**32 - 1),
    "tags": WORDS,
    "ckpt_path": NULL | TEXT,
    "model.name": one_of(*MODELS),
    "model.init": NULL | TEXT,
    "model.vocab_size": integer(6),
    "model.width": integer(1),
    "model.heads": integer(1),
    "model.inner": integer(1),
    "model.encoder_layers": integer(1),
    "model.decoder_layers": integer(1),
    "model.max_source": integer(2),
    "model.max_target": integer(2),
    "model.positions": one_of("learned", "sinusoidal"),
    "model.norm": one_of("pre", "post"),
    "model.embedding_norm": FLAG,
    "model.norm_eps": number(above=0),
    "model.types": integer(0),
    "model.activation": one_of("gelu", "relu"),
    "model.dropout": number(least=0, below=1),
    "model.attention_dropout": number(least=0, below=1),
    "model.tied": FLAG,
    "model.fusion": one_of(*FUSIONS),
    "model.word_width": integer(1),
    "model.hidden": integer(1),
    "model.max_question": integer(2),
    "model.question": one_of(*QUESTIONS),
    "model.layers": integer(1),
    "model.fusion_heads": integer(1),
    "model.geometry": FLAG,
    "optim.name": one_of("adamw", "adam"),
    "optim.lr": number(above=0),
    "optim.weight_decay": number(least=0),
    "optim.betas": PAIR,
    "optim.eps": number(above=0),
    "optim.hybrid_lr_factor": number(above=0),
    "optim.schedule": one_of("constant", "linear", "cosine"),
    "optim.warmup": number(least=0, below=1),
    "optim.floor": number(least=0, below=1),
    "trainer.accelerator": one_of("auto", "cpu", "gpu", "cuda", "mps"),
    "trainer.devices": integer(1)
    | one_of("auto")
    | Rule(lambda v: isinstance(v, list) and v != [], "a list of devices"),
    "trainer.strategy": TEXT,
    "trainer.precision": one_of("32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true", 32, "32", "bf16"),
    "trainer.max_steps": NULL | integer(1),
    "trainer.max_epochs": NULL | integer(1),
    "trainer.accumulate_grad_batches": integer(1),
    "trainer.gradient_clip_val": NULL | number(above=0),
    "trainer.val_check_interval": NULL | integer(1),
    "trainer.limit_train_batches": LIMIT,
    "trainer.limit_val_batches": LIMIT,
    "trainer.max_time": NULL | DURATION,
    "trainer.deterministic": NULL | FLAG | one_of("warn"),
    "trainer.fast_dev_run": FLAG | integer(1),
    "trainer.detect_anomaly": FLAG,
    "trainer.log_every_n_steps": integer(1),
    "trainer.num_sanity_val_steps": integer(-1),
    "callbacks.progress": FLAG,
    "callbacks.samples": integer(0),
    "callbacks.hybrid_every": integer(1),
    "callbacks.attention_every": integer(0),
    "callbacks.patience": NULL | integer(1),
    "logger.name": one_of("csv", "wandb", "tensorboard"),
    "logger.project": TEXT,
    "logger.entity": NULL | TEXT,
    "logger.mode": NULL | one_of("online", "offline"),
    "paths.log_dir": TEXT,
    "paths.cache_dir": TEXT,
    "tokenizer.name": TEXT,
    "task.name": one_of(*RECIPES),
    "task.max_steps": integer(1),
    "task.validations": integer(1),
    "task.label_smoothing": number(least=0, below=1),
    "task.rouge_pairs": integer(0, 1000),
    "task.stemmer": FLAG,
    "task.packed": FLAG,
    "task.share": number(above=0, below=1),
    "task.span_weights": Rule(
        lambda v: isinstance(v, list) and all(is_number(w) and w >= 0 for w in v) and sum(v) > 0, "a list of numbers"
    ),
    "task.whole_words": FLAG,
    "task.keep": number(least=0, below=1),
    "task.random": number(least=0, below=1),
    "task.max_query": integer(1),
    "task.stride": integer(1),
    "task.n_best": integer(1),
    "task.max_answer": integer(1),
    "task.no_answer": FLAG,
    "task.null_threshold": Rule(is_number, "numbers"),
    "task.answers": NULL | TEXT,
    "task.min_count": integer(1),
    "decoding.beam_size": integer(1),
    "decoding.length_penalty": number(least=0),
    "decoding.no_repeat_ngram": integer(0),
    "decoding.min_length": integer(1),
    "decoding.max_length": integer(1),
    "data.name": TEXT,
    "data.lowercase": FLAG,
    "data.digits": FLAG,
    "data.max_train": NULL | integer(1),
    "data.max_valid": NULL | integer(1),
    "data.max_test": NULL | integer(1),
    "data.batch_tokens": integer(1),
    "data.num_workers": integer(0),
}


def leaves(cfg: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', value) for every value of a nested dict; what a rule is for is a value, whatever it is."""
    for key, value in cfg.items():
        if isinstance(value, dict) and value and f"{prefix}{key}" not in RULES:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
