"""`StromStrategy`, and what Keras's `fit` becomes under it."""
