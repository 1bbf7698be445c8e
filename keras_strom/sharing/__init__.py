"""Between an optimizer and a message: what a training step does with its update."""
