"""The stage of Spark ML: `StromEstimator`, and the `StromModel` that it fits."""
