"""A single text where a list of texts is expected is a TypeError: it would be read letter by letter."""

import pytest

from attnorm.analysis.alignment import draw_alignments
from attnorm.analysis.loaded_run import LoadedRun
from attnorm.data.tokenizers.sentencepiece import SentencePiece
from attnorm.skeleton.lab.tokenizer import Characters
from attnorm.tasks.bleu import Scorer
from attnorm.tasks.captioning.metric import CaptionMetric, CiderD
from attnorm.tasks.rouge import Rouge, words_for
from attnorm.tasks.vqa.answers import accuracy

TEXT, TEXTS = "a text", ["a text"]
CALLS = {
    "encode": lambda: Characters("abc").encode(TEXT),
    "unknown": lambda: Characters("abc").unknown(TEXT),
    "train": lambda: SentencePiece.train(TEXT, model_type="bpe", vocab_size=20),
    "words_for": lambda: words_for(TEXT),
    "Rouge": lambda: Rouge(False)(TEXT, list(TEXT)),
    "Rouge, titles": lambda: Rouge(False)(list(TEXT), TEXT),
    "Rouge, references": lambda: Rouge(False).detailed(TEXTS, TEXTS),
    "Scorer": lambda: Scorer(None)(TEXT, list(TEXT)),
    "Scorer, references": lambda: Scorer(None).statistics(list(TEXT), TEXT),
    "Scorer, describe": lambda: Scorer(None).describe(TEXT),
    "CaptionMetric, references": lambda: CaptionMetric(TEXTS),
    "CaptionMetric, captions": lambda: CaptionMetric([TEXTS])(TEXT),
    "CaptionMetric, sums": lambda: CaptionMetric([TEXTS]).sums(TEXT),
    "CiderD, references": lambda: CiderD(TEXTS),
    "CiderD, captions": lambda: CiderD([TEXTS]).each(TEXT),
    "answers": lambda: accuracy("yes", "yes"),
    "draw_alignments": lambda: draw_alignments(None, TEXT),
    "generate": lambda: LoadedRun.generate(None, TEXT),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_single_text_is_refused(name):
    with pytest.raises(TypeError, match="takes a list of texts, not one text"):
        CALLS[name]()
