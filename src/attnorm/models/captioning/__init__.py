"""Models that write captions of images, as in the running example of "Attention as Inference via Fenchel Duality".

They have the interface "captioning":

    encode(image, present) -> templates, real    what the image shows, at each place
    decode, new_cache, logits                    as in `attnorm.models.interfaces.Generator`
    forward(image, present, target, owner)       states of the words of captions
"""
