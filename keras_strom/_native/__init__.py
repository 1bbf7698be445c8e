"""The native side: libstrom.so through ctypes, and the TensorFlow ops on top of it.

Nothing is loaded at import; `library.library()` and `ops.operations()` load on first use.
"""
