"""Any tokenizer.json of the library `tokenizers`: BPE of bytes or characters, Unigram, WordPiece, words."""

import json
from collections.abc import Iterable

from attnorm.data.tokenizers.base import UNK, read_pipeline
from attnorm.data.tokenizers.library import LibraryTokenizer
from attnorm.errors import reading

END = "<|endoftext|>"
# The files do not say what a special token is for. These are the names in published models; the first that is there.
PAD = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>")
BOS = ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "<cls>", END)
EOS = ("[SEP]", "</s>", "<eos>", "<|end_of_text|>", "[EOS]", "<sep>", END)
UNKNOWN = ("[UNK]", "<unk>")
MASK = ("[MASK]", "<mask>")
SPACES = ("▁", "Ġ")  # how the space before a word is written in a piece


class HuggingFace(LibraryTokenizer):
    """Pieces of special tokens in a text are ordinary text."""

    FILE = "huggingface.json"
    names = (FILE, "tokenizer.json")
    has_mask = True  # if the file has one

    def __init__(self, content: bytes, name: str = "tokenizer"):
        """Raises DataError for a file of another kind, and for one without pieces."""
        read = self._tokenizer = read_pipeline(content, name)
        read.no_padding()
        read.no_truncation()
        read.encode_special_tokens = True
        vocabulary = read.get_vocab()
        with reading(name, "not a vocabulary"):
            size = 1 + max(vocabulary.values())  # some files have gaps between their ids
            model = json.loads(content)["model"]

        def first(names: Iterable[str]) -> int | None:
            return next((vocabulary[piece] for piece in names if piece in vocabulary), None)

        unknown = model.get("unk_id")  # of Unigram; the other models have its piece
        if unknown is None:
            unknown = first([str(model.get("unk_token")), *UNKNOWN])
        super().__init__(content, size, first(PAD), first(BOS), first(EOS), unknown)
        self.mask_id = first(MASK)
        self._unknown = read.id_to_token(self.unk_id) or ""
        begin = [number for piece, number in vocabulary.items() if piece.startswith(SPACES)]
        within = [number for piece, number in vocabulary.items() if piece.startswith("##") and len(piece) > 2]
        if begin and not within:
            self.starts[:] = False
            self.starts[begin] = True
            self.starts[[*self._outer, self.unk_id, *([] if self.mask_id is None else [self.mask_id])]] = True
        self.starts[within] = False

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "HuggingFace":
        return cls(content, name)

    def token(self, number: int) -> str:
        return super().token(number) or self._tokenizer.id_to_token(number) or UNK

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        # One by one, because encode_batch starts threads, which do not survive the fork of a data worker.
        return [self._tokenizer.encode(word, add_special_tokens=False).ids for word in words]

    def _unknown_characters(self, word: str) -> int:
        encoded = self._tokenizer.encode(word, add_special_tokens=False)
        pairs = zip(encoded.ids, encoded.offsets, strict=True)
        return sum(end - start for number, (start, end) in pairs if number == self.unk_id)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
