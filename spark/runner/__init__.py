"""A function on all executors at once, and what is known of its run."""
