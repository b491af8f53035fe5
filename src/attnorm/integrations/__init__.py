"""attnorm's normalizers in the models of other libraries. Each module imports its library when it is first used."""
