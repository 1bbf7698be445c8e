"""Rows of a DataFrame on their way to `fit`: columns, export, files, reading."""
