"""`python -m keras_strom` is the command `keras-strom`."""

import sys

from keras_strom.cli import main

if __name__ == "__main__":
    sys.exit(main())
