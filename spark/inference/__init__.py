"""A trained model on the rows of a DataFrame, and what is tried before a training."""
