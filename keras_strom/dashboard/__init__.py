"""One look at a job that runs: its page, its metrics, and `keras-strom status` and `top`.

Everything here runs where the job was started (the launcher, Spark's driver), never in a worker.
"""
