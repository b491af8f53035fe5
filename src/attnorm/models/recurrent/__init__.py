"""Recurrent models with attention, as in the running examples of "Attention as Inference via Fenchel Duality"."""
