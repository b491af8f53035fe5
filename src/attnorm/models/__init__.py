"""Models in plain torch. A model class declares its attention sites and whether each of them is autoregressive.

`_target_` in conf/model/*.yaml names the class of a model. Its options are the fields of its class attribute `Config`,
or the arguments of its constructor. `interface` says which methods a task can call, see `interfaces.py`. A
task can train every model that has the interface of the task:

    "seq2seq"    encode, decode, new_cache and logits, as in `seq2seq.Seq2Seq` and `recurrent.seq2seq.LSTMSeq2Seq`
    "encoder"    states of tokens, as in `encoder.Encoder`; the task adds a head (`heads.py`)
    "causal_lm"  scores of the next token at each position of packed texts, as in `gpt.GPT`
    "vqa"        scores of answers from a question and views of an image, as in `vqa.base.VqaModel`
    "captioning" templates of an image, and the states of the words of its captions, as in `captioning.base.Captioner`
    "images"     scores of labels from the pixels of an image, as in `grid.GridClassifier`
    "documents"  scores of labels from tokens and the numbers of their sentences, as in `documents.Flat`
"""
