"""Models in plain torch. A model class declares its attention sites and which of them are autoregressive.

A model is named by `_target_` in conf/model/*.yaml. Its options are the fields of its class attribute `Config`, or the
arguments of its constructor. `interface` names what a task can call: a task trains every model with its interface.

    "seq2seq"  encode, decode and logits, as in `seq2seq.Seq2Seq`
    "encoder"  states of tokens, as in `encoder.Encoder`; the task puts a head on it (`bert.py`, `heads.py`)
    "vqa"      scores of answers from a question and views of an image, as in `vqa.base.VqaModel`
"""
