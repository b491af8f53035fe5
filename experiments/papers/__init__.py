"""The figures of "Doubly-Normalized Attention" and "Attention as Inference via Fenchel Duality", drawn anew."""
