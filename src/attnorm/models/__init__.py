"""Models in plain torch. A model class declares its attention sites and which of them are autoregressive."""

MODELS = {"seq2seq": "attnorm.models.seq2seq:Seq2Seq"}
