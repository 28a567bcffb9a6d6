"""What everything stands on: errors, files, processes, random keys, and small forms of arithmetic."""
