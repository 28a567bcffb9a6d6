"""From settings to experiments: settings, presets, and the objects that they describe."""
