"""``python -m jafl``: the command of ``jafl/command_line.py``."""

from jafl.command_line import start

if __name__ == "__main__":
    start()
