"""The command ``mechcore``, also as ``python -m mechcore``."""

from mechcore.cli import main

if __name__ == "__main__":
    main()
