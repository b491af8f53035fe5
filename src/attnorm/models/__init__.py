"""Models in plain torch. A model class declares its attention sites and which of them are autoregressive.

Of "bert" the encoder is named: the task chooses the head on it (`masked_lm.py`, `heads.py`).
"""

MODELS = {
    "seq2seq": "attnorm.models.seq2seq:Seq2Seq",
    "bert": "attnorm.models.encoder:Encoder",
    "pythia": "attnorm.models.vqa.pythia:Pythia",
    "mcan": "attnorm.models.vqa.mcan:MCAN",
}
