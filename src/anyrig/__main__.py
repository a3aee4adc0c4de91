"""`python -m anyrig` does what `anyrig` does."""

from anyrig.cli.main import main

if __name__ == "__main__":
    main()
