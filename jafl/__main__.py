"""``python -m jafl``: the command of ``jafl/cli/command_line.py``."""

from jafl.cli.command_line import start

if __name__ == "__main__":
    start()
