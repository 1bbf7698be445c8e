"""Processes of a job on one machine: workers, the master, their output."""
