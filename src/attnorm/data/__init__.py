"""Data: sources of texts, tokenizers, and the cached, memory-mapped corpus that batching reads.

source = Newswire(train_size=1000)
tokenizer = {"_target_": "attnorm.data.tokenizers.sentencepiece.SentencePiece", "vocab_size": 800}
splits = prepare(source, tokenizer, featurizer, lowercase=True, digits=True, max_rows={}, cache_dir=".cache")
"""

from attnorm.data.featurizer import Featurizer
from attnorm.data.preprocess import Split, describe, prepare
from attnorm.data.sources.base import RowSchema, Source
from attnorm.data.tokenizers.base import Tokenizer, check_tokenizer

__all__ = ["Featurizer", "RowSchema", "Source", "Split", "Tokenizer", "check_tokenizer", "describe", "prepare"]
