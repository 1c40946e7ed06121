"""`python -m braidlog`: the `braid` command, for this very interpreter."""

from braidlog.cli.main import main

if __name__ == "__main__":
    main()
