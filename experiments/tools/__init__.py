"""Tools beside the papers' experiments: benchmarks, and the search for the presets' rates."""
