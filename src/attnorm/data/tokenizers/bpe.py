"""The byte-level BPE of GPT-2 (Radford et al., 2019, Sec. 2.2), with an existing vocabulary."""

from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from attnorm.data.readers import text as files
from attnorm.data.tokenizers.base import UNK, PipelineTokenizer, file_in, read_pipeline
from attnorm.errors import DataError, reading
from attnorm.schema import Text

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline

END = "<|endoftext|>"
UNUSED = {"pad_id": "ÿ", "unk_id": "þ"}  # the bytes FF and FE, which are never part of UTF-8
SPACE = "Ġ"  # how the space before a word is written in a piece
JSON, PAIR = "tokenizer.json", ("vocab.json", "merges.txt")


class ByteBPE(PipelineTokenizer):
    """Pieces of bytes, so that every word can be represented. Each word is encoded with the space in front of it.

    GPT-2 has a single special token, <|endoftext|>, which is both bos and eos. For padding and for the word <unk>, the
    pieces of two bytes are used that no text contains, so that the size of the vocabulary stays that of the weights.
    """

    FILE = "bpe.json"
    needed = (END, *UNUSED.values())
    before = " "

    def __init__(self, tokenizer: "Pipeline", name: str = "tokenizer"):
        super().__init__(tokenizer, name)
        self.bos_id = self.eos_id = self.vocabulary[END]
        self.pad_id, self.unk_id = (self.vocabulary[piece] for piece in UNUSED.values())
        self.starts[:] = False
        self.starts[[i for piece, i in self.vocabulary.items() if piece.startswith(SPACE)]] = True
        self.starts[[self.bos_id, self.pad_id, self.unk_id]] = True

    @classmethod
    def from_settings(  # type: ignore[override]  # names its options
        cls, draw: Callable[[int | None], Iterable[str]] | None = None, *, file: Text | None = None
    ) -> "ByteBPE":
        """Reads `file`: a tokenizer.json, or a folder with one or with a vocab.json and a merges.txt.

        Raises ValueError.
        """
        assert file is not None  # `check` has asked for one
        path, name = file_in(file, (JSON,)), f"tokenizer.file={file}"
        return cls(_from_pair(path, name) if path.is_dir() else _from_json(path.read_bytes(), name), name)

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """A file that is missing or empty, or has neither format."""
        if (file := options.get("file")) is None:
            return ["tokenizer.file: must name a tokenizer.json, or the folder of a GPT-2 model"]
        key, path = f"tokenizer.file={file}", Path(file)
        if path.is_dir():
            pair = [path / name for name in PAIR]
            if (path / JSON).is_file():
                return []
            if not all(file.is_file() for file in pair):
                return [f"{key}: no {JSON}, and no {' and '.join(PAIR)}, in this folder"]
            return [problem for file in pair for problem in files.file_problem(key, file)]
        return files.file_problem(key, path)

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "ByteBPE":
        return cls(_from_json(content, name), name)

    def decode(self, ids: Iterable[int]) -> str:
        kept = [i for i in map(int, ids) if i not in (self.pad_id, self.bos_id)]
        runs = ((unknown, list(run)) for unknown, run in groupby(kept, key=lambda i: i == self.unk_id))
        text = "".join(f" {UNK}" * len(run) if unknown else self._tokenizer.decode(run) for unknown, run in runs)
        return " ".join(text.split())


def _from_pair(folder: Path, name: str) -> "Pipeline":
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import decoders, models, pre_tokenizers

    with reading(name, f"not a {' and a '.join(PAIR)} of GPT-2"):
        made = Pipeline(models.BPE.from_file(*(str(folder / file) for file in PAIR)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _from_json(content: bytes, name: str) -> "Pipeline":
    from tokenizers import models, pre_tokenizers

    read = read_pipeline(content, name)
    if not (isinstance(read.model, models.BPE) and isinstance(read.pre_tokenizer, pre_tokenizers.ByteLevel)):
        kind = f"this tokenizer is a {type(read.model).__name__}, not the byte-level BPE of GPT-2"
        raise DataError(f"{name}: {kind}; use tokenizer=huggingface")
    return read
