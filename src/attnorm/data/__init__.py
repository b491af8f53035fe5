"""Data: sources of texts, tokenizers, and the cached, memory-mapped corpus that batching reads.

source = build_source("newswire", train_size=1000)
splits = prepare(source, {"name": "sentencepiece", "vocab_size": 800}, layout,  # such as a PairLayout
                 lowercase=True, digits=True, max_rows={}, cache_dir=".cache")
"""

from attnorm.data.featurizer import Layout
from attnorm.data.preprocess import Split, describe, prepare
from attnorm.data.sources.base import SOURCES, Source, build_source
from attnorm.data.tokenizers.base import TOKENIZERS, Tokenizer, check_tokenizer, load_tokenizer

__all__ = [
    "SOURCES",
    "TOKENIZERS",
    "Layout",
    "Source",
    "Split",
    "Tokenizer",
    "build_source",
    "check_tokenizer",
    "describe",
    "load_tokenizer",
    "prepare",
]
