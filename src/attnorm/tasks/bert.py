"""Base class of the tasks that train a BERT-shaped encoder on sequences of at most `max_source` tokens."""

import torch
from torch import Tensor

from attnorm.data.featurizer import cut
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.tasks.module import ModelT
from attnorm.tasks.task import ModuleT, Task, Tokens


class EncoderTask(Task[ModelT, ModuleT]):
    """A task whose model is the configured encoder with a head.

    head: the class of the model around the encoder.
    """

    interface, budget = "encoder", (("model.max_source",), "the tokens of the longest possible row")
    head: type[torch.nn.Module]

    def model(self, tokenizer: Tokenizer) -> ModelT:
        return self.build_model(tokenizer, self.head, encoder=self.cfg.model_class)

    @classmethod
    def provides(cls, model: type) -> tuple[str, ...]:
        """Those of the head, which calls the encoder, and of the encoder itself."""
        return (*getattr(cls.head, "provides", ()), *super().provides(model))

    def attended(self, model: ModelT, tokenizer: Tokenizer, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """The model reads [CLS] text [SEP]."""
        [ids], _ = cut(tokenizer.encode([text]), self.cfg.model.max_source - 2)
        ids = [tokenizer.bos_id, *ids, tokenizer.eos_id]
        read = [tokenizer.token(number) for number in ids]
        return (torch.tensor([ids]),), lambda layer: (read, read)
